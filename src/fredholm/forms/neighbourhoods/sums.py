"""Sums over the few keys that a query sees, a tile at a time."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...integral.problem import Problem
from ...ops.backend import at_least_single, cast, full_precision
from .gather import Neighbours, Rows, by_point, measure_rows
from .join import added, weighted_sum
from .recompute import Answer, Weights, Within, Work, as_they_are
from .tiles import partition


def sum_over_tiles(
    problem: Problem,
    rows: Rows,
    answer: Answer,
    *,
    numbers_per_pair: int,
    dtype: torch.dtype,
    split: bool = True,
    weights: Weights | None = None,
    within: Within = as_they_are,
    memory: int | None = None,
) -> Float[Tensor, "b h q o"]:
    """Return the results of ``answer``, added up over the pieces of each query's row of keys.

    Args:
        problem: on a domain with edges or a reach.
        rows: tensors that are gathered for each tile.
        answer: gives the results of a tile, (R, H, b, o), or the step that is left.
        numbers_per_pair: numbers that are in memory for a pair of a query and a key.
        dtype: of these numbers.
        split: cut rows that are longer than a tile.
        weights, within: see :class:`.recompute.Work`.
        memory: bytes of one tile, see :func:`.tiles.partition`.
    """
    # What is gathered for a key has a gradient of the same size in the backward. A tile that reads
    # no weights takes a few operations per number, and should fit into a core's cache.
    size = torch.finfo(dtype).bits // 8
    tiles = partition(
        problem,
        key_bytes=2 * size * rows.width(),
        pair_bytes=size * numbers_per_pair,
        split=split,
        cached=weights is None,
        memory=memory,
    )
    work = Work(
        rows,
        weights or {},
        tiles,
        answer,
        problem.quadrature,
        within,
    )
    batch, _, queries, _ = problem.ux.shape
    sums = added(work.results(), tiles, batch * queries)
    return sums.unflatten(0, (batch, queries)).transpose(1, 2)


def sum_over_neighbours(
    problem: Problem,
    value: Float[Tensor, "#b h k c"],
    memory: int | None = None,
) -> Float[Tensor, "b h q c"]:
    r"""Return :math:`\sum_j w_{ij} v_j` with the quadrature weights w, in float32 at least. O(E·c)
    time, and one tile of gathered values.

    Args:
        problem: on a domain with edges or a reach, which hold the visible pairs.
        value: v.
        memory: bytes of one tile, see :func:`.tiles.partition`.
    """
    heads = value.shape[1]
    single = at_least_single(value.dtype)
    rows = Rows.of(
        {
            "value": ("key", by_point(value)),
            **measure_rows(problem),
        }
    )

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        value = cast(tile.heads("value", heads), single)
        with full_precision(value):
            weight = cast(tile.weights(), single)
            return weighted_sum(weight, value)

    return sum_over_tiles(
        problem,
        rows,
        answer,
        numbers_per_pair=2,
        dtype=single,
        memory=memory,
    )
