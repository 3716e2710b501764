"""Proposals: distributions over keys for each query, and draws from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALLEST_MASS = 1e-12
"""A component with less mass than this before a query counts as invisible: dividing by its mass
would multiply rounding errors.
"""

# The golden ratio's multiples fill the unit interval most evenly, and those of the powers of the
# plastic number the unit square.
_GOLDEN = (5**0.5 - 1) / 2
_PLASTIC = 1.324717957244746


# --- proposals ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""A proposal over N keys from A components, in O(N·A) numbers:

    .. math:: q(y\,|\,x) = \sum_a \pi_a(x)\, r_a(y)\, [y \le x] \Big/ \sum_{y' \le x} r_a(y')

    Attributes:
        share: π, (B, H, Nq, A); sums to one.
        parts: r, (B, H, A, Nk); each sums to one, and is zero where a key has no mass.
        ordered: query i sees only the keys up to i.
    """

    share: Float[Tensor, "b h q a"]
    parts: Float[Tensor, "b h a k"]
    ordered: bool = False

    def seen(self) -> Float[Tensor, "b h q a"]:
        """Return the mass of each component that each query sees, (B, H, Nq, A).

        In causal order that is the component's sum over the keys up to the query's own. Otherwise
        it is one, (B, H, 1, A), because every query sees every key.
        """
        if self.ordered:
            return self.parts.cumsum(-1).mT
        batch, heads, components, _ = self.parts.shape
        return self.parts.new_ones(batch, heads, 1, components)

    def effective(self) -> Float[Tensor, "b h q a"]:
        """Return the coefficient of each r at each query: its share over the mass that is seen.

        Shares of components of which a query sees nothing go to the others in proportion.
        """
        seen = self.seen()
        visible = seen > SMALLEST_MASS
        share = torch.where(visible, self.share, 0.0)
        total = share.sum(-1, keepdim=True)
        share = share / torch.where(total > 0, total, 1.0)
        return share / torch.where(visible, seen, 1.0)

    def density(self, index: Int[Tensor, "b h q s"]) -> Float[Tensor, "b h q s"]:
        """Return q at the keys that were drawn for each query. O(Nq·S·A)."""
        return _density(self.effective(), self.parts, index)

    def density_at(
        self,
        batch: Tensor,
        rows: Tensor,
        index: Int[Tensor, "c h 1 s"],
    ) -> Float[Tensor, "c h 1 s"]:
        """Return q for some queries alone.

        Args:
            batch, rows: the batch element and the index of each query, (c,).
            index: the keys that were drawn for it.
        """
        coefficients = self.effective()[batch, :, rows][:, :, None]
        return _density(coefficients, self.parts[batch], index)


def _density(coefficients: Tensor, parts: Tensor, index: Tensor) -> Tensor:
    """Return Σ_a coefficient_a r_a, (B, H, Nq, A) and (B, H, A, Nk), at keys (B, H, Nq, S)."""
    # The same keys are read from all components, (B, H, A, Nq·S).
    keys = index.flatten(2)[:, :, None]
    keys = keys.expand(-1, -1, parts.shape[2], -1)
    at_keys = parts.gather(-1, keys).unflatten(-1, index.shape[2:])
    return torch.einsum("bhqa,bhaqs->bhqs", coefficients, at_keys)


@dataclass(frozen=True, eq=False)
class Table:
    """A proposal with one number per pair, where a mixture cannot express the pairs that a query
    sees: pair weights, or an order across two domains. O(Nq·Nk).

    Attributes:
        probability: q, (B, H, Nq, Nk).
    """

    probability: Float[Tensor, "b h q k"]

    def density(self, index: Int[Tensor, "b h q s"]) -> Float[Tensor, "b h q s"]:
        """Return q at the keys that were drawn for each query."""
        return self.probability.gather(-1, index)

    def density_at(
        self,
        batch: Tensor,
        rows: Tensor,
        index: Int[Tensor, "c h 1 s"],
    ) -> Float[Tensor, "c h 1 s"]:
        """Return q for some queries alone, see :meth:`Mixture.density_at`."""
        probability = self.probability[batch, :, rows][:, :, None]
        return probability.gather(-1, index)


# --- draws ----------------------------------------------------------------------------------------


