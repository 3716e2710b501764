"""Selective state spaces: a diagonal recurrence whose step and matrices are read off the signal.

:class:`TrajectoryKernel` is the base of recurrences that are exact along their trajectory, Mamba's
mixer among them (``mamba.py``); :class:`SelectiveKernel` is the bare selective scan.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain, default_line
from ..errors import OptionError, suggest
from ..integral import CausalTransition, Layout, MatrixKernel, Point, Problem, prepared
from ..integral.capabilities import StateScan
from ..ops.backend import full_precision
from ..ops.scan import pack, ranks, reorder, scan
from .time_invariant import check_sequence, full

RULES = ("zoh", "simplified")


class TrajectoryKernel(MatrixKernel, StateScan, CausalTransition):
    """A recurrence whose coefficients are read off the signal: exact along the trajectory, which
    one pass over u gives.

    A point is a step and padding is not a point. The domain is causal with mass 1 per point:
    other masses would change the coefficients as well, and then it is another recurrence.
    """

    whole = True

    def check(self, layout: Layout) -> None:
        check_sequence(self, layout, measures=("counting",))

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        return default_line(n, causal=True, measure="counting", device=device, dtype=dtype)

    def scans(self, layout: Layout) -> bool:
        return layout.causal and not (layout.pairs or layout.cross) and layout.measure == "counting"

    def response(self, u: Float[Tensor, "b n i"]) -> Float[Tensor, "b n o"]:
        """The output of the recurrence on sequences without padding, offset included."""
        raise NotImplementedError

    def unrolled(self, u: Float[Tensor, "b n i"], at: Tensor) -> Float[Tensor, "b q k o i"]:
        """K at query steps ``at`` (B, Nq), zero for later keys, on sequences without padding."""
        raise NotImplementedError

    def scan(self, problem: Problem) -> Float[Tensor, "b 1 n o"]:
        valid = problem.quadrature.valid
        order, back = (None, None) if valid is None else pack(valid)
        out = self.response(reorder(problem.uy[:, 0], order, 1))
        return reorder(out, back, 1)[:, None]

    def matrix(self, problem: Problem) -> Float[Tensor, "b 1 q k o i"]:
        u, at, back = packed(problem)
        return reorder(self.unrolled(u, at), back, 2)[:, None]


def packed(problem: Problem) -> tuple[Float[Tensor, "b n i"], Tensor, Tensor | None]:
    """u with its real points first, the queries' steps (B, Nq), and the order of keys that undoes
    it.
    """
    valid, u = problem.quadrature.valid, problem.uy[:, 0]
    order, back = (None, None) if valid is None else pack(valid)
    at = ranks(valid, u.shape[1], u.device).clamp(min=0)
    at = at if problem.index is None else at[:, problem.index]
    return reorder(u, order, 1), at.expand(u.shape[0], -1), back


def gains(
    step: Float[Tensor, "b n e"],
    poles: Float[Tensor, "e s"],
    inputs: Float[Tensor, "b n s"],
    rule: str,
) -> tuple[Float[Tensor, "b n e s"], Float[Tensor, "b n e s"]]:
    """exp(ΔA) and B̄, per channel and state."""
    z = step[..., None] * poles
    if rule == "zoh":
        return z.exp(), torch.expm1(z) / poles * inputs[:, :, None]
    return z.exp(), step[..., None] * inputs[:, :, None]


def selective_matrix(
    step: Float[Tensor, "b n e"],
    poles: Float[Tensor, "e s"],
    gain: Float[Tensor, "b n e s"],
    outputs: Float[Tensor, "b n s"],
    at: Tensor,
) -> Float[Tensor, "b q n e"]:
    r""":math:`\sum_n C_n(t)\,[\prod_{r=s+1}^{t} e^{Δ_r A_n}]\,\bar B_n(s)` per channel, at steps
    t = ``at`` (B, Nq) and all s; zero for s > t.
    """
    total = step.cumsum(1)
    seen = torch.arange(step.shape[1], device=step.device) <= at[:, :, None]
    # Products of decays are differences of one running sum; later keys must not overflow in exp.
    elapsed = torch.where(seen[..., None], reorder(total, at, 1)[:, :, None] - total[:, None], 0.0)
    decay = (elapsed[..., None] * poles).exp()
    dense = torch.einsum("bqs,bqkes,bkes->bqke", reorder(outputs, at, 1), decay, gain)
    return torch.where(seen[..., None], dense, 0.0)


class SelectiveKernel(TrajectoryKernel):
    r"""The bare selective scan, each channel e alone: poles A fixed, Δ, B and C read off u.

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
        self, dim: int, state: int = 16, *, rank: int | None = None, discretization: str = "zoh"
    ):
        super().__init__(1, dim)
        if discretization not in RULES:
            raise OptionError(
                f"unknown discretization {discretization!r}{suggest(str(discretization), RULES)}"
            )
        self.rank, self.discretization = rank or math.ceil(dim / 16), discretization
        self.log_decay = nn.Parameter(torch.empty(dim, state))
        self.squeeze = nn.Linear(dim, self.rank, bias=False)
        self.step = nn.Linear(self.rank, dim)
        self.input = nn.Linear(dim, state, bias=False)
        self.output = nn.Linear(dim, state, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A = -1, -2, ... (S4D-Real); Δ between 1e-3 and 1e-1, log-uniform, where u = 0."""
        with torch.no_grad():
            self.log_decay.copy_(
                torch.arange(1, self.log_decay.shape[1] + 1).log().expand_as(self.log_decay)
            )
            step = torch.empty_like(self.step.bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
            self.step.bias.copy_(step + (-torch.expm1(-step)).log())

    def terms(self, u: Float[Tensor, "b n e"]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Δ, A, exp(ΔA), B̄ and C along a sequence, in at least float32."""
        step = full(self.step(self.squeeze(u)))
        inputs, outputs = full(self.input(u)), full(self.output(u))
        with full_precision(u):
            step = F.softplus(step)
            poles = prepared(self, "poles", lambda: -self.log_decay.exp())
            decay, gain = gains(step, poles, inputs, self.discretization)
        return step, poles, decay, gain, outputs

    def response(self, u: Float[Tensor, "b n i"], recurrence: Any = scan) -> Float[Tensor, "b n o"]:
        _, _, decay, gain, outputs = self.terms(u)
        with full_precision(u):
            return (recurrence(decay, gain * full(u)[..., None]) @ outputs[..., None])[..., 0]

    def unrolled(self, u: Float[Tensor, "b n i"], at: Tensor) -> Float[Tensor, "b q k o i"]:
        step, poles, _, gain, outputs = self.terms(u)
        return torch.diag_embed(selective_matrix(step, poles, gain, outputs, at))

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"state": full(u.new_zeros(u.shape[0], *self.log_decay.shape))}

    def advance(self, point: Point, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        u = point.u
        _, _, decay, gain, outputs = self.terms(u)
        with full_precision(u):
            state = decay[:, 0] * memory["state"] + gain[:, 0] * full(u)[:, 0, :, None]
            return (state @ outputs[:, 0, :, None])[:, None, :, 0], {"state": state}
