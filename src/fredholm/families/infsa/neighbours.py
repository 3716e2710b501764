"""Hops on a token graph of few edges, along the edges alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...forms.neighbourhoods.gather import Neighbours, Rows, by_point, measure_rows
from ...forms.neighbourhoods.general import has_no_values, shape_alone
from ...forms.neighbourhoods.join import added, pair_products, weighted_sum
from ...forms.neighbourhoods.recompute import Weights, Work
from ...forms.neighbourhoods.tiles import partition
from ...integral import Exact, Facts, Form, Kernel, Problem
from ...ops.backend import at_least_single, cast, full_precision
from .capabilities import TokenGraphWeights
from .graph import NORMS, activated
from .graph.token_graph import row_factor, total_norm
from .hops import Neumann, gained


class OneHopAlongEdges(Form):
    """The kernel's definition, with one pass over the edges for products and norm: O(E·(e + d))
    time and O(E) memory, beside one tile.
    """

    word = Exact
    sparse = True
    name = "one hop along edges"
    reason = "affinities of inner products, whose norm is divided out after the product"

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        return _respond(kernel, problem, 1)


class HopsAlongEdges(Form):
    """Every further hop is one more pass over the edges."""

    word = Neumann
    sparse = True
    name = "hops along edges"
    reason = "one norm a head is divided out after the product, and every hop is one more product"

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return False  # more hops than one are another response than the kernel's

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        options: Any = self.strategy
        return _respond(kernel, problem, options.hops)


def _respond(kernel: TokenGraphWeights, problem: Problem, hops: int) -> Tensor:
    """Walks of up to ``hops`` hops, by y ← M (v + y)."""
    if has_no_values(problem):
        return shape_alone(kernel, problem)
    q, rules = problem.quadrature, kernel.rules()
    query, key, value = kernel.tokens(problem.uy)
    dtype = at_least_single(value.dtype)
    mass, decay = cast(q.mass, dtype), cast(rules["decay"], dtype)
    scale = None if q.scale is None else cast(q.scale, dtype)
    with full_precision(value):
        out, factor, start = None, None, cast(value, dtype)
        for _ in range(hops):
            walked = start if out is None else start + out
            sums = _edge_sums(problem, query, key, walked, rules["activation"], rules["norm"])
            if factor is None:
                norm = total_norm(sums[..., -1], mass, rules["norm"], q.query_time is not None)
                factor = row_factor(norm, scale, decay, rules["eps"])
            out = sums[..., :-1] * factor[..., None]
    assert out is not None  # a walk has at least one hop
    return gained(kernel, out, value)


def _edge_sums(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, activation: str, norm: str
) -> Tensor:
    r"""Return :math:`\sum_j m_j P_{ij} v_j` with :math:`P_{ij} = \rho_{ij}\,\phi(q_i \cdot k_j)`,
    and in a last column the row's size, :math:`\sum_j m_j P_{ij}^2` or
    :math:`\sum_j m_j |P_{ij}|`: (B, H, N, d + 1).
    """
    heads, dtype = key.shape[1], value.dtype
    rows = Rows.of(
        {
            "query": ("query", by_point(query)),
            "key": ("key", by_point(key)),
            "value": ("key", by_point(value)),
            **measure_rows(problem),
        }
    )
    size = torch.finfo(dtype).bits // 8
    key_bytes, pair_bytes = 2 * size * rows.width(), 4 * size * heads
    tiles = partition(problem, key_bytes=key_bytes, pair_bytes=pair_bytes, split=True, cached=True)

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        query, key, value = (cast(tile.heads(x, heads), dtype) for x in ("query", "key", "value"))
        with full_precision(value):
            pairs = activated(pair_products(query, key), activation)
            if "log_density" in tile.rows or tile.part.seen is not None:
                pairs = pairs * cast(tile.density()[0], dtype)
            massive = pairs * cast(tile.mass(), dtype)[:, None, None]
            size = massive * pairs if NORMS[norm] == "squares" else massive.abs()
            return torch.cat([weighted_sum(massive, value), size.sum(-1, keepdim=True)], -1)

    batch, points = problem.ux.shape[0], problem.ux.shape[2]
    out = added(Work(rows, {}, tiles, answer, problem.quadrature).results(), tiles, batch * points)
    return out.unflatten(0, (batch, points)).transpose(1, 2)
