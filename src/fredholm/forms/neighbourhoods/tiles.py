"""Tiles of small problems: queries with the few keys that each of them sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...edges import Edges
from ...edges import Tile as EdgeTile
from ...integral.problem import Problem
from ...quadrature import Quadrature, compact_order

WORKING_SET = 1 << 24
"""Bytes of one tile."""

CACHE = 1 << 23
"""Bytes of a tile that takes few operations per number, and should fit into a core's cache."""

BLOCK = 64
"""Queries of a block, where a window is shorter than that."""


class Group(NamedTuple):
    """Problems of one tile: R of them, each of b queries and k keys.

    Attributes:
        sample: the sample of each problem, (R,).
        query: its queries, (R, b), numbered within the sample; -1 where there are fewer.
        key: its keys, (R, k).
        real: slots that hold a key, (R, k).
        place: where the results go, (R · b,), numbered through all samples; -1 for nowhere.
        edge: the edge of each key, (R, k), or None without edges.
        seen: the keys that each query of a block reaches, (b, k), or None for all.
        full: every slot is known to hold a key.
        samples: how many samples share the problems, which are there once for each sample, all of
            one sample after all of the one before.
    """

    sample: Int[Tensor, " r"]
    query: Int[Tensor, "r b"]
    key: Int[Tensor, "r k"]
    real: Bool[Tensor, "r k"]
    place: Int[Tensor, " rb"]
    edge: Int[Tensor, "r k"] | None = None
    seen: Bool[Tensor, "b k"] | None = None
    full: bool = False
    samples: int = 1


