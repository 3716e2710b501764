"""Linear state space models as kernels: dense and diagonal."""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from ...errors import OptionError, ShapeError, suggest
from ...integral import IntegralOperator, Kernel
from ...ops.scan import krylov, scan, transition_scan
from .continuous_time import ContinuousStateSpaceKernel
from .time_invariant import TimeInvariantKernel, as_parameter, check_matrices

RULES = ("zoh", "bilinear", "euler")


class StateSpaceKernel(TimeInvariantKernel):
    r"""A linear system with a dense state matrix:
    :math:`h_t = \bar A h_{t-1} + \bar B u_t + b,\; y_t = C h_t`.

    .. math:: K(t, s) = C \bar A^{t-s} \bar B, \qquad \text{offset}_t = C \bar A^{t+1} h_{-1} + \sum_{k \le t} C \bar A^k b

    Without ``discretization`` the matrices are those of the recurrence: a linear RNN is
    ``StateSpaceKernel(W_h, W_x)``. With one they are those of h' = A h + B u, sampled every Δ:
    *zoh* :math:`\bar A = e^{ΔA}, \bar B = \int_0^Δ e^{τA} dτ\,B` (exact while u is held);
    *bilinear* :math:`\bar A = (1 - ΔA/2)^{-1}(1 + ΔA/2), \bar B = (1 - ΔA/2)^{-1} ΔB`; *euler*
    :math:`\bar A = 1 + ΔA, \bar B = ΔB`. A feedthrough D is the operator's pointwise term W.

    Args:
        state_matrix: A, (S, S).
        input_matrix: B, (S, d_in).
        output_matrix: C, (d_out, S), or None for the state itself.
        discretization: ``"zoh"``, ``"bilinear"``, ``"euler"``, or None for matrices of the
            recurrence.
        step: Δ, a number or a parameter.
        initial_state: h before the first point, (S,), or None for zero.
        bias: b, (S,), or None.

    Parameters are kept as the objects they are, other tensors become parameters.

    Cost: FFT O(N log N·d_in·d_out) and taps O(N·S²·d_in); scan O(N·S²); step O(S²).

    Raises:
        ShapeError: matrices that do not fit one another.
        OptionError: an unknown rule.

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
        step: float | Tensor = 1.0,
        initial_state: Tensor | None = None,
        bias: Tensor | None = None,
    ):
        check_matrices(state_matrix, input_matrix, output_matrix, initial_state, bias)
        size = state_matrix.shape[0]
        super().__init__(
            1, input_matrix.shape[1], size if output_matrix is None else output_matrix.shape[0]
        )
        self.size, self.discretization = size, check_rule(discretization)
        self.state_matrix, self.input_matrix = (
            as_parameter(state_matrix),
            as_parameter(input_matrix),
        )
        self.output_matrix = None if output_matrix is None else as_parameter(output_matrix)
        self.initial_state = None if initial_state is None else as_parameter(initial_state)
        self.bias = None if bias is None else as_parameter(bias)
        self.step = as_parameter(step) if isinstance(step, Tensor) else step

    def recurrence(self) -> tuple[Float[Tensor, "s s"], Float[Tensor, "s i"]]:
        """Ā and B̄."""
        if self.discretization is None:
            return self.state_matrix, self.input_matrix
        a, b = self.state_matrix * self.step, self.input_matrix * self.step
        one = torch.eye(self.size, dtype=a.dtype, device=a.device)
        if self.discretization == "euler":
            return one + a, b
        if self.discretization == "bilinear":
            return torch.linalg.solve(one - a / 2, one + a / 2), torch.linalg.solve(one - a / 2, b)
        # the exponential of [[ΔA, ΔB], [0, 0]] holds both, and needs no inverse of A
        block = torch.cat(
            [torch.cat([a, b], 1), torch.zeros(b.shape[1], self.size + b.shape[1]).to(a)], 0
        )
        both = torch.linalg.matrix_exp(block)[: self.size]
        return both[:, : self.size], both[:, self.size :]

    def read(self, states: Float[Tensor, "*b s"]) -> Float[Tensor, "*b o"]:
        """C h."""
        return states if self.output_matrix is None else states @ self.output_matrix.mT

    def lags(self, n: int) -> Float[Tensor, "h n o i"]:
        columns = krylov(*self.recurrence(), n)
        return (columns if self.output_matrix is None else self.output_matrix @ columns)[None]

    def states(self, signal: Float[Tensor, "b h n i"]) -> Tensor:
        a, b = self.recurrence()
        return self.read(transition_scan(a[None, None], signal[:, 0] @ b.mT))[:, None]

    def free(self, n: int) -> Tensor | None:
        if self.initial_state is None and self.bias is None:
            return None
        a, _ = self.recurrence()
        # one more coordinate, always one, carries the bias
        drive = torch.zeros_like(a[:, :1]) if self.bias is None else self.bias[:, None]
        last = torch.zeros(1, self.size + 1, dtype=a.dtype, device=a.device)
        last[:, -1] = 1.0
        affine = torch.cat([torch.cat([a, drive], 1), last], 0)
        first = a.new_zeros(self.size) if self.initial_state is None else self.initial_state
        start = torch.cat([first, first.new_ones(1)])[:, None]
        return self.read(krylov(affine, affine @ start, n)[:, : self.size, 0])[None]

    def rest(self, u: Tensor) -> dict[str, Tensor]:
        zero = u.new_zeros(u.shape[0], 1, self.size)
        if self.initial_state is None and self.bias is None:
            return {"state": zero}
        return {
            "state": zero,
            "free": zero if self.initial_state is None else zero + self.initial_state,
        }

    def move(self, state: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        a, b = self.recurrence()
        state = state @ a.mT
        if u is not None:
            state = state + u @ b.mT
        elif self.bias is not None:
            state = state + self.bias
        return self.read(state), state


class DiagonalStateSpaceKernel(TimeInvariantKernel):
    r"""Complex diagonal systems, one a head:
    :math:`K_h(t, s) = 2\,\mathrm{Re} \sum_n C_n \bar\lambda_n^{t-s} \bar B_n`.

    S4D is this kernel with one head a channel (d_in = d_out = 1); S5 and the LRU are it with one
    head of many channels. With λ and B of h' = λ h + B u and a step Δ a head: *zoh*
    :math:`\bar λ = e^{Δλ}, \bar B = (e^{Δλ} - 1) B / λ`; *bilinear*
    :math:`\bar λ = (1 + Δλ/2) / (1 - Δλ/2), \bar B = ΔB / (1 - Δλ/2)`; *euler*
    :math:`\bar λ = 1 + Δλ, \bar B = ΔB`; None
    :math:`\bar λ = e^λ, \bar B = B`, without Δ.

    Args:
        heads: H.
        d_in, d_out: features a head reads and writes.
        state: S, states a head; of conjugate pairs, one each.
        discretization: as above.
        conjugate: states stand for conjugate pairs (the factor 2); otherwise the real part is taken
            as it is.
        initial_state: learn the state before the first point.
        steps: smallest and largest initial Δ, drawn log-uniformly a head.

    Parameters are real: ``log_decay`` with Re λ = -exp(log_decay), ``frequency`` = Im λ (H, S),
    ``input`` (H, S, d_in, 2), ``readout`` (H, d_out, S, 2), ``log_step`` (H,). Initially λ_n = -1/2
    + iπn (S4D-Lin).

    Cost: FFT O(N log N) a pair of channels after O(N·S) for the taps; scan O(N·S); step O(S).

    Reference: Gu et al. 2022 (S4D); ITNet Theorem 3 (d).

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> s4d = IntegralOperator(8, heads=8, kernel=DiagonalStateSpaceKernel(8, state=4))
        >>> s4d(torch.randn(2, 5, 8)).shape, s4d.plan(Domain.line(5, causal=True)).path
        (torch.Size([2, 5, 8]), 'FFT convolution')
    """

    def __init__(
        self,
        heads: int,
        d_in: int = 1,
        d_out: int | None = None,
        *,
        state: int = 64,
        discretization: str | None = "zoh",
        conjugate: bool = True,
        initial_state: bool = False,
        steps: tuple[float, float] = (1e-3, 1e-1),
    ):
        super().__init__(heads, d_in, d_out)
        if state < 1 or not 0 < steps[0] <= steps[1]:
            raise OptionError(
                f"a diagonal system needs state >= 1 and 0 < steps[0] <= steps[1], got {state} and "
                f"{steps}"
            )
        self.size, self.discretization, self.conjugate = (
            state,
            check_rule(discretization),
            conjugate,
        )
        self.steps = steps
        self.log_step = nn.Parameter(torch.empty(heads)) if discretization is not None else None
        self.log_decay = nn.Parameter(torch.empty(heads, state))
        self.frequency = nn.Parameter(torch.empty(heads, state))
        self.input = nn.Parameter(torch.empty(heads, state, d_in, 2))
        self.readout = nn.Parameter(torch.empty(heads, self.d_out, state, 2))
        self.initial_state = nn.Parameter(torch.empty(heads, state, 2)) if initial_state else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """S4D-Lin: Re λ = -1/2, Im λ = πn, B = 1, C complex normal, log Δ uniform, zero initial
        state.
        """
        with torch.no_grad():
            if self.log_step is not None:
                self.log_step.uniform_(math.log(self.steps[0]), math.log(self.steps[1]))
            self.log_decay.fill_(math.log(0.5))
            self.frequency.copy_(math.pi * torch.arange(self.size).expand(self.heads, -1))
            self.input.copy_(torch.tensor([1.0, 0.0]).expand_as(self.input))
            self.readout.normal_(std=0.5**0.5)
            if self.initial_state is not None:
                self.initial_state.zero_()

    def recurrence(
        self,
    ) -> tuple[Complex[Tensor, "h s"], Complex[Tensor, "h s"], Complex[Tensor, "h s i"]]:
        """log λ̄, λ̄ and B̄."""
        pole, b = (
            torch.complex(-self.log_decay.exp(), self.frequency),
            torch.view_as_complex(self.input),
        )
        if self.log_step is None:
            return pole, pole.exp(), b
        step = self.log_step.exp()[:, None]
        z = pole * step
        if self.discretization == "zoh":
            return z, z.exp(), (_expm1(z) / pole)[..., None] * b
        if self.discretization == "bilinear":
            a, gain = (1 + z / 2) / (1 - z / 2), step / (1 - z / 2)
        else:
            a, gain = 1 + z, step.to(z.dtype)
        nonzero = torch.where(
            a == 0, torch.finfo(step.dtype).tiny, a
        )  # a pole at zero has a logarithm nowhere
        return nonzero.log(), a, gain[..., None] * b

    def read(self, states: Complex[Tensor, "b h n s"]) -> Float[Tensor, "b h n o"]:
        """Re C h, twice for conjugate pairs."""
        out = (states @ torch.view_as_complex(self.readout).mT).real
        return 2 * out if self.conjugate else out

    def lags(self, n: int) -> Float[Tensor, "h n o i"]:
        log_a, _, b = self.recurrence()
        powers = _powers(log_a, 0, n)
        if self.d_in == self.d_out == 1:
            gain = torch.view_as_complex(self.readout)[:, 0] * b[..., 0]
            taps = (powers @ gain[..., None])[..., None]
        else:
            taps = torch.einsum("hos,hns,hsi->hnoi", torch.view_as_complex(self.readout), powers, b)
        return 2 * taps.real if self.conjugate else taps.real

    def states(self, signal: Float[Tensor, "b h n i"]) -> Tensor:
        _, a, b = self.recurrence()
        drive = (signal.to(b.dtype) @ b.mT).movedim(1, 2)
        return self.read(scan(a[None, None], drive).movedim(2, 1))

    def free(self, n: int) -> Tensor | None:
        if self.initial_state is None:
            return None
        powers = _powers(self.recurrence()[0], 1, n)
        return self.read((powers * torch.view_as_complex(self.initial_state)[:, None])[None])[0]

    def rest(self, u: Tensor) -> dict[str, Tensor]:
        dtype = torch.complex(u.new_zeros(()), u.new_zeros(())).dtype
        zero = torch.zeros(u.shape[0], self.heads, self.size, dtype=dtype, device=u.device)
        if self.initial_state is None:
            return {"state": zero}
        return {"state": zero, "free": zero + torch.view_as_complex(self.initial_state)}

    def move(self, state: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        _, a, b = self.recurrence()
        state = a * state
        if u is not None:
            state = state + (u[:, :, None].to(b.dtype) @ b.mT)[:, :, 0]
        return self.read(state[:, :, None])[:, :, 0], state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state={self.size}, discretization={self.discretization!r}"


def _powers(log_a: Complex[Tensor, "h s"], first: int, n: int) -> Complex[Tensor, "h n s"]:
    k = torch.arange(first, first + n, dtype=log_a.real.dtype, device=log_a.device)
    return (log_a[:, None] * k[:, None]).exp()


def _expm1(z: Complex[Tensor, "*s"]) -> Complex[Tensor, "*s"]:
    """e^z - 1 without cancellation at small z."""
    x, y = z.real, z.imag
    return torch.complex(torch.expm1(x) * y.cos() - 2 * (y / 2).sin().square(), x.exp() * y.sin())


def check_rule(rule: str | None) -> str | None:
    """The rule of discretisation, or an OptionError."""
    if rule is not None and rule not in RULES:
        raise OptionError(f"unknown discretization {rule!r}{suggest(str(rule), RULES)}, or None")
    return rule


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
