"""Separable kernels where a query sees few keys: the weight is an inner product of features."""

from __future__ import annotations

import torch
from torch import Tensor

from ...integral.capabilities import Decaying, JointFeatures, Separable, Windowed
from ...integral.contract import Form, Kernel, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...integral.strategy import Linear
from ...ops.backend import at_least_single, cast, full_precision, promoted
from ...ops.linear_attention import at_scale, guarded
from ..separable import expanded, features
from .gather import Neighbours, Rows, by_point, measure_rows
from .general import has_no_values, refuses_images, shape_alone
from .join import pair_products, weighted_sum
from .recompute import Weights
from .sums import sum_over_tiles


class NeighbourSums(Form):
    """Features and values are made once per point and gathered: O(E·(r + c)) time, O(E) memory, of
    which the gathered part is one tile.
    """

    word = Linear
    sparse = True
    name = "inner products over neighbours"
    reason = "the weight is an inner product of features, so that points are mapped before pairs"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Separable):
            return f"it needs {Linear.needs}; use {Linear.instead} instead"
        if isinstance(kernel, Windowed) and kernel.window is not None:
            return "the last points are weighed by softmax, and not by features"
        if isinstance(kernel, Decaying) and kernel.fades:
            return "its weights fade over points that a query does not see, too"
        return refuses_images(kernel, facts)

    def respond(self, kernel: Separable, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        found = features(kernel, problem)
        sums = _sums(problem, found)

        # The last column is the sum of the weights, by which a normalised kernel divides.
        out = sums[..., :-1]
        if kernel.floor is not None:
            out = out / guarded(sums[..., -1:], kernel.floor)
        out = cast(out, found.value.dtype)
        response = expanded(kernel, problem, out)
        return with_offset(response, kernel, problem)


def _sums(problem: Problem, found: JointFeatures) -> Tensor:
    """Return the sums of weights times values, and of weights in a last column: (B, H, Nq, c + 1).

    Where features have a shift, those of a query are divided by the largest of the keys that it
    sees, see :func:`fredholm.ops.linear_attention.at_scale`. Its row is then answered at once,
    however long it is.
    """
    query = found.query
    key = found.key
    value = found.value
    at_own_scale = found.shift is not None
    dtype = promoted(query.dtype, key.dtype)
    dtype = promoted(dtype, value.dtype)
    single = at_least_single(dtype)

    # A head that others share is gathered once per head.
    heads = max(
        query.shape[1],
        key.shape[1],
        value.shape[1],
    )

    def by_head(x: Tensor) -> Tensor:
        return by_point(x.expand(-1, heads, -1, -1))

    rows = Rows.of(
        {
            "query": ("query", by_head(query)),
            "key": ("key", by_head(key)),
            "value": ("key", by_head(value)),
            **measure_rows(problem),
        }
    )

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        query = cast(tile.heads("query", heads), single)
        key = cast(tile.heads("key", heads), single)
        value = cast(tile.heads("value", heads), single)
        with full_precision(value):
            measure = cast(tile.weights(), single)
            if at_own_scale:
                largest = key.detach().amax(-1)[:, :, None]
                seen = torch.where(measure > 0, largest, 0.0)
                query = at_scale(query, seen.amax(-1))
            shares = pair_products(query, key) * measure
            total = shares.sum(-1, keepdim=True)
            sums = weighted_sum(shares, value)
            return torch.cat([sums, total], -1)

    return sum_over_tiles(
        problem,
        rows,
        answer,
        numbers_per_pair=4 * heads,
        dtype=single,
        split=not at_own_scale,
    )
