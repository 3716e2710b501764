r"""Diagonal state spaces: S4D, S5, the LRU. K(t, s) = 2 Re Σ_n C_n λ̄_n^(t-s) B̄_n.

The kernel, then :func:`diagonal_system`, which makes an operator of given poles.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from ..errors import OptionError, ShapeError
from ..integral import IntegralOperator, prepared
from ..ops.scan import scan
from .time_invariant import TimeInvariantKernel, check_rule, full, with_feedthrough


class DiscretePoles(NamedTuple):
    """A diagonal system in discrete time.

    Attributes:
        log, value: log λ̄ and λ̄, (H, S).
        input: B̄, (H, S, d_in).
    """

    log: Complex[Tensor, "h s"]
    value: Complex[Tensor, "h s"]
    input: Complex[Tensor, "h s i"]


class DiagonalStateSpaceKernel(TimeInvariantKernel):
    r"""Complex diagonal systems, one per head:
    :math:`K_h(t, s) = 2\,\mathrm{Re} \sum_n C_n \bar\lambda_n^{t-s} \bar B_n`.

    S4D is this kernel with one head per channel (d_in = d_out = 1); S5 and the LRU are it with one
    head of many channels. With λ and B of h' = λ h + B u and a step Δ per head: *zoh*
    :math:`\bar λ = e^{Δλ}, \bar B = (e^{Δλ} - 1) B / λ`; *bilinear*
    :math:`\bar λ = (1 + Δλ/2) / (1 - Δλ/2), \bar B = ΔB / (1 - Δλ/2)`; *euler*
    :math:`\bar λ = 1 + Δλ, \bar B = ΔB`; None
    :math:`\bar λ = e^λ, \bar B = B`, without Δ.

    Args:
        heads: H.
        d_in, d_out: features that a head reads and writes.
        state: S, states per head; of conjugate pairs, one each.
        discretization: as above.
        conjugate: states stand for conjugate pairs (the factor 2); otherwise the real part is taken
            as it is.
        initial_state: learn the state before the first point.
        steps: beside a discretization, smallest and largest initial Δ, drawn log-uniformly per
            head; 1e-3 and 1e-1 by default.

    Parameters are real: ``log_decay`` with Re λ = -exp(log_decay), ``frequency`` = Im λ (H, S),
    ``input`` (H, S, d_in, 2), ``readout`` (H, d_out, S, 2), ``log_step`` (H,). Initially λ_n = -1/2
    + iπn (S4D-Lin).

    Cost: FFT O(N log N) per pair of channels after O(N·S) for the taps; scan O(N·S); step O(S).

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
        steps: tuple[float, float] | None = None,
    ):
        super().__init__(heads, d_in, d_out)
        if discretization is None and steps is not None:
            raise OptionError(
                "steps: expected none without a discretization, because the poles are those of the "
                f"recurrence, got {steps}; name a rule: discretization='zoh'"
            )
        if steps is None:
            steps = (1e-3, 1e-1)
        if state < 1 or not 0 < steps[0] <= steps[1]:
            raise OptionError(
                "a diagonal system: expected state >= 1 and 0 < steps[0] <= steps[1], got "
                f"state={state} and steps={steps}"
            )
        self.size = state
        self.conjugate = conjugate
        self.discretization = check_rule(discretization)
        self.steps = steps
        self.log_step = None
        if discretization is not None:
            self.log_step = nn.Parameter(torch.empty(heads))
        self.log_decay = nn.Parameter(torch.empty(heads, state))
        self.frequency = nn.Parameter(torch.empty(heads, state))
        # The last axis holds the real and the imaginary part.
        self.input = nn.Parameter(torch.empty(heads, state, d_in, 2))
        self.readout = nn.Parameter(torch.empty(heads, self.d_out, state, 2))
        self.initial_state = None
        if initial_state:
            self.initial_state = nn.Parameter(torch.empty(heads, state, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw S4D-Lin: Re λ = -1/2, Im λ = πn, B = 1, C complex normal, log Δ uniform, zero
        initial state.
        """
        shortest, longest = self.steps
        with torch.no_grad():
            if self.log_step is not None:
                self.log_step.uniform_(
                    math.log(shortest),
                    math.log(longest),
                )
            self.log_decay.fill_(math.log(0.5))
            modes = torch.arange(self.size)
            modes = modes.expand(self.heads, -1)
            self.frequency.copy_(math.pi * modes)
            one = torch.tensor([1.0, 0.0])
            self.input.copy_(one.expand_as(self.input))
            self.readout.normal_(std=0.5**0.5)
            if self.initial_state is not None:
                self.initial_state.zero_()

    def recurrence(self) -> DiscretePoles:
        """Return λ̄ and B̄."""
        name = ("recurrence", self.discretization)
        return prepared(self, name, self._recurrence)

    def _recurrence(self) -> DiscretePoles:
        decay = full(self.log_decay).exp()
        pole = torch.complex(-decay, full(self.frequency))
        b = _complex(self.input)
        if self.log_step is None:
            return DiscretePoles(pole, pole.exp(), b)
        # Δ per head, and Δλ.
        step = full(self.log_step).exp()[:, None]
        z = pole * step
        if self.discretization == "zoh":
            # e^z - 1 without the digits that the difference loses at small z.
            gain = torch.expm1(z) / pole
            value = z.exp()
            return DiscretePoles(z, value, gain[..., None] * b)

        if self.discretization == "bilinear":
            a = (1 + z / 2) / (1 - z / 2)
            gain = step / (1 - z / 2)
        else:
            a = 1 + z
            gain = step.to(z.dtype)
        # A pole at zero has no logarithm; the smallest number stands for it.
        smallest = torch.finfo(step.dtype).tiny
        nonzero = torch.where(a == 0, smallest, a)
        log_a = nonzero.log()
        return DiscretePoles(log_a, a, gain[..., None] * b)

    def read(self, states: Complex[Tensor, "b h n s"]) -> Float[Tensor, "b h n o"]:
        """Return Re C h, twice for conjugate pairs."""
        readout = _complex(self.readout)
        out = (states @ readout.mT).real
        if self.conjugate:
            return 2 * out
        return out

    def lags(self, n: int) -> Float[Tensor, "h n o i"]:
        """Return the taps K_h(k) at the lags k = 0, …, n - 1 as real matrices."""
        poles = self.recurrence()
        powers = _powers(poles.log, 0, n)
        readout = _complex(self.readout)
        if self.d_in == self.d_out == 1:
            # With one channel per head C_n B̄_n is a number. The sum over states is then one product
            # of the powers (H, N, S) with a vector, instead of a contraction of three tensors.
            gain = readout[:, 0] * poles.input[..., 0]
            taps = powers @ gain[..., None]
            taps = taps[..., None]
        else:
            taps = torch.einsum("hos,hns,hsi->hnoi", readout, powers, poles.input)
        if self.conjugate:
            return 2 * taps.real
        return taps.real

    def states(self, signal: Float[Tensor, "b h n i"], recurrence: Any = scan) -> Tensor:
        poles = self.recurrence()
        b = poles.input
        # Scans run along dimension 1.
        drive = signal.to(b.dtype) @ b.mT
        drive = drive.movedim(1, 2)
        decay = poles.value[None, None]
        states = recurrence(decay, drive)
        return self.read(states.movedim(2, 1))

    def free(self, n: int) -> Tensor | None:
        if self.initial_state is None:
            return None
        # The initial state's part of the outputs, (H, N, d_out). At the first point the state has
        # been multiplied by λ̄ once.
        log_a = self.recurrence().log
        powers = _powers(log_a, 1, n)
        start = _complex(self.initial_state)
        states = powers * start[:, None]
        return self.read(states[None])[0]

    def rest(self, u: Tensor) -> dict[str, Tensor]:
        zero = u.new_zeros(())
        dtype = torch.complex(zero, zero).dtype
        shape = (u.shape[0], self.heads, self.size)
        start = torch.zeros(shape, dtype=dtype, device=u.device)
        memory = {"state": start}
        # The initial state is carried beside the state of the signal: it belongs to the offset.
        if self.initial_state is not None:
            memory["free"] = start + _complex(self.initial_state)
        return memory

    def move(self, state: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        poles = self.recurrence()
        b = poles.input
        state = poles.value * state
        if u is not None:
            signal = u[:, :, None].to(b.dtype)
            drive = signal @ b.mT
            state = state + drive[:, :, 0]
        out = self.read(state[:, :, None])
        return out[:, :, 0], state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state={self.size}, discretization={self.discretization!r}"


def _complex(x: Tensor) -> Tensor:
    """Return pairs of real numbers as complex ones, whatever memory format a model was moved to."""
    pairs = full(x).contiguous()
    return torch.view_as_complex(pairs)


def _powers(log_a: Complex[Tensor, "h s"], first: int, n: int) -> Complex[Tensor, "h n s"]:
    """Return λ̄^k for k = first, …, first + n - 1."""
    k = torch.arange(
        first,
        first + n,
        dtype=log_a.real.dtype,
        device=log_a.device,
    )
    exponent = log_a[:, None] * k[:, None]
    return exponent.exp()


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
    r"""Return the system with complex poles λ, :math:`y = D u + \mathrm{Re}\,C h`, h' = λ h + B u,
    sampled every ``step``. Values are copied.

    Args:
        poles: λ (S,), complex, with negative real part.
        input_matrix, output_matrix, feedthrough: B (S, d_in) and C (d_out, S), complex, and D
            (d_out, d_in), real, or None.
        discretization, step: of :class:`fredholm.kernels.DiagonalStateSpaceKernel`.
        conjugate: each pole stands for a conjugate pair, :math:`y = 2\,\mathrm{Re}\,C h`.

    Raises:
        OptionError: a pole that does not decay, no rule, or a step that is not positive.
        ShapeError: matrices that do not fit one another.

    Example:
        >>> pole, one = torch.tensor([-0.5 + 3j]), torch.ones(1, 1) + 0j
        >>> system = diagonal_system(pole, one, one, step=0.1)
        >>> system(torch.randn(2, 9, 1)).shape
        torch.Size([2, 9, 1])
    """
    size = poles.shape[0]
    fits = poles.dim() == 1 and input_matrix.dim() == output_matrix.dim() == 2
    if not fits or input_matrix.shape[0] != size or output_matrix.shape[1] != size:
        shapes = [tuple(x.shape) for x in (poles, input_matrix, output_matrix)]
        got = ", ".join(map(str, shapes))
        raise ShapeError(
            f"a diagonal system: expected poles (S,), B (S, d_in) and C (d_out, S), got {got}"
        )
    if discretization is None or not step > 0:
        raise OptionError(
            "a diagonal system: expected a rule of discretization and a step above 0, got "
            f"discretization={discretization!r} and step={step}"
        )
    if not bool((poles.real < 0).all()):
        largest = float(poles.real.max())
        raise OptionError(f"poles: expected decay, Re < 0, got a largest real part of {largest}")
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
        # The inverses of Δ = exp(log_step) and Re λ = -exp(log_decay).
        kernel.log_step.fill_(step).log_()
        log_decay = (-poles.real).log()
        kernel.log_decay.copy_(log_decay[None])
        kernel.frequency.copy_(poles.imag[None])
        b = input_matrix.to(poles.dtype)
        c = output_matrix.to(poles.dtype)
        real_b = torch.view_as_real(b)
        real_c = torch.view_as_real(c)
        kernel.input.copy_(real_b[None])
        kernel.readout.copy_(real_c[None])
    return with_feedthrough(kernel, feedthrough)
