"""Neighbours in space: the points within a radius, or the nearest ones, as sorted rows of edges.

A k-d tree of scipy searches in float64, whatever the dtype of the points. Distances that differ by
no more than the rounding of the given coordinates count as equal, and equal distances are never
told apart by index: a permutation of the points permutes the rows and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from .edges import Edges
from .errors import DomainError, ShapeError, require

MOST_EDGES = 100_000_000
"""A search for this many edges or more is refused."""

BYTES_PER_EDGE = 40
"""Memory of a search per edge: pairs, both directions, sorted rows."""

SAMPLE = 256  # points whose neighbours are counted before a search begins

# Ties among the nearest are found by asking for a few more than are wanted.
SPARE = 8

Box = Sequence[float]


class _Rows(NamedTuple):
    """Sorted rows, as numpy arrays of int64: where each starts, and the keys."""

    ptr: Any
    source: Any


class _Cloud(NamedTuple):
    """The real points of one cloud, as numpy arrays in float64.

    Attributes:
        index: number of each real point among all points.
        x: coordinates, inside the box where there is one.
        rounding: distances that differ by less are equal.
    """

    index: Any
    x: Any
    rounding: float


def radius_edges(
    points: Tensor,
    radius: float,
    *,
    queries: Tensor | None = None,
    valid: Tensor | None = None,
    queries_valid: Tensor | None = None,
    box: Box | None = None,
) -> Edges:
    """Each query sees all points at most ``radius`` away, a point itself among them.

    Args:
        points: the keys, (N, p) or (B, N, p), on any device; the search runs on the processor.
        radius: a positive distance.
        queries: other points to search from, by default the points themselves.
        valid, queries_valid: which of them are no padding.
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
        return _within(keys, targets, radius, box)

    return _search(points, queries, valid, queries_valid, box, search)


