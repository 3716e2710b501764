"""Measures of a domain: their names, cells along a line of times, the mass that a query sees."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .quadrature import reciprocal


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


def cell_lengths(time: Tensor, real: Tensor, causal: bool) -> Tensor:
    """Return the length of each real point's cell, at sorted times (N,) or (B, N).

    Causal: the gap to the point before, 1 for the first point. Otherwise Voronoi cells: half the
    distance between the two neighbours. An end takes its one gap, a lone point 1, and points that
    are all at one time share a length of 1.
    """
    # Padding bounds no cell: the last real time before a point is a running maximum of real times.
    nothing_before = torch.full_like(time[..., :1], -torch.inf)
    latest = torch.where(real, time, -torch.inf).cummax(-1).values
    left = time - torch.cat([nothing_before, latest[..., :-1]], -1)
    has_left = left < torch.inf
    if causal:
        return torch.where(has_left, left, 1.0)

    earliest = -torch.where(real, -time, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    right = torch.cat([earliest[..., 1:], -nothing_before], -1) - time
    has_right = right < torch.inf

    one_gap = torch.where(has_left, left, right)
    cells = torch.where(has_left & has_right, (left + right) / 2, one_gap)
    cells = torch.where(has_left | has_right, cells, 1.0)

    # Where all points are at one time, every gap is 0, and so would be the integral.
    some_length = torch.where(real, cells, 0.0).sum(-1, keepdim=True) > 0
    points = real.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(some_length, cells, 1.0 / points)


def scale_of_seen(
    mass: Tensor,
    query_time: Tensor | None,
    key_time: Tensor | None,
    log_density: Tensor | None,
    *,
    triangular: bool,
) -> Tensor | None:
    """Return one over the mass that each query sees, (1 | B, 1 | H, Nq), or None where every query
    sees every key.

    ``triangular`` says that times are the indices of the points: running sums then take O(N)
    instead of O(Nq·Nk).
    """
    if query_time is None and log_density is None:
        return None
    if log_density is None and triangular:
        return reciprocal(mass.cumsum(-1))[:, None]

    seen = mass[:, None, None, :]
    if query_time is not None and key_time is not None:
        before = key_time[:, None, :] <= query_time[:, :, None]
        seen = torch.where(before[:, None], seen, 0.0)
    if log_density is not None:
        seen = torch.where(log_density > -torch.inf, seen, 0.0)
    return reciprocal(seen.sum(-1))