@torch.no_grad()
def draw(
    mixture: Mixture | Table,
    count: int,
    generator: torch.Generator | None = None,
    levels: Float[Tensor, "h q s 2"] | None = None,
) -> Int[Tensor, "b h q s"]:
    """Draw ``count`` keys per query with replacement, by inverting cumulative distributions.

    From a mixture first a component is drawn by its share, then a key of that component.

    Args:
        mixture: the proposal.
        count: S.
        generator: of independent draws.
        levels: numbers in [0, 1) in place of random ones, such as those of :func:`lattice`: the
            first for the component, the second for the key; a table reads only the first, for the
            key. All batch elements share them.

    Returns:
        Indices of keys.

    Cost: O(N·A + Nq·S·log N) time, O(Nq·S) memory.

    Example:
        >>> parts = torch.tensor([[[[0.5, 0.5, 0.0]]]])
        >>> draw(Mixture(torch.ones(1, 1, 4, 1), parts), 8).max().item() <= 1
        True
    """
    # In float64, because a float32 sum near 1 does not change by a probability below 6e-8.
    if isinstance(mixture, Table):
        first = _levels(mixture.probability, count, generator, levels, 0)
        return _invert(mixture.probability.double().cumsum(-1), first)

    # What a query sees of a component is its share of the draws.
    first = _levels(mixture.share, count, generator, levels, 0)
    share = mixture.effective().double() * mixture.seen().double()
    component = _invert(share.cumsum(-1), first)

    second = _levels(mixture.share, count, generator, levels, 1)
    return _keys_of_components(mixture, component, second)


def _levels(
    per_query: Tensor,
    count: int,
    generator: torch.Generator | None,
    levels: Tensor | None,
    coordinate: int,
) -> Tensor:
    """Return ``count`` numbers in [0, 1) per query, (B, H, Nq, S) in float64.

    They are random, or one coordinate of the given ``levels``.
    """
    shape = (*per_query.shape[:-1], count)
    if levels is not None:
        return levels[..., coordinate].expand(shape).to(per_query.device, torch.float64)
    return torch.rand(
        shape,
        generator=generator,
        dtype=torch.float64,
        device=per_query.device,
    )


def _keys_of_components(
    mixture: Mixture,
    component: Tensor,
    level: Tensor,
) -> Tensor:
    """Return one key per drawn component, the first at which its cumulative sum exceeds a level.

    Args:
        mixture: the proposal.
        component: the drawn components, (B, H, Nq, S).
        level: numbers in [0, 1) of the same shape, as shares of the mass that a query sees.
    """
    parts = mixture.parts.double()
    components, n = parts.shape[2:]
    queries = component.shape[2]

    # The mass of each component that each query sees, (B, H, Nq, A).
    cumulative = parts.cumsum(-1)
    if mixture.ordered:
        seen = cumulative.mT
    else:
        total = cumulative[..., -1]
        seen = total[:, :, None].expand(-1, -1, queries, -1)
    level = seen.gather(-1, component) * level

    # One search for all components: their distributions follow one another on a single sorted axis
    # of A·N numbers, component a shifted by 2a. A distribution ends at 1, so that none overlap.
    shift = 2.0 * torch.arange(components, device=parts.device, dtype=torch.float64)
    axis = cumulative + shift[:, None]
    shifted = level + shift[component]
    # One row per sample and head, (B·H, A·N) and (B·H, Nq·S).
    axis = axis.flatten(2).flatten(0, 1)
    shifted = shifted.flatten(2).flatten(0, 1)
    place = torch.searchsorted(axis, shifted, right=True)
    index = place.view(component.shape) - component * n

    # Rounding may put a level just outside its distribution. The last key of a query is the last
    # one that it sees.
    last = torch.as_tensor(n - 1, device=index.device)
    if mixture.ordered:
        last = torch.arange(queries, device=index.device)[:, None]
    return index.clamp_(min=0).minimum(last)


def lattice(
    heads: int,
    queries: int,
    count: int,
    device: torch.device | None = None,
) -> Float[Tensor, "h q s 2"]:
    r"""Return ``count`` evenly spread points of the unit square per head and query, without
    randomness.

    Point s of head h and query q is, with the golden ratio g and the plastic number p,

    .. math:: \Big(\frac{s + 1/2}{count} + \frac{i}{p},\; g\, s + \frac{i}{p^2}\Big) \bmod 1, \qquad
        i = q\, heads + h.

    The first coordinate has one point in each interval of length 1 / count. Queries get different
    keys, so that their errors do not add up (docs/log.md, 2026-11-22, "k-means anchors").

    Example:
        >>> lattice(1, 2, 4)[0, :, :, 0].sort().values.frac().mul(4).floor().tolist()
        [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]
    """
    s = torch.arange(count, device=device, dtype=torch.float64)
    number = torch.arange(queries * heads, device=device, dtype=torch.float64)
    number = number.view(queries, heads).mT[..., None]

    # Each query's points are moved by a multiple of 1 / p and of 1 / p², modulo 1.
    first = (s + 0.5) / count + _PLASTIC**-1 * number
    second = _GOLDEN * s + _PLASTIC**-2 * number
    return torch.stack([first.frac(), second.frac()], -1)


def _invert(cumulative: Tensor, level: Tensor) -> Tensor:
    """Return the first index at which a cumulative distribution exceeds a level times its end."""
    scaled = level * cumulative[..., -1:]
    index = torch.searchsorted(cumulative.contiguous(), scaled, right=True)
    # Rounding may put a level just behind the end.
    return index.clamp_(max=cumulative.shape[-1] - 1)
