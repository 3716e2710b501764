"""A bank of scalar networks, each form where it is exact and fastest: few scalars and any
activation in chunks, whose hidden units are never kept and computed again in the backward; ReLU
networks as the piecewise linear functions they are, in :mod:`.piecewise`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import ShapeError
from ..backend import cast, full_precision, values_alone
from ..custom_op import custom_op
from ..plain import vjp
from ..tiles import find_activation, rectangles
from .naive import Bank, scalar_bank_naive
from .piecewise import piecewise_linear_op, segments, size_of

FEW, FEW_RECORDED = 4096, 256
"""Scalars of a set up to which the networks themselves are run, without and with gradients:
`python -m evidence time small tune`.
"""
ELEMENTS = 500_000  # hidden units of a chunk that a CPU core works through near its cache
ACCELERATOR_ELEMENTS = 100_000_000


_sums_of_units: ContextVar[bool] = ContextVar("sums_of_units", default=False)


@contextmanager
def sums_of_units() -> Iterator[None]:
    """Make :func:`scalar_bank` sum up the units of ReLU networks inside, however many scalars there
    are.

    Runtimes that have no search and no fast gather trace their programs so: two matrix products
    instead of a table.
    """
    before = _sums_of_units.set(True)
    try:
        yield
    finally:
        _sums_of_units.reset(before)


def scalar_bank(
    u: Float[Tensor, "r s t"], bank: Bank, *, activation: str = "relu", nonneg: bool = True
) -> Float[Tensor, "r s l t"]:
    r""":math:`\psi_l(u) = \sum_j R_{lj}\,\sigma(w_{lj} u + b_{lj}) + c_l`, and a ReLU if
    ``nonneg``, at many scalars.

    With ReLU units ψ is piecewise linear: one search among the K = G·h merged knots and one
    multiply-add per channel. Other activations are evaluated in chunks and computed again in the
    backward.

    Args:
        u: scalars, (R, S, T); set s of the bank is applied to ``u[:, s]``.
        bank: see :class:`Bank`.
        activation: σ, a name in ``fredholm.ops.tiles.ACTIVATIONS``.
        nonneg: whether a ReLU follows.

    Returns:
        (R, S, L, T) in u's dtype; half precisions and autocast are computed in float32.

    Cost:
        ReLU: O(T·L) time beside O(L·K) for the segments, which few scalars, as those of a step, do
        without; others O(T·G·h). Memory O(T·L) and a chunk, in second derivatives that of all
        hidden units. At a knot itself the one-sided slope from the left is taken.

    Raises:
        OptionError: an unknown activation.
        ShapeError: a bank whose shapes do not fit u or one another.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], 0 * one)  # ReLU(u - 1)
        >>> scalar_bank(torch.tensor([[[-1.0, 0.0, 2.0]]]), bank).tolist()
        [[[[0.0, 0.0, 1.0]]]]
    """
    find_activation(activation)
    _check(u, bank)
    dtype = torch.promote_types(torch.promote_types(u.dtype, bank.weight.dtype), torch.float32)
    with full_precision(u):
        x, whole = cast(u, dtype), Bank(*(cast(part, dtype) for part in bank))
        if activation == "relu" and not _few(x, whole):
            return cast(piecewise_linear_op(x, *segments(whole), nonneg), u.dtype)
        return cast(scalar_bank_op(x, *whole, activation, nonneg), u.dtype)


def _few(u: Tensor, bank: Bank) -> bool:
    """Whether the hidden units of all scalars cost less than the segments, or are asked for; traced
    lengths stay free.
    """
    if _sums_of_units.get():
        return True
    few = FEW_RECORDED if torch.is_grad_enabled() else FEW
    return not torch.compiler.is_compiling() and u.shape[0] * u.shape[2] <= few


def few_scalars(
    u: Float[Tensor, "r s t"],
    bank: Bank,
    *,
    activation: str = "relu",
    nonneg: bool = True,
    scale: float = 1.0,
) -> Float[Tensor, "r s l t"] | None:
    """``scale`` times :func:`scalar_bank` where nothing but the values at few scalars is wanted,
    all hidden units at once; None elsewhere. Shapes are not checked again, and the result is a
    view.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], 0 * one)  # ReLU(u - 1)
        >>> few_scalars(torch.tensor([[[-1.0, 0.0, 2.0]]]), bank, scale=3.0).tolist()
        [[[[0.0, 0.0, 3.0]]]]
    """
    if u.shape[0] * u.shape[2] > FEW or not values_alone((u, *bank)):
        return None
    return _at_once(u, bank, activation, nonneg, scale)


def _at_once(u: Tensor, bank: Bank, activation: str, nonneg: bool, scale: float) -> Tensor:
    (rows, sets, columns), (_, groups, channels, _) = u.shape, bank.readout.shape
    # a product and a sum along the scalars: torch does not vectorise the two as one operation
    hidden = bank.weight[..., None] * u.transpose(0, 1).reshape(sets, 1, 1, rows * columns)
    find_activation(activation).apply_(hidden.add_(bank.bias[..., None]))
    readout, shift = bank.readout.flatten(0, 1), bank.shift.flatten(0, 1)[..., None]
    y = torch.baddbmm(shift, readout, hidden.flatten(0, 1), beta=scale, alpha=scale)
    y = y.relu_() if nonneg else y
    return y.view(sets, groups * channels, rows, columns).permute(2, 0, 1, 3)


def _check(u: Tensor, bank: Bank) -> None:
    shapes = [tuple(x.shape) for x in bank]
    if u.dim() != 3 or bank.readout.dim() != 4:
        raise ShapeError(
            f"scalar_bank needs u (R, S, T) and a readout (S, G, C, h), got {tuple(u.shape)}, "
            f"{shapes[2]}"
        )
    s, g, c, h = shapes[2]
    if shapes != [(s, g, h), (s, g, h), (s, g, c, h), (s, g, c)] or u.shape[1] != s:
        raise ShapeError(
            "a bank has weight and bias (S, G, h), readout (S, G, C, h) and shift (S, G, C), and "
            "u is (R, S, T); got "
            f"{', '.join(map(str, shapes))} and {tuple(u.shape)}"
        )


# --- any activation, in chunks --------------------------------------------------------------------


def _chunk(u: Tensor, bank: Bank) -> int:
    elements = ELEMENTS if u.device.type == "cpu" else ACCELERATOR_ELEMENTS
    return max(1, elements // bank.weight[0].numel())


def forward(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    activation: str,
    nonneg: bool,
) -> Tensor:
    """(R, S, T) scalars to (R, S, L, T)."""
    bank, channels = Bank(weight, bias, readout, shift), shift[0].numel()
    rows, sets, columns = u.shape
    out, apply = u.new_empty(rows, sets, channels, columns), find_activation(activation).apply_
    for s in range(sets):
        weight, bias, readout, shift = (x[s] for x in bank)
        for r, c in rectangles(rows, columns, _chunk(u, bank)):
            part = u[r, s, c]
            hidden = _before(weight, bias, part.reshape(-1))
            apply(hidden)
            y = torch.baddbmm(shift[..., None], readout, hidden)
            y = y.relu_() if nonneg else y
            out[r, s, :, c] = y.view(channels, *part.shape).transpose(0, 1)
    return out


def _before(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """w x + b of one set at scalars (n,), (G, h, n), as a product of [w, b] and [x, 1]: a quarter
    of the time of a broadcast multiply-add.
    """
    rows = x.new_ones(2, x.shape[0])
    rows[0] = x
    lines = torch.stack([weight.flatten(), bias.flatten()], -1)
    return (lines @ rows).view(*weight.shape, -1)


def backward(
    grad: Tensor, out: Tensor | None, u: Tensor, bank: Bank, activation: str
) -> list[Tensor]:
    """Gradients of u and of the bank; ``out`` where its ReLU cuts the gradient."""
    (rows, sets, columns), rule = u.shape, find_activation(activation)
    du, total = u.new_empty(u.shape), Bank(*(x.new_zeros(x.shape) for x in bank))
    for s in range(sets):
        weight, bias, readout, shift = (x[s] for x in bank)
        for r, c in rectangles(rows, columns, _chunk(u, bank)):
            part = u[r, s, c]
            x = part.reshape(-1)
            g = grad[r, s, :, c]
            g = g if out is None else g * (out[r, s, :, c] > 0)
            g = g.transpose(0, 1).reshape(*shift.shape, -1)  # (G, C, n)
            before = _before(weight, bias, x)
            hidden = before.clone()
            rule.apply_(hidden)
            total.readout[s].baddbmm_(g, hidden.mT)
            total.shift[s].add_(g.sum(-1))
            inner = readout.mT @ g
            rule.gradient_(inner, before)
            total.weight[s].add_(inner @ x)
            total.bias[s].add_(inner.sum(-1))
            du[r, s, c] = (weight.flatten() @ inner.flatten(0, 1)).view(part.shape)
    return [du, *total]


# --- registration ---------------------------------------------------------------------------------

BANK = "Tensor u, Tensor weight, Tensor bias, Tensor readout, Tensor shift"


def _bank_fake(*arguments: Any) -> Tensor:
    u, *_, shift, _, _ = arguments
    return u.new_empty(u.shape[0], u.shape[1], shift.shape[1] * shift.shape[2], u.shape[2])


def _plain_bank(*arguments: Any) -> Tensor:
    u, *bank, activation, nonneg = arguments
    with full_precision(u):  # a backward may be called under autocast
        return scalar_bank_naive(u, Bank(*bank), activation=activation, nonneg=nonneg)


def _plain_bank_gradients(grad: Tensor, out: Tensor | None, *arguments: Any) -> list[Tensor]:
    grad = grad if out is None else grad * (out > 0)
    with full_precision(grad):
        return vjp(_plain_bank, [*arguments, False], [True] * 5, [grad])


def _bank_gradients(grad: Tensor, out: Tensor | None, *arguments: Any) -> list[Tensor]:
    u, *bank, activation = arguments
    with full_precision(u):
        return backward(grad, out, u, Bank(*bank), activation)


def _bank_gradients_fake(grad: Tensor, out: Tensor | None, *arguments: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in arguments[:-1]]


def _bank_flops(u: Any, weight: Any, bias: Any, readout: Any, *_: Any) -> int:
    return 2 * size_of(u) * (size_of(weight[1:]) + size_of(readout[1:]))


def _bank_backward_flops(
    grad: Any, out: Any, u: Any, weight: Any, bias: Any, readout: Any, *_: Any
) -> int:
    return 2 * size_of(u) * (3 * size_of(weight[1:]) + 2 * size_of(readout[1:]))


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
    forward,
    fake=_bank_fake,
    plain=_plain_bank,
    flops=_bank_flops,
    setup_context=_save_bank,
    backward=_bank_backward,
)
