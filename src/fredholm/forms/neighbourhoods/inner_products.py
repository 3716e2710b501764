"""Separable kernels where a query sees few keys: the weight is an inner product of features."""

from __future__ import annotations

import torch
from torch import Tensor

from ...integral.capabilities import Decaying, Separable, Windowed
from ...integral.contract import Form, Kernel, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...integral.strategy import Linear
from ...ops.backend import at_least_single, cast, full_precision
from ...ops.linear_attention import at_scale, guarded
from ..separable import expanded, features
from .gather import Neighbours, Rows, by_point, measure_rows
from .general import has_no_values, refuses_images, shape_alone
from .join import added, pair_products, weighted_sum
from .recompute import Weights, Work
from .tiles import partition


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
        p = problem
        query, key, shift, value = features(kernel, p)
        sums = _sums(p, query, key, value, at_own_scale=shift is not None)
        out = sums[..., :-1]
        if kernel.floor is not None:
            out = out / guarded(sums[..., -1:], kernel.floor)
        out = cast(out, value.dtype)
        return with_offset(expanded(kernel, p, out), kernel, p)


def _sums(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, *, at_own_scale: bool
) -> Tensor:
    """The sums of weights times values, and of weights in a last column: (B, H, Nq, c + 1).

    ``at_own_scale``: features of a query are divided by the largest of the keys that it sees, see
    :func:`fredholm.ops.linear_attention.at_scale`. Its row is then answered at once, however long.
    """
    p = problem
    single = at_least_single(promote(query, key, value))
    batch, queries = p.ux.shape[0], p.ux.shape[2]
    heads = max(query.shape[1], key.shape[1], value.shape[1])
    query, key, value = (x.expand(-1, heads, -1, -1) for x in (query, key, value))
    rows = Rows.of(
        {
            "query": ("query", by_point(query)),
            "key": ("key", by_point(key)),
            "value": ("key", by_point(value)),
            **measure_rows(p),
        }
    )
    size = torch.finfo(single).bits // 8
    tiles = partition(
        p,
        key_bytes=2 * size * rows.width(),
        pair_bytes=4 * size * heads,
        split=not at_own_scale,
        cached=True,
    )

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        query, key, value = (cast(tile.heads(x, heads), single) for x in ("query", "key", "value"))
        with full_precision(value):
            measure = cast(tile.weights(), single)
            if at_own_scale:
                largest = key.detach().amax(-1)[:, :, None]
                query = at_scale(query, torch.where(measure > 0, largest, 0.0).amax(-1))
            shares = pair_products(query, key) * measure
            return torch.cat([weighted_sum(shares, value), shares.sum(-1, keepdim=True)], -1)

    out = added(Work(rows, {}, tiles, answer, p.quadrature).results(), tiles, batch * queries)
    return out.unflatten(0, (batch, queries)).transpose(1, 2)


def promote(*tensors: Tensor) -> torch.dtype:
    """The dtype in which tensors of several meet."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype
