r"""Linear state spaces and linear RNNs: K(t, s) = C Ā^(t-s) B̄, with a dense state matrix.

The kernel, then :func:`linear_system`, which makes an operator of matrices: of a recurrence, of a
system sampled every Δ, or of one in real time (``continuous_time.py``). Diagonal systems (S4D, S5,
LRU) are in ``diagonal_state_space.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..arguments import describe
from ..errors import OptionError
from ..integral import IntegralOperator, Kernel, prepared
from ..ops.scan import krylov, transition_scan
from .continuous_time import ContinuousStateSpaceKernel
from .time_invariant import (
    TimeInvariantKernel,
    as_parameter,
    as_parameter_or_none,
    check_matrices,
    check_rule,
    full,
    with_feedthrough,
)


class StateSpaceKernel(TimeInvariantKernel):
    r"""A linear system with a dense state matrix:
    :math:`h_t = \bar A h_{t-1} + \bar B u_t + b,\; y_t = C h_t`.

    .. math::
        K(t, s) = C \bar A^{t-s} \bar B, \qquad
        \text{offset}_t = C \bar A^{t+1} h_{-1} + \sum_{k \le t} C \bar A^k b

    Without ``discretization`` the matrices are those of the recurrence: a linear RNN is
    ``StateSpaceKernel(W_h, W_x)``. With one they are those of h' = A h + B u, sampled every Δ:
    *zoh* :math:`\bar A = e^{ΔA}, \bar B = \int_0^Δ e^{τA} dτ\,B` (exact where u is constant
    between samples); *bilinear*
    :math:`\bar A = (1 - ΔA/2)^{-1}(1 + ΔA/2), \bar B = (1 - ΔA/2)^{-1} ΔB`; *euler*
    :math:`\bar A = 1 + ΔA, \bar B = ΔB`. A feedthrough D is the operator's pointwise term W.

    Args:
        state_matrix: A, (S, S).
        input_matrix: B, (S, d_in).
        output_matrix: C, (d_out, S), or None for the state itself.
        discretization: ``"zoh"``, ``"bilinear"``, ``"euler"``, or None for matrices of the
            recurrence.
        step: beside a discretization, Δ, a number or a parameter; 1 by default.
        initial_state: h before the first point, (S,), or None for zero.
        bias: b, (S,), or None.

    Parameters are used themselves, not copied; other tensors become parameters.

    Cost: FFT O(N log N·d_in·d_out) and taps O(N·S²·d_in); scan O(N·S²); step O(S²).

    Raises:
        ShapeError: matrices that do not fit one another.
        OptionError: an unknown rule, or a step without one.

    Reference: ITNet Theorem 3 (a, b), E.11; CKConv A.3.

    Example:
        >>> kernel = StateSpaceKernel(torch.tensor([[0.5]]), torch.ones(1, 1))
        >>> kernel.lags(3).flatten().tolist()
        [1.0, 0.5, 0.25]
    """

    def __init__(
        self,
        state_matrix: Tensor,
        input_matrix: Tensor,
        output_matrix: Tensor | None = None,
        *,
        discretization: str | None = None,
        step: float | Tensor | None = None,
        initial_state: Tensor | None = None,
        bias: Tensor | None = None,
    ):
        check_matrices(state_matrix, input_matrix, output_matrix, initial_state, bias)
        size = state_matrix.shape[0]
        d_out = size
        if output_matrix is not None:
            d_out = output_matrix.shape[0]
        super().__init__(1, input_matrix.shape[1], d_out)
        self.size = size
        self.discretization = check_rule(discretization)
        if discretization is None and step is not None:
            raise OptionError(
                "step: expected none without a discretization, because the matrices are those of "
                f"the recurrence, got {describe(step)}; name a rule: discretization='zoh'"
            )
        self.state_matrix = as_parameter(state_matrix)
        self.input_matrix = as_parameter(input_matrix)
        self.output_matrix = as_parameter_or_none(output_matrix)
        self.initial_state = as_parameter_or_none(initial_state)
        self.bias = as_parameter_or_none(bias)
        if step is None:
            step = 1.0
        if isinstance(step, Tensor):
            step = as_parameter(step)
        self.step = step

    def recurrence(self) -> tuple[Float[Tensor, "s s"], Float[Tensor, "s i"]]:
        """Return Ā and B̄."""
        name = ("recurrence", self.discretization, self.step)
        return prepared(self, name, self._recurrence)

    def _recurrence(self) -> tuple[Tensor, Tensor]:
        if self.discretization is None:
            return full(self.state_matrix), full(self.input_matrix)
        a = full(self.state_matrix) * self.step
        b = full(self.input_matrix) * self.step
        one = torch.eye(self.size, dtype=a.dtype, device=a.device)
        if self.discretization == "euler":
            return one + a, b
        # (1 - ΔA/2)⁻¹ (1 + ΔA/2) and (1 - ΔA/2)⁻¹ ΔB.
        if self.discretization == "bilinear":
            step_of_state = torch.linalg.solve(one - a / 2, one + a / 2)
            step_of_input = torch.linalg.solve(one - a / 2, b)
            return step_of_state, step_of_input

        # The exponential of [[ΔA, ΔB], [0, 0]] contains both, and needs no inverse of A.
        inputs = b.shape[1]
        zeros = torch.zeros(inputs, self.size + inputs)
        zeros = zeros.to(a)
        rates = torch.cat([a, b], 1)
        block = torch.cat([rates, zeros], 0)
        both = torch.linalg.matrix_exp(block)[: self.size]
        step_of_state = both[:, : self.size]
        step_of_input = both[:, self.size :]
        return step_of_state, step_of_input

    def read(self, states: Float[Tensor, "*b s"]) -> Float[Tensor, "*b o"]:
        """Return C h."""
        if self.output_matrix is None:
            return states
        return states @ full(self.output_matrix).mT

    def lags(self, n: int) -> Float[Tensor, "h n o i"]:
        # Ā^k B̄ for k = 0, …, n - 1.
        columns = krylov(*self.recurrence(), n)
        if self.output_matrix is not None:
            columns = full(self.output_matrix) @ columns
        return columns[None]

    def states(
        self,
        signal: Float[Tensor, "b h n i"],
        recurrence: Any = transition_scan,
    ) -> Tensor:
        a, b = self.recurrence()
        drive = signal[:, 0] @ b.mT
        states = recurrence(a[None, None], drive)
        return self.read(states)[:, None]

    def free(self, n: int) -> Tensor | None:
        if self.initial_state is None and self.bias is None:
            return None
        a, _ = self.recurrence()
        drive = torch.zeros_like(a[:, :1])
        if self.bias is not None:
            drive = full(self.bias)[:, None]
        first = a.new_zeros(self.size)
        if self.initial_state is not None:
            first = full(self.initial_state)

        # One more coordinate, always one, carries the bias: [[Ā, b], [0, 1]].
        last = torch.zeros(
            1,
            self.size + 1,
            dtype=a.dtype,
            device=a.device,
        )
        last[:, -1] = 1.0
        moves = torch.cat([a, drive], 1)
        affine = torch.cat([moves, last], 0)
        start = torch.cat([first, first.new_ones(1)])
        after_first = affine @ start[:, None]
        states = krylov(affine, after_first, n)
        states = states[:, : self.size, 0]
        return self.read(states)[None]

    def rest(self, u: Tensor) -> dict[str, Tensor]:
        zero = u.new_zeros(u.shape[0], 1, self.size)
        memory = {"state": zero}
        if self.initial_state is not None:
            memory["free"] = zero + full(self.initial_state)
        elif self.bias is not None:
            memory["free"] = zero
        return memory

    def move(self, state: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        a, b = self.recurrence()
        state = state @ a.mT
        # The free response has no signal; it alone carries the bias.
        if u is not None:
            state = state + u @ b.mT
        elif self.bias is not None:
            state = state + full(self.bias)
        return self.read(state), state


def linear_system(
    state_matrix: Tensor,
    input_matrix: Tensor,
    output_matrix: Tensor,
    feedthrough: Tensor | None = None,
    *,
    discretization: str | None = None,
    step: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    continuous: bool = False,
) -> IntegralOperator:
    r"""Return the system (A, B, C, D) as an operator:
    :math:`y = D u + \int K u\,d\mu + \text{offset}`.

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
        OptionError: an unknown rule, a step without a rule, or either of them for real time.

    Reference: ITNet Theorem 3 (a, b), E.2, E.11.

    Example:
        >>> one = torch.eye(1)
        >>> leaky = linear_system(-one, one, one, discretization="zoh", step=0.1)
        >>> round(leaky(torch.ones(1, 10, 1))[0, -1].item(), 4)
        0.6321
    """
    if continuous and discretization is not None:
        raise OptionError(
            "discretization: expected None, because a system in real time is not discretised, got "
            f"{discretization!r}"
        )
    if continuous and step is not None:
        raise OptionError(
            "step: expected none, because a system in real time reads its steps off the domain, "
            f"got {describe(step)}; leave it out, or name a rule instead of continuous=True"
        )
    matrices = state_matrix, input_matrix, output_matrix
    if continuous:
        kernel: Kernel = ContinuousStateSpaceKernel(*matrices, initial_state=initial_state)
    else:
        kernel = StateSpaceKernel(
            *matrices,
            discretization=discretization,
            step=step,
            initial_state=initial_state,
        )
    return with_feedthrough(kernel, feedthrough)
