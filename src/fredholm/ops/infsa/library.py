"""Registration of the affinity product with torch: the two custom ops, their shapes, autograd and
FLOP counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .tiled import Inputs, backward, forward

TENSORS = "Tensor query, Tensor key, Tensor value, Tensor mass, Tensor? density"
OPTIONS = "bool causal, str activation, str statistic, int memory"


@torch.library.custom_op(
    "fredholm::affinity_product",
    mutates_args=(),
    schema=f"({TENSORS}, {OPTIONS}) -> (Tensor, Tensor)",
)
def affinity_product_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    x = Inputs(*arguments[:5])
    with torch.autocast(x.value.device.type, enabled=False):
        return forward(x, *arguments[5:])


@affinity_product_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    x = Inputs(*arguments[:5])
    return x.value.new_empty(*x.query.shape[:3], x.value.shape[3]), x.value.new_empty(
        x.query.shape[:3]
    )


@torch.library.custom_op(
    "fredholm::affinity_product_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor row_grad, {TENSORS}, {OPTIONS}, bool[] needs) -> Tensor[]",
)
def affinity_product_backward_op(grad: Tensor, row_grad: Tensor, *arguments: Any) -> list[Tensor]:
    x = Inputs(*arguments[:5])
    with torch.autocast(x.value.device.type, enabled=False):
        return backward(grad, row_grad, x, *arguments[5:])


@affinity_product_backward_op.register_fake
def _(grad: Tensor, row_grad: Tensor, *arguments: Any) -> list[Tensor]:
    return [
        t.new_empty(t.shape)
        for t, needed in zip(arguments[:5], arguments[-1])
        if needed and t is not None
    ]


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _backward(ctx: Any, grad: Tensor, row_grad: Tensor) -> tuple:
    saved = ctx.saved_tensors
    needs = [bool(needed) and t is not None for needed, t in zip(ctx.needs_input_grad, saved)]
    found = iter(affinity_product_backward_op(grad, row_grad, *saved, *ctx.options, needs))
    return (*(next(found) if needed else None for needed in needs), None, None, None, None)


affinity_product_op.register_autograd(_backward, setup_context=_setup_context)


def sizes(arguments: tuple) -> tuple[int, int, int]:
    """Pairs, width of a query and of a value, from the shapes a FLOP counter passes. A causal order
    counts half the pairs.
    """
    (b, h, nq, e), (_, _, nk, d) = arguments[0], arguments[2]
    pairs = b * h * nq * nk
    return (pairs // 2 if arguments[5] else pairs), e, d


@register_flop_formula(torch.ops.fredholm.affinity_product)
def _forward_flops(*arguments: Any, out_shape: Any = None, **_: Any) -> int:
    pairs, e, d = sizes(arguments)
    return 2 * pairs * (e + d)


@register_flop_formula(torch.ops.fredholm.affinity_product_backward)
def _backward_flops(
    grad: Any, row_grad: Any, *arguments: Any, out_shape: Any = None, **_: Any
) -> int:
    pairs, e, d = sizes(arguments)
    query, key, value, *others = arguments[-1]
    scores = query or key or any(others)
    return 2 * pairs * (e * (1 + query + key) + d * (value + scores))
