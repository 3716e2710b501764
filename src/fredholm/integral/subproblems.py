"""Problems made from a problem: all pairs written out, some of its queries, tiles of both ends.

The methods of :class:`fredholm.integral.Problem` of the same names call these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..edges import Edges
from ..errors import DomainError
from ..quadrature import Quadrature, Rows, take_rows

if TYPE_CHECKING:
    from .problem import Problem

QUADRATURE_TENSORS = (
    "mass",
    "scale",
    "query_time",
    "key_time",
    "density",
    "log_density",
    "valid",
)


def dense(problem: Problem) -> Problem:
    """Return the problem of a sparse domain with all pairs written out."""
    edges = problem.quadrature.edges
    features = None
    if edges is not None:
        all_queries = torch.arange(edges.queries, device=problem.x.device)
        features = _dense_pair_features(edges, all_queries)
    return replace(
        problem,
        quadrature=problem.quadrature.dense(),
        layout=problem.layout.dense(),
        domain=None,
        pair_features=features,
    )


def rows(problem: Problem, rows: Rows) -> Problem:
    """Return the problem of some of the queries, over all keys."""
    index = torch.as_tensor(rows, device=problem.x.device)
    features = None
    if problem.pair_features is not None:
        features = take_rows(problem.pair_features, rows, 1)
    elif problem.quadrature.edges is not None:
        features = _dense_pair_features(problem.quadrature.edges, index)
    real = None
    if problem.real is not None:
        real = take_rows(problem.real, rows, 1)

    # Rows of rows are numbered as queries of the first problem, which stays the parent.
    if problem.index is not None:
        index = problem.index[index]
    parent = problem.parent
    if parent is None:
        parent = problem

    return type(problem)(
        x=take_rows(problem.x, rows, 1),
        y=problem.y,
        ux=take_rows(problem.ux, rows, 2),
        uy=problem.uy,
        quadrature=problem.quadrature.rows(rows),
        layout=replace(problem.layout.dense(), cross=True),
        index=index,
        parent=parent,
        real=real,
        pair_features=features,
    )


def tile(
    problem: Problem,
    rows: Tensor,
    keys: Tensor,
    quadrature: Quadrature,
) -> Problem:
    """Return the problem of some of the queries, each over keys of its own."""
    batch = max(problem.ux.shape[0], problem.uy.shape[0])
    count = rows.shape[0]

    def rows_of_batch(x: Tensor) -> Tensor:
        """(1 | B, r, ...) to (B · r, ...)."""
        return x.expand(batch, *x.shape[1:]).flatten(0, 1)

    def weights_of_batch(x: Tensor | None) -> Tensor | None:
        """(r | B · r, ...) to (B · r, ...)."""
        if x is None or x.shape[0] == batch * count:
            return x
        return x.repeat(batch, *[1] * (x.dim() - 1))

    tensors = {name: getattr(quadrature, name) for name in QUADRATURE_TENSORS}
    tiled = {name: weights_of_batch(x) for name, x in tensors.items()}
    layout = replace(
        problem.layout,
        keys=None,
        queries=None,
        cross=True,
        pairs=quadrature.density is not None,
    )
    real = None
    if problem.real is not None:
        real = rows_of_batch(problem.real[:, rows, None])

    # Points come before heads in the batch: (B, H, r, ...) is (B, r, H, ...) here.
    return type(problem)(
        x=rows_of_batch(problem.x[:, rows, None]),
        y=rows_of_batch(problem.y[:, keys]),
        ux=rows_of_batch(problem.ux[:, :, rows, None].transpose(1, 2)),
        uy=rows_of_batch(problem.uy[:, :, keys].transpose(1, 2)),
        quadrature=replace(quadrature, **tiled),
        layout=layout,
        real=real,
    )


def _dense_pair_features(edges: Edges, rows: Tensor) -> Tensor | None:
    """Return the features of all pairs of some queries, (G, r, Nk, f), zero where there is no edge.

    Raises:
        DomainError: keys that are seen at their image in a periodic box. A key then has a position
            for each query, and the matrix of all pairs has only one.
    """
    if edges.shift is not None:
        raise DomainError(
            "expected keys with one place each, got the images of a periodic box; all pairs at "
            "once are not defined there, forward is"
        )
    if edges.features is None:
        return None

    graph = torch.arange(edges.batch, device=rows.device)
    rows_of_graphs = (graph[:, None] * edges.queries + rows).flatten()
    dense = edges.dense_features(rows_of_graphs)
    assert dense is not None
    return dense.unflatten(0, (edges.batch, rows.shape[0]))
