"""Softmax attention where a query sees few keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...integral.capabilities import SoftmaxScores
from ...integral.contract import Form, Kernel, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...integral.strategy import Exact
from ...measures import relative_logarithm
from ...ops.attention import fused_attention
from ...ops.backend import at_least_single, cast, full_precision
from . import by_head
from .gather import End, Neighbours, Rows, by_point, measure_rows
from .general import has_no_values, refuses_images, shape_alone
from .join import averaged, weighted_sum
from .recompute import LastStep, Pending, Weights, Work
from .tiles import partition


class NeighbourAttention(Form):
    """Queries, keys and values are projected once per point and gathered: O(E·d) time, O(E) memory,
    of which the gathered part is one tile. Rows longer than a tile come in pieces, joined by the
    logarithms of their sums.
    """

    word = Exact
    strategy: Exact
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
            query = kernel.queries(p.x, p.ux)
            key = kernel.keys(p.y, p.uy)
            value = kernel.values(p.y, p.uy)
        else:
            # Queries and keys are the same points: one matrix product projects them to all three.
            # `project` may leave the scale of the scores to its caller, `queries` includes it.
            query, key, value = kernel.project(p.y, p.uy)
            query = query * kernel.factor
        ends = Ends(query, key, value)
        out = softmax_over_neighbours(
            p,
            ends,
            InnerProducts(),
            memory=self.strategy.memory,
        )
        return with_offset(out, kernel, p)


class Ends(NamedTuple):
    """Contributions of each point to attention.

    Attributes:
        query, key: (B, H, Nq, e) and (B, H, Nk, e).
        value: (B, H, Nk, c), or None where the keys are the values, and are gathered once.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None


class RowScores(NamedTuple):
    """Scores of one query's keys, (R, k, H), and a tensor saved for their gradient."""

    scores: Tensor
    kept: Tensor | None = None


class ScoreGradients(NamedTuple):
    """Gradients of scores with respect to both ends and the direction."""

    query: Tensor
    key: Tensor
    direction: Tensor | None = None


class Scores(ABC):
    """Scores of pairs of a tile, by their ends and a ``direction`` (H, e) that all share."""

    def numbers(self, heads: int, width: int, *, block: bool) -> int:
        """Return the numbers in memory per pair, for blocks of queries or for one query."""
        return 4 * heads

    @abstractmethod
    def of_block(
        self,
        query: Float[Tensor, "r h b e"],
        key: Float[Tensor, "r h k e"],
        value: Float[Tensor, "r h k c"],
        bias: Float[Tensor, "#r #h #b k"] | None,
        direction: Tensor | None,
    ) -> Float[Tensor, "r h b c"]:
        """Return the attention of a block of queries; ``bias`` is added to the scores."""

    @abstractmethod
    def of_row(
        self,
        query: Float[Tensor, "r 1 he"],
        key: Float[Tensor, "r k he"],
        direction: Tensor | None,
        heads: int,
    ) -> RowScores:
        """Return the scores of one query's keys."""

    @abstractmethod
    def row_gradients(
        self,
        above: Float[Tensor, "r k h"],
        query: Float[Tensor, "r 1 he"],
        key: Float[Tensor, "r k he"],
        direction: Tensor | None,
        kept: Tensor | None,
    ) -> ScoreGradients:
        """Return the gradients of :meth:`of_row` for ``above``, that of the scores."""


class InnerProducts(Scores):
    """The scores of scaled dot-product attention."""

    def numbers(self, heads: int, width: int, *, block: bool) -> int:
        if block:
            # Fused attention keeps no scores, so that the bias alone is left.
            return 1
        return 4 * heads

    def of_block(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        direction: Tensor | None,
    ) -> Tensor:
        return fused_attention(query, key, value, bias)

    def of_row(
        self,
        query: Tensor,
        key: Tensor,
        direction: Tensor | None,
        heads: int,
    ) -> RowScores:
        return RowScores(by_head.products(query, key, heads))

    def row_gradients(
        self,
        above: Tensor,
        query: Tensor,
        key: Tensor,
        direction: Tensor | None,
        kept: Tensor | None,
    ) -> ScoreGradients:
        """Return the gradients of s_j = q · k_j: Σ_j g_j k_j, and g_j q for each key."""
        return ScoreGradients(by_head.weighted(above, key), by_head.outer(above, query))


def softmax_over_neighbours(
    problem: Problem,
    ends: Ends,
    scores: Scores,
    direction: Tensor | None = None,
    *,
    memory: int | None = None,
) -> Tensor:
    r"""Return :math:`\sum_j p_{ij} v_j` with p the softmax of the scores under the quadrature, (B,
    H, Nq, c); zero where a query sees nothing.

    Args:
        problem: has the visible pairs and their masses.
        ends: the projections of all points.
        scores: of the pairs of a tile.
        direction: a tensor that the scores read beside both ends.
        memory: bytes of one tile, see :func:`.tiles.partition`.
    """
    _, heads, _, width = ends.key.shape
    dtype = ends.key.dtype
    single = at_least_single(dtype)
    rows = _rows_of(problem, ends)

    # What is gathered for a key has a gradient of the same size in the backward.
    size = torch.finfo(single).bits // 8
    numbers = scores.numbers(
        heads,
        width,
        block=problem.quadrature.edges is None,
    )
    tiles = partition(
        problem,
        key_bytes=2 * size * rows.width(),
        pair_bytes=size * numbers,
        split=True,
        cached=True,
        memory=memory,
    )
    step = SoftmaxOfRows(scores, heads, pieces=tiles.row is not None)

    def answer(tile: Neighbours, weights: Weights) -> Tensor | Pending:
        """Return the attention of one tile: of a block of queries computed here, of single queries
        as a step that is yet to be computed.
        """
        direction = weights.get("direction")
        if direction is not None:
            direction = cast(direction, single)
        if tile.part.seen is not None:
            with full_precision(tile.rows["key"]):
                return _block(scores, tile, heads, direction, single)
        query = cast(tile.rows["query"], single)
        key = cast(tile.rows["key"], single)
        value = None
        if "value" in tile.rows:
            value = cast(tile.rows["value"], single)
        bias, blind = tile.bias()
        if bias is not None:
            bias = bias.squeeze(2).mT
        return Pending(step, (query, key, value, bias, blind, direction))

    weights = {}
    if direction is not None:
        weights["direction"] = direction
    work = Work(
        rows,
        weights,
        tiles,
        answer,
        problem.quadrature,
    )
    batch, _, queries, _ = problem.ux.shape
    out = averaged(work.results(), tiles, batch * queries)
    out = cast(out, dtype).unflatten(0, (batch, queries))
    return out.transpose(1, 2)


