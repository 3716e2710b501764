"""Registration of the MLP kernel with torch: the two custom ops, their shapes, autograd and FLOP
counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .backward import backward
from .forward import forward
from .tiles import Inputs

TENSORS = (
    "Tensor? query, Tensor? key, Tensor value, Tensor readout, Tensor query_bias, Tensor? "
    "key_bias, Tensor? scale, "
    "Tensor? query2, Tensor? scale2, Tensor? table, Tensor? query_index, Tensor? key_index, "
    "Tensor? distance_scale, "
    "Tensor? query_positions, Tensor? key_positions, Tensor? density, Tensor? query_time, Tensor? "
    "key_time, "
    "Tensor[] mid"
)
OPTIONS = "str activation, int memory"


@torch.library.custom_op(
    "fredholm::mlp_kernel", mutates_args=(), schema=f"({TENSORS}, {OPTIONS}) -> Tensor"
)
def mlp_kernel_op(*arguments: Any) -> Tensor:
    *tensors, activation, memory = arguments
    x = Inputs(*tensors)
    with torch.autocast(x.value.device.type, enabled=False):
        return forward(x, activation, memory)


@mlp_kernel_op.register_fake
def _(*arguments: Any) -> Tensor:
    x = Inputs(*arguments[:-2])
    b, h = x.value.shape[:2]
    return x.value.new_empty(b, h, x.query_bias.shape[2], x.readout.shape[1])


@torch.library.custom_op(
    "fredholm::mlp_kernel_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {TENSORS}, {OPTIONS}, bool[] needs) -> Tensor[]",
)
def mlp_kernel_backward_op(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, activation, memory, needs = arguments
    x = Inputs(*tensors)
    with torch.autocast(x.value.device.type, enabled=False):
        return backward(grad, x, activation, memory, needs)


@mlp_kernel_backward_op.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, mid = arguments[:-3]
    return [t.new_empty(t.shape) for t, needed in zip([*tensors, *mid], arguments[-1]) if needed]


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, mid, activation, memory = inputs
    ctx.save_for_backward(*tensors, *mid)
    ctx.fields, ctx.activation, ctx.memory = len(tensors), activation, memory


def _backward(ctx: Any, grad: Tensor) -> tuple:
    saved = ctx.saved_tensors
    tensors, mid = saved[: ctx.fields], list(saved[ctx.fields :])
    needs_mid = ctx.needs_input_grad[ctx.fields]
    needs_mid = (
        list(needs_mid) if isinstance(needs_mid, (list, tuple)) else [bool(needs_mid)] * len(mid)
    )
    needs = [*ctx.needs_input_grad[: ctx.fields], *needs_mid]
    found = iter(mlp_kernel_backward_op(grad, *tensors, mid, ctx.activation, ctx.memory, needs))
    grads = [next(found) if needed else None for needed in needs]
    return *grads[: ctx.fields], grads[ctx.fields :], None, None


mlp_kernel_op.register_autograd(_backward, setup_context=_setup_context)


def _shapes(arguments: tuple) -> tuple[int, int, dict[str, int], list]:
    """Pairs, (head, batch, query) triples, widths and further layers, from the shapes a FLOP
    counter passes.
    """
    x = Inputs(*arguments)
    value: Any = x.value
    bias: Any = x.query_bias
    readout: Any = x.readout
    b, h, k, d = value
    q, w = bias[2:]
    e = x.key[-1] if x.key is not None else 0  # type: ignore[index]
    widths = {"e": int(e), "d": d, "o": readout[1], "w": w, "last": readout[3]}
    return b * h * q * k, b * h * q, widths, list(x.mid[::2])


def forward_flops(*tensors: Any) -> int:
    """FLOPs of the forward, from the shapes of the op's tensors."""
    pairs, rows, n, mid = _shapes(tensors)
    layers = sum(a * b for a, b in mid)
    return 2 * (
        pairs * (n["w"] * n["e"] + layers + n["last"] * n["d"]) + rows * n["last"] * n["d"] * n["o"]
    )


def backward_flops(*tensors: Any, needs: list[bool]) -> int:
    """FLOPs of the backward with every tile's numbers computed again once, from the shapes of the
    op's tensors.
    """
    pairs, rows, n, mid = _shapes(tensors)
    wanted = dict(zip(Inputs._fields, needs))
    layers = sum(a * b for a, b in mid)
    wants_rows = any(wanted[name] for name in ("query", "query_bias", "scale", "query2", "scale2"))
    product, moment = n["w"] * n["e"], n["last"] * n["d"]
    per_pair = (
        product + layers + moment
    )  # S and the further layers again, then the gradient of the last hidden units
    per_pair += (
        product * (wants_rows + wanted["key"])
        + moment * (wanted["value"] + wanted["readout"])
        + 2 * layers
    )
    return 2 * (pairs * per_pair + rows * moment * n["o"] * (1 + wanted["readout"]))


@register_flop_formula(torch.ops.fredholm.mlp_kernel)
def _forward_flops(*arguments: Any, out_shape: Any = None, **_: Any) -> int:
    return forward_flops(*arguments[:-2])


@register_flop_formula(torch.ops.fredholm.mlp_kernel_backward)
def _backward_flops(grad: Any, *arguments: Any, out_shape: Any = None, **_: Any) -> int:
    return backward_flops(*arguments[:-3], needs=arguments[-1])
