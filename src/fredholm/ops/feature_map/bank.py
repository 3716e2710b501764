"""A bank of scalar networks, each form where it is exact and fastest."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import ShapeError
from ..activations import find_activation
from ..precision import full_precision
from .naive import Bank
from .piecewise import segments
from .registration import piecewise_linear_op, scalar_bank_op

FEW = 256  # scalars of a set


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
        activation: σ, a name in ``fredholm.ops.activations.ACTIVATIONS``.
        nonneg: whether a ReLU follows.

    Returns:
        (R, S, L, T) in u's dtype; half precisions and autocast are computed in float32.

    Cost:
        ReLU: O(T·L) time beside O(L·K) for the segments, which few scalars, as those of a step, do
        without; others O(T·G·h). Memory O(T·L) and a chunk, in second derivatives that of all hidden units. At a knot itself the
        one-sided slope from the left is taken.

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
        x, whole = u.to(dtype), Bank(*(part.to(dtype) for part in bank))
        if activation == "relu" and not _few(x, whole):
            return piecewise_linear_op(x, *segments(whole), nonneg).to(u.dtype)
        return scalar_bank_op(x, *whole, activation, nonneg).to(u.dtype)


def _few(u: Tensor, bank: Bank) -> bool:
    """Whether the hidden units of all scalars cost less than the segments; traced lengths stay
    free.
    """
    return not torch.compiler.is_compiling() and u.shape[0] * u.shape[2] <= FEW


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