def _rows_of(problem: Problem, ends: Ends) -> Rows:
    """Return the tensors that tiles gather: both ends, and what the quadrature adds to scores."""
    q = problem.quadrature
    parts: dict[str, tuple[End, Tensor | None]] = {
        "query": ("query", by_point(ends.query)),
        "key": ("key", by_point(ends.key)),
    }
    if ends.value is not None:
        parts["value"] = "key", by_point(ends.value)
    if not q.equal:
        parts["log_mass"] = "key", relative_logarithm(q.mass)[..., None]
    return Rows.of({**parts, **measure_rows(problem, mass=False)})


def _block(
    scores: Scores,
    tile: Neighbours,
    heads: int,
    direction: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return the attention of blocks of queries, (R, H, b, c)."""
    query = cast(tile.heads("query", heads), dtype)
    key = cast(tile.heads("key", heads), dtype)
    value = key
    if "value" in tile.rows:
        value = cast(tile.heads("value", heads), dtype)
    bias, blind = tile.bias()
    if bias is not None:
        bias = cast(bias, dtype)
    out = scores.of_block(query, key, value, bias, direction)
    if blind is None:
        return out
    return out.masked_fill(blind, 0.0)


def attend(
    scores: Tensor,
    value: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return the values of a block under the softmax of its scores, (R, H, b, c)."""
    if bias is not None:
        scores = scores + bias
    return weighted_sum(scores.softmax(-1), value)


class SoftmaxOfRows(LastStep):
    """Values of one query's keys under the softmax of their scores; of pieces of rows, with the
    logarithm of the sum of exponentials as a last column.

    Inputs: query (R, 1, H · e), key (R, k, H · e), value (R, k, H · c) or None, bias (R, k, 1 | H)
    or None, blind (R, 1 | H, 1, 1) or None, direction (H, e) or None.
    """

    def __init__(self, scores: Scores, heads: int, *, pieces: bool):
        self.scores = scores
        self.heads = heads
        self.pieces = pieces

    def respond(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        bias: Tensor | None,
        blind: Tensor | None,
        direction: Tensor | None,
    ) -> Tensor:
        if value is None:
            value = key
        scores = self.scores.of_row(query, key, direction, self.heads).scores
        if bias is not None:
            scores = scores + bias
        shares = by_head.softmax_of_rows(scores)
        out = by_head.weighted(shares, value)
        out = out.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if blind is not None:
            out = out.masked_fill(blind, 0.0)
        if not self.pieces:
            return out
        log_sum = scores.logsumexp(1)[..., None, None]
        if blind is not None:
            log_sum = log_sum.masked_fill(blind, -torch.inf)
        return torch.cat([out, log_sum], -1)

    def gradients(
        self,
        above: Tensor,
        needs: Sequence[bool],
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        bias: Tensor | None,
        blind: Tensor | None,
        direction: Tensor | None,
    ) -> list[Tensor | None]:
        """Return the gradients of query, key, value, bias, blind and direction, in this order.

        The response is Σ_j p_j v_j with shares p = softmax(s). So the gradient of v_j is p_j times
        that of the response, and that of p_j its inner product with v_j.
        """
        row = self.scores.of_row(query, key, direction, self.heads)
        scores = row.scores
        if bias is not None:
            scores = scores + bias
        shares = by_head.softmax_of_rows(scores)
        if blind is not None:
            above = above.masked_fill(blind, 0.0)
        of_out = above
        if self.pieces:
            of_out = above[..., :-1]
        of_out = of_out.transpose(1, 2).flatten(2).to(key.dtype)

        # With shares p of scores s: dL/ds_j = p_j (dL/dp_j - Σ_k p_k dL/dp_k).
        values = value
        if values is None:
            values = key
        of_shares = by_head.products(of_out, values, self.heads)
        mean = (shares * of_shares).sum(1, keepdim=True)
        of_scores = shares * (of_shares - mean)
        if self.pieces:
            # The logarithm of the sum of exponentials has the shares as its gradient.
            of_scores = of_scores + above[..., -1].mT.to(key.dtype) * shares
        of_ends = self.scores.row_gradients(
            of_scores,
            query,
            key,
            direction,
            row.kept,
        )

        # Where the keys are the values, one gradient has both parts.
        of_key = of_ends.key
        of_value = by_head.outer(shares, of_out)
        if value is None:
            of_key = of_value.add_(of_key)
        of_bias = None
        if bias is not None:
            of_bias = of_scores
            if bias.shape[-1] == 1:
                of_bias = of_scores.sum(-1, keepdim=True)
        return [
            of_ends.query,
            of_key,
            of_value,
            of_bias,
            None,
            of_ends.direction,
        ]
