"""Selective state spaces: a diagonal recurrence whose step and matrices are read off the signal.

:class:`TrajectoryKernel` is the base of recurrences that are exact along their trajectory, Mamba's
mixer among them (``mamba.py``); :class:`SelectiveKernel` is the bare selective scan.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError, suggest
from ..integral import CausalTransition, DefaultLine, Layout, MatrixKernel, Point, Problem, prepared
from ..integral.capabilities import StateScan
from ..ops.backend import full_precision
from ..ops.scan import ranks, reorder, scan
from .time_invariant import check_sequence, full, packing

RULES = ("zoh", "simplified")


class TrajectoryKernel(MatrixKernel, StateScan, CausalTransition):
    """A recurrence whose coefficients are read off the signal: exact along the trajectory, which
    one pass over u gives.

    A point is a step and padding is not a point. The domain is causal with mass 1 per point:
    other masses would change the coefficients as well, and then it is another recurrence.
    """

    whole = True
    line = DefaultLine(causal=True, measure="counting")

    def check(self, layout: Layout) -> None:
        check_sequence(self, layout, measures=("counting",))

    def scans(self, layout: Layout) -> bool:
        hides_pairs = layout.pairs or layout.cross
        return layout.causal and not hides_pairs and layout.measure == "counting"

    def response(self, u: Float[Tensor, "b n i"]) -> Float[Tensor, "b n o"]:
        """Return the output of the recurrence on sequences without padding, offset included."""
        raise NotImplementedError

    def unrolled(
        self,
        u: Float[Tensor, "b n i"],
        at: Tensor,
    ) -> Float[Tensor, "b q k o i"]:
        """Return K at query steps ``at`` (B, Nq), zero for later keys, on sequences without
        padding.
        """
        raise NotImplementedError

    def scan(self, problem: Problem) -> Float[Tensor, "b 1 n o"]:
        order = packing(problem.quadrature.valid)
        signal = reorder(problem.uy[:, 0], order.there, 1)
        out = self.response(signal)
        out = reorder(out, order.back, 1)
        return out[:, None]

    def matrix(self, problem: Problem) -> Float[Tensor, "b 1 q k o i"]:
        signal = packed(problem)
        matrix = self.unrolled(signal.u, signal.at)
        matrix = reorder(matrix, signal.back, 2)
        return matrix[:, None]


class PackedSignal(NamedTuple):
    """A signal with its real points first.

    Attributes:
        u: the signal, (B, N, d_in).
        at: the queries' steps, (B, Nq).
        back: the order of keys that undoes it, None without padding.
    """

    u: Float[Tensor, "b n i"]
    at: Tensor
    back: Tensor | None


def packed(problem: Problem) -> PackedSignal:
    """Return the signal of a problem with its real points first."""
    valid = problem.quadrature.valid
    u = problem.uy[:, 0]
    order = packing(valid)
    at = ranks(valid, u.shape[1], u.device)
    at = at.clamp(min=0)
    if problem.index is not None:
        at = at[:, problem.index]
    first = reorder(u, order.there, 1)
    at = at.expand(u.shape[0], -1)
    return PackedSignal(first, at, order.back)


def selective_matrix(
    step: Float[Tensor, "b n e"],
    poles: Float[Tensor, "e s"],
    gain: Float[Tensor, "b n e s"],
    outputs: Float[Tensor, "b n s"],
    at: Tensor,
) -> Float[Tensor, "b q n e"]:
    r"""Return :math:`\sum_n C_n(t)\,[\prod_{r=s+1}^{t} e^{Δ_r A_n}]\,\bar B_n(s)` per channel, at
    steps t = ``at`` (B, Nq) and all s; zero for s > t.
    """
    # ∏ e^{Δ_r A} over r = s+1 … t is e^{(Σ_t - Σ_s) A}, with Σ the running sum of the steps.
    total = step.cumsum(1)
    index = torch.arange(step.shape[1], device=step.device)
    seen = index <= at[:, :, None]
    seen = seen[..., None]
    # Products of decays are differences of one running sum; later keys must not overflow in exp.
    total_at = reorder(total, at, 1)
    elapsed = total_at[:, :, None] - total[:, None]
    elapsed = torch.where(seen, elapsed, 0.0)
    decay = (elapsed[..., None] * poles).exp()
    outputs_at = reorder(outputs, at, 1)
    dense = torch.einsum("bqs,bqkes,bkes->bqke", outputs_at, decay, gain)
    return torch.where(seen, dense, 0.0)


class Coefficients(NamedTuple):
    """Coefficients of the recurrence h_t = e^{Δ_t A} h_{t-1} + B̄_t u_t, y_t = C_t h_t along a
    sequence.

    Attributes:
        step: Δ, (B, N, E).
        poles: A, (E, S).
        decay, gain: e^{ΔA} and B̄, (B, N, E, S).
        outputs: C, (B, N, S).
    """

    step: Float[Tensor, "b n e"]
    poles: Float[Tensor, "e s"]
    decay: Float[Tensor, "b n e s"]
    gain: Float[Tensor, "b n e s"]
    outputs: Float[Tensor, "b n s"]


class SelectiveKernel(TrajectoryKernel):
    r"""The selective scan without a block around it, for each channel e: fixed poles A, and Δ, B
    and C that depend on u.

    .. math::
        K_e(t, s) = \sum_n C_n(u_t)\,\Big[\prod_{r=s+1}^{t} e^{Δ_e(u_r) A_{en}}\Big]\,
            \bar B_{en}(u_s), \qquad
        Δ(u) = \mathrm{softplus}(W_Δ u + b)

    *zoh* :math:`\bar B = (e^{ΔA} - 1) A^{-1} B`; *simplified* :math:`\bar B = Δ B`, the choice of
    Mamba's released code. A feedthrough D is the operator's pointwise term W.

    Args:
        dim: channels of u.
        state: S, states per channel.
        rank: of W_Δ, default dim / 16 rounded up.
        discretization: ``"zoh"`` or ``"simplified"``.

    Cost: O(N·dim·state) by a scan; step O(dim·state); the dense kernel O(N²·dim·state).

    Reference: Gu and Dao 2023, Algorithm 2; ITNet Theorem 3 (d), E.6.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = SelectiveKernel(4, state=3)
        >>> op = IntegralOperator(4, kernel=kernel, residual=True, projection=False)
        >>> op(torch.randn(2, 5, 4)).shape
        torch.Size([2, 5, 4])
    """

    def __init__(
        self,
        dim: int,
        state: int = 16,
        *,
        rank: int | None = None,
        discretization: str = "zoh",
    ):
        super().__init__(1, dim)
        if discretization not in RULES:
            raise OptionError(
                f"discretization: expected {' or '.join(RULES)}, got {discretization!r}"
                f"{suggest(str(discretization), RULES)}"
            )
        self.rank = rank or math.ceil(dim / 16)
        self.discretization = discretization
        self.log_decay = nn.Parameter(torch.empty(dim, state))
        self.squeeze = nn.Linear(dim, self.rank, bias=False)
        self.step = nn.Linear(self.rank, dim)
        self.input = nn.Linear(dim, state, bias=False)
        self.output = nn.Linear(dim, state, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set A = -1, -2, ... (S4D-Real), and draw Δ at u = 0 between 1e-3 and 1e-1,
        log-uniform.
        """
        with torch.no_grad():
            states = self.log_decay.shape[1]
            poles = torch.arange(1, states + 1)
            log_poles = poles.log()
            self.log_decay.copy_(log_poles.expand_as(self.log_decay))
            log_step = torch.empty_like(self.step.bias)
            log_step.uniform_(math.log(1e-3), math.log(1e-1))
            step = log_step.exp()
            # The inverse of softplus, log(e^Δ - 1), without overflow.
            below = -torch.expm1(-step)
            self.step.bias.copy_(step + below.log())

    def terms(self, u: Float[Tensor, "b n e"]) -> Coefficients:
        """Return the coefficients along a sequence, in float32 or better."""
        squeezed = self.squeeze(u)
        step = full(self.step(squeezed))
        inputs = full(self.input(u))
        outputs = full(self.output(u))
        with full_precision(u):
            step = F.softplus(step)
            poles = prepared(self, "poles", lambda: -full(self.log_decay).exp())
            z = step[..., None] * poles
            # `expm1` keeps the digits of e^z - 1 where the step is small.
            if self.discretization == "zoh":
                gain = torch.expm1(z) / poles
                gain = gain * inputs[:, :, None]
            else:
                gain = step[..., None] * inputs[:, :, None]
            decay = z.exp()
            return Coefficients(step, poles, decay, gain, outputs)

    def response(
        self,
        u: Float[Tensor, "b n i"],
        recurrence: Any = scan,
    ) -> Float[Tensor, "b n o"]:
        c = self.terms(u)
        with full_precision(u):
            # h_t = decay_t h_{t-1} + gain_t u_t for every channel and state, then y_t = C_t h_t.
            drive = c.gain * full(u)[..., None]
            states = recurrence(c.decay, drive)
            read = states @ c.outputs[..., None]
            return read[..., 0]

    def unrolled(
        self,
        u: Float[Tensor, "b n i"],
        at: Tensor,
    ) -> Float[Tensor, "b q k o i"]:
        c = self.terms(u)
        dense = selective_matrix(
            c.step,
            c.poles,
            c.gain,
            c.outputs,
            at,
        )
        return torch.diag_embed(dense)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        state = u.new_zeros(u.shape[0], *self.log_decay.shape)
        return {"state": full(state)}

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        u = point.u
        c = self.terms(u)
        with full_precision(u):
            signal = full(u)[:, 0, :, None]
            drive = c.gain[:, 0] * signal
            state = c.decay[:, 0] * memory["state"] + drive
            out = state @ c.outputs[:, 0, :, None]
            return out[:, None, :, 0], {"state": state}
