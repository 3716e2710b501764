"""Additive scores where a query sees few keys."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from ..forms.neighbourhoods.attention import softmax_over_neighbours
from ..forms.neighbourhoods.general import has_no_values, shape_alone
from ..forms.neighbourhoods.recompute import Weights
from ..integral import Exact, Facts, Form, Kernel, Problem, WeightedKernel, with_offset


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


class NeighbourScores(Form):
    """Both ends are projected once per point and gathered: O(E·d) time, O(E) memory, of which the
    gathered part is one tile.
    """

    word = Exact
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
        ends, slope = kernel.score_ends(problem), kernel.slope

        def scores(query: Tensor, key: Tensor, weights: Weights) -> Tensor:
            if query.shape[2] > 1:
                query, key = query[:, :, :, None], key[:, :, None]
            both = F.leaky_relu(query + key, slope)
            if "direction" in weights:
                direction = weights["direction"].to(both.dtype)
                both = both * direction.view(-1, *[1] * (both.dim() - 3), both.shape[-1])
            total = both.sum(-1)
            return total if total.dim() == 4 else total[:, :, None]

        weights = {} if ends.direction is None else {"direction": ends.direction}
        points = ends.query, ends.key, ends.value
        per_pair = ends.key.shape[1] * ends.key.shape[-1]
        out = softmax_over_neighbours(problem, *points, scores, weights, per_pair=per_pair)
        return with_offset(out, kernel, problem)


class AdditiveScoresKernel(WeightedKernel):
    """Base of attention whose scores are activated sums of a query's and a key's projection.

    Attributes:
        slope: of the leaky ReLU where its argument is negative.
    """

    forms = (NeighbourScores, *WeightedKernel.forms)
    rowwise = True
    slope: float

    @abstractmethod
    def score_ends(self, problem: Problem) -> ScoreEnds:
        """The projections of all points."""
