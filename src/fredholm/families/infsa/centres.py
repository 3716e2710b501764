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
from typing import NamedTuple

import torch
from torch import Tensor

from ...ops.backend import followed, number
from ...ops.tiles import by_head, heads_apart, root_of
from ...quadrature import Quadrature
from .graph import EdgeOptions, activated, edge_product

POSITIVE = ("relu", "abs")
"""Activations that are never negative."""

Sum = Callable[[Tensor], Tensor]


# Nobody writes to one, but it is not frozen: a frozen class takes three times as long to build.
@dataclass(eq=False)
class Tokens:
    """The tokens that centres are made of, and the options of
    :class:`fredholm.kernels.CentreKernel`.

    Attributes:
        query, key: Q and K, (B, H, N, e).
        energy: e, (B, H, C, N).
        steps, activation, eps: see :class:`fredholm.kernels.CentreKernel`.
    """

    query: Tensor
    key: Tensor
    energy: Tensor
    steps: int = 1
    activation: str = "relu"
    eps: float = 1e-6

    def share(
        self,
        amount: Tensor,
        total: Tensor,
        before: Tensor | None,
    ) -> Tensor:
        """Return amount / (total + ε), and ``before`` where the total is zero."""
        some = total > number(0.0, total)
        if self.eps:
            below = total + number(self.eps, total)
        else:
            # A division by zero gives NaN in the gradient also where its result is not taken.
            below = torch.where(some, total, 1.0)
        if before is None:
            return amount / below * some
        return torch.where(some, amount / below, before)

    def mix(
        self,
        query: Tensor,
        centre: Tensor,
        responses: Tensor,
    ) -> Tensor:
        """Return the mixture of the responses of C centres, (B, H, C, N, ·) to (B, H, N, ·): by a
        softmax of the likeness of each query (B, H, N, e) to each centre (B, H, C, N | 1, e).
        """
        if centre.shape[2] == 1:
            return responses[:, :, 0]
        share = self.mixture(query, centre)
        weighted = share[..., None] * responses
        return weighted.sum(2)

    def mixture(self, query: Tensor, centre: Tensor) -> Tensor:
        """Return the shares of the centres in that mixture, (B, H, C, N)."""
        if centre.shape[3] == 1:
            score = centre[..., 0, :] @ query.mT
        else:
            query = query[:, :, None]
            score = (centre * query).sum(-1)
        scale = query.shape[-1] ** -0.5
        return torch.softmax(score * scale, 2)

    def likeness(self, centre: Tensor) -> Tensor:
        """Return φ of the inner products of each key with a centre at the key's own place, (B, H,
        C, N, e) to (B, H, C, N).
        """
        key = self.key[:, :, None]
        products = (centre * key).sum(-1)
        return activated(products, self.activation)


def lengths(query: Tensor) -> Tensor:
    """Return |Q|, (B, H, N), whose gradient at zero is zero, not infinity."""
    if followed(query):
        return root_of(query.square().sum(-1))
    return torch.linalg.vector_norm(query, dim=-1)


# --- the definitions: every pair in memory at once ------------------------------------------------


def centre_weights(
    tokens: Tokens,
    query: Tensor,
    weights: Tensor,
) -> Tensor:
    """Return densities (B, H, Nq, Nk) of the centres that each query sees through ``weights`` w
    (B | 1, 1 | H, Nq, Nk). O(Nq·Nk).
    """
    w = weights[:, :, None]
    energy = tokens.energy[:, :, :, None]
    total = (w * energy).sum(-1, keepdim=True)
    a = tokens.share(energy, total, None)
    centre = (w * a) @ tokens.query[:, :, None]
    for step in range(tokens.steps):
        if step:
            centre = (w * a) @ tokens.query[:, :, None]
        keys = tokens.key[:, :, None]
        score = activated(centre @ keys.mT, tokens.activation)
        total = (w * score.abs()).sum(-1, keepdim=True)
        a = tokens.share(score, total, a)
    return tokens.mix(query, centre, a)


def stream_weights(
    tokens: Tokens,
    query: Tensor,
    weights: Tensor,
    all_weights: Tensor,
) -> Tensor:
    """Return the same where each key is scored once, against the centre at its own time:
    ``all_weights`` (·, ·, Nk, Nk) are the weights of what each key saw.
    """
    w = weights[:, :, None]
    w_all = all_weights[:, :, None]
    queries = tokens.query[:, :, None]
    score = tokens.energy

    # Shares among the keys that a query sees, and among those that a key saw.
    seen = past = None
    centre = torch.zeros_like(query[:, :, None])
    for level in range(tokens.steps + 1):
        size = score.abs()[:, :, :, None]
        total_seen = (w * size).sum(-1, keepdim=True)
        seen = tokens.share(score[:, :, :, None], total_seen, seen)
        if level == tokens.steps:
            break
        total_past = (w_all * size).sum(-1, keepdim=True)
        past = tokens.share(score[:, :, :, None], total_past, past)
        centre = (w * seen) @ queries
        centre_at_keys = (w_all * past) @ queries
        score = tokens.likeness(centre_at_keys)
    assert seen is not None
    return tokens.mix(query, centre, seen)


