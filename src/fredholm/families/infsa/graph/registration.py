"""Registration of the edge product and its backward as custom ops."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ....ops.backend import at_least_single, full_precision
from ....ops.custom_op import differentiable_op
from ..naive import edge_product_naive
from .tiled import Inputs, backward, forward_op

TENSORS = "Tensor query, Tensor key, Tensor value, Tensor mass, Tensor? density"
OPTIONS = "bool causal, str activation, str statistic, int memory"


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return results of the right shapes, without values."""
    x = Inputs(*arguments[:5])
    batch, heads, queries, _ = x.query.shape
    columns = x.value.shape[3]
    out = x.value.new_empty(batch, heads, queries, columns)
    row = x.value.new_empty(batch, heads, queries)
    return out, row


def _backward(grad: Tensor, row_grad: Tensor, *arguments: Any) -> list[Tensor]:
    x = Inputs(*arguments[:5])
    with full_precision(x.value):
        return backward(grad, row_grad, x, *arguments[5:])


def plain(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the op, or its Triton form, with every edge at once."""
    x = Inputs(*arguments[:5])
    causal, activation, statistic = arguments[5:8]
    dtype = at_least_single(x.query.dtype)
    with full_precision(x.value):
        return edge_product_naive(
            x.query.to(dtype),
            x.key.to(dtype),
            x.value.to(dtype),
            x.mass,
            x.density,
            causal=causal,
            activation=activation,
            statistic=statistic,
        )


class Sizes(NamedTuple):
    """Number of pairs, and the widths of a query and of a value."""

    pairs: int
    query: int
    value: int


def sizes(arguments: tuple) -> Sizes:
    """Return the sizes of a product from the shapes that a FLOP counter passes. A causal order
    counts half the pairs.
    """
    query, _, value, _, _, causal, *_ = arguments
    b, h, nq, e = query
    _, _, nk, d = value
    pairs = b * h * nq * nk
    if causal:
        pairs = pairs // 2
    return Sizes(pairs, e, d)


def forward_flops(*arguments: Any) -> int:
    """Return the FLOPs of the product, from shapes."""
    pairs, e, d = sizes(arguments)
    return 2 * pairs * (e + d)


def _backward_flops(grad: Any, row_grad: Any, *arguments: Any) -> int:
    pairs, e, d = sizes(arguments)
    query, key, value, *others = arguments[-1]

    # Scores are made again in any case; their gradient is needed for all but the values.
    scores = query or key or any(others)
    by_scores = e * (1 + query + key)
    by_values = d * (value + scores)
    return 2 * pairs * (by_scores + by_values)


# The registered name is an earlier one: exported programs and FLOP tables contain it.
edge_product_op = differentiable_op(
    "affinity_product",
    tensors=TENSORS,
    options=OPTIONS,
    forward=forward_op,
    backward=_backward,
    fake=_fake,
    plain=plain,
    gradients_of=("grad", "row_grad"),
    flops=(forward_flops, _backward_flops),
)
