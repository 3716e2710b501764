"""Hops on a token graph of few edges, along the edges alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...forms.neighbourhoods.gather import Neighbours, Rows, by_point, measure_rows
from ...forms.neighbourhoods.general import has_no_values, shape_alone
from ...forms.neighbourhoods.join import pair_products, weighted_sum
from ...forms.neighbourhoods.recompute import Weights
from ...forms.neighbourhoods.sums import sum_over_tiles
from ...integral import Exact, Facts, Form, Kernel, Problem
from ...ops.backend import at_least_single, cast, full_precision
from .capabilities import QueryKeyValue, TokenGraphWeights
from .graph import NORMS, activated
from .graph.token_graph import row_factor, total_norm
from .hops import Neumann, gained


class OneHopAlongEdges(Form):
    """The kernel's definition, with one pass over the edges for products and norm: O(E·(e + d))
    time and O(E) memory, beside one tile.
    """

    word = Exact
    strategy: Exact
    sparse = True
    name = "one hop along edges"
    reason = "affinities of inner products, whose norm is divided out after the product"

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        return _respond(kernel, problem, 1, self.strategy.memory)


class HopsAlongEdges(Form):
    """Every further hop is one more pass over the edges."""

    word = Neumann
    strategy: Neumann
    sparse = True
    name = "hops along edges"
    reason = "one norm a head is divided out after the product, and every hop is one more product"

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        # Several hops are another response than the kernel's.
        return False

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        return _respond(kernel, problem, self.strategy.hops, None)


def _respond(
    kernel: TokenGraphWeights,
    problem: Problem,
    hops: int,
    memory: int | None,
) -> Tensor:
    r"""Return the walks of up to ``hops`` hops, :math:`\sum_{t=1}^{hops} M^t v`, (B, H, N, d),
    where v are the tokens' values.

    M v is the product with the unnormalised edges, times one factor per row or head. The sum is
    made by y ← M (v + y) from y = 0, one pass over the edges per hop, in tiles of ``memory``
    bytes (None for the default).
    """
    if has_no_values(problem):
        return shape_alone(kernel, problem)
    q = problem.quadrature
    rules = kernel.rules()
    query, key, value = kernel.tokens(problem.uy)
    dtype = at_least_single(value.dtype)
    mass = cast(q.mass, dtype)
    decay = cast(rules["decay"], dtype)
    start = cast(value, dtype)
    scale = q.scale
    if scale is not None:
        scale = cast(scale, dtype)

    with full_precision(value):
        # Every pass returns the product, (B, H, N, d), and in a last column the rows' sizes. These
        # depend on the edges alone, so the first pass gives the norm for all hops, and later
        # passes drop them. In causal order a row has the norm of the points up to it.
        causal = q.query_time is not None
        tokens = QueryKeyValue(query, key, start)
        sums = _edge_sums(problem, tokens, rules, memory)
        norm = total_norm(
            sums[..., -1],
            mass,
            rules["norm"],
            causal,
        )
        factor = row_factor(norm, scale, decay, rules["eps"])
        factor = factor[..., None]
        out = sums[..., :-1] * factor
        for _ in range(hops - 1):
            tokens = QueryKeyValue(query, key, start + out)
            sums = _edge_sums(problem, tokens, rules, memory)
            out = sums[..., :-1] * factor
    return gained(kernel, out, value)


def _edge_sums(
    problem: Problem,
    tokens: QueryKeyValue,
    rules: dict[str, Any],
    memory: int | None,
) -> Tensor:
    r"""Return :math:`\sum_j m_j P_{ij} v_j` with :math:`P_{ij} = \rho_{ij}\,\phi(q_i \cdot k_j)`,
    and in a last column the row's size, :math:`\sum_j m_j P_{ij}^2` or
    :math:`\sum_j m_j |P_{ij}|`: (B, H, N, d + 1).
    """
    heads = tokens.key.shape[1]
    dtype = tokens.value.dtype
    rows = Rows.of(
        {
            "query": ("query", by_point(tokens.query)),
            "key": ("key", by_point(tokens.key)),
            "value": ("key", by_point(tokens.value)),
            **measure_rows(problem),
        }
    )

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        query = cast(tile.heads("query", heads), dtype)
        key = cast(tile.heads("key", heads), dtype)
        value = cast(tile.heads("value", heads), dtype)
        with full_precision(value):
            # P of the tile, (R, H, b, k), and m P.
            pairs = activated(pair_products(query, key), rules["activation"])
            if "log_density" in tile.rows or tile.part.seen is not None:
                pairs = pairs * cast(tile.density().density, dtype)
            mass = cast(tile.mass(), dtype)
            massive = pairs * mass[:, None, None]

            if NORMS[rules["norm"]] == "squares":
                size = massive * pairs
            else:
                size = massive.abs()
            sums = weighted_sum(massive, value)
            total = size.sum(-1, keepdim=True)
            return torch.cat([sums, total], -1)

    return sum_over_tiles(
        problem,
        rows,
        answer,
        numbers_per_pair=4 * heads,
        dtype=dtype,
        memory=memory,
    )
