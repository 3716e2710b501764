"""Draws from a mixture of distributions over keys, with an order or with general weights between
queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""A proposal :math:`q(y|x) = \sum_a \pi_a(x)\,r_a(y)\,[y \le x] \big/ \sum_{y' \le x} r_a(y')`
    over N keys, in O(N·A) numbers.

    Attributes:
        share: π, (B, H, Nq, A), sums to one.
        parts: r, (B, H, A, Nk), each sums to one, zero where a key has no mass.
        ordered: query i sees the keys up to i.
    """

    share: Float[Tensor, "b h q a"]
    parts: Float[Tensor, "b h a k"]
    ordered: bool = False

    def seen(self) -> Float[Tensor, "b h q a"]:
        """Mass of each component before each query: one without order."""
        if self.ordered:
            return self.parts.cumsum(-1).mT
        return self.parts.new_ones(*self.parts.shape[:2], 1, self.parts.shape[2])

    def effective(self) -> Float[Tensor, "b h q a"]:
        """Coefficients of r at each query: shares of components that see nothing go to others."""
        seen = self.seen()
        alive = seen > _TINY
        share = torch.where(alive, self.share, 0.0)
        total = share.sum(-1, keepdim=True)
        share = share / torch.where(total > 0, total, 1.0)
        return share / torch.where(alive, seen, 1.0)

    def density(self, index: Int[Tensor, "b h q s"]) -> Float[Tensor, "b h q s"]:
        """q at keys that were drawn for every query. O(Nq·S·A)."""
        return _combined(self.effective(), self.parts, index)

    def density_at(
        self, batch: Tensor, rows: Tensor, index: Int[Tensor, "c h 1 s"]
    ) -> Float[Tensor, "c h 1 s"]:
        """The same for some queries, each of an element of the batch."""
        return _combined(self.effective()[batch, :, rows][:, :, None], self.parts[batch], index)


def _combined(share: Tensor, parts: Tensor, index: Tensor) -> Tensor:
    picked = parts.gather(-1, index.flatten(2)[:, :, None].expand(-1, -1, parts.shape[2], -1))
    return torch.einsum("bhqa,bhaqs->bhqs", share, picked.unflatten(-1, index.shape[2:]))


@dataclass(frozen=True, eq=False)
class Table:
    """A proposal as it is, q (B, H, Nq, Nk), where pairs or an order across domains leave no
    smaller form; O(Nq·Nk).
    """

    probability: Float[Tensor, "b h q k"]

    def density(self, index: Int[Tensor, "b h q s"]) -> Float[Tensor, "b h q s"]:
        """q at keys that were drawn for every query."""
        return self.probability.gather(-1, index)

    def density_at(
        self, batch: Tensor, rows: Tensor, index: Int[Tensor, "c h 1 s"]
    ) -> Float[Tensor, "c h 1 s"]:
        """The same for some queries, each of an element of the batch."""
        return self.probability[batch, :, rows][:, :, None].gather(-1, index)


_TINY = 1e-12
# irrationals whose multiples fill the unit interval, and the square, most evenly
_GOLDEN, _PLASTIC = (5**0.5 - 1) / 2, 1.324717957244746


@torch.no_grad()
def draw(
    mixture: Mixture | Table,
    count: int,
    generator: torch.Generator | None = None,
    levels: Float[Tensor, "h q s 2"] | None = None,
) -> Int[Tensor, "b h q s"]:
    """``count`` keys a query, with replacement: a component by its share, then a key by inverting
    its distribution.

    Independent draws, or those of ``levels`` in [0, 1) such as :func:`lattice`'s, alike for all
    elements of a batch.

    Cost: O(N·A + Nq·S·log N) time, O(Nq·S) memory.

    Example:
        >>> parts = torch.tensor([[[[0.5, 0.5, 0.0]]]])
        >>> draw(Mixture(torch.ones(1, 1, 4, 1), parts), 8).max().item() <= 1
        True
    """
    table = mixture.probability if isinstance(mixture, Table) else mixture.share
    shape, like = (*table.shape[:-1], count), {"dtype": torch.float64, "device": table.device}
    if levels is None:
        first, second = torch.rand(shape, generator=generator, **like), None
    else:
        first, second = (x.expand(shape).to(**like) for x in levels.unbind(-1))
    if isinstance(mixture, Table):
        return _invert(mixture.probability.double().cumsum(-1), first)
    parts = mixture.parts.double()
    n = parts.shape[-1]
    share = mixture.effective().double() * mixture.seen().double()
    chosen = _invert(share.cumsum(-1), first)
    if second is None:
        second = torch.rand(shape, generator=generator, **like)
    cumulative = parts.cumsum(-1)
    top = (
        cumulative.mT
        if mixture.ordered
        else cumulative[..., -1][:, :, None].expand(-1, -1, shape[2], -1)
    )
    level = top.gather(-1, chosen) * second
    # one sorted axis for all components: component a's distribution is shifted by a whole unit a
    shift = 2.0 * torch.arange(parts.shape[2], device=parts.device, dtype=torch.float64)
    axis = (cumulative + shift[:, None]).flatten(2).flatten(0, 1)
    place = torch.searchsorted(axis, (level + shift[chosen]).flatten(2).flatten(0, 1), right=True)
    index = place.view(shape) - chosen * n
    last = torch.arange(shape[2], device=index.device)[:, None] if mixture.ordered else n - 1
    return index.clamp_(min=0).minimum(torch.as_tensor(last, device=index.device))


def lattice(
    heads: int, queries: int, count: int, device: torch.device | None = None
) -> Float[Tensor, "h q s 2"]:
    """Evenly spread points of the unit square for every head and query, each set moved by another
    amount: no randomness.

    The first coordinate has one point in every interval of length 1 / count; the second follows the
    golden ratio. Queries see different keys, so that their errors do not add up.

    Example:
        >>> lattice(1, 2, 4)[0, :, :, 0].sort().values.frac().mul(4).floor().tolist()
        [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]
    """
    s = torch.arange(count, device=device, dtype=torch.float64)
    number = (
        torch.arange(queries * heads, device=device, dtype=torch.float64)
        .view(queries, heads)
        .mT[..., None]
    )
    points = (s + 0.5) / count + _PLASTIC**-1 * number, _GOLDEN * s + _PLASTIC**-2 * number
    return torch.stack([x.frac() for x in points], -1)


def _invert(cumulative: Tensor, level: Tensor) -> Tensor:
    index = torch.searchsorted(cumulative.contiguous(), level * cumulative[..., -1:], right=True)
    return index.clamp_(max=cumulative.shape[-1] - 1)
