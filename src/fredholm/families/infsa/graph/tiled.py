"""The product with the edges of a token graph, tile by tile, forward and backward: nothing of size
Nq × Nk is kept.

With S = q·k, P = ρ φ(S) (zero after the query in causal order), G the gradient of the product, g
that of the row statistic and m the masses in it, a tile's gradients are

    dV = Pᵀ G      dP = G Vᵀ + 2 g m P   (or + g m sign P)      dS = ρ φ'(S) dP      dq = dS k
    dk = dSᵀ q
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.tiles import ACTIVATIONS as POINTWISE
from ....ops.tiles import Activation, Scratch, Span, cut, find_activation, groups, spans

KEY_TILE = 512


# φ of an edge: the three of the paper's Table 4
ACTIVATIONS: dict[str, Activation] = {
    "relu": POINTWISE["relu"],
    "gelu": POINTWISE["gelu"],
    "abs": Activation(torch.abs, torch.abs_, lambda g, s: g.mul_(s.sign())),
}


def activated(scores: Tensor, activation: str) -> Tensor:
    """φ(scores) for an activation of :data:`ACTIVATIONS`.

    Raises:
        OptionError: an unknown activation.

    Example:
        >>> activated(torch.tensor([-1.0, 2.0]), "abs").tolist()
        [1.0, 2.0]
    """
    return find_activation(activation, ACTIVATIONS).function(scores)


class Inputs(NamedTuple):
    """Tensors of one product: (B, H, Nq, e), (B, H, Nk, e), (B, H, Nk, d), (B | 1, Nk | 1), (B | 1,
    H | 1, Nq, Nk) or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mass: Tensor
    density: Tensor | None