# --- the fast forms -------------------------------------------------------------------------------


def alone(x: Tensor) -> Tensor:
    """Return the sum over ranks of a domain that one process has: ``x`` itself."""
    return x


class SharedCentres(NamedTuple):
    """Weights m a (B, H, C, N), and centres (B, H, C, e), which all queries share."""

    weights: Tensor
    centre: Tensor


def shared_centres(
    tokens: Tokens,
    mass: Tensor,
    total: Sum = alone,
) -> SharedCentres:
    """Return centres where all queries see all keys with masses m (B | 1, N). O(N).

    ``total`` turns sums over the points of a rank into sums over those of all ranks.
    """
    b, h, c, n = tokens.energy.shape
    m = mass.view(-1, 1, 1, n)
    score = m * tokens.energy
    query = tokens.query
    key = tokens.key
    multiply = torch.matmul
    flat = not torch.compiler.is_compiling()
    if flat:
        # Samples and heads as one dimension, which takes small problems half the time.
        multiply = torch.bmm
        score = score.flatten(0, 1)
        query = query.flatten(0, 1)
        key = key.flatten(0, 1)
        if m.shape[0] == 1:
            m = m[:, 0]
        else:
            m = m.expand(-1, h, -1, -1)
            m = m.flatten(0, 1)
    key = key.mT

    # At first the scores are energies. They are lengths, and need no magnitude.
    positive = tokens.activation in POSITIVE
    size = score
    a = centre = None
    for _ in range(tokens.steps):
        amount = size.sum(-1, keepdim=True)
        moment = multiply(score, query)
        if total is not alone:
            # Between ranks it is messages that cost: one for both.
            columns = torch.cat([amount, moment], -1)
            sums = total(columns)
            amount = sums[..., :1]
            moment = sums[..., 1:]

        if a is None and tokens.eps:
            # Where there is no amount, scores are zero, and so are the shares.
            below = amount + number(tokens.eps, amount)
            a = score / below
            centre = moment / below
        else:
            a = tokens.share(score, amount, a)
            centre = tokens.share(moment, amount, centre)

        edges = activated(multiply(centre, key), tokens.activation)
        score = m * edges
        size = score
        if not positive:
            size = score.abs()

    amount = total(size.sum(-1, keepdim=True))
    a = tokens.share(score, amount, a)
    assert centre is not None
    if flat:
        a = a.view(b, h, c, n)
        centre = centre.view(b, h, c, query.shape[-1])
    return SharedCentres(a, centre)


def over_points(weights: Tensor, u: Tensor) -> Tensor:
    """Return weighted sums of features over the points, (B, H, C, N) and (B, N, d) to (B, H, C, d):
    one product for all heads.
    """
    if torch.compiler.is_compiling():
        # Flattened, multiplied and unflattened it is right and becomes wrong in ONNX: where H = B,
        # onnxscript's optimiser drops both reshapes and takes heads for samples.
        return torch.einsum("bhcn,bni->bhci", weights, u)
    batch, heads, centres, _ = weights.shape
    rows = weights.flatten(1, 2)
    sums = torch.bmm(rows, u)
    return sums.view(batch, heads, centres, u.shape[2])


def through_heads(x: Tensor, maps: Tensor) -> Tensor:
    """Return a matrix per head (H, o, i) times (B, H, C, i), (B, H, C, o)."""
    if torch.compiler.is_compiling():
        return torch.einsum("bhci,hoi->bhco", x, maps)
    if x.shape[2] == 1:
        row = x.squeeze(2)
        return heads_apart(row, maps).unsqueeze(2)
    return by_head(x, maps)


def rows_of_centres(
    tokens: Tokens,
    value: Tensor,
    quadrature: Quadrature,
    memory: int | None = None,
) -> Tensor:
    """Return the response (B, H, N, d) where an order or pairs give every query its centres. O(N²)
    time, tiled, O(N) memory and ``memory`` bytes of one tile (None: the device's default).
    """
    b, h, c, n = tokens.energy.shape
    q = quadrature
    scale = _scale(q, value)
    density = q.density
    if density is not None and density.shape[1] > 1 and c > 1:
        density = density.repeat_interleave(c, 1)

    # Pools of queries and values side by side, of which the centre is the first part.
    width = tokens.query.shape[-1]
    both = torch.cat([tokens.query, value], -1)
    mass = q.mass[:, None, None, :, None]
    energy = tokens.energy[..., None]
    weighted = mass * energy
    total = scale * _seen(q, weighted)
    columns = both[:, :, None]
    sums = scale * _seen(q, weighted * columns)

    pool = tokens.share(sums, total, None)
    centre = pool[..., :width]

    # Heads and centres are one dimension of the op, which goes over the pairs tile by tile.
    key = tokens.key[:, :, None]
    key = key.expand(b, h, c, n, width)
    key = key.flatten(1, 2)
    causal = q.query_time is not None
    options = EdgeOptions(
        causal=causal,
        activation=tokens.activation,
        statistic="sums",
        memory=memory,
    )
    for step in range(tokens.steps):
        centre = pool[..., :width]
        if step == tokens.steps - 1:
            # The last step pools values alone: no further centre is made.
            both = value
            pool = pool[..., width:]
        mass = q.mass[:, None, :, None]
        massive = (mass * both)[:, :, None]
        massive = massive.expand(b, h, c, n, -1)
        massive = massive.flatten(1, 2)
        product, row = edge_product(
            centre.flatten(1, 2),
            key,
            massive,
            q.mass,
            density,
            options,
        )
        product = product.unflatten(1, (h, c))
        row = row.unflatten(1, (h, c))
        row = row[..., None]

        pool = tokens.share(
            scale * product,
            scale * row,
            pool,
        )
    return tokens.mix(tokens.query, centre, pool)