def nearest_edges(
    points: Tensor,
    count: int,
    *,
    queries: Tensor | None = None,
    valid: Tensor | None = None,
    queries_valid: Tensor | None = None,
    box: Box | None = None,
) -> Edges:
    """Each query sees the ``count`` nearest points, a point itself among them.

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
        if count > len(keys.x):
            raise DomainError(
                f"expected at most as many neighbours as there are points, {len(keys.x)}, got "
                f"neighbours={count}; leave neighbours out, and every point sees every other"
            )
        return _nearest(keys, targets, count, box)

    return _search(points, queries, valid, queries_valid, box, search)


def morton_order(points: Tensor, valid: Tensor | None = None) -> Int[Tensor, " n"]:
    """An order along which points that follow one another are near in space (a Z-curve): gathers
    of neighbours then stay within the cache. Padding comes last.

    Coordinates are cut into equal cells and the bits of the cells' numbers interleaved.

    Example:
        >>> morton_order(torch.tensor([[0.9, 0.9], [0.1, 0.1], [0.8, 0.9], [0.1, 0.2]])).tolist()
        [1, 3, 2, 0]
    """
    if points.dim() != 2:
        raise ShapeError(f"expected points (N, p), got {tuple(points.shape)}")
    x = points.detach().double()
    if valid is not None:
        x = torch.where(valid[:, None], x, x[valid].mean(0) if bool(valid.any()) else 0.0)
    low = x.amin(0)
    extent = (x.amax(0) - low).clamp_min(torch.finfo(torch.float64).tiny)

    # A sign bit must stay free: 63 bits are shared by the coordinates.
    dimensions = points.shape[1]
    bits = max(1, min(21, 62 // dimensions))
    cell = ((x - low) / extent * (2**bits - 1)).round().long()
    code = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for bit in range(bits - 1, -1, -1):
        for d in range(min(dimensions, 62 // bits)):
            code = code * 2 + ((cell[:, d] >> bit) & 1)
    if valid is not None:
        code = torch.where(valid, code, torch.iinfo(torch.int64).max)
    return torch.sort(code, stable=True).indices


# --- one cloud after another ----------------------------------------------------------------------


def _search(
    points: Tensor,
    queries: Tensor | None,
    valid: Tensor | None,
    queries_valid: Tensor | None,
    box: Box | None,
    search: Callable[[_Cloud, _Cloud | None], _Rows],
) -> Edges:
    """Search every cloud of a batch, and collect the rows."""
    require("scipy.spatial", "search", "a search for neighbours")
    clouds = [x for x in (points, queries) if x is not None]
    for x in clouds:
        if x.dim() not in (2, 3) or x.shape[-1] != points.shape[-1]:
            raise ShapeError(
                f"expected points (N, {points.shape[-1]}) or (B, N, {points.shape[-1]}), got "
                f"{tuple(x.shape)}"
            )
    if box is not None and (len(box) != points.shape[-1] or min(box) <= 0):
        raise DomainError(
            f"expected a box of {points.shape[-1]} positive lengths, one per coordinate, got "
            f"{tuple(box)}"
        )
    sizes = [x.shape[0] for x in clouds if x.dim() == 3]
    sizes += [mask.shape[0] for mask in (valid, queries_valid) if mask is not None]
    batch = max(sizes, default=1)
    targets = points.shape[-2] if queries is None else queries.shape[-2]

    degrees, sources = [], []
    for b in range(batch):
        keys = _cloud(points, valid, b, box, "points")
        others = None if queries is None else _cloud(queries, queries_valid, b, box, "queries")
        found = search(keys, others)
        ends = keys if others is None else others

        # Rows of padding are empty.
        degree = torch.from_numpy(found.ptr).diff()
        if len(ends.x) < targets:
            degree = degree.new_zeros(targets).index_copy(0, torch.from_numpy(ends.index), degree)
        degrees.append(degree)
        source = torch.from_numpy(found.source)
        if len(keys.x) < points.shape[-2]:
            source = torch.from_numpy(keys.index)[source]
        sources.append(source)

    degree = torch.cat(degrees)
    edges = Edges(
        ptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
        source=torch.cat(sources) if batch > 1 else sources[0],
        log_density=None,
        features=None,
        shift=None,
        queries=targets,
        keys=points.shape[-2],
        longest=int(degree.max()) if len(degree) else 0,
        batch=batch,
    )
    if box is not None:
        shift = _shifts(points, points if queries is None else queries, edges, box)
        edges = replace(edges, shift=shift.to(points.dtype))
    return edges.to(points.device)


def _cloud(points: Tensor, valid: Tensor | None, b: int, box: Box | None, what: str) -> _Cloud:
    """The real points of cloud b."""
    import numpy as np

    x = points if points.dim() == 2 else points[min(b, points.shape[0] - 1)]
    eps = torch.finfo(x.dtype).eps
    x = x.detach().cpu().double().numpy()
    index = np.arange(len(x))
    if valid is not None:
        index = np.flatnonzero(valid[min(b, valid.shape[0] - 1)].cpu().numpy())
        x = x[index]
    bad = ~np.isfinite(x).all(-1)
    if bad.any():
        raise DomainError(
            f"expected finite coordinates, got {int(bad.sum())} {what} with others; drop them, or "
            "mark them as padding in valid"
        )
    rounding = 4 * eps * max(float(np.abs(x).max(initial=0.0)), 1e-300)
    if box is not None:
        lengths = np.asarray(box, dtype=np.float64)
        x = x - np.floor(x / lengths) * lengths
        x = np.where(x >= lengths, 0.0, x)  # what rounding has put on the far side
    return _Cloud(index, np.ascontiguousarray(x), rounding)


def _tree(cloud: _Cloud, box: Box | None) -> Any:
    """A tree that is built by sliding midpoints: sorted data do not slow it down, as a median
    would.
    """
    from scipy.spatial import KDTree

    return KDTree(cloud.x, boxsize=box, balanced_tree=False, compact_nodes=False)


def _shifts(points: Tensor, queries: Tensor, edges: Edges, box: Box) -> Tensor:
    """What moves the key of each edge to its image nearest to the query, (E, p). Points may lie
    outside of the box: images are counted from where they are.
    """
    key_of, query_of = (x.detach().cpu().double() for x in (points, queries))
    key_of = key_of.reshape(-1, *points.shape[-2:])
    query_of = query_of.reshape(-1, *queries.shape[-2:])
    row, source = edges.targets(), edges.source
    graph = torch.div(row, queries.shape[-2], rounding_mode="floor")
    query = query_of[graph.clamp(max=len(query_of) - 1), row - graph * queries.shape[-2]]
    key = key_of[graph.clamp(max=len(key_of) - 1), source]
    lengths = torch.tensor(box, dtype=torch.float64)
    return ((query - key) / lengths).round() * lengths


def _within(keys: _Cloud, queries: _Cloud | None, radius: float, box: Box | None) -> _Rows:
    """All pairs at most ``radius`` apart."""
    ends = keys if queries is None else queries
    if not len(keys.x) or not len(ends.x):
        return _no_rows(len(ends.x))
    tree, reach = _tree(keys, box), radius + keys.rounding
    _check_count(tree, ends, reach, box)
    if queries is not None:
        found = _tree(queries, box).sparse_distance_matrix(tree, reach, output_type="ndarray")
        return _sorted_rows(found["i"], found["j"], len(ends.x), len(keys.x))
    return _both_directions(tree.query_pairs(reach, output_type="ndarray"), len(keys.x))


def _nearest(keys: _Cloud, queries: _Cloud | None, count: int, box: Box | None) -> _Rows:
    """The nearest ``count``, and all that are as near as the last of them."""
    import numpy as np

    ends = keys if queries is None else queries
    if not len(ends.x):
        return _no_rows(0)
    tree, total = _tree(keys, box), len(keys.x)
    _refuse_count(count * len(ends.x))
    rows, sources = [], []
    asked = np.arange(len(ends.x))
    width = min(total, count + SPARE)
    while len(asked):
        distance, source = tree.query(ends.x[asked], k=range(1, width + 1))
        last = distance[:, count - 1] + 2 * keys.rounding
        seen = distance <= last[:, None]

        # A row whose farthest candidate is as near as the last wanted one may have more of them.
        open_ = seen[:, -1] & (width < total)
        place, slot = np.nonzero(seen & ~open_[:, None])
        rows.append(asked[place])
        sources.append(source[place, slot])
        asked = asked[open_]
        width = min(total, 2 * width)
        _refuse_count(width * len(asked))
    return _sorted_rows(np.concatenate(rows), np.concatenate(sources), len(ends.x), total)


def _no_rows(rows: int) -> _Rows:
    import numpy as np

    return _Rows(np.zeros(rows + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _sorted_rows(row: Any, source: Any, rows: int, keys: int) -> _Rows:
    """Distinct pairs sorted by row and then by source."""
    import numpy as np
    from scipy.sparse import coo_matrix

    one = np.ones(len(row), dtype=np.int8)
    matrix = coo_matrix((one, (row, source)), shape=(rows, keys)).tocsr()
    matrix.sort_indices()
    return _Rows(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64))


def _both_directions(pairs: Any, points: int) -> _Rows:
    """Rows of pairs i < j: the smaller keys, the point itself, then the larger ones.

    Only half of the edges are sorted: the transposed matrix comes sorted already.
    """
    import numpy as np

    above = _sorted_rows(pairs[:, 0], pairs[:, 1], points, points)
    below = _transposed(above, points)
    ptr = above.ptr + below.ptr + np.arange(points + 1)
    source = np.empty(ptr[-1], dtype=np.int64)
    own = ptr[:-1] + np.diff(below.ptr)
    source[own] = np.arange(points)
    for part, start in ((below, ptr[:-1]), (above, own + 1)):
        moved = np.repeat(start - part.ptr[:-1], np.diff(part.ptr))
        source[np.arange(len(part.source)) + moved] = part.source
    return _Rows(ptr, source)


def _transposed(rows: _Rows, points: int) -> _Rows:
    import numpy as np
    from scipy.sparse import csc_matrix

    one = np.ones(len(rows.source), dtype=np.int8)
    matrix = csc_matrix((one, rows.source, rows.ptr), shape=(points, points)).tocsr()
    return _Rows(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64))


def _check_count(tree: Any, ends: _Cloud, reach: float, box: Box | None) -> None:
    """DomainError where a sample of the points says that there would be too many edges."""
    import numpy as np

    total = len(ends.x)
    if total * tree.n < MOST_EDGES:
        return
    sample = np.linspace(0, total - 1, min(total, SAMPLE)).astype(np.int64)
    lengths = tree.query_ball_point(ends.x[sample], reach, return_length=True)
    _refuse_count(int(np.mean(lengths) * total))


def _refuse_count(edges: int) -> None:
    if edges >= MOST_EDGES:
        raise DomainError(
            f"expected fewer than {MOST_EDGES:,} edges, got about {edges:,}, whose search would "
            f"take {edges * BYTES_PER_EDGE / 1e9:,.0f} GB; use a smaller radius, fewer neighbours, "
            "or fewer points"
        )
