"""Problems made from a problem: all pairs written out, some of its queries.

The methods of :class:`fredholm.integral.Problem` of the same names call these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..edges import Edges
from ..errors import DomainError
from ..quadrature import Rows, take_rows

if TYPE_CHECKING:
    from .problem import Problem


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
