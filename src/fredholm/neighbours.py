"""Neighbours in space: the points within a radius, or the nearest ones, as sorted rows of edges.

A k-d tree of scipy searches in float64, whatever the dtype of the points. Distances that differ by
no more than the rounding of the given coordinates count as equal, and equal distances are never
told apart by index: a permutation of the points permutes the rows and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .edges import Edges, row_starts
from .errors import DomainError, ShapeError, require

MOST_EDGES = 100_000_000
"""A search for this many edges or more is refused."""

BYTES_PER_EDGE = 40
"""Memory of a search per edge: pairs, both directions, sorted rows."""

SAMPLE = 256
"""Points whose neighbours are counted before a search begins."""

SPARE = 8
"""More neighbours than are wanted, asked for to find ties with the last of them."""

Box = Sequence[float]


class _Rows(NamedTuple):
    """Sorted rows of keys, as numpy arrays of int64.

    Attributes:
        ptr: where each row starts in ``source``.
        source: the keys of all rows.
    """

    ptr: np.ndarray
    source: np.ndarray

    @classmethod
    def empty(cls, rows: int) -> _Rows:
        return cls(
            ptr=np.zeros(rows + 1, dtype=np.int64),
            source=np.zeros(0, dtype=np.int64),
        )


@dataclass(frozen=True, eq=False)
class _Cloud:
    """The real points of one cloud, as numpy arrays in float64.

    Attributes:
        index: number of each real point among all points.
        x: coordinates, inside the box where there is one.
        rounding: distances that differ by less are equal.
        box: lengths of the periodic box, or None.
    """

    index: np.ndarray
    x: np.ndarray
    rounding: float
    box: Box | None

    def __len__(self) -> int:
        return len(self.x)

    def tree(self) -> Any:
        """Return a k-d tree, built by sliding midpoints: sorted data, which would slow down a
        search for medians, do not matter to it.
        """
        # Imported here, because scipy is an extra.
        from scipy.spatial import KDTree

        return KDTree(
            self.x,
            boxsize=self.box,
            balanced_tree=False,
            compact_nodes=False,
        )


def radius_edges(
    points: Tensor,
    radius: float,
    *,
    queries: Tensor | None = None,
    valid: Tensor | None = None,
    queries_valid: Tensor | None = None,
    box: Box | None = None,
) -> Edges:
    """Return edges from each query to all points at most ``radius`` away, a point itself among
    them.

    Args:
        points: the keys, (N, p) or (B, N, p), on any device; the search runs on the processor.
        radius: a positive distance.
        queries: other points to search from, by default the points themselves.
        valid, queries_valid: which of them are real rather than padding.
        box: lengths of a periodic box, one per coordinate: distances go around, and
            :attr:`fredholm.edges.Edges.shift` moves each key to its nearest image.

    Raises:
        DomainError: a radius that is not positive, coordinates that are not finite, a box that is
            smaller than two radii, or so many edges that memory would not hold them.

    Example:
        >>> line = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
        >>> [radius_edges(line, 1.0).row(i).tolist() for i in range(4)]
        [[0, 1], [0, 1, 2], [1, 2], [3]]
    """
    if not 0 < radius < float("inf"):
        raise DomainError(f"expected a positive radius, got radius={radius}")
    if box is not None and min(box, default=1.0) < 2 * radius:
        raise DomainError(
            f"expected a box of at least two radii in every direction, got {tuple(box)} and "
            f"radius={radius}: a point would see two images of another"
        )

    def search(keys: _Cloud, targets: _Cloud | None) -> _Rows:
        return _within(keys, targets, radius)

    given = _Given(points, queries, valid, queries_valid, box)
    return _search(given, search)


def nearest_edges(
    points: Tensor,
    count: int,
    *,
    queries: Tensor | None = None,
    valid: Tensor | None = None,
    queries_valid: Tensor | None = None,
    box: Box | None = None,
) -> Edges:
    """Return edges from each query to the ``count`` nearest points, a point itself among them.

    Points as far away as the last of them are all seen, so that a row may be longer than
    ``count``: on a lattice it holds whole shells. Arguments are those of :func:`radius_edges`.

    Raises:
        DomainError: fewer points than ``count``, coordinates that are not finite, or so many edges
            that memory would not hold them.

    Example:
        >>> line = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
        >>> [nearest_edges(line, 2).row(i).tolist() for i in range(4)]
        [[0, 1], [0, 1, 2], [1, 2], [2, 3]]
    """
    if count < 1:
        raise DomainError(f"expected at least one neighbour, got neighbours={count}")

    def search(keys: _Cloud, targets: _Cloud | None) -> _Rows:
        if count > len(keys):
            raise DomainError(
                f"expected at most as many neighbours as there are points, {len(keys)}, got "
                f"neighbours={count}; leave neighbours out, and every point sees every other"
            )
        return _nearest(keys, targets, count)

    given = _Given(points, queries, valid, queries_valid, box)
    return _search(given, search)


# --- one cloud after another ----------------------------------------------------------------------


class _Given(NamedTuple):
    """Arguments of a search, see :func:`radius_edges`."""

    points: Tensor
    queries: Tensor | None
    valid: Tensor | None
    queries_valid: Tensor | None
    box: Box | None

    def check(self) -> None:
        """Error where shapes do not fit."""
        dim = self.points.shape[-1]
        for x in (self.points, self.queries):
            if x is not None and (x.dim() not in (2, 3) or x.shape[-1] != dim):
                raise ShapeError(
                    f"expected points (N, {dim}) or (B, N, {dim}), got {tuple(x.shape)}"
                )
        if self.box is not None and (len(self.box) != dim or min(self.box) <= 0):
            raise DomainError(
                f"expected a box of {dim} positive lengths, one per coordinate, got "
                f"{tuple(self.box)}"
            )

    @property
    def batch(self) -> int:
        """Number of clouds."""
        sizes = []
        for x in (self.points, self.queries):
            if x is not None and x.dim() == 3:
                sizes.append(x.shape[0])
        for mask in (self.valid, self.queries_valid):
            if mask is not None:
                sizes.append(mask.shape[0])
        return max(sizes, default=1)

    @property
    def targets(self) -> Tensor:
        """The points to search from."""
        if self.queries is None:
            return self.points
        return self.queries


def _search(given: _Given, search: Callable[[_Cloud, _Cloud | None], _Rows]) -> Edges:
    """Search every cloud of a batch, and collect the rows."""
    require("scipy.spatial", "search", "a search for neighbours")
    given.check()
    points = given.points
    queries = given.queries
    box = given.box
    keys = points.shape[-2]
    rows = given.targets.shape[-2]

    degrees = []
    sources = []
    for b in range(given.batch):
        key_cloud = query_cloud = _cloud(points, given.valid, b, box, "points")
        if queries is None:
            found = search(key_cloud, None)
        else:
            query_cloud = _cloud(queries, given.queries_valid, b, box, "queries")
            found = search(key_cloud, query_cloud)

        # The search numbers real points. Rows of padding are empty.
        degree = torch.from_numpy(found.ptr).diff()
        if len(query_cloud) < rows:
            index = torch.from_numpy(query_cloud.index)
            degree = degree.new_zeros(rows).index_copy(0, index, degree)
        source = torch.from_numpy(found.source)
        if len(key_cloud) < keys:
            source = torch.from_numpy(key_cloud.index)[source]
        degrees.append(degree)
        sources.append(source)

    degree = torch.cat(degrees)
    source = sources[0]
    if given.batch > 1:
        source = torch.cat(sources)
    longest = 0
    if len(degree):
        longest = int(degree.max())
    edges = Edges(
        ptr=row_starts(degree),
        source=source,
        log_density=None,
        features=None,
        shift=None,
        queries=rows,
        keys=keys,
        longest=longest,
        batch=given.batch,
    )
    if box is not None:
        shift = _shifts(points, given.targets, edges, box)
        edges = replace(edges, shift=shift.to(points.dtype))
    return edges.to(points.device)


def _cloud(
    points: Tensor,
    valid: Tensor | None,
    b: int,
    box: Box | None,
    name: str,
) -> _Cloud:
    """Return the real points of cloud b; one cloud, or one mask, serves a whole batch."""
    if points.dim() == 3:
        points = points[min(b, points.shape[0] - 1)]
    eps = torch.finfo(points.dtype).eps
    points = points.detach().cpu().double()
    x = points.numpy()
    index = np.arange(len(x))
    if valid is not None:
        mask = valid[min(b, valid.shape[0] - 1)]
        index = np.flatnonzero(mask.cpu().numpy())
        x = x[index]
    bad = ~np.isfinite(x).all(-1)
    if bad.any():
        count = int(bad.sum())
        raise DomainError(
            f"expected finite coordinates, got {count} {name} with others; drop them, or mark "
            "them as padding in valid"
        )

    # The rounding of a coordinate grows with its size, and a distance has that of several.
    largest = float(np.abs(x).max(initial=0.0))
    rounding = 4 * eps * max(largest, 1e-300)
    if box is not None:
        lengths = np.asarray(box, dtype=np.float64)
        x = x - np.floor(x / lengths) * lengths
        # Rounding puts a point just below 0 at the far side, which a tree refuses.
        x = np.where(x >= lengths, 0.0, x)
    return _Cloud(index, np.ascontiguousarray(x), rounding, box)


def _shifts(
    points: Tensor,
    queries: Tensor,
    edges: Edges,
    box: Box,
) -> Tensor:
    """Return the shift of each edge's key to its image nearest to the query, (E, p).

    Points may lie outside of the box: images are counted from where they are.
    """
    row = edges.targets()
    graph = torch.div(row, edges.queries, rounding_mode="floor")
    query_row = row - graph * edges.queries
    query = _of_graph(queries, graph, query_row)
    key = _of_graph(points, graph, edges.source)
    lengths = torch.tensor(box, dtype=torch.float64)
    apart = (query - key) / lengths
    boxes_apart = apart.round()
    return boxes_apart * lengths


def _of_graph(points: Tensor, graph: Tensor, index: Tensor) -> Tensor:
    """Return points by their graph and their index in it, in float64 on the processor."""
    wide = points.detach().cpu().double()
    clouds = wide.reshape(-1, *points.shape[-2:])
    # One cloud may serve a whole batch.
    cloud = graph.clamp(max=len(clouds) - 1)
    return clouds[cloud, index]


# --- the two searches -----------------------------------------------------------------------------


def _within(keys: _Cloud, queries: _Cloud | None, radius: float) -> _Rows:
    """Return all pairs at most ``radius`` apart."""
    ends = queries
    if ends is None:
        ends = keys
    if not len(keys) or not len(ends):
        return _Rows.empty(len(ends))
    tree = keys.tree()
    reach = radius + keys.rounding
    _check_count(tree, ends, reach)
    if queries is None:
        pairs = tree.query_pairs(reach, output_type="ndarray")
        return _both_directions(pairs, len(keys))
    query_tree = queries.tree()
    found = query_tree.sparse_distance_matrix(tree, reach, output_type="ndarray")
    return _sorted_rows(
        found["i"],
        found["j"],
        len(queries),
        len(keys),
    )


def _nearest(keys: _Cloud, queries: _Cloud | None, count: int) -> _Rows:
    """Return the nearest ``count``, and all that are as near as the last of them.

    A row whose farthest candidate is as near as the last wanted one may have more of them: such
    rows are searched again, with twice as many candidates.
    """
    ends = queries
    if ends is None:
        ends = keys
    if not len(ends):
        return _Rows.empty(0)
    tree = keys.tree()
    total = len(keys)
    _refuse_count(count * len(ends))

    rows = []
    sources = []
    remaining = np.arange(len(ends))
    width = min(total, count + SPARE)
    while len(remaining):
        ranks = range(1, width + 1)
        distance, source = tree.query(ends.x[remaining], k=ranks)
        last = distance[:, count - 1] + 2 * keys.rounding
        near = distance <= last[:, None]
        unfinished = near[:, -1] & (width < total)

        place, slot = np.nonzero(near & ~unfinished[:, None])
        rows.append(remaining[place])
        sources.append(source[place, slot])
        remaining = remaining[unfinished]
        width = min(total, 2 * width)
        _refuse_count(width * len(remaining))
    return _sorted_rows(
        np.concatenate(rows),
        np.concatenate(sources),
        len(ends),
        total,
    )


# --- rows -----------------------------------------------------------------------------------------


def _sorted_rows(
    row: np.ndarray,
    source: np.ndarray,
    rows: int,
    keys: int,
) -> _Rows:
    """Return pairs sorted by row and then by source, each pair once.

    Args:
        row, source: a query and a key of each pair, (E,), in any order.
        rows, keys: numbers of queries and keys. A query without pairs has an empty row.
    """
    # Imported here, because scipy is an extra.
    from scipy.sparse import coo_matrix

    # A sparse matrix in compressed rows has just this order. Its entries are never read, so they
    # take one byte each.
    one = np.ones(len(row), dtype=np.int8)
    matrix = coo_matrix((one, (row, source)), shape=(rows, keys)).tocsr()
    matrix.sort_indices()
    return _Rows(
        ptr=matrix.indptr.astype(np.int64),
        source=matrix.indices.astype(np.int64),
    )


def _both_directions(pairs: np.ndarray, points: int) -> _Rows:
    """Return rows of pairs i < j: the smaller keys, the point itself, then the larger ones.

    Only half of the edges are sorted: the transposed matrix comes sorted already.
    """
    above = _sorted_rows(pairs[:, 0], pairs[:, 1], points, points)
    below = _transposed(above, points)

    # A row has its smaller keys, then one place for the point itself, then its larger keys.
    ptr = above.ptr + below.ptr + np.arange(points + 1)
    itself = ptr[:-1] + np.diff(below.ptr)
    source = np.empty(ptr[-1], dtype=np.int64)
    source[itself] = np.arange(points)
    parts = (
        (below, ptr[:-1]),
        (above, itself + 1),
    )
    for part, start in parts:
        lengths = np.diff(part.ptr)
        moved = np.repeat(start - part.ptr[:-1], lengths)
        places = np.arange(len(part.source)) + moved
        source[places] = part.source
    return _Rows(ptr, source)


def _transposed(rows: _Rows, points: int) -> _Rows:
    """Return the same pairs in the other direction: row j lists the points whose rows have key j.

    O(E), without a sort.
    """
    # Imported here, because scipy is an extra.
    from scipy.sparse import csc_matrix

    # In compressed form the rows of a matrix are the columns of its transpose. Reading them as
    # columns (CSC) and asking for rows (CSR) therefore transposes it. The values are not used.
    values = np.ones(len(rows.source), dtype=np.int8)
    columns = (values, rows.source, rows.ptr)
    transpose = csc_matrix(columns, shape=(points, points)).tocsr()
    return _Rows(
        ptr=transpose.indptr.astype(np.int64),
        source=transpose.indices.astype(np.int64),
    )


def _check_count(tree: Any, ends: _Cloud, reach: float) -> None:
    """DomainError where a sample of the points says that there would be too many edges."""
    total = len(ends)
    if total * tree.n < MOST_EDGES:
        return
    size = min(total, SAMPLE)
    sample = np.linspace(0, total - 1, size).astype(np.int64)
    lengths = tree.query_ball_point(ends.x[sample], reach, return_length=True)
    expected = np.mean(lengths) * total
    _refuse_count(int(expected))


def _refuse_count(edges: int) -> None:
    """DomainError where a search would find too many edges."""
    if edges >= MOST_EDGES:
        memory = edges * BYTES_PER_EDGE / 1e9
        raise DomainError(
            f"expected fewer than {MOST_EDGES:,} edges, got about {edges:,}, whose search would "
            f"take {memory:,.0f} GB; use a smaller radius, fewer neighbours, or fewer points"
        )
