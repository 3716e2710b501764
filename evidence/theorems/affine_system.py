r"""Nonlinear systems that are affine in the signal, h' = f(h) + B(h) u, exactly along a trajectory:
Theorem 3 (a') of ITNet's paper.

The kernel, then :func:`affine_system`, which makes an operator of f and B and solves with
``torchdiffeq``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fredholm import IntegralOperator
from fredholm.errors import DomainError, OptionError, ShapeError, require
from fredholm.integral import DefaultLine
from fredholm.kernels import Layout, MatrixKernel, Problem

Field = Callable[[Tensor], Tensor]
Solver = Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], Tensor]
Path = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]


class AffineSystemKernel(MatrixKernel):
    r"""The nonlinear system h' = f(h) + B(h) u, y = C h, exactly: sensitivities of the unforced
    system that start on the driven trajectory.

    .. math::
        K(t, s) = C\,\frac{\partial φ^0_{t,s}(h)}{\partial h}\Big|_{h = h(s)} B(h(s)), \qquad
        \text{offset}(t) = C\,φ^0_{t,t_0}(h_0),

    where h is the driven solution and φ⁰ the flow of f alone. (Both sides of d/ds [C
    φ⁰_{t,s}(h(s))] = K(t, s) u(s), integrated over s.) The Jacobian along the *driven* trajectory,
    ``sensitivity="driven"``, is the paper's. It is exact only if f is linear and B constant, and
    serves for comparison.

    Args:
        field: f, (..., S) to (..., S), at each state alone.
        input_matrix: B, (..., S) to (..., S, d_in), or a constant tensor (S, d_in).
        output_matrix: C, (d_out, S).
        initial_state: h_0 (S,), the state at the first point.
        solve: ``solve(function(t, h), h, times) -> (T, *h)``, such as ``torchdiffeq.odeint``.
        path: u between the points: ``path(times (N,), u (B, N, d_in))`` is a function of time;
            default linear interpolation.
        sensitivity: ``"unforced"`` or ``"driven"``.

    The domain is causal, its positions are times shared by the batch, and its masses are weights of
    a quadrature in time; the kernel is exact, and the output as accurate as that quadrature, the
    path and the solver.

    Cost: O(N²) flows, solved together, one interval at a time.

    Reference: ITNet Theorem 3 (a'), E.3 (Alekseev's formula, corrected).

    Example: see :func:`affine_system`.
    """

    reads_query = False
    line = DefaultLine(causal=True, measure="spacing")
    field: Field

    def __init__(
        self,
        field: Field,
        input_matrix: Field | Tensor,
        output_matrix: Tensor,
        initial_state: Tensor,
        solve: Solver,
        *,
        path: Path | None = None,
        sensitivity: str = "unforced",
    ):
        constant = isinstance(input_matrix, Tensor)
        size = initial_state.shape[0]
        b = input_matrix if constant else input_matrix(initial_state)
        if b.shape[-2] != size or output_matrix.shape[-1] != size:
            raise ShapeError(
                f"expected B ({size}, d_in) and C (d_out, {size}) for {size} states, got "
                f"{tuple(b.shape)} and {tuple(output_matrix.shape)}"
            )
        super().__init__(1, b.shape[-1], output_matrix.shape[0])
        if sensitivity not in ("unforced", "driven"):
            raise OptionError(
                "sensitivity: expected 'unforced' (exact) or 'driven' (the paper's), got "
                f"{sensitivity!r}"
            )
        self.field = field
        self.solve = solve
        self.sensitivity = sensitivity
        self.path = path or interpolate
        self.input_matrix = _as_parameter(input_matrix) if constant else input_matrix
        self.output_matrix = _as_parameter(output_matrix)
        self.initial_state = _as_parameter(initial_state)

    def check(self, layout: Layout) -> None:
        name = type(self).__name__
        if not layout.causal or layout.pairs or layout.cross:
            raise DomainError(
                f"{name}: expected one causal sequence without pairs or other queries, got "
                "another domain; build it with causal=True"
            )
        if layout.measure not in ("spacing", "weighted"):
            raise DomainError(
                f"{name}: expected the measure 'spacing' or 'weighted', got {layout.measure!r}"
            )
        if layout.padded or not layout.fixed:
            raise DomainError(
                f"{name}: expected times shared by the batch, without padding or gradient, got "
                "others"
            )

    # --- the definition ---------------------------------------------------------------------------

    def matrix(self, problem: Problem) -> Float[Tensor, "b 1 q k o i"]:
        times = _times_of(problem.y)
        u = problem.uy[:, 0]
        signal = self.path(times, u)
        driven = self.trajectory(times, u)
        # A direction per input: ∂h(s) for a unit of u_i at s, (B, N, d_in, S).
        columns = self._input(driven).mT

        # Each interval moves the sensitivities started at earlier points, and starts one more.
        # `flows` holds states and directions, (B, k + 1, d_in, 2, S).
        flows = None
        rows = []
        for k in range(times.shape[0]):
            column = columns[:, k]
            states = driven[:, k, None].expand_as(column)
            start = torch.stack([states, column], -2)
            start = start[:, None]
            if flows is None:
                flows = start
            else:
                interval = times[k - 1 : k + 1]
                at_times = self.solve(lambda t, z: self._vary(z, signal(t)), flows, interval)
                moved = at_times[-1]
                flows = torch.cat([moved, start], 1)

            directions = flows[..., 1, :]
            seen = self.output_matrix @ directions.mT
            later = times.shape[0] - k - 1
            padded = nn.functional.pad(seen, (0, 0, 0, 0, 0, later))
            rows.append(padded)
        dense = torch.stack(rows, 1)
        if problem.index is not None:
            dense = dense[:, problem.index]
        return dense[:, None]

    def offset(self, problem: Problem) -> Tensor:
        times = _times_of(problem.y)
        first = self.initial_state[None]
        free = self._solve_on(times, lambda t, h: self.field(h), first)
        free = free @ self.output_matrix.mT
        if problem.index is not None:
            free = free[:, problem.index]
        return free[:, None]

    def trajectory(
        self,
        times: Float[Tensor, " n"],
        u: Float[Tensor, "b n i"],
    ) -> Float[Tensor, "b n s"]:
        """Return the driven solution at the points."""
        signal = self.path(times, u)
        first = self.initial_state.expand(u.shape[0], -1)
        return self._solve_on(times, lambda t, h: self._drive(h, signal(t)), first)

    def _solve_on(
        self,
        times: Tensor,
        function: Callable[[Tensor, Tensor], Tensor],
        first: Tensor,
    ) -> Tensor:
        """Return the solution of h' = function(t, h) at all ``times`` (N,), as (B, N, S).

        ``first`` (B, S) is the state at the first time. Each interval between two times is solved
        alone, because u may have a kink at each point, and a solver with adaptive steps would take
        many small ones across it.
        """
        states = [first]
        for k in range(1, times.shape[0]):
            interval = times[k - 1 : k + 1]
            solution = self.solve(function, states[-1], interval)
            states.append(solution[-1])
        return torch.stack(states, 1)

    def _input(self, h: Tensor) -> Tensor:
        """Return B at states h (..., S): (..., S, d_in)."""
        b = self.input_matrix
        if isinstance(b, Tensor):
            return b.expand(*h.shape[:-1], -1, -1)
        return b(h)

    def _drive(self, h: Tensor, u: Tensor) -> Tensor:
        """Return f(h) + B(h) u."""
        rate = self.field(h)
        push = self._input(h) @ u[..., None]
        return rate + push[..., 0]

    def _vary(self, z: Float[Tensor, "b k i 2 s"], u: Float[Tensor, "b i"]) -> Tensor:
        """Return the rates of states and of their derivatives in a direction."""
        h, v = z.unbind(-2)
        rate = self.field
        if self.sensitivity == "driven":
            rate = lambda h: self._drive(h, u[:, None, None])  # noqa: E731
        rates = torch.func.jvp(rate, (h,), (v,))
        return torch.stack(rates, -2)


def _times_of(y: Float[Tensor, "b n p"]) -> Float[Tensor, " n"]:
    """Return the positions, which all samples share, as times."""
    if y.shape[-1] != 1:
        raise DomainError(f"times: expected positions of one coordinate, got {y.shape[-1]}")
    return y[0, :, 0]


def _as_parameter(x: Tensor) -> nn.Parameter:
    """Return a parameter as it is, and another tensor as a new one."""
    if isinstance(x, nn.Parameter):
        return x
    return nn.Parameter(x.clone())


def interpolate(
    times: Float[Tensor, " n"],
    u: Float[Tensor, "b n i"],
) -> Callable[[Tensor], Tensor]:
    """Return u between its points, linearly: a function of time with values (B, d_in).

    Example:
        >>> signal = interpolate(torch.tensor([0.0, 2.0]), torch.tensor([[[0.0], [1.0]]]))
        >>> signal(torch.tensor(0.5)).item()
        0.25
    """

    def at(t: Tensor) -> Tensor:
        if times.shape[0] == 1:
            return u[:, 0]
        # The interval [times[k], times[k + 1]) that contains t.
        moment = t.detach().reshape(1)
        after = torch.searchsorted(times, moment, right=True)[0]
        k = (after - 1).clamp(0, times.shape[0] - 2)
        length = times[k + 1] - times[k]
        share = (t - times[k]) / length
        return u[:, k] * (1 - share) + u[:, k + 1] * share

    return at


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
    r"""Return the system h' = f(h) + B(h) u, y = C h, h(t_0) = h_0, as an operator on causal times.

    .. math::
        y(t) = C\,φ^0_{t,t_0}(h_0)
            + \int_{t_0}^t C\,\frac{\partial φ^0_{t,s}}{\partial h}(h(s))\,B(h(s))\,u(s)\,ds

    Args:
        field, input_matrix, output_matrix, initial_state, path, sensitivity: of
            :class:`AffineSystemKernel`.
        method, rtol, atol, options: of ``torchdiffeq.odeint``.

    Shape: (B, N, d_in) on a causal domain of times to (B, N, d_out).

    Raises:
        MissingExtraError: torchdiffeq is not installed (extra ``ode``).

    Reference: ITNet Theorem 3 (a'), E.3.

    Example:
        >>> from fredholm import Domain
        >>> one = torch.ones(1, 1)
        >>> system = affine_system(lambda h: -(h**3) - h / 2, one, one, torch.ones(1))
        >>> times = Domain.timestamps(torch.linspace(0, 1, 5), step=1.0)
        >>> system(torch.ones(2, 5, 1), times).shape
        torch.Size([2, 5, 1])
    """
    odeint = require("torchdiffeq", "ode", "a continuous-time system").odeint

    def solve(
        function: Callable[[Tensor, Tensor], Tensor],
        state: Tensor,
        times: Tensor,
    ) -> Tensor:
        return odeint(
            function,
            state,
            times,
            rtol=rtol,
            atol=atol,
            method=method,
            options=options,
        )

    kernel = AffineSystemKernel(
        field,
        input_matrix,
        output_matrix,
        initial_state,
        solve,
        path=path,
        sensitivity=sensitivity,
    )
    return IntegralOperator(
        kernel.d_in, 1, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
    )
