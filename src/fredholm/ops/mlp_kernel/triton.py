"""The MLP kernel by Triton: two custom ops that prepare, launch and sum; the kernels are in
``triton_forward`` and ``triton_backward``.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .limits import operand_dtype
from .registration import TENSORS, backward_flops, forward_flops
from .tiles import Inputs
from .triton_gradient import backward
from .triton_launch import forward

FIELDS = TENSORS.removesuffix(", Tensor[] mid")
SINGLE = (
    "query_bias",
    "distance_scale",
    "query_positions",
    "key_positions",
)  # stay in float32: small, and they add
DEFAULT_BYTES = 1_000_000_000  # few launches: each costs tenths of a millisecond of Python's time


def mlp_kernel_triton(
    tensors: dict[str, Tensor | None], activation: str, memory: int | None
) -> Tensor:
    """:func:`~fredholm.ops.mlp_kernel.mlp_kernel` for checked arguments; ``memory``: bytes of the
    moments held at once.
    """
    dtype = operand_dtype(tensors)
    ready = [_cast(name, x, dtype) for name, x in tensors.items()]
    value: Any = tensors["value"]
    return mlp_kernel_triton_op(*ready, activation, memory or DEFAULT_BYTES).to(value.dtype)


def _cast(name: str, x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if x is None or not x.is_floating_point() or name.endswith("time"):
        return x
    if name == "density":
        return x
    return x.to(torch.float32 if name in SINGLE else dtype)


def _device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@torch.library.custom_op(
    "fredholm::mlp_kernel_triton",
    mutates_args=(),
    schema=f"({FIELDS}, str activation, int memory) -> Tensor",
)
def mlp_kernel_triton_op(*arguments: Any) -> Tensor:
    *tensors, activation, memory = arguments
    x = Inputs(*tensors, mid=[])
    with _device(x.value), torch.autocast(x.value.device.type, enabled=False):
        return forward(x, activation, memory)


@mlp_kernel_triton_op.register_fake
def _(*arguments: Any) -> Tensor:
    x = Inputs(*arguments[:-2], mid=[])
    b, h = x.value.shape[:2]
    return x.value.new_empty(b, h, x.query_bias.shape[2], x.readout.shape[1])


@torch.library.custom_op(
    "fredholm::mlp_kernel_triton_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {FIELDS}, str activation, int memory, bool[] needs) -> Tensor[]",
)
def mlp_kernel_triton_backward_op(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, activation, memory, needs = arguments
    x = Inputs(*tensors, mid=[])
    with _device(x.value), torch.autocast(x.value.device.type, enabled=False):
        return backward(grad, x, activation, memory, needs)


@mlp_kernel_triton_backward_op.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, needed in zip(arguments[:-3], arguments[-1]) if needed]


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, activation, memory = inputs
    ctx.save_for_backward(*tensors)
    ctx.activation, ctx.memory = activation, memory


def _backward(ctx: Any, grad: Tensor) -> tuple:
    tensors = ctx.saved_tensors
    needs = [bool(needed) for needed in ctx.needs_input_grad[: len(tensors)]]
    found = iter(mlp_kernel_triton_backward_op(grad, *tensors, ctx.activation, ctx.memory, needs))
    return *(next(found) if needed else None for needed in needs), None, None


mlp_kernel_triton_op.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.fredholm.mlp_kernel_triton)
def _forward_flops(*arguments: Any, out_shape: Any = None, **_: Any) -> int:
    return forward_flops(*arguments[:-2], [])


@register_flop_formula(torch.ops.fredholm.mlp_kernel_triton_backward)
def _backward_flops(grad: Any, *arguments: Any, out_shape: Any = None, **_: Any) -> int:
    return backward_flops(*arguments[:-3], [], needs=arguments[-1])
