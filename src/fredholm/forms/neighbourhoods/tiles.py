"""Tiles of small problems: queries with the few keys that each of them sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...edges import Edges
from ...edges import Tile as EdgeTile
from ...integral.problem import Problem
from ...quadrature import Quadrature, compact_order

WORKING_SET = 1 << 24  # bytes of one tile
CACHE = 1 << 23  # of one whose arithmetic is a few operations per number, for a core's cache
BLOCK = 64  # queries of a block, where a window is shorter than that


class Group(NamedTuple):
    """Problems of one tile: R of them, each of b queries and k keys.

    Attributes:
        sample: the sample of each problem, (R,).
        query: its queries, (R, b), numbered within the sample; -1 where there are fewer.
        key: its keys, (R, k).
        real: which keys are there, (R, k).
        place: where the results go, (R · b,), numbered through all samples; -1 for nowhere.
        edge: the edge of each key, (R, k), or None without edges.
        seen: which of the keys each query reaches, (b, k), or None for all.
        full: every key is known to be there.
    """

    sample: Int[Tensor, " r"]
    query: Int[Tensor, "r b"]
    key: Int[Tensor, "r k"]
    real: Bool[Tensor, "r k"]
    place: Int[Tensor, " rb"]
    edge: Int[Tensor, "r k"] | None = None
    seen: Bool[Tensor, "b k"] | None = None
    full: bool = False


class Partition(NamedTuple):
    """The tiles of a problem.

    Attributes:
        groups: makes them anew at each call.
        row: the query that each result belongs to, (S · P,), numbered through all samples, where
            long rows come in pieces; None where every query has one result.
        results: how many results there are.
    """

    groups: Callable[[], Iterator[Group]]
    row: Tensor | None
    results: int


def partition(
    problem: Problem,
    *,
    key_bytes: int = 0,
    pair_bytes: int,
    split: bool = False,
    cached: bool = False,
) -> Partition:
    """The tiles of a problem.

    Args:
        problem: on a domain with edges or a reach.
        key_bytes: memory of what is gathered for a key.
        pair_bytes: memory of what is computed for a pair of a query and a key.
        split: cut rows that are longer than a tile.
        cached: a tile should fit into a core's cache.
    """
    samples, queries = problem.ux.shape[0], problem.ux.shape[2]
    memory = min(CACHE, WORKING_SET) if cached else WORKING_SET
    q = problem.quadrature
    if q.edges is None:
        window = _Window.of(q, queries)
        step = memory // (window.width * (key_bytes + window.block * pair_bytes))
        groups = lambda: _window_groups(q, window, samples, queries, max(1, step))  # noqa: E731
        return Partition(groups, None, samples * queries)

    edges = q.edges
    slots = max(1, memory // (key_bytes + pair_bytes))
    if edges.batch == 1:
        # Samples share the graph, and a tile has its rows once for each of them.
        slots = max(1, slots // samples)
    split = split and edges.longest > slots and not torch.compiler.is_compiling()
    groups = lambda: _edge_groups(edges, samples, slots, split)  # noqa: E731
    if not split:
        return Partition(groups, None, samples * queries)
    row = edges.pieces(slots).row
    if edges.batch == 1:
        sample = torch.arange(samples, device=row.device)
        row = (sample[:, None] * queries + row).flatten()
    return Partition(groups, row, len(row))


def _edge_groups(edges: Edges, samples: int, slots: int, split: bool) -> Iterator[Group]:
    """Problems of one query each."""
    pieces = edges.pieces(slots if split else None)
    if torch.compiler.is_compiling():
        tiles: Iterator[EdgeTile] = iter([edges.whole_tile()])
    else:
        tiles = edges.tiles(slots, split=split)
    for tile in tiles:
        key, real, edge = tile.source, tile.real, tile.edges
        if edges.batch > 1:
            sample = torch.div(tile.rows, edges.queries, rounding_mode="floor")
            row = tile.rows - sample * edges.queries
            yield Group(sample, row[:, None], key, real, tile.pieces, edge, full=tile.full)
            continue
        row, place = tile.rows, tile.pieces
        sample = torch.zeros_like(row)
        if samples > 1:
            each = torch.arange(samples, device=row.device)
            sample = each.repeat_interleave(len(row))
            row = row.repeat(samples)
            key, real, edge = (x.repeat(samples, 1) for x in (key, real, edge))
            place = (each[:, None] * len(pieces.row) + place).flatten()
        yield Group(sample, row[:, None], key, real, place, edge, full=tile.full)


class _Window(NamedTuple):
    """Blocks of queries along a line, and the stretches of keys that they reach.

    Attributes:
        before, after: places that a query sees before and after its own.
        block: queries of a block.
        width: keys of a block.
    """

    before: int
    after: int
    block: int
    width: int

    @classmethod
    def of(cls, quadrature: Quadrature, points: int) -> _Window:
        assert quadrature.reach is not None
        before, after = (min(side, points) for side in quadrature.reach)
        block = min(points, max(BLOCK, before + after))
        return cls(before, after, block, block + before + after)

    def inside(self, blocks: range, count: int, points: int) -> bool:
        """Whether no block reaches beyond the line; there are ``count`` blocks per sample."""
        first, last = blocks[0] % count, blocks[-1] % count
        if blocks[-1] - blocks[0] != last - first:  # several samples
            first, last = 0, count - 1
        return first * self.block >= self.before and (
            (last + 1) * self.block + self.after <= points
        )


def _window_groups(
    q: Quadrature, window: _Window, samples: int, points: int, step: int
) -> Iterator[Group]:
    """Problems of a block of queries and all that these reach, real points only; ``step`` blocks in
    a tile.
    """
    before, after, block, width = window
    device = q.mass.device
    count = -(-points // block)

    # Key j of a block lies ``before`` places ahead of its first query.
    i = torch.arange(block, device=device)[:, None]
    lag = i + before - torch.arange(width, device=device)
    seen = (lag <= before) & (lag >= -after)
    order = None if q.valid is None else compact_order(q.valid)

    problems = samples * count
    if torch.compiler.is_compiling():
        step = problems
    for start in range(0, problems, step):
        number = torch.arange(start, min(start + step, problems), device=device)
        sample = torch.div(number, count, rounding_mode="floor")
        first = (number - sample * count) * block
        query = first[:, None] + i[:, 0]
        key = first[:, None] - before + torch.arange(width, device=device)
        here, real = query < points, (key >= 0) & (key < points)
        query, key = query.clamp(max=points - 1), key.clamp(0, points - 1)
        if order is not None:
            row = sample if order.shape[0] > 1 else torch.zeros_like(sample)
            query, key = order[row[:, None], query], order[row[:, None], key]
        query = torch.where(here, query, -1)
        place = torch.where(here, query + sample[:, None] * points, -1).flatten()
        full = window.inside(range(start, min(start + step, problems)), count, points)
        yield Group(sample, query, key, real, place, seen=seen, full=full)