def _scale(quadrature: Quadrature, like: Tensor) -> Tensor:
    """Return the measure's normalisation as a factor of (B, H, C, N, ·), one where it has none."""
    if quadrature.scale is None:
        return torch.ones(
            (),
            dtype=like.dtype,
            device=like.device,
        )
    return quadrature.scale[:, :, None, :, None]


def _seen(quadrature: Quadrature, x: Tensor) -> Tensor:
    """Return sums of x (B, H, C, N, ·) over the keys each query sees, with the pair density."""
    density = quadrature.density
    if density is None:
        return running_sum(x)
    if quadrature.query_time is not None:
        density = density.tril()
    return density[:, :, None] @ x


def running_sum(x: Tensor) -> Tensor:
    """Return the sums of x (B, H, C, N, ·) up to each point."""
    return x.cumsum(3)


def streamed_centres(
    tokens: Tokens,
    value: Tensor,
    quadrature: Quadrature,
    running: Sum = running_sum,
) -> Tensor:
    """Return the causal response (B, H, N, d) where each key is scored once, at its own time:
    running sums, O(N).
    """
    width = tokens.query.shape[-1]
    mass = quadrature.mass[:, None, None]
    scale = _scale(quadrature, value)
    # Queries and values side by side: the first part of their means is the next centre.
    both = torch.cat([tokens.query, value], -1)
    both = both[:, :, None]
    score = tokens.energy
    pool = None
    centre = tokens.query[:, :, None]
    for level in range(tokens.steps + 1):
        weighted = (mass * score)[..., None]
        total = scale * running(weighted.abs())
        sums = scale * running(weighted * both)
        pool = tokens.share(sums, total, pool)
        if level < tokens.steps:
            centre = pool[..., :width]
            score = tokens.likeness(centre)
    assert pool is not None
    response = pool[..., width:]
    return tokens.mix(tokens.query, centre, response)


class Stream(NamedTuple):
    """The state of a stream after some points.

    Attributes:
        sums: of queries and values, (B, H, C, steps + 1, e + d).
        totals: of magnitudes, (B, H, C, steps + 1).
    """

    sums: Tensor
    totals: Tensor


class StreamPoint(NamedTuple):
    """The response at one point (B, H, d), and the state after it."""

    response: Tensor
    after: Stream


def advance_stream(
    tokens: Tokens,
    value: Tensor,
    mass: Tensor,
    scale: Tensor | None,
    before: Stream,
) -> StreamPoint:
    """Return one more point of :func:`streamed_centres`: tokens of one point (N = 1), its mass
    (B | 1,) and scale (B | 1, 1 | H).
    """
    width = tokens.query.shape[-1]
    both = torch.cat([tokens.query, value], -1)
    if scale is None:
        factor = torch.ones(
            (),
            dtype=value.dtype,
            device=value.device,
        )
    else:
        factor = scale[:, :, None, None]

    score = tokens.energy
    pool = None
    sums = []
    totals = []
    centre = tokens.query[:, :, None, 0]
    for level in range(tokens.steps + 1):
        # (B, H, C, 1)
        weighted = mass[:, None, None, None] * score
        sum_before = before.sums[..., level, :]
        level_sum = sum_before + weighted * both
        size = weighted[..., 0].abs()
        level_total = before.totals[..., level] + size
        sums.append(level_sum)
        totals.append(level_total)

        mean_sum = factor * level_sum
        mean_total = factor * level_total[..., None]
        pool = tokens.share(mean_sum, mean_total, pool)
        if level < tokens.steps:
            centre = pool[..., :width]
            products = centre * tokens.key
            products = products.sum(-1, keepdim=True)
            score = activated(products, tokens.activation)

    assert pool is not None
    after = Stream(
        sums=torch.stack(sums, -2),
        totals=torch.stack(totals, -1),
    )
    centre = centre[..., None, :]
    response = pool[..., None, width:]
    response = tokens.mix(tokens.query, centre, response)
    return StreamPoint(response[:, :, 0], after)
