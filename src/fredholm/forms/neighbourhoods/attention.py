"""Softmax attention where a query sees few keys."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...integral.capabilities import SoftmaxScores
from ...integral.contract import Form, Kernel, with_offset
from ...integral.problem import Facts, Problem
from ...integral.strategy import Exact
from ...ops.backend import at_least_single, cast, full_precision
from .gather import End, Neighbours, Rows, by_point, measure_rows
from .general import has_no_values, refuses_images, shape_alone
from .join import averaged, pair_products, weighted_sum
from .recompute import Weights, Work
from .tiles import partition

Scores = Callable[[Tensor, Tensor, Weights], Tensor]
"""Scores (R, H, b, k) of queries (R, H, b, e) and keys (R, H, k, e), by tensors that all share."""


class NeighbourAttention(Form):
    """Queries, keys and values are projected once per point and gathered: O(E·d) time, O(E) memory,
    of which the gathered part is one tile. Rows longer than a tile come in pieces, joined by the
    logarithms of their sums.
    """

    word = Exact
    sparse = True
    name = "attention over neighbours"
    reason = "the weight is a softmax of inner products, so that points are projected before pairs"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, SoftmaxScores):
            return "it needs a softmax of inner products (SoftmaxScores)"
        return refuses_images(kernel, facts)

    def respond(self, kernel: SoftmaxScores, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        p = problem
        if p.layout.cross:
            query, key = kernel.queries(p.x, p.ux), kernel.keys(p.y, p.uy)
            value = kernel.values(p.y, p.uy)
        else:
            query, key, value = kernel.project(p.y, p.uy)
            query = query * kernel.factor
        out = softmax_over_neighbours(p, query, key, value, inner_products)
        return with_offset(out, kernel, p)


def inner_products(query: Tensor, key: Tensor, weights: Weights) -> Tensor:
    """The scores of scaled dot-product attention."""
    return pair_products(query, key)


def softmax_over_neighbours(
    problem: Problem,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    scores: Scores,
    weights: Weights | None = None,
    *,
    per_pair: int = 0,
) -> Tensor:
    r""":math:`\sum_j p_{ij} v_j` with p the softmax of the scores under the quadrature, (B, H, Nq,
    c); zero where a query sees nothing.

    Args:
        problem: says who sees whom.
        query, key, value: (B, H, Nq, e), (B, H, Nk, e) and (B, H, Nk, c); without values the keys
            are the values, and are gathered once.
        scores: of the pairs of a tile.
        weights: what ``scores`` reads beside them.
        per_pair: numbers that ``scores`` makes of a pair, by default one per head.
    """
    q, heads, dtype = problem.quadrature, key.shape[1], key.dtype
    single = at_least_single(dtype)
    parts: dict[str, tuple[End, Tensor | None]] = {
        "query": ("query", by_point(query)),
        "key": ("key", by_point(key)),
        "value": ("key", None if value is None else by_point(value)),
        "log_mass": ("key", None if q.equal else _log_mass(q.mass)),
        **measure_rows(problem, mass=False),
    }
    rows = Rows.of(parts)
    size = torch.finfo(single).bits // 8
    tiles = partition(
        problem,
        key_bytes=2 * size * rows.width(),
        pair_bytes=4 * size * (per_pair or heads),
        split=True,
        cached=True,
    )
    pieces = tiles.row is not None

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        query, key = (cast(tile.heads(x, heads), single) for x in ("query", "key"))
        value = key
        if "value" in tile.rows:
            value = cast(tile.heads("value", heads), single)
        with full_precision(value):
            return _softmax(scores(query, key, weights), tile, value, pieces)

    work = Work(rows, weights or {}, tiles, answer, q)
    batch, queries = problem.ux.shape[0], problem.ux.shape[2]
    out = averaged(work.results(), tiles, batch * queries)
    return cast(out, dtype).unflatten(0, (batch, queries)).transpose(1, 2)


def _log_mass(mass: Tensor) -> Tensor:
    """log m, (1 | B, N, 1), up to a constant that a softmax cancels; -inf hides a point."""
    log_mass = torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log(), -torch.inf)
    top = log_mass.detach().amax(-1, keepdim=True)
    return (log_mass - top.clamp_min(torch.finfo(top.dtype).min))[..., None]


def _softmax(scores: Tensor, tile: Neighbours, value: Tensor, pieces: bool) -> Tensor:
    """The values under the softmax of a tile's scores; of pieces, with the logarithm of the sum of
    exponentials as a last column.
    """
    bias, blind = tile.bias()
    if bias is not None:
        scores = scores + bias
    out = weighted_sum(scores.softmax(-1), value)
    if blind is not None:
        out = out.masked_fill(blind, 0.0)
    if not pieces:
        return out
    log_sum = scores.logsumexp(-1, keepdim=True)
    if blind is not None:
        log_sum = log_sum.masked_fill(blind, -torch.inf)
    return torch.cat([out, log_sum], -1)