class Partition(NamedTuple):
    """The tiles of a problem.

    Attributes:
        groups: yields them, made anew at each call, because they take more memory than the edges.
        row: the query that each result belongs to, (S · P,), numbered through all samples, where
            long rows come in pieces; None where every query has one result.
        results: number of results.
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
    memory: int | None = None,
) -> Partition:
    """Return the tiles of a problem, each small enough for a budget of memory.

    On a domain with a reach a tile holds blocks of neighbouring queries, which share most of their
    keys. On a domain with edges it holds rows of edges, one query each.

    Args:
        problem: on a domain with edges or a reach.
        key_bytes: bytes that are gathered for each key of a tile.
        pair_bytes: bytes that are computed for each pair of a query and a key.
        split: cut a row of edges that is longer than a tile into pieces, whose results the caller
            joins by :attr:`Partition.row`.
        cached: keep a tile within :data:`CACHE`, for work that takes few operations per number.
        memory: bytes of one tile, as of :class:`fredholm.Exact`; None for the budget that suits the
            work. A tile has one query and its keys at least, or one block of a reach.
    """
    samples, _, queries, _ = problem.ux.shape
    if memory is None:
        memory = WORKING_SET
        if cached:
            memory = min(CACHE, WORKING_SET)

    quadrature = problem.quadrature
    edges = quadrature.edges
    if edges is None:
        # The domain has a reach. All queries of a block share the keys that are gathered for it.
        window = _Window.of(quadrature, queries)
        block_bytes = window.width * (key_bytes + window.block * pair_bytes)
        blocks_per_tile = max(1, memory // block_bytes)
        groups = partial(
            _window_groups,
            quadrature,
            window,
            samples,
            queries,
            blocks_per_tile,
        )
        return Partition(groups, row=None, results=samples * queries)

    # An edge gathers its own key and computes one pair.
    edges_per_tile = max(1, memory // (key_bytes + pair_bytes))
    if edges.batch == 1:
        # Samples share the graph, and a tile has its rows once for each of them.
        edges_per_tile = max(1, edges_per_tile // samples)

    # Traced code has a single tile of all rows, in which nothing is cut.
    split = split and edges.longest > edges_per_tile and not torch.compiler.is_compiling()
    groups = partial(_edge_groups, edges, samples, edges_per_tile, split)
    if not split:
        return Partition(groups, row=None, results=samples * queries)

    # Several pieces belong to one query: their results are joined by the row of each piece. A batch
    # of graphs numbers its rows through all samples already; a shared graph has only its own.
    row = edges.pieces(edges_per_tile).row
    if edges.batch == 1:
        sample = torch.arange(samples, device=row.device)
        row = (sample[:, None] * queries + row).flatten()
    return Partition(groups, row=row, results=len(row))


def _edge_groups(
    edges: Edges,
    samples: int,
    slots: int,
    split: bool,
) -> Iterator[Group]:
    """Yield tiles of problems of one query each: the rows of edges, or pieces of them."""
    if torch.compiler.is_compiling():
        tiles: Iterable[EdgeTile] = [edges.whole_tile()]
    else:
        tiles = edges.tiles(slots, split=split)
    results = edges.rows
    if split:
        results = len(edges.pieces(slots).row)
    for tile in tiles:
        key = tile.source
        real = tile.real
        edge = tile.edges
        place = tile.pieces

        # Rows of a batch of graphs are numbered through: graph b's query i is b · Nq + i.
        sample = torch.div(tile.rows, edges.queries, rounding_mode="floor")
        row = tile.rows - sample * edges.queries

        # Samples share the graph: the tile once for each of them.
        shared_by = 1
        if edges.batch == 1 and samples > 1:
            shared_by = samples
            each = torch.arange(samples, device=row.device)
            sample = each.repeat_interleave(len(row))
            row = row.repeat(samples)
            key = key.repeat(samples, 1)
            real = real.repeat(samples, 1)
            edge = edge.repeat(samples, 1)
            place = (each[:, None] * results + place).flatten()
        yield Group(
            sample,
            row[:, None],
            key,
            real,
            place,
            edge,
            full=tile.full,
            samples=shared_by,
        )


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
        """Return the blocks of a line of ``points`` queries whose quadrature has a reach.

        A block of n queries gathers n + before + after keys. It is as long as the reach, so that it
        gathers at most two keys per query; short reaches take :data:`BLOCK` queries, so that few
        blocks are needed, and a short line is one block.
        """
        assert quadrature.reach is not None
        before, after = (min(side, points) for side in quadrature.reach)
        block = min(points, max(BLOCK, before + after))
        return cls(
            before,
            after,
            block,
            block + before + after,
        )

    def inside(self, blocks: range, count: int, points: int) -> bool:
        """Whether no block reaches beyond the line; there are ``count`` blocks per sample."""
        first = blocks[0] % count
        last = blocks[-1] % count
        if blocks[-1] - blocks[0] != last - first:
            # They belong to several samples, and some are the first or the last of theirs.
            first = 0
            last = count - 1
        start = first * self.block - self.before
        end = (last + 1) * self.block + self.after
        return start >= 0 and end <= points


def _window_groups(
    q: Quadrature,
    window: _Window,
    samples: int,
    points: int,
    step: int,
) -> Iterator[Group]:
    """Yield tiles of ``step`` problems, each a block of queries and all keys that these reach.

    Places along the line count real points only: :func:`compact_order` has the points at them.
    """
    before, after, block, width = window
    device = q.mass.device
    count = -(-points // block)

    # The first key of a block lies ``before`` places ahead of its first query.
    query_offset = torch.arange(block, device=device)
    key_offset = torch.arange(width, device=device) - before
    lag = query_offset[:, None] - key_offset
    seen = (lag <= before) & (lag >= -after)
    order = None
    if q.valid is not None:
        order = compact_order(q.valid)

    problems = samples * count
    if torch.compiler.is_compiling():
        step = problems
    for start in range(0, problems, step):
        blocks = range(start, min(start + step, problems))
        number = torch.arange(blocks.start, blocks.stop, device=device)
        sample = torch.div(number, count, rounding_mode="floor")
        first = (number - sample * count) * block
        query = first[:, None] + query_offset
        key = first[:, None] + key_offset

        # The first and last blocks reach beyond the line.
        here = query < points
        real = (key >= 0) & (key < points)
        query = query.clamp(max=points - 1)
        key = key.clamp(0, points - 1)
        if order is not None:
            row = sample[:, None]
            if order.shape[0] == 1:
                row = torch.zeros_like(row)
            query = order[row, query]
            key = order[row, key]

        query = torch.where(here, query, -1)
        place = torch.where(here, query + sample[:, None] * points, -1).flatten()
        full = window.inside(blocks, count, points)
        yield Group(
            sample,
            query,
            key,
            real,
            place,
            seen=seen,
            full=full,
        )
