"""Nonlinear continuous-time systems as integral operators, through torchdiffeq."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...errors import require
from ...kernels.continuous_time import AffineSystemKernel, Path
from ...operators import IntegralOperator


def affine_system(
    field: Callable[[Tensor], Tensor],
    input_matrix: Callable[[Tensor], Tensor] | Tensor,
    output_matrix: Tensor,
    initial_state: Tensor,
    *,
    method: str = "dopri5",
    rtol: float = 1e-7,
    atol: float = 1e-9,
    options: dict[str, Any] | None = None,
    path: Path | None = None,
    sensitivity: str = "unforced",
) -> IntegralOperator:
    r"""The system h' = f(h) + B(h) u, y = C h, h(t_0) = h_0, as an operator on causal times.

    .. math:: y(t) = C\,φ^0_{t,t_0}(h_0) + \int_{t_0}^t C\,\frac{\partial φ^0_{t,s}}{\partial h}(h(s))\,B(h(s))\,u(s)\,ds

    Args:
        field, input_matrix, output_matrix, initial_state, path, sensitivity: of
        :class:`fredholm.kernels.AffineSystemKernel`.
        method, rtol, atol, options: of ``torchdiffeq.odeint``.

    Shape: (B, N, d_in) on a causal domain of times to (B, N, d_out).

    Raises:
        MissingExtraError: torchdiffeq is not installed (extra ``ode``).

    Reference: ITNet Theorem 3 (a'), E.3.

    Example:
        >>> one = torch.ones(1, 1)
        >>> system = affine_system(lambda h: -(h**3) - h / 2, one, one, torch.ones(1))
        >>> times = Domain.timestamps(torch.linspace(0, 1, 5), step=1.0)
        >>> system(torch.ones(2, 5, 1), times).shape
        torch.Size([2, 5, 1])
    """
    odeint = require("torchdiffeq", "ode", "a continuous-time system").odeint

    def solve(function: Callable[[Tensor, Tensor], Tensor], state: Tensor, times: Tensor) -> Tensor:
        return odeint(function, state, times, rtol=rtol, atol=atol, method=method, options=options)

    kernel = AffineSystemKernel(
        field, input_matrix, output_matrix, initial_state, solve, path=path, sensitivity=sensitivity
    )
    return IntegralOperator(
        kernel.d_in, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
    )