@dataclass(frozen=True)
class Plan:
    """Tile sizes: ``group`` (batch, head) pairs × ``queries`` × ``keys``."""

    group: int
    queries: int
    keys: int

    @staticmethod
    def make(x: Inputs, memory: int) -> Plan:
        b, h, nq, _ = x.query.shape
        elements = max(1, memory // x.query.element_size())
        keys = max(1, min(x.key.shape[2], KEY_TILE, elements))
        queries = max(1, min(nq, elements // keys))
        return Plan(min(b * h, max(1, elements // (queries * keys))), queries, keys)

    @property
    def size(self) -> int:
        return self.group * self.queries * self.keys


@dataclass
class Tile:
    """One group's queries ``q`` against its keys ``k``; tensors of a group are (g, N, ·), views of
    the whole.
    """

    x: Inputs
    chunk: tuple[Span, Span]
    q: Span
    k: Span
    causal: bool

    @property
    def on_diagonal(self) -> bool:
        return self.causal and self.k.stop > self.q.start + 1

    def queries(self, tensor: Tensor) -> Tensor:
        return tensor[self.chunk][:, :, self.q].flatten(0, 1)

    def keys(self, tensor: Tensor) -> Tensor:
        return tensor[self.chunk][:, :, self.k].flatten(0, 1)

    def mass(self) -> Tensor:
        """Masses in the row statistic, (b | 1, 1, 1, Tk | 1)."""
        mass = cut(self.x.mass, self.chunk[0], slice(None))
        return (mass if mass.shape[1] == 1 else mass[:, self.k])[:, None, None, :]

    def hide(self, pairs: Tensor) -> None:
        """Multiply (b, h, Tq, Tk) with the density, and zero what comes after the query."""
        if self.x.density is not None:
            pairs.mul_(cut(self.x.density, *self.chunk)[:, :, self.q, self.k])
        if self.on_diagonal:
            pairs.tril_(self.q.start - self.k.start)

    def shape(self) -> tuple[int, int, int, int]:
        (b, h), q, k = self.chunk, self.q, self.k
        return b.stop - b.start, h.stop - h.start, q.stop - q.start, k.stop - k.start


def tiles(x: Inputs, causal: bool, plan: Plan):
    """All tiles but those wholly after their queries: groups outermost, then queries, then keys.

    Keys innermost keep one block of results in the cache while it is added to.
    """
    b, h, nq, _ = x.query.shape
    for chunk in groups(b, h, plan.group, b):
        for q in spans(0, nq, plan.queries):
            for k in spans(0, min(q.stop, x.key.shape[2]) if causal else x.key.shape[2], plan.keys):
                yield Tile(x, chunk, q, k, causal)


def forward_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    """:func:`forward` of the op's arguments, outside autocast."""
    x = Inputs(*arguments[:5])
    with full_precision(x.value):
        return forward(x, *arguments[5:])


def forward(
    x: Inputs, causal: bool, activation: str, statistic: str, memory: int
) -> tuple[Tensor, Tensor]:
    """Product (B, H, Nq, d) and row statistic (B, H, Nq); see :func:`edge_product`."""
    b, h, nq, _ = x.query.shape
    out, row = x.value.new_zeros(b, h, nq, x.value.shape[3]), x.value.new_zeros(b, h, nq)
    if 0 in (b, h, nq, x.key.shape[2]):
        return out, row
    x, plan, act = _contiguous(x), Plan.make(x, memory), find_activation(activation, ACTIVATIONS)
    scratch = Scratch(x.value, plan.size)
    for tile in tiles(x, causal, plan):
        pairs = scratch.view(*tile.shape())
        flat = pairs.flatten(0, 1)
        torch.bmm(tile.queries(x.query), tile.keys(x.key).mT, out=flat)
        act.apply_(pairs)
        tile.hide(pairs)
        if x.value.shape[3]:
            tile.queries(out).baddbmm_(flat, tile.keys(x.value))
        if statistic != "none":
            row[tile.chunk][:, :, tile.q] += _statistic(pairs, tile.mass(), statistic)
    return out, row


def _contiguous(x: Inputs) -> Inputs:
    """Heads side by side in memory, so that a group's matrices are views. O(N) memory; the density
    stays as it is.
    """
    return x._replace(
        query=x.query.contiguous(), key=x.key.contiguous(), value=x.value.contiguous()
    )


def _statistic(pairs: Tensor, mass: Tensor, statistic: str) -> Tensor:
    """Σ m P² or Σ m |P| of a tile (b, h, Tq, Tk), which is overwritten where masses differ."""
    order = 2 if statistic == "squares" else 1
    if mass.shape[-1] == 1:
        return torch.linalg.vector_norm(pairs, order, -1).pow_(order) * mass[..., 0]
    magnitude = pairs.square_() if order == 2 else pairs.abs_()
    return (magnitude @ mass.mT)[..., 0]


def backward(
    grad: Tensor,
    row_grad: Tensor,
    x: Inputs,
    causal: bool,
    activation: str,
    statistic: str,
    memory: int,
    needs: list[bool],
) -> list[Tensor]:
    """Gradients of the inputs marked in ``needs``, in the order of :class:`Inputs`."""
    grads = [
        torch.zeros_like(t, memory_format=torch.contiguous_format) if n and t is not None else None
        for n, t in zip(needs, x)
    ]
    if 0 not in (*x.query.shape[:3], x.key.shape[2]):
        x, grad, plan = _contiguous(x), grad.contiguous(), Plan.make(x, memory)
        scratch = [Scratch(x.value, plan.size) for _ in range(3)]
        for tile in tiles(x, causal, plan):
            _gradients(tile, grad, row_grad, activation, statistic, Inputs(*grads), scratch)  # type: ignore[arg-type]
    return [g for g in grads if g is not None]


def _gradients(
    tile: Tile,
    grad: Tensor,
    row_grad: Tensor,
    activation: str,
    statistic: str,
    g: Inputs,
    scratch: list[Scratch],
) -> None:
    """Add one tile's share to the gradients in ``g``."""
    x, act, shape = tile.x, find_activation(activation, ACTIVATIONS), tile.shape()
    scores = scratch[0].view(*shape)
    torch.bmm(tile.queries(x.query), tile.keys(x.key).mT, out=scores.flatten(0, 1))
    raw = scores  # φ(S); ReLU's slope can be read from its value, so that it needs no second buffer
    if activation != "relu":
        raw = scratch[2].view(*shape).copy_(scores)
    act.apply_(raw)
    above = tile.queries(grad)
    pairs = raw
    if g.density is not None:  # a density's gradient needs φ(S) without the density
        pairs = raw.clone()
    tile.hide(pairs)
    if g.value is not None and x.value.shape[3]:
        tile.keys(g.value).baddbmm_(pairs.flatten(0, 1).mT, above)
    up = scratch[1].view(*shape)
    torch.bmm(above, tile.keys(x.value).mT, out=up.flatten(0, 1))
    if statistic != "none":
        _statistic_gradient(tile, pairs, up, row_grad[tile.chunk][:, :, tile.q], statistic, g.mass)
    if g.density is not None:
        _density_gradient(tile, g.density, raw, up)
    tile.hide(up)
    act.gradient_(up, scores)
    slope = up.flatten(0, 1)
    if g.query is not None:
        tile.queries(g.query).baddbmm_(slope, tile.keys(x.key))
    if g.key is not None:
        tile.keys(g.key).baddbmm_(slope.mT, tile.queries(x.query))


def _statistic_gradient(
    tile: Tile,
    pairs: Tensor,
    up: Tensor,
    row_grad: Tensor,
    statistic: str,
    mass_grad: Tensor | None,
) -> None:
    """Add the row statistic's gradient to ``up``, and the masses' to ``mass_grad``."""
    mass, rate = tile.mass(), row_grad[..., None]
    slope, size = (
        (pairs * 2, pairs.square()) if statistic == "squares" else (pairs.sign(), pairs.abs())
    )
    up.addcmul_(
        slope if mass.shape[-1] == 1 else slope * mass, rate * mass if mass.shape[-1] == 1 else rate
    )
    if mass_grad is not None:
        share = (size * rate).sum((1, 2))  # (b, Tk)
        whole = cut(mass_grad, tile.chunk[0], slice(None))
        target = whole if whole.shape[1] == 1 else whole[:, tile.k]
        shared = [i for i in (0, 1) if target.shape[i] == 1 and share.shape[i] != 1]
        target.add_(share.sum(shared, keepdim=True) if shared else share)


def _density_gradient(tile: Tile, density_grad: Tensor, raw: Tensor, up: Tensor) -> None:
    part = raw * up
    if tile.on_diagonal:
        part.tril_(tile.q.start - tile.k.start)
    target = cut(density_grad, *tile.chunk)[:, :, tile.q, tile.k]
    shared = [i for i in (0, 1) if target.shape[i] == 1 and part.shape[i] != 1]
    target.add_(part.sum(shared, keepdim=True) if shared else part)
