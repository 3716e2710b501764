"""Registration of the scalar banks with torch: the custom ops, their shapes, autograd and FLOP
counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import chunked, piecewise
from .naive import Bank

LINES = "Tensor u, Tensor knots, Tensor slope, Tensor intercept"
BANK = "Tensor u, Tensor weight, Tensor bias, Tensor readout, Tensor shift"


@torch.library.custom_op(
    "fredholm::piecewise_linear", mutates_args=(), schema=f"({LINES}, bool nonneg) -> Tensor"
)
def piecewise_linear_op(
    u: Tensor, knots: Tensor, slope: Tensor, intercept: Tensor, nonneg: bool
) -> Tensor:
    return piecewise.forward(u, knots, slope, intercept, nonneg)


@piecewise_linear_op.register_fake
def _(u: Tensor, knots: Tensor, slope: Tensor, intercept: Tensor, nonneg: bool) -> Tensor:
    return u.new_empty(u.shape[0], u.shape[1], slope.shape[1], u.shape[2])


@torch.library.custom_op(
    "fredholm::piecewise_linear_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor? out, Tensor u, Tensor knots, Tensor slope) -> (Tensor, Tensor)",
)
def piecewise_linear_backward_op(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    return piecewise.backward(grad, out, u, knots, slope)


@piecewise_linear_backward_op.register_fake
def _(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), slope.new_empty(slope.shape[0], 2 * slope.shape[1], slope.shape[2])


def _save_lines(ctx: Any, inputs: tuple, output: Tensor) -> None:
    u, knots, slope, _, nonneg = inputs
    ctx.save_for_backward(output if nonneg else None, u, knots, slope)


def _lines_backward(ctx: Any, grad: Tensor) -> tuple:
    du, lines = piecewise_linear_backward_op(grad, *ctx.saved_tensors)
    return du, None, *lines.chunk(2, 1), None


piecewise_linear_op.register_autograd(_lines_backward, setup_context=_save_lines)


@torch.library.custom_op(
    "fredholm::scalar_bank",
    mutates_args=(),
    schema=f"({BANK}, str activation, bool nonneg) -> Tensor",
)
def scalar_bank_op(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    activation: str,
    nonneg: bool,
) -> Tensor:
    return chunked.forward(u, Bank(weight, bias, readout, shift), activation, nonneg)


@scalar_bank_op.register_fake
def _(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    activation: str,
    nonneg: bool,
) -> Tensor:
    return u.new_empty(u.shape[0], u.shape[1], shift.shape[1] * shift.shape[2], u.shape[2])


@torch.library.custom_op(
    "fredholm::scalar_bank_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor? out, {BANK}, str activation) -> Tensor[]",
)
def scalar_bank_backward_op(
    grad: Tensor,
    out: Tensor | None,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    activation: str,
) -> list[Tensor]:
    return chunked.backward(grad, out, u, Bank(weight, bias, readout, shift), activation)


@scalar_bank_backward_op.register_fake
def _(
    grad: Tensor,
    out: Tensor | None,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    activation: str,
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (u, weight, bias, readout, shift)]


def _save_bank(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.activation, nonneg = inputs
    ctx.save_for_backward(output if nonneg else None, *tensors)


def _bank_backward(ctx: Any, grad: Tensor) -> tuple:
    return (*scalar_bank_backward_op(grad, *ctx.saved_tensors, ctx.activation), None, None)


scalar_bank_op.register_autograd(_bank_backward, setup_context=_save_bank)


def _size(shape: Any) -> int:
    return int(torch.Size(shape).numel())


@register_flop_formula(torch.ops.fredholm.piecewise_linear)
def _lines_flops(u: Any, knots: Any, slope: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * _size(u) * slope[1]


@register_flop_formula(torch.ops.fredholm.piecewise_linear_backward)
def _lines_backward_flops(
    grad: Any, out: Any, u: Any, knots: Any, slope: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return 5 * _size(u) * slope[1]


@register_flop_formula(torch.ops.fredholm.scalar_bank)
def _bank_flops(
    u: Any, weight: Any, bias: Any, readout: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return 2 * _size(u) * (_size(weight[1:]) + _size(readout[1:]))


@register_flop_formula(torch.ops.fredholm.scalar_bank_backward)
def _bank_backward_flops(
    grad: Any,
    out: Any,
    u: Any,
    weight: Any,
    bias: Any,
    readout: Any,
    *_: Any,
    out_shape: Any = None,
    **__: Any,
) -> int:
    return 2 * _size(u) * (3 * _size(weight[1:]) + 2 * _size(readout[1:]))
