"""Weights by a central query: one step (or some) towards the leading eigenvector of the graph, in
O(N).

Every form starts from energies e and repeats, for a query's weights w over what it sees,

    a = e / (Σ w e + ε),      c = Σ w a Q,      a = φ(c·K) / (Σ w |φ(c·K)| + ε)     where that sum
    is not zero.

Shapes: Q, K (B, H, N, e), V (B, H, N, d), energies (B, H, C, N) for C centres per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...ops.backend import followed, number
from ...ops.tiles import by_head, heads_apart, root_of
from ...quadrature import Quadrature
from .graph import activated, edge_product

POSITIVE = ("relu", "abs")  # activations that are never negative


@dataclass(eq=False)  # nobody writes to one; a frozen class takes three times as long to build
class Tokens:
    """What the centres are made of, and how: Q, K, the energies, and the options of
    :class:`fredholm.kernels.CentreKernel`.
    """

    query: Tensor
    key: Tensor
    energy: Tensor
    steps: int = 1
    activation: str = "relu"
    eps: float = 1e-6

    def share(self, amount: Tensor, total: Tensor, before: Tensor | None) -> Tensor:
        """amount / (total + ε), and ``before`` where the total is zero."""
        some = total > number(0.0, total)
        # without ε nothing may be divided by zero, also where the quotient is not taken
        below = total + number(self.eps, total) if self.eps else torch.where(some, total, 1.0)
        return (
            amount / below * some if before is None else torch.where(some, amount / below, before)
        )

    def mixture(self, query: Tensor, centre: Tensor) -> Tensor | None:
        """How much each of C centres (B, H, C, Nq | 1, e) gives to a query (B, H, Nq, e): (B, H, C,
        Nq), or None for one.
        """
        count = centre.shape[2]
        if count == 1:
            return None
        if centre.shape[3] == 1:
            score = centre[..., 0, :] @ query.mT
        else:
            score = (centre * query[:, :, None]).sum(-1)
        return torch.softmax(score * query.shape[-1] ** -0.5, 2)


def lengths(query: Tensor) -> Tensor:
    """|Q|, (B, H, N), with gradient zero, not infinity, at zero."""
    if followed(query):
        return root_of(query.square().sum(-1))
    return torch.linalg.vector_norm(query, dim=-1)


# --- the definitions: every pair in memory at once ------------------------------------------------


def centre_weights(tokens: Tokens, query: Tensor, weights: Tensor) -> Tensor:
    """Densities (B, H, Nq, Nk) of the centres that each query sees through ``weights`` w (B | 1, 1
    | H, Nq, Nk). O(Nq·Nk).
    """
    w = weights[:, :, None]
    total = (w * tokens.energy[:, :, :, None]).sum(-1, keepdim=True)
    a = tokens.share(tokens.energy[:, :, :, None], total, None)
    centre = (w * a) @ tokens.query[:, :, None]
    for step in range(tokens.steps):
        if step:
            centre = (w * a) @ tokens.query[:, :, None]
        score = activated(centre @ tokens.key[:, :, None].mT, tokens.activation)
        a = tokens.share(score, (w * score.abs()).sum(-1, keepdim=True), a)
    mixture = tokens.mixture(query, centre)
    return a[:, :, 0] if mixture is None else (mixture[..., None] * a).sum(2)


def stream_weights(tokens: Tokens, query: Tensor, weights: Tensor, all_weights: Tensor) -> Tensor:
    """The same where each key is scored once, against the centre at its own time: ``all_weights``
    (·, ·, Nk, Nk) are its views.
    """
    score = tokens.energy
    seen = past = None  # shares among the keys a query sees, and among those a key saw
    centre = torch.zeros_like(query[:, :, None])
    for level in range(tokens.steps + 1):
        sums = [
            (w[:, :, None] * score.abs()[:, :, :, None]).sum(-1, keepdim=True)
            for w in (weights, all_weights)
        ]
        seen = tokens.share(score[:, :, :, None], sums[0], seen)
        if level == tokens.steps:
            break
        past = tokens.share(score[:, :, :, None], sums[1], past)
        centre = (weights[:, :, None] * seen) @ tokens.query[:, :, None]
        centres = (all_weights[:, :, None] * past) @ tokens.query[:, :, None]
        score = activated((centres * tokens.key[:, :, None]).sum(-1), tokens.activation)
    assert seen is not None
    mixture = tokens.mixture(query, centre)
    return seen[:, :, 0] if mixture is None else (mixture[..., None] * seen).sum(2)


# --- the fast forms -------------------------------------------------------------------------------


Sum = Callable[[Tensor], Tensor]


def alone(x: Tensor) -> Tensor:
    """The sum over ranks of a domain that one process has."""
    return x


def shared_centres(tokens: Tokens, mass: Tensor, total: Sum = alone) -> tuple[Tensor, Tensor]:
    """Where all queries see all keys with masses m (B | 1, N): weights m a (B, H, C, N), and
    centres (B, H, C, e). O(N). ``total`` adds up what sums over points become on each rank.
    """
    m = mass.view(-1, 1, 1, mass.shape[-1])
    score, a, centre = m * tokens.energy, None, None
    b, h = score.shape[:2]
    multiply, query, key = torch.matmul, tokens.query, tokens.key.mT
    apart = not torch.compiler.is_compiling()
    if apart:  # samples and heads as one dimension, which takes small problems half the time
        multiply = torch.bmm
        m = m[:, 0] if m.shape[0] == 1 else m.expand(-1, h, -1, -1).flatten(0, 1)
        score, query, key = score.flatten(0, 1), query.flatten(0, 1), tokens.key.flatten(0, 1).mT
    for step in range(tokens.steps):
        size = score if not step or tokens.activation in POSITIVE else score.abs()
        amount, moment = size.sum(-1, keepdim=True), multiply(score, query)
        if total is not alone:  # between ranks it is messages that cost: one for both
            sums = total(torch.cat([amount, moment], -1))
            amount, moment = sums[..., :1], sums[..., 1:]
        if a is None and tokens.eps:  # where there is no amount, nothing is shared either
            below = amount + number(tokens.eps, amount)
            a, centre = score / below, moment / below
        else:
            a = tokens.share(score, amount, a)
            centre = tokens.share(moment, amount, centre)
        score = m * activated(multiply(centre, key), tokens.activation)
    assert centre is not None
    size = score if tokens.activation in POSITIVE else score.abs()
    a = tokens.share(score, total(size.sum(-1, keepdim=True)), a)
    if apart:
        a, centre = a.view(b, h, *a.shape[1:]), centre.view(b, h, *centre.shape[1:])
    return a, centre


def over_points(weights: Tensor, u: Tensor) -> Tensor:
    """Weights (B, H, C, N) of features (B, N, d): (B, H, C, d), one product for all heads."""
    if torch.compiler.is_compiling():
        # Flattened, multiplied and unflattened it is right and becomes wrong in ONNX: where H = B,
        # onnxscript's optimiser drops both reshapes and takes heads for samples.
        return torch.einsum("bhcn,bni->bhci", weights, u)
    return torch.bmm(weights.flatten(1, 2), u).view(*weights.shape[:3], u.shape[2])


def through_heads(x: Tensor, maps: Tensor) -> Tensor:
    """A matrix per head (H, o, i) on (B, H, C, i), (B, H, C, o)."""
    if torch.compiler.is_compiling():
        return torch.einsum("bhci,hoi->bhco", x, maps)
    if x.shape[2] == 1:
        return heads_apart(x.squeeze(2), maps).unsqueeze(2)
    return by_head(x, maps)


def rows_of_centres(tokens: Tokens, value: Tensor, quadrature: Quadrature) -> Tensor:
    """Response (B, H, N, d) where an order or pairs give every query its centres. O(N²)
    time, tiled, O(N) memory.
    """
    b, h, c, n = tokens.energy.shape
    e, q = tokens.query.shape[-1], quadrature
    both = torch.cat([tokens.query, value], -1)
    scale = (
        torch.ones((), dtype=value.dtype, device=value.device)
        if q.scale is None
        else q.scale[:, :, None, :, None]
    )
    weighted = q.mass[:, None, None, :, None] * tokens.energy[..., None]
    total = scale * _seen(q, weighted)
    pool = tokens.share(scale * _seen(q, weighted * both[:, :, None]), total, None)
    key = tokens.key[:, :, None].expand(b, h, c, n, e).flatten(1, 2)
    density = q.density
    if density is not None and density.shape[1] > 1 and c > 1:
        density = density.repeat_interleave(c, 1)
    options = {
        "causal": q.query_time is not None,
        "activation": tokens.activation,
        "statistic": "sums",
    }
    centre = pool[..., :e]
    for step in range(tokens.steps):
        centre = pool[..., :e]
        if step == tokens.steps - 1:
            both, pool = value, pool[..., e:]
        massive = (q.mass[:, None, :, None] * both)[:, :, None].expand(b, h, c, n, -1).flatten(1, 2)
        product, row = edge_product(centre.flatten(1, 2), key, massive, q.mass, density, **options)
        product, row = product.unflatten(1, (h, c)), row.unflatten(1, (h, c))[..., None]
        pool = tokens.share(scale * product, scale * row, pool)
    mixture = tokens.mixture(tokens.query, centre)
    return pool[:, :, 0] if mixture is None else (mixture[..., None] * pool).sum(2)


def _seen(quadrature: Quadrature, x: Tensor) -> Tensor:
    """Sum of x (B, H, C, N, ·) over the keys each query sees, with the pair density."""
    if quadrature.density is None:
        return x.cumsum(3)
    density = quadrature.density.tril() if quadrature.query_time is not None else quadrature.density
    return density[:, :, None] @ x


def running_sum(x: Tensor) -> Tensor:
    """The sums of x (B, H, C, N, ·) up to each point."""
    return x.cumsum(3)


def streamed_centres(
    tokens: Tokens, value: Tensor, quadrature: Quadrature, running: Sum = running_sum
) -> Tensor:
    """Causal response (B, H, N, d) where each key is scored once, at its own time: running sums,
    O(N).
    """
    e, q = tokens.query.shape[-1], quadrature
    both = torch.cat([tokens.query, value], -1)[:, :, None]
    scale = (
        torch.ones((), dtype=value.dtype, device=value.device)
        if q.scale is None
        else q.scale[:, :, None, :, None]
    )
    score, pool = tokens.energy, None
    centre = tokens.query[:, :, None]
    for level in range(tokens.steps + 1):
        weighted = (q.mass[:, None, None] * score)[..., None]
        total = scale * running(weighted.abs())
        pool = tokens.share(scale * running(weighted * both), total, pool)
        if level < tokens.steps:
            centre = pool[..., :e]
            score = activated((centre * tokens.key[:, :, None]).sum(-1), tokens.activation)
    assert pool is not None
    pool, mixture = pool[..., e:], tokens.mixture(tokens.query, centre)
    return pool[:, :, 0] if mixture is None else (mixture[..., None] * pool).sum(2)


def advance_stream(
    tokens: Tokens, value: Tensor, mass: Tensor, scale: Tensor | None, sums: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One more point of :func:`streamed_centres`: tokens of one point (N = 1), its mass (B | 1,)
    and scale (B | 1, 1 | H).

    Sums (B, H, C, steps + 1, e + d) and totals (B, H, C, steps + 1) are the state; returns the
    response (B, H, d) and the state after it.
    """
    e = tokens.query.shape[-1]
    both = torch.cat([tokens.query, value], -1)
    s = (
        torch.ones((), dtype=value.dtype, device=value.device)
        if scale is None
        else scale[:, :, None, None]
    )
    score, pool, new_sums, new_totals = tokens.energy, None, [], []
    centre = tokens.query[:, :, None, 0]
    for level in range(tokens.steps + 1):
        weighted = mass[:, None, None, None] * score  # (B, H, C, 1)
        new_sums.append(sums[..., level, :] + weighted * both)
        new_totals.append(totals[..., level] + weighted[..., 0].abs())
        pool = tokens.share(s * new_sums[-1], s * new_totals[-1][..., None], pool)
        if level < tokens.steps:
            centre = pool[..., :e]
            score = activated((centre * tokens.key).sum(-1, keepdim=True), tokens.activation)
    assert pool is not None
    pool, mixture = pool[..., e:], tokens.mixture(tokens.query, centre[..., None, :])
    out = pool[:, :, 0] if mixture is None else (mixture * pool).sum(2)
    return out, torch.stack(new_sums, -2), torch.stack(new_totals, -1)
