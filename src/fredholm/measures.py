"""Measures of a domain: their names, cells along a line of times, the mass that a query sees,
logarithms of masses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class MeasureRules(NamedTuple):
    """Facts that follow from a measure's name.

    Attributes:
        equal: all masses are equal.
        renormalised: masses are divided by the mass that a query sees.
    """

    equal: bool
    renormalised: bool


MEASURES = {
    "uniform": MeasureRules(equal=True, renormalised=True),
    "counting": MeasureRules(equal=True, renormalised=False),
    "spacing": MeasureRules(equal=False, renormalised=False),
    "weighted": MeasureRules(equal=False, renormalised=False),
    "probability": MeasureRules(equal=False, renormalised=True),
}


class Times(NamedTuple):
    """Times of queries and keys, (1 | B, Nq) and (1 | B, Nk); both None without an order."""

    query: Tensor | None
    key: Tensor | None


def cell_lengths(time: Tensor, real: Tensor, causal: bool) -> Tensor:
    """Return the length of each real point's cell, at sorted times (N,) or (B, N).

    Causal: the gap to the point before, 1 for the first point. Otherwise Voronoi cells: half the
    distance between the two neighbours. An end takes its one gap, a lone point 1, and points that
    are all at one time share a length of 1.
    """
    # Padding bounds no cell: the last real time before a point is a running maximum of real times.
    nothing_before = torch.full_like(time[..., :1], -torch.inf)
    real_times = torch.where(real, time, -torch.inf)
    latest = real_times.cummax(-1).values
    time_before = torch.cat([nothing_before, latest[..., :-1]], -1)
    left = time - time_before
    has_left = left < torch.inf
    if causal:
        return torch.where(has_left, left, 1.0)

    # The first real time after a point is the same of the reversed, negative times.
    negative_times = torch.where(real, -time, -torch.inf)
    reversed_times = negative_times.flip(-1)
    latest_reversed = reversed_times.cummax(-1).values
    earliest = -latest_reversed.flip(-1)
    time_after = torch.cat([earliest[..., 1:], -nothing_before], -1)
    right = time_after - time
    has_right = right < torch.inf

    one_gap = torch.where(has_left, left, right)
    half_of_both = (left + right) / 2
    cells = torch.where(has_left & has_right, half_of_both, one_gap)
    cells = torch.where(has_left | has_right, cells, 1.0)

    # Where all points are at one time, every gap is 0, and so would be the integral.
    real_cells = torch.where(real, cells, 0.0)
    length = real_cells.sum(-1, keepdim=True)
    points = real.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(length > 0, cells, 1.0 / points)


class AllKeys:
    """The keys over which a domain's weights are normalised: those of the domain itself, or, in
    :class:`fredholm.distributed.part.KeysOfAllRanks`, those of all ranks.

    Attributes:
        count: how many keys there are.
    """

    def __init__(self, count: int):
        self.count = count

    def places(self, device: torch.device) -> Tensor:
        """Return the places of the domain's own points among all keys, (1, N)."""
        # Float32 counts up to 2^24 exactly; half precisions only up to 2,048 or 256.
        places = torch.arange(self.count, device=device, dtype=torch.float32)
        return places[None]

    def total(self, mass: Tensor) -> Tensor:
        """Return the mass of all keys, (1 | B, 1), from that of the domain's own."""
        return mass.sum(-1, keepdim=True)

    def running_total(self, mass: Tensor) -> Tensor:
        """Return the mass of all keys up to each of the domain's own, (1 | B, N)."""
        return mass.cumsum(-1)

    def mass_seen(
        self,
        mass: Tensor,
        times: Times,
        log_density: Tensor | None,
        *,
        own_points: bool,
    ) -> Tensor:
        """Return the mass that each query sees, (1 | B, 1 | H, Nq). O(Nq·Nk).

        Args:
            mass: of the domain's own keys.
            times: of queries and keys, where there is an order.
            log_density: of the queries at all keys, where pairs have one.
            own_points: whether the queries are the domain's own points.
        """
        return mass_seen(mass, times, log_density)


def mass_seen(mass: Tensor, times: Times, log_density: Tensor | None) -> Tensor:
    """Return the mass that each query sees, see :meth:`AllKeys.mass_seen`; ``mass`` and
    ``times.key`` are those of all keys.
    """
    seen = mass[:, None, None, :]
    if times.query is not None and times.key is not None:
        before = times.key[:, None, :] <= times.query[:, :, None]
        seen = torch.where(before[:, None], seen, 0.0)
    if log_density is not None:
        seen = torch.where(log_density > -torch.inf, seen, 0.0)
    return seen.sum(-1)


# --- logarithms of masses and densities -----------------------------------------------------------


def logarithm(mass: Tensor) -> Tensor:
    """Return log m, and -∞ without a gradient where m = 0.

    The logarithm is taken of 1 there: the gradient of log(0), 1 / 0 times zero, would be NaN.

    Example:
        >>> logarithm(torch.tensor([1.0, 0.0])).tolist()
        [0.0, -inf]
    """
    positive = mass > 0
    of_positive = torch.where(positive, mass, 1.0).log()
    return torch.where(positive, of_positive, -torch.inf)


def relative_logarithm(mass: Tensor) -> Tensor:
    """Return :func:`logarithm` of masses (1 | B, Nk), less the largest of each row.

    A softmax cancels the constant, and half precisions have their digits near zero.
    """
    log_mass = logarithm(mass)
    largest = log_mass.detach().amax(-1, keepdim=True)

    # The clamp keeps -∞ - (-∞) out where a row has no mass at all.
    return log_mass - largest.clamp_min(torch.finfo(largest.dtype).min)
