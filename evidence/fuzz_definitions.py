"""Definitions on sparse domains for :mod:`evidence.fuzz`, pair by pair.

They share no code with the library's sparse forms: edges and reaches become a mask or a bias of all
pairs, and in a periodic box every query has its own copy of the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fredholm import Domain
from fredholm.edges import Edges
from fredholm.operators import IntegralOperator


def dense(
    operator: IntegralOperator,
    u: Tensor,
    domain: Domain,
    *,
    query: Tensor | None = None,
    query_domain: Domain | None = None,
) -> Tensor:
    """Return ``operator.dense`` with the pairs of a sparse domain written out."""
    places = {"query": query, "query_domain": query_domain}
    edges = domain.pairs
    if domain.reach is not None:
        domain = domain.replace(pairs=mask_of_reach(domain, domain.reach), reach=None)
    elif isinstance(edges, Edges) and edges.shift is not None and operator.kernel.reads_position:
        return dense_in_box(operator, u, domain, edges)
    elif isinstance(edges, Edges):
        domain = domain.replace(pairs=bias_of_edges(edges))
    return operator.dense(u, domain, **places)


def dense_in_box(operator: IntegralOperator, u: Tensor, domain: Domain, edges: Edges) -> Tensor:
    """Return the responses at a domain's own points in a periodic box, one query at a time: each
    sees the keys at their images.
    """
    bias = bias_of_edges(edges)
    if domain.causal:
        later = torch.ones(domain.size, domain.size).triu(1).bool()
        bias = bias.masked_fill(later, -torch.inf)
    shifts = shifts_of_edges(edges)
    responses = []
    for i in range(domain.size):
        row = slice(i, i + 1)
        valid = None if domain.valid is None else domain.valid[:, row]
        keys = domain.replace(
            positions=domain.positions + shifts[:, i].to(domain.positions),
            pairs=bias[:, :, row],
            causal=False,
            shape=None,
        )
        place = Domain.points(domain.positions[..., row, :], valid=valid)
        responses.append(operator.dense(u, keys, query=u[:, row], query_domain=place))
    return torch.cat(responses, 1)


def mask_of_reach(domain: Domain, reach: int) -> Tensor:
    """Return the mask (B | 1, 1, N, N) of a reach: padding is not counted."""
    n = domain.size
    valid = torch.ones(1, n, dtype=torch.bool) if domain.valid is None else domain.valid
    mask = torch.zeros(valid.shape[0], 1, n, n, dtype=torch.bool)
    for b, real in enumerate(valid):
        for i in range(n):
            for j in range(n):
                between = int(real[min(i, j) + 1 : max(i, j)].sum())
                apart = 0 if i == j else between + 1
                mask[b, 0, i, j] = apart <= reach
    return mask


def bias_of_edges(edges: Edges) -> Tensor:
    """Return the log-density (B | 1, H | 1, Nq, Nk) of edges."""
    density = edges.log_density
    if density is None:
        density = torch.zeros(edges.count, dtype=torch.float64)
    if density.dim() == 1:
        density = density[:, None]
    bias = density.new_full((edges.batch, density.shape[1], edges.queries, edges.keys), -torch.inf)
    for graph, query, edge in edges_by_query(edges):
        bias[graph, :, query, int(edges.source[edge])] = density[edge]
    return bias


def shifts_of_edges(edges: Edges) -> Tensor:
    """Return the displacement of each key as each query sees it, (B | 1, Nq, Nk, p)."""
    assert edges.shift is not None
    width = edges.shift.shape[1]
    shifts = edges.shift.new_zeros(edges.batch, edges.queries, edges.keys, width)
    for graph, query, edge in edges_by_query(edges):
        shifts[graph, query, int(edges.source[edge])] = edges.shift[edge]
    return shifts


def edges_by_query(edges: Edges) -> list[tuple[int, int, int]]:
    """Return the graph, the query and the number of each edge."""
    found = []
    for row in range(edges.batch * edges.queries):
        graph, query = divmod(row, edges.queries)
        for edge in range(int(edges.ptr[row]), int(edges.ptr[row + 1])):
            found.append((graph, query, edge))
    return found
