"""Registration of the scalar banks, piecewise linear and in chunks, as custom ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..custom_op import custom_op
from ..plain import vjp
from . import chunked, piecewise
from .naive import Bank, scalar_bank_naive

BANK = "Tensor u, Tensor weight, Tensor bias, Tensor readout, Tensor shift"


def _size(shape: Any) -> int:
    return int(torch.Size(shape).numel())


# --- piecewise linear -----------------------------------------------------------------------------


def _lines(u: Tensor, knots: Tensor, slope: Tensor, intercept: Tensor, nonneg: bool) -> Tensor:
    return u.new_empty(u.shape[0], u.shape[1], slope.shape[1], u.shape[2])


def _line_gradients(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), slope.new_empty(slope.shape[0], 2 * slope.shape[1], slope.shape[2])


def _plain_line_gradients(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients are linear in grad, u and slope; where the ReLU cuts, and which line a scalar
    reads, does not change with them.
    """
    grad = grad if out is None else grad * (out > 0)
    line, index = piecewise.lines_at(u, knots, slope)
    both = torch.cat([grad * u[:, :, None], grad], 2)
    target = both.new_zeros(*both.shape[:3], slope.shape[2])
    of_lines = target.scatter_add(-1, index.expand_as(both), both).sum(0)
    return (grad * line).sum(2), of_lines


piecewise_linear_backward_op = custom_op(
    "piecewise_linear_backward",
    "(Tensor grad, Tensor? out, Tensor u, Tensor knots, Tensor slope) -> (Tensor, Tensor)",
    piecewise.backward,
    fake=_line_gradients,
    plain=_plain_line_gradients,
    flops=lambda grad, out, u, knots, slope: 5 * _size(u) * slope[1],
)


def _save_lines(ctx: Any, inputs: tuple, output: Tensor) -> None:
    u, knots, slope, _, nonneg = inputs
    ctx.save_for_backward(output if nonneg else None, u, knots, slope)


def _lines_backward(ctx: Any, grad: Tensor) -> tuple:
    # A knot only says which line a scalar reads; ψ is continuous there, so that moving a knot while
    # the lines stay changes nothing to first order. :func:`segments` detaches it for that reason.
    du, lines = piecewise_linear_backward_op(grad, *ctx.saved_tensors)
    return du, None, *lines.chunk(2, 1), None


piecewise_linear_op = custom_op(
    "piecewise_linear",
    "(Tensor u, Tensor knots, Tensor slope, Tensor intercept, bool nonneg) -> Tensor",
    piecewise.forward,
    fake=_lines,
    plain=piecewise.plain,
    flops=lambda u, knots, slope, intercept, nonneg: 2 * _size(u) * slope[1],
    setup_context=_save_lines,
    backward=_lines_backward,
)


# --- any activation, in chunks --------------------------------------------------------------------


def _bank(*arguments: Any) -> Tensor:
    u, *bank, activation, nonneg = arguments
    return chunked.forward(u, Bank(*bank), activation, nonneg)


def _bank_fake(*arguments: Any) -> Tensor:
    u, *_, shift, _, _ = arguments
    return u.new_empty(u.shape[0], u.shape[1], shift.shape[1] * shift.shape[2], u.shape[2])


def _plain_bank(*arguments: Any) -> Tensor:
    u, *bank, activation, nonneg = arguments
    return scalar_bank_naive(u, Bank(*bank), activation=activation, nonneg=nonneg)


def _plain_bank_gradients(grad: Tensor, out: Tensor | None, *arguments: Any) -> list[Tensor]:
    grad = grad if out is None else grad * (out > 0)
    return vjp(_plain_bank, [*arguments, False], [True] * 5, [grad])


def _bank_gradients(grad: Tensor, out: Tensor | None, *arguments: Any) -> list[Tensor]:
    u, *bank, activation = arguments
    return chunked.backward(grad, out, u, Bank(*bank), activation)


def _bank_gradients_fake(grad: Tensor, out: Tensor | None, *arguments: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in arguments[:-1]]


def _bank_flops(u: Any, weight: Any, bias: Any, readout: Any, *_: Any) -> int:
    return 2 * _size(u) * (_size(weight[1:]) + _size(readout[1:]))


def _bank_backward_flops(
    grad: Any, out: Any, u: Any, weight: Any, bias: Any, readout: Any, *_: Any
) -> int:
    return 2 * _size(u) * (3 * _size(weight[1:]) + 2 * _size(readout[1:]))


scalar_bank_backward_op = custom_op(
    "scalar_bank_backward",
    f"(Tensor grad, Tensor? out, {BANK}, str activation) -> Tensor[]",
    _bank_gradients,
    fake=_bank_gradients_fake,
    plain=_plain_bank_gradients,
    flops=_bank_backward_flops,
)


def _save_bank(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.activation, nonneg = inputs
    ctx.save_for_backward(output if nonneg else None, *tensors)


def _bank_backward(ctx: Any, grad: Tensor) -> tuple:
    return (*scalar_bank_backward_op(grad, *ctx.saved_tensors, ctx.activation), None, None)


scalar_bank_op = custom_op(
    "scalar_bank",
    f"({BANK}, str activation, bool nonneg) -> Tensor",
    _bank,
    fake=_bank_fake,
    plain=_plain_bank,
    flops=_bank_flops,
    setup_context=_save_bank,
    backward=_bank_backward,
)
