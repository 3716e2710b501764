"""Additive scores where a query sees few keys."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..forms.neighbourhoods import by_head
from ..forms.neighbourhoods.attention import (
    Ends,
    RowScores,
    ScoreGradients,
    Scores,
    attend,
    softmax_over_neighbours,
)
from ..forms.neighbourhoods.general import has_no_values, shape_alone
from ..integral import Exact, Facts, Form, Kernel, Problem, WeightedKernel, with_offset
from ..integral.sharing import own_parameter
from .parts import bias_offset


class ScoreEnds(NamedTuple):
    """Contributions of each point to additive scores.

    Attributes:
        query, key: (B, H, Nq, e) and (B, H, Nk, e), added up at a pair.
        value: (B, H, Nk, d_out), or None where the keys are the values.
        direction: (H, e), what the activated sum is multiplied with; None for one of width 1.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    direction: Tensor | None


class AdditiveScores(Scores):
    """A direction times the leaky ReLU of both ends' sum.

    Args:
        slope: of the leaky ReLU where its argument is negative.
    """

    def __init__(self, slope: float):
        self.slope = slope

    def numbers(self, heads: int, width: int, *, block: bool) -> int:
        return 4 * heads * width

    def of_block(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        direction: Tensor | None,
    ) -> Tensor:
        both = query[:, :, :, None] + key[:, :, None]
        both = F.leaky_relu(both, self.slope)
        if direction is not None:
            both = both * direction[:, None, None]
        return attend(both.sum(-1), value, bias)

    def of_row(
        self,
        query: Tensor,
        key: Tensor,
        direction: Tensor | None,
        heads: int,
    ) -> RowScores:
        both = F.leaky_relu(query + key, self.slope)
        # The second one is kept for the gradients.
        if direction is None:
            return RowScores(both, both)
        return RowScores(by_head.weighted_sum_of_heads(both, direction), both)

    def row_gradients(
        self,
        above: Tensor,
        query: Tensor,
        key: Tensor,
        direction: Tensor | None,
        kept: Tensor | None,
    ) -> ScoreGradients:
        assert kept is not None  # by of_row
        of_direction = None
        if direction is not None:
            above, of_direction = by_head.weighted_sum_of_heads_gradients(above, kept, direction)

        # The activated sum has the sign of the sum, unless the slope turns it.
        activated = self.slope >= 0
        both = kept if activated else query + key
        of_key = torch.ops.aten.leaky_relu_backward(above, both, self.slope, activated)
        of_query = of_key.sum(1, keepdim=True)
        return ScoreGradients(of_query, of_key, of_direction)


class NeighbourScores(Form):
    """Both ends are projected once per point and gathered: O(E·d) time, O(E) memory, of which the
    gathered part is one tile.
    """

    word = Exact
    strategy: Exact
    sparse = True
    name = "additive scores over neighbours"
    reason = "scores are sums of two ends, so that points are projected before pairs"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, AdditiveScoresKernel):
            return None
        return "it needs additive scores (AdditiveScoresKernel)"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        assert isinstance(kernel, AdditiveScoresKernel)
        points = kernel.score_ends(problem)
        ends = Ends(points.query, points.key, points.value)
        scores = AdditiveScores(kernel.slope)
        out = softmax_over_neighbours(
            problem,
            ends,
            scores,
            points.direction,
            memory=self.strategy.memory,
        )
        return with_offset(out, kernel, problem)


class AdditiveScoresKernel(WeightedKernel):
    """Base of attention whose scores are activated sums of a query's and a key's projection.

    Args:
        value: V, (H · d_out, dim).
        heads: H.
        slope: of the leaky ReLU where its argument is negative.
        dropout: of a converted layer.
    """

    forms = (NeighbourScores, *WeightedKernel.forms)
    rowwise = True
    whole = True
    bias: Tensor | None

    def __init__(
        self,
        value: Tensor,
        heads: int,
        slope: float,
        dropout: float,
    ):
        width, dim = value.shape
        super().__init__(heads, dim, width // heads)
        self.slope = slope
        self.dropout = dropout
        self.value = own_parameter(value)

    def value_map(self) -> Tensor:
        return self.value.unflatten(0, (self.heads, self.d_out))

    def offset(self, problem: Problem) -> Tensor | None:
        return bias_offset(self.bias, self)

    @abstractmethod
    def score_ends(self, problem: Problem) -> ScoreEnds:
        """Return the projections of all points."""
