"""The product with the edges of a token graph, tile by tile, forward and backward: nothing of size
Nq × Nk is kept.

With S = q·k, P = ρ φ(S) (zero after the query in causal order), G the gradient of the product, g
that of the row statistic and m the masses in it, a tile's gradients are

    dV = Pᵀ G      dP = G Vᵀ + 2 g m P   (or + g m sign P)      dS = ρ φ'(S) dP      dq = dS k
    dk = dSᵀ q
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.tiles import ACTIVATIONS as POINTWISE
from ....ops.tiles import (
    Activation,
    Scratch,
    Span,
    add_shared,
    cut,
    find_activation,
    groups,
    spans,
)

KEY_TILE = 512
"""The most keys of a tile."""

# φ of an edge: the three of the paper's Table 4.
ACTIVATIONS: dict[str, Activation] = {
    "relu": POINTWISE["relu"],
    "gelu": POINTWISE["gelu"],
    "abs": Activation(
        torch.abs,
        torch.abs_,
        lambda g, s: g.mul_(s.sign()),
    ),
}


def activated(scores: Tensor, activation: str) -> Tensor:
    """Return φ(scores) for an activation of :data:`ACTIVATIONS`.

    Raises:
        OptionError: an unknown activation.

    Example:
        >>> activated(torch.tensor([-1.0, 2.0]), "abs").tolist()
        [1.0, 2.0]
    """
    return find_activation(activation, ACTIVATIONS).function(scores)


class Inputs(NamedTuple):
    """Tensors of one product, or their gradients.

    Attributes:
        query, key, value: (B, H, Nq, e), (B, H, Nk, e) and (B, H, Nk, d).
        mass: masses in the row statistic, (B | 1, Nk | 1).
        density: ρ, (B | 1, H | 1, Nq, Nk), or None.
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
        """Return sizes that fit ``memory`` bytes: keys first, then queries, then pairs."""
        b, h, nq, _ = x.query.shape
        nk = x.key.shape[2]
        elements = max(1, memory // x.query.element_size())
        keys = max(1, min(nk, KEY_TILE, elements))
        queries = max(1, min(nq, elements // keys))
        group = max(1, elements // (queries * keys))
        return Plan(min(b * h, group), queries, keys)

    @property
    def size(self) -> int:
        """Number of pairs of a tile."""
        return self.group * self.queries * self.keys


@dataclass
class Tile:
    """One group's queries ``q`` against its keys ``k``; tensors of a group are (g, N, ·), views of
    the tensors of all.
    """

    x: Inputs
    chunk: tuple[Span, Span]
    q: Span
    k: Span
    causal: bool

    @property
    def on_diagonal(self) -> bool:
        """Whether some of the keys come after some of the queries."""
        return self.causal and self.k.stop > self.q.start + 1

    def queries(self, tensor: Tensor) -> Tensor:
        """Return the tile's rows of a tensor of all queries."""
        of_chunk = tensor[self.chunk]
        rows = of_chunk[:, :, self.q]
        return rows.flatten(0, 1)

    def keys(self, tensor: Tensor) -> Tensor:
        """Return the tile's rows of a tensor of all keys."""
        of_chunk = tensor[self.chunk]
        rows = of_chunk[:, :, self.k]
        return rows.flatten(0, 1)

    def key_masses(self, mass: Tensor) -> Tensor:
        """Return the tile's part of a tensor of masses, (b | 1, Tk | 1)."""
        every = slice(None)
        mass = cut(mass, self.chunk[0], every)
        if mass.shape[1] > 1:
            mass = mass[:, self.k]
        return mass

    def mass(self) -> Tensor:
        """Return the masses in the row statistic, (b | 1, 1, 1, Tk | 1)."""
        mass = self.key_masses(self.x.mass)
        return mass[:, None, None, :]

    def density(self, density: Tensor) -> Tensor:
        """Return the tile's part of a density, (b | 1, h | 1, Tq, Tk)."""
        of_chunk = cut(density, *self.chunk)
        return of_chunk[:, :, self.q, self.k]

    def hide_later(self, pairs: Tensor) -> None:
        """Zero the pairs (b, h, Tq, Tk) whose key comes after the query."""
        if self.on_diagonal:
            pairs.tril_(self.q.start - self.k.start)

    def hide(self, pairs: Tensor) -> None:
        """Multiply pairs with the density, and zero those whose key comes after the query."""
        if self.x.density is not None:
            pairs.mul_(self.density(self.x.density))
        self.hide_later(pairs)

    def shape(self) -> tuple[int, int, int, int]:
        """Return the numbers of samples, heads, queries and keys, (b, h, Tq, Tk)."""
        b, h = self.chunk
        q = self.q
        k = self.k
        return (
            b.stop - b.start,
            h.stop - h.start,
            q.stop - q.start,
            k.stop - k.start,
        )


def tiles(
    x: Inputs,
    causal: bool,
    plan: Plan,
) -> Iterator[Tile]:
    """Yield all tiles but those wholly after their queries: groups outermost, then queries, then
    keys.

    Keys innermost keep one block of results in the cache while it is added to.
    """
    b, h, nq, _ = x.query.shape
    for chunk in groups(b, h, plan.group, b):
        for q in spans(0, nq, plan.queries):
            end = x.key.shape[2]
            if causal:
                end = min(q.stop, end)
            for k in spans(0, end, plan.keys):
                yield Tile(x, chunk, q, k, causal)


def _contiguous(x: Inputs) -> Inputs:
    """Return inputs with heads side by side in memory, so that a group's matrices are views. O(N)
    memory; the density stays as it is.
    """
    return x._replace(
        query=x.query.contiguous(),
        key=x.key.contiguous(),
        value=x.value.contiguous(),
    )


# --- forward --------------------------------------------------------------------------------------


def forward_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return :func:`forward` of the op's arguments, outside autocast.

    Its first five arguments are the tensors of :class:`Inputs`, and the others the options.
    """
    x = Inputs(*arguments[:5])
    with full_precision(x.value):
        return forward(x, *arguments[5:])


def forward(
    x: Inputs,
    causal: bool,
    activation: str,
    statistic: str,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """Return the product (B, H, Nq, d) and row statistic (B, H, Nq); see :func:`edge_product`."""
    b, h, nq, _ = x.query.shape
    _, _, nk, d = x.value.shape
    out = x.value.new_zeros(b, h, nq, d)
    row = x.value.new_zeros(b, h, nq)
    if 0 in (b, h, nq, nk):
        return out, row
    x = _contiguous(x)
    plan = Plan.make(x, memory)
    act = find_activation(activation, ACTIVATIONS)

    # One tile of pairs is in memory, (b, h, Tq, Tk), and every tile overwrites it.
    scratch = Scratch(x.value, plan.size)
    for tile in tiles(x, causal, plan):
        pairs = scratch.view(*tile.shape())
        flat = pairs.flatten(0, 1)
        key = tile.keys(x.key)
        torch.bmm(
            tile.queries(x.query),
            key.mT,
            out=flat,
        )
        act.apply_(pairs)
        tile.hide(pairs)
        if d:
            target = tile.queries(out)
            target.baddbmm_(flat, tile.keys(x.value))
        if statistic != "none":
            found = _statistic(pairs, tile.mass(), statistic)
            row[tile.chunk][:, :, tile.q] += found
    return out, row


def _statistic(pairs: Tensor, mass: Tensor, statistic: str) -> Tensor:
    """Return Σ m P² or Σ m |P| of a tile (b, h, Tq, Tk), which is overwritten where masses
    differ.
    """
    order = 1
    if statistic == "squares":
        order = 2
    if mass.shape[-1] == 1:
        # One mass for all keys: a norm reads the pairs once and writes none.
        norm = torch.linalg.vector_norm(pairs, order, -1)
        return norm.pow_(order) * mass[..., 0]
    if order == 2:
        pairs.square_()
    else:
        pairs.abs_()
    sums = pairs @ mass.mT
    return sums[..., 0]


# --- backward -------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One backward: what arrives, the options, the gradients so far, and memory for a tile.

    Attributes:
        grad, row_grad: gradients of the product and of the row statistic.
        activation, statistic: see :func:`edge_product`.
        totals: gradients of the inputs, which tiles add to; None where none is needed.
        scores, above, copy: memory for one tile each: S and φ(S), dP and dS, and φ(S) where it
            needs its own.
    """

    grad: Tensor
    row_grad: Tensor
    activation: str
    statistic: str
    totals: Inputs
    scores: Scratch
    above: Scratch
    copy: Scratch


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
    """Return the gradients of the inputs marked in ``needs``, in the order of :class:`Inputs`."""
    totals: list[Any] = [None] * len(x)
    for i, (tensor, needed) in enumerate(zip(x, needs)):
        if needed and tensor is not None:
            contiguous = torch.contiguous_format
            totals[i] = torch.zeros_like(tensor, memory_format=contiguous)
    b, h, nq, _ = x.query.shape
    if 0 not in (b, h, nq, x.key.shape[2]):
        x = _contiguous(x)
        plan = Plan.make(x, memory)
        call = Call(
            grad=grad.contiguous(),
            row_grad=row_grad,
            activation=activation,
            statistic=statistic,
            totals=Inputs(*totals),
            scores=Scratch(x.value, plan.size),
            above=Scratch(x.value, plan.size),
            copy=Scratch(x.value, plan.size),
        )
        # The tiles of the forward, in the same order. In memory are three of one tile's size.
        for tile in tiles(x, causal, plan):
            _add_gradients(tile, call)
    return [total for total in totals if total is not None]


def _add_gradients(tile: Tile, call: Call) -> None:
    """Add one tile's share to the gradients; formulas and letters in the module's docstring."""
    x = tile.x
    totals = call.totals
    shape = tile.shape()
    act = find_activation(call.activation, ACTIVATIONS)

    # S, and φ(S). ReLU's slope can be read from its value, so that it needs no second buffer.
    scores = call.scores.view(*shape)
    query = tile.queries(x.query)
    key = tile.keys(x.key)
    torch.bmm(
        query,
        key.mT,
        out=scores.flatten(0, 1),
    )
    raw = scores
    if call.activation != "relu":
        raw = call.copy.view(*shape)
        raw.copy_(scores)
    act.apply_(raw)

    # P. The density's gradient needs φ(S) without the density.
    pairs = raw
    if totals.density is not None:
        pairs = raw.clone()
    tile.hide(pairs)

    # dV = Pᵀ G, dP = G Vᵀ and the row statistic's part.
    grad = tile.queries(call.grad)
    if totals.value is not None and x.value.shape[3]:
        of_value = tile.keys(totals.value)
        flat = pairs.flatten(0, 1)
        of_value.baddbmm_(flat.mT, grad)
    above = call.above.view(*shape)
    value = tile.keys(x.value)
    torch.bmm(
        grad,
        value.mT,
        out=above.flatten(0, 1),
    )
    if call.statistic != "none":
        _add_statistic_gradient(tile, call, pairs, above)
    if totals.density is not None:
        part = raw * above
        tile.hide_later(part)
        add_shared(tile.density(totals.density), part)

    # dS = ρ φ'(S) dP, dq = dS k, dk = dSᵀ q.
    tile.hide(above)
    act.gradient_(above, scores)
    slope = above.flatten(0, 1)
    if totals.query is not None:
        of_query = tile.queries(totals.query)
        of_query.baddbmm_(slope, key)
    if totals.key is not None:
        of_key = tile.keys(totals.key)
        of_key.baddbmm_(slope.mT, query)


def _add_statistic_gradient(
    tile: Tile,
    call: Call,
    pairs: Tensor,
    above: Tensor,
) -> None:
    """Add 2 g m P, or g m sign P, to dP, and the masses' gradient Σ g P², or Σ g |P|."""
    of_chunk = call.row_grad[tile.chunk]
    rate = of_chunk[:, :, tile.q]
    rate = rate[..., None]
    mass = tile.mass()
    if call.statistic == "squares":
        slope = pairs * 2
        size = pairs.square()
    else:
        slope = pairs.sign()
        size = pairs.abs()

    # The product with the smaller of both factors first: one mass for all keys is a number.
    if mass.shape[-1] == 1:
        above.addcmul_(slope, rate * mass)
    else:
        above.addcmul_(slope * mass, rate)
    if call.totals.mass is not None:
        of_mass = (size * rate).sum((1, 2))
        add_shared(tile.key_masses(call.totals.mass), of_mass)
