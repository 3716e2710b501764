"""A bank of scalar networks in its fast forms.

ReLU networks at many scalars are evaluated as the piecewise linear functions they are, in
:mod:`.piecewise`. Few scalars, and other activations, go in chunks, whose hidden units are never
stored and computed again in the backward.
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
from ..backend import cast, constant_when_traced, full_precision, values_alone
from ..custom_op import custom_op
from ..plain import vjp
from ..tiles import find_activation, rectangles
from .naive import Bank, scalar_bank_naive
from .piecewise import piecewise_linear_op, segments, size_of

FEW = 4096
"""Scalars per set up to which the networks themselves are evaluated, without gradients:
``python -m evidence time small tune``.
"""
FEW_RECORDED = 256
"""The same with gradients."""
ELEMENTS = 500_000
"""Hidden units in a chunk: a processor's core works through them near its cache."""
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


@constant_when_traced
def _sums_wanted() -> bool:
    """Return whether the call is inside :func:`sums_of_units`. Dynamo cannot read a ContextVar."""
    return _sums_of_units.get()


def scalar_bank(
    u: Float[Tensor, "r s t"],
    bank: Bank,
    *,
    activation: str = "relu",
    nonneg: bool = True,
) -> Float[Tensor, "r s l t"]:
    r"""Return :math:`\psi_l(u) = \sum_j R_{lj}\,\sigma(w_{lj} u + b_{lj}) + c_l`, and its ReLU if
    ``nonneg``, at many scalars.

    With ReLU units ψ is piecewise linear: one search among the K = G·h merged knots, and one
    multiply-add per channel. At a knot the slope on its left is taken. Other activations are
    evaluated in chunks, and once more in the backward.

    Args:
        u: scalars, (R, S, T); set s of the bank is applied to ``u[:, s]``.
        bank: w, b, R and c, see :class:`Bank`.
        activation: σ, a name in ``fredholm.ops.tiles.ACTIVATIONS``.
        nonneg: whether a ReLU follows.

    Returns:
        (R, S, L, T) in u's dtype; half precisions and autocast are computed in float32.

    Cost: with ReLU units O(T·L) time and O(L·K) more for the segments, which few scalars, such as
    those of a step, do without; with others O(T·G·h). Memory O(T·L) and a chunk; in second
    derivatives that of all hidden units.

    Raises:
        OptionError: an unknown activation.
        ShapeError: a bank whose shapes do not fit u or one another.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], 0 * one)  # ReLU(u - 1)
        >>> scalar_bank(torch.tensor([[[-1.0, 0.0, 2.0]]]), bank).tolist()
        [[[[0.0, 0.0, 1.0]]]]
    """
    find_activation(activation)
    _check(u, bank)
    dtype = torch.promote_types(u.dtype, bank.weight.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    with full_precision(u):
        x = cast(u, dtype)
        bank_in_dtype = Bank(*(cast(part, dtype) for part in bank))
        if activation == "relu" and not _few(x):
            lines = segments(bank_in_dtype)
            y = piecewise_linear_op(x, *lines, nonneg)
        else:
            y = scalar_bank_op(x, *bank_in_dtype, activation, nonneg)
        return cast(y, u.dtype)


def _few(u: Tensor) -> bool:
    """Return whether the hidden units of all scalars cost less than the segments, or are asked for
    by :func:`sums_of_units`.

    Under tracing sizes do not decide: it would fix the length of the traced program.
    """
    if _sums_wanted():
        return True
    if torch.compiler.is_compiling():
        return False
    rows, _, columns = u.shape
    few = FEW
    if torch.is_grad_enabled():
        few = FEW_RECORDED
    return rows * columns <= few


def few_scalars(
    u: Float[Tensor, "r s t"],
    bank: Bank,
    *,
    activation: str = "relu",
    nonneg: bool = True,
    scale: float = 1.0,
) -> Float[Tensor, "r s l t"] | None:
    """Return ``scale`` times :func:`scalar_bank` with all hidden units at once, or None.

    None where there are many scalars, or more than values is wanted. Shapes are not checked again,
    and the result is a view.

    Args:
        u, bank, activation, nonneg: as for :func:`scalar_bank`.
        scale: a positive factor.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], 0 * one)  # ReLU(u - 1)
        >>> few_scalars(torch.tensor([[[-1.0, 0.0, 2.0]]]), bank, scale=3.0).tolist()
        [[[[0.0, 0.0, 3.0]]]]
    """
    rows, _, columns = u.shape
    if rows * columns > FEW or not values_alone((u, *bank)):
        return None
    return _at_once(u, bank, activation, nonneg, scale)


def _at_once(
    u: Tensor,
    bank: Bank,
    activation: str,
    nonneg: bool,
    scale: float,
) -> Tensor:
    """Return the values at all scalars, from their hidden units (S, G, h, R·T)."""
    rows, sets, columns = u.shape
    _, networks, outputs, _ = bank.readout.shape

    # A product and a sum, each along the scalars: torch does not vectorise a fused ``addcmul`` with
    # two broadcast factors (docs/log.md, 2026-11-23, "A broadcast addcmul").
    scalars = u.transpose(0, 1).reshape(sets, 1, 1, rows * columns)
    hidden = bank.weight[..., None] * scalars
    hidden.add_(bank.bias[..., None])
    find_activation(activation).apply_(hidden)

    # One product per network, (C, h) @ (h, R·T). A positive scale passes through the ReLU.
    readout = bank.readout.flatten(0, 1)
    shift = bank.shift.flatten(0, 1)[..., None]
    y = torch.baddbmm(
        shift,
        readout,
        hidden.flatten(0, 1),
        beta=scale,
        alpha=scale,
    )
    if nonneg:
        y.relu_()
    y = y.view(sets, networks * outputs, rows, columns)
    return y.permute(2, 0, 1, 3)


def _check(u: Tensor, bank: Bank) -> None:
    """Raise ShapeError unless u is (R, S, T) and the bank has S sets of one shape."""
    shapes = [tuple(x.shape) for x in bank]
    if u.dim() != 3 or bank.readout.dim() != 4:
        raise ShapeError(
            f"expected scalars (R, S, T) and a readout (S, G, C, h), got {tuple(u.shape)} and "
            f"{tuple(bank.readout.shape)}; reshape them"
        )
    s, g, c, h = bank.readout.shape
    expected = [
        (s, g, h),
        (s, g, h),
        (s, g, c, h),
        (s, g, c),
    ]
    if shapes != expected or u.shape[1] != s:
        got = ", ".join(map(str, shapes))
        raise ShapeError(
            "expected a bank with weight and bias (S, G, h), readout (S, G, C, h) and shift "
            f"(S, G, C), and scalars (R, S, T), got {got} and {tuple(u.shape)}; give all of them "
            "the same S, G, C and h"
        )


# --- any activation, in chunks --------------------------------------------------------------------


def _chunk(u: Tensor, bank: Bank) -> int:
    """Return the number of scalars whose hidden units of one set are a chunk."""
    elements = ACCELERATOR_ELEMENTS
    if u.device.type == "cpu":
        elements = ELEMENTS
    units_of_scalar = bank.weight[0].numel()
    return max(1, elements // units_of_scalar)


def forward(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    activation: str,
    nonneg: bool,
) -> Tensor:
    """Return the values (R, S, L, T) at scalars (R, S, T), of S sets of G networks 1 → h → C with
    L = G·C channels, see :class:`Bank`.

    A tile is a chunk of n scalars of one set. In memory are its hidden units (G, h, n), overwritten
    by their activation, and its values (G, C, n).
    """
    bank = Bank(weight, bias, readout, shift)
    channels = shift[0].numel()
    rows, sets, columns = u.shape
    out = u.new_empty(rows, sets, channels, columns)
    apply_ = find_activation(activation).apply_

    for s in range(sets):
        weight, bias, readout, shift = (x[s] for x in bank)
        for r, c in rectangles(rows, columns, _chunk(u, bank)):
            part = u[r, s, c]
            hidden = _before(weight, bias, part.reshape(-1))
            apply_(hidden)
            y = torch.baddbmm(shift[..., None], readout, hidden)
            if nonneg:
                y.relu_()
            by_row = y.view(channels, *part.shape).transpose(0, 1)
            out[r, s, :, c] = by_row
    return out


def _before(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return w x + b of one set at scalars (n,), before the activation: (G, h, n).

    As a product of [w, b] and [x, 1], in a quarter of the time of a broadcast multiply-add
    (docs/log.md, 2026-11-23, "A broadcast addcmul").
    """
    rows = x.new_ones(2, x.shape[0])
    rows[0] = x
    lines = torch.stack([weight.flatten(), bias.flatten()], -1)
    units = lines @ rows
    return units.view(*weight.shape, -1)


def backward(
    grad: Tensor,
    out: Tensor | None,
    u: Tensor,
    bank: Bank,
    activation: str,
) -> list[Tensor]:
    r"""Return the gradients of u and of the bank's four tensors.

    With g the gradient of ψ, zero where the ReLU behind it is, and for unit j of a network
    :math:`z_j = w_j u + b_j` and :math:`\delta_j = \sigma'(z_j) \sum_l R_{lj}\, g_l`,

    .. math:: \bar R_{lj} = \sum_t g_l\, \sigma(z_j), \quad \bar c_l = \sum_t g_l, \quad
        \bar w_j = \sum_t \delta_j u, \quad \bar b_j = \sum_t \delta_j, \quad
        \bar u = \sum_j \delta_j w_j.

    Tiles are those of :func:`forward`. In memory are z, σ(z) and δ, (G, h, n) each, and g,
    (G, C, n). δ overwrites the product R g.

    Args:
        grad: of the values, (R, S, L, T).
        out: the values, where a ReLU made them; else None.
        u, bank, activation: as in :func:`forward`.
    """
    rows, sets, columns = u.shape
    rule = find_activation(activation)
    du = u.new_empty(u.shape)
    total = Bank(*(x.new_zeros(x.shape) for x in bank))

    for s in range(sets):
        weight, bias, readout, shift = (x[s] for x in bank)
        for r, c in rectangles(rows, columns, _chunk(u, bank)):
            part = u[r, s, c]
            x = part.reshape(-1)

            # g, (G, C, n)
            g = grad[r, s, :, c]
            if out is not None:
                g = g * (out[r, s, :, c] > 0)
            g = g.transpose(0, 1).reshape(*shift.shape, -1)

            z = _before(weight, bias, x)
            hidden = z.clone()
            rule.apply_(hidden)
            total.readout[s].baddbmm_(g, hidden.mT)
            total.shift[s].add_(g.sum(-1))

            delta = readout.mT @ g
            rule.gradient_(delta, z)
            total.weight[s].add_(delta @ x)
            total.bias[s].add_(delta.sum(-1))
            of_scalars = weight.flatten() @ delta.flatten(0, 1)
            du[r, s, c] = of_scalars.view(part.shape)
    return [du, *total]


# --- registration ---------------------------------------------------------------------------------

BANK = "Tensor u, Tensor weight, Tensor bias, Tensor readout, Tensor shift"


def _bank_fake(*arguments: Any) -> Tensor:
    """Return a tensor of the values' shape (R, S, G·C, T); the shift is (S, G, C)."""
    u, *_, shift, _, _ = arguments
    rows, sets, columns = u.shape
    channels = shift.shape[1] * shift.shape[2]
    return u.new_empty(rows, sets, channels, columns)


def _plain_bank(*arguments: Any) -> Tensor:
    """Return the values in torch's differentiable operations."""
    u, *bank, activation, nonneg = arguments
    # A backward may run under autocast.
    with full_precision(u):
        return scalar_bank_naive(
            u,
            Bank(*bank),
            activation=activation,
            nonneg=nonneg,
        )


def _plain_bank_gradients(
    grad: Tensor,
    out: Tensor | None,
    *arguments: Any,
) -> list[Tensor]:
    """Return :func:`backward` in torch's differentiable operations."""
    if out is not None:
        grad = grad * (out > 0)
    # The ReLU behind ψ is in ``grad`` already, hence ``nonneg`` False.
    with full_precision(grad):
        return vjp(
            _plain_bank,
            [*arguments, False],
            [True] * 5,
            [grad],
        )


def _bank_gradients(
    grad: Tensor,
    out: Tensor | None,
    *arguments: Any,
) -> list[Tensor]:
    u, *bank, activation = arguments
    with full_precision(u):
        return backward(
            grad,
            out,
            u,
            Bank(*bank),
            activation,
        )


def _bank_gradients_fake(
    grad: Tensor,
    out: Tensor | None,
    *arguments: Any,
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in arguments[:-1]]


# FLOPs come from shapes, and weight and readout of one set are those of each scalar.
def _bank_flops(
    u: Any,
    weight: Any,
    bias: Any,
    readout: Any,
    *_: Any,
) -> int:
    multiplications = size_of(weight[1:]) + size_of(readout[1:])
    return 2 * size_of(u) * multiplications


def _bank_backward_flops(
    grad: Any,
    out: Any,
    u: Any,
    weight: Any,
    bias: Any,
    readout: Any,
    *_: Any,
) -> int:
    # Products with w: of z, of w's gradient and of u's. Products with R: of its gradient and of δ.
    multiplications = 3 * size_of(weight[1:]) + 2 * size_of(readout[1:])
    return 2 * size_of(u) * multiplications


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
    # The values show where the ReLU cut.
    values = None
    if nonneg:
        values = output
    ctx.save_for_backward(values, *tensors)


def _bank_backward(ctx: Any, grad: Tensor) -> tuple:
    gradients = scalar_bank_backward_op(grad, *ctx.saved_tensors, ctx.activation)
    # Neither the activation's name nor ``nonneg`` has a gradient.
    return *gradients, None, None


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
