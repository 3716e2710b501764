"""Linear systems given by their matrices, as integral operators."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import OptionError, ShapeError
from ...kernels import Kernel
from ...kernels.continuous_time import ContinuousStateSpaceKernel
from ...kernels.state_space import DiagonalStateSpaceKernel, StateSpaceKernel, as_parameter
from ...operators import IntegralOperator


def linear_system(
    state_matrix: Tensor,
    input_matrix: Tensor,
    output_matrix: Tensor,
    feedthrough: Tensor | None = None,
    *,
    discretization: str | None = None,
    step: float | Tensor = 1.0,
    initial_state: Tensor | None = None,
    continuous: bool = False,
) -> IntegralOperator:
    r"""The system (A, B, C, D) as an operator: :math:`y = D u + \int K u\,d\mu + \text{offset}`.

    In discrete time :math:`h_t = \bar A h_{t-1} + \bar B u_t` with the matrices as they are or
    discretised; the textbook's forward Euler reads u one step later, which is this operator on a
    signal shifted by one. ``continuous=True`` keeps real time,
    :math:`K(t, s) = C e^{A(t-s)} B` on the domain's timestamps.

    Args:
        state_matrix, input_matrix, output_matrix, feedthrough: A (S, S), B (S, d_in), C (d_out, S),
            D (d_out, d_in) or None; parameters are kept as the objects they are.
        discretization, step: of :class:`fredholm.kernels.StateSpaceKernel`.
        initial_state: h before the first point (at time 0 where ``continuous``), (S,).
        continuous: real time instead of steps.

    Raises:
        ShapeError: matrices that do not fit one another.
        OptionError: an unknown rule, or a rule of discretisation for real time.

    Reference: ITNet Theorem 3 (a, b), E.2, E.11.

    Example:
        >>> leaky = linear_system(-torch.eye(1), torch.eye(1), torch.eye(1), discretization="zoh", step=0.1)
        >>> round(leaky(torch.ones(1, 10, 1))[0, -1].item(), 4)
        0.6321
    """
    if continuous and discretization is not None:
        raise OptionError(
            f"a system in real time is not discretised, got discretization={discretization!r}"
        )
    if continuous:
        kernel: Kernel = ContinuousStateSpaceKernel(
            state_matrix, input_matrix, output_matrix, initial_state=initial_state
        )
    else:
        kernel = StateSpaceKernel(
            state_matrix,
            input_matrix,
            output_matrix,
            discretization=discretization,
            step=step,
            initial_state=initial_state,
        )
    return _with_feedthrough(kernel, feedthrough)


def diagonal_system(
    poles: Tensor,
    input_matrix: Tensor,
    output_matrix: Tensor,
    feedthrough: Tensor | None = None,
    *,
    discretization: str = "zoh",
    step: float = 1.0,
    conjugate: bool = True,
) -> IntegralOperator:
    r"""The system with complex poles λ, :math:`y = D u + \mathrm{Re}\,C h`, h' = λ h + B u, sampled
    every ``step``: values are copied.

    Args:
        poles: λ (S,), complex, with negative real part.
        input_matrix, output_matrix, feedthrough: B (S, d_in) and C (d_out, S), complex, and D
            (d_out, d_in), real, or None.
        discretization, step: of :class:`fredholm.kernels.DiagonalStateSpaceKernel`.
        conjugate: each pole stands for a conjugate pair, :math:`y = 2\,\mathrm{Re}\,C h`.

    Raises:
        OptionError: a pole that does not decay.
        ShapeError: matrices that do not fit one another.

    Example:
        >>> system = diagonal_system(torch.tensor([-0.5 + 3j]), torch.ones(1, 1) + 0j, torch.ones(1, 1) + 0j, step=0.1)
        >>> system(torch.randn(2, 9, 1)).shape
        torch.Size([2, 9, 1])
    """
    size, fits = poles.shape[0], poles.dim() == 1 and input_matrix.dim() == output_matrix.dim() == 2
    if not fits or input_matrix.shape[0] != size or output_matrix.shape[1] != size:
        got = f"{tuple(poles.shape)}, {tuple(input_matrix.shape)}, {tuple(output_matrix.shape)}"
        raise ShapeError(
            f"a diagonal system needs poles (S,), B (S, d_in) and C (d_out, S); got {got}"
        )
    if not bool((poles.real < 0).all()):
        raise OptionError(
            f"poles must decay (Re < 0), the largest real part is {float(poles.real.max())}"
        )
    kernel = DiagonalStateSpaceKernel(
        1,
        input_matrix.shape[1],
        output_matrix.shape[0],
        state=size,
        discretization=discretization,
        conjugate=conjugate,
    ).to(poles.real.dtype)
    with torch.no_grad():
        assert kernel.log_step is not None
        kernel.log_step.fill_(step).log_()
        kernel.log_decay.copy_((-poles.real).log()[None])
        kernel.frequency.copy_(poles.imag[None])
        kernel.input.copy_(torch.view_as_real(input_matrix.to(poles.dtype))[None])
        kernel.readout.copy_(torch.view_as_real(output_matrix.to(poles.dtype))[None])
    return _with_feedthrough(kernel, feedthrough)


def _with_feedthrough(kernel: Kernel, feedthrough: Tensor | None) -> IntegralOperator:
    operator = IntegralOperator(
        kernel.d_in,
        kernel=kernel,
        out_dim=kernel.d_out,
        residual=feedthrough is not None,
        projection=False,
    )
    if feedthrough is not None and operator.residual is not None:
        if feedthrough.shape != operator.residual.weight.shape:
            need = tuple(operator.residual.weight.shape)
            raise ShapeError(
                f"the feedthrough must have shape {need}, got {tuple(feedthrough.shape)}"
            )
        operator.residual.weight = as_parameter(feedthrough)
    return operator
