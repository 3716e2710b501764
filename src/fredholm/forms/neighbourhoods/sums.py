"""Sums of values over the few keys that a query sees."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...integral.problem import Problem
from ...ops.backend import at_least_single, cast, full_precision
from .gather import Neighbours, Rows, by_point, measure_rows
from .join import added, weighted_sum
from .recompute import Weights, Work
from .tiles import partition


def sum_over_neighbours(
    problem: Problem, value: Float[Tensor, "#b h k c"]
) -> Float[Tensor, "b h q c"]:
    r""":math:`\sum_j w_{ij} v_j` with the quadrature weights w, in float32 at least. O(E·c) time,
    and one tile of gathered values.

    Args:
        problem: on a domain with edges or a reach; it says who sees whom.
        value: v.
    """
    heads, single = value.shape[1], at_least_single(value.dtype)
    rows = Rows.of({"value": ("key", by_point(value)), **measure_rows(problem)})
    slot = torch.finfo(single).bits // 8 * 2 * rows.width()
    tiles = partition(problem, slot, split=True, cached=True)

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        value = cast(tile.heads("value", heads), single)
        with full_precision(value):
            return weighted_sum(cast(tile.weights(), single), value)

    batch, queries = problem.ux.shape[0], problem.ux.shape[2]
    out = Work(rows, {}, tiles, answer, problem.quadrature).results()
    return added(out, tiles, batch * queries).unflatten(0, (batch, queries)).transpose(1, 2)
