"""ONNX forms of torch's operations that its exporter does not know.

Arguments and results are values of ``onnxscript``, of any shape. There is no loop among them:
runtimes do not optimise across loops.
"""

from __future__ import annotations

import math
from typing import Any

from onnxscript import opset18

from .signature import LARGEST_COUNT

op: Any = opset18
INT32, INT64 = 6, 7
"""Numbers of data types in ONNX."""


def cdist(
    x: Any,
    y: Any,
    p: float,
    compute_mode: int | None = None,
) -> Any:
    """Return the distances between the points ``x`` (…, N, d) and ``y`` (…, M, d), (…, N, M), in
    the p-norm: (Σ_i |x_i - y_i|^p)^(1/p), the largest |x_i - y_i| for p = ∞, and the number of
    coordinates that differ for p = 0.

    All differences are written out, (…, N, M, d), as torch does for few points.

    Args:
        x, y, p: as of :func:`torch.cdist`.
        compute_mode: whether torch may use a matrix product instead; ignored, since both modes
            have one definition.
    """
    rows = op.Unsqueeze(x, _numbers(-2))
    columns = op.Unsqueeze(y, _numbers(-3))
    difference = op.Abs(op.Sub(rows, columns))
    # The Euclidean norm needs no general power.
    if p == 2:
        squares = op.Mul(difference, difference)
        return op.Sqrt(_sum_of_last(squares))

    # Here the powers and the root of the formula are 1 or infinite, whatever the points.
    if p == math.inf:
        return op.ReduceMax(difference, _numbers(-1), keepdims=0)
    if p == 0:
        differs = op.Sign(difference)
        return _sum_of_last(differs)

    powers = op.Pow(difference, _real(p))
    return op.Pow(_sum_of_last(powers), _real(1 / p))


def searchsorted(
    boundaries: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Count, for each number of ``x`` (…, N), the ``boundaries`` (…, K) below it, or not above it
    where ``right``.

    All pairs are compared, O(N K): the tables of learned curves are short.

    Args:
        boundaries, x, out_int32, right: as of :func:`torch.searchsorted`.
        side: ``"right"`` is ``right``, by another name.
        sorter: the order in which boundaries ascend; ignored, since a count depends on no order.
    """
    columns = op.Unsqueeze(x, _numbers(-1))
    rows = op.Unsqueeze(boundaries, _numbers(-2))
    below = op.Greater(columns, rows)
    if right or side == "right":
        below = op.GreaterOrEqual(columns, rows)
    counts = _sum_of_last(op.Cast(below, to=INT64))
    if out_int32:
        return op.Cast(counts, to=INT32)
    return counts


def stable_sort(
    x: Any,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Any, Any]:
    """Return the numbers of an axis in order, and their places; equal ones stay as they were.

    ONNX's ``TopK`` takes the lower place first among equals.
    """
    shape = op.Shape(x)
    size = op.Gather(shape, _numbers(dim))
    return op.TopK(
        x,
        size,
        axis=dim,
        largest=int(descending),
        sorted=1,
    )


def cummax(x: Any, dim: int) -> tuple[Any, Any]:
    """Return the largest number up to each place of an axis, and its place (the last of equals).

    Doubles the stretch that a place has seen: after step k it has seen 2^k places. As many steps as
    the longest axis needs, O(N log N).
    """
    shape = op.Shape(x)
    size = op.Gather(shape, _numbers(dim))
    # Places along the axis, in the shape of x.
    ones = op.Expand(_number(1), op.Shape(x))
    counts = op.CumSum(ones, _number(dim))
    index = op.Sub(counts, _number(1))

    largest = x
    for k in range((LARGEST_COUNT - 1).bit_length()):
        step = op.Min(size, _numbers(2**k))
        largest, index = _later_or_earlier(largest, index, step, dim)
    return largest, index


def cummin(x: Any, dim: int) -> tuple[Any, Any]:
    """Return the smallest number up to each place of an axis, and its place."""
    largest, index = cummax(op.Neg(x), dim)
    return op.Neg(largest), index


def _later_or_earlier(
    largest: Any,
    index: Any,
    step: Any,
    dim: int,
) -> tuple[Any, Any]:
    """Take, at each place, what the place ``step`` before it has where that is larger."""
    # The first places have nothing that far before them and meet themselves.
    first, first_index = (op.Slice(x, _numbers(0), step, _numbers(dim)) for x in (largest, index))
    rest, rest_index = (
        op.Slice(x, _numbers(0), op.Neg(step), _numbers(dim)) for x in (largest, index)
    )
    earlier = op.Concat(first, rest, axis=dim)
    earlier_index = op.Concat(first_index, rest_index, axis=dim)

    larger = op.Greater(earlier, largest)
    later_largest = op.Where(larger, earlier, largest)
    later_index = op.Where(larger, earlier_index, index)
    return later_largest, later_index


def _sum_of_last(x: Any) -> Any:
    """Return the sums over the last axis, (…) of (…, d)."""
    return op.ReduceSum(x, _numbers(-1), keepdims=0)


def _real(value: float) -> Any:
    return op.Constant(value_float=value)


def _number(value: int) -> Any:
    return op.Constant(value_int=value)


def _numbers(value: int) -> Any:
    return op.Constant(value_ints=[value])
