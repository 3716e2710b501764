"""The whole Mamba mixer as one kernel: projection, causal convolution, selective scan and gate.

The kernel, then the converters of Hugging Face's ``MambaMixer`` and ``mambapy``'s ``MambaBlock``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import ShapeError
from ..integral import IntegralOperator, Point, Problem, prepared
from ..integral.conversion import refuse, refuse_unless, register_converter
from ..ops.backend import full_precision
from ..ops.scan import reorder, scan
from .selective import TrajectoryKernel, packed, selective_matrix
from .time_invariant import full


class MambaTerms(NamedTuple):
    """Δ (B, N, E), A (E, S), B and C (B, N, S) along a sequence."""

    step: Tensor
    poles: Tensor
    inputs: Tensor
    outputs: Tensor


class MambaKernel(TrajectoryKernel):
    r"""A Mamba block without its output projection; u enters through W_x alone, and everything
    else is part of K.

    With a convolution w of k taps, the gate g of the other half of the projection, and
    :math:`\mathrm{silu}(c) = σ(c)\,c`,

    .. math::
        K(t, s) = \mathrm{diag}\Big(\mathrm{silu}(g_t)
            \sum_{r=s}^{\min(t, s+k-1)} M(t, r)\,σ(c_r)\,w_{r-s}\Big)\,W_x, \qquad
        M(t, r) = C_t \Big[\prod_{q=r+1}^{t} e^{Δ_q A}\Big] Δ_r B_r + D\,δ_{tr},

    where c, g, Δ, B and C follow from the trajectory of u. The biases of projection and
    convolution form the offset. The output projection belongs to the operator.

    Args:
        in_proj: u to the convolved half (E) and the gate (E).
        conv: depthwise causal convolution, k taps; its ``padding`` is not used.
        x_proj: E to (rank + 2S): the step's squeezed features, B and C.
        dt_proj: rank to E, with bias.
        log_decay: A = -exp(log_decay), (E, S).
        feedthrough: D, (E,).

    Raises:
        ShapeError: layers that do not fit one another.

    Cost: O(N·E·S) by a scan; step O(E·S); the dense kernel O(N²·E·(S + dim)).

    Reference: Gu and Dao 2023, Fig. 3; ITNet Theorem 3 (d), E.6.

    Example:
        >>> in_proj, conv = nn.Linear(4, 12), nn.Conv1d(6, 6, 2, groups=6)
        >>> x_proj, dt_proj = nn.Linear(6, 1 + 2 * 3, bias=False), nn.Linear(1, 6)
        >>> log_decay, feedthrough = nn.Parameter(torch.zeros(6, 3)), nn.Parameter(torch.ones(6))
        >>> MambaKernel(in_proj, conv, x_proj, dt_proj, log_decay, feedthrough)
        MambaKernel(
          heads=1, d_in=4, d_out=6
          (in_proj): Linear(in_features=4, out_features=12, bias=True)
          (conv): Conv1d(6, 6, kernel_size=(2,), stride=(1,), groups=6)
          (x_proj): Linear(in_features=6, out_features=7, bias=False)
          (dt_proj): Linear(in_features=1, out_features=6, bias=True)
        )
    """

    def __init__(
        self,
        in_proj: nn.Linear,
        conv: nn.Conv1d,
        x_proj: nn.Linear,
        dt_proj: nn.Linear,
        log_decay: nn.Parameter,
        feedthrough: nn.Parameter,
    ):
        width, state = log_decay.shape
        super().__init__(1, in_proj.in_features, width)
        self.split = (dt_proj.in_features, state, state)
        sizes = (
            in_proj.out_features,
            conv.in_channels,
            conv.groups,
            x_proj.in_features,
            x_proj.out_features,
        )
        needs = (
            2 * width,
            width,
            width,
            width,
            sum(self.split),
        )
        if sizes != needs or dt_proj.out_features != width or feedthrough.shape != (width,):
            raise ShapeError(
                f"a mixer of width {width} and state {state}: expected layers of sizes {needs}, "
                f"got {sizes}"
            )
        self.in_proj = in_proj
        self.conv = conv
        self.x_proj = x_proj
        self.dt_proj = dt_proj
        self.log_decay = log_decay
        self.feedthrough = feedthrough
        self.taps = conv.kernel_size[0]

    # --- what is read off the trajectory ----------------------------------------------------------

    def convolve(self, x: Float[Tensor, "b m e"]) -> Float[Tensor, "b n e"]:
        """Return the convolution of points that k - 1 earlier ones precede."""
        conv = self.conv
        signal = F.conv1d(
            x.mT,
            conv.weight,
            conv.bias,
            groups=conv.groups,
        )
        return signal.mT

    def terms(self, inner: Float[Tensor, "b n e"]) -> MambaTerms:
        """Return Δ, A, B and C from the input of the scan."""
        columns = self.x_proj(inner).split(self.split, -1)
        squeezed, inputs, outputs = (full(x) for x in columns)
        with full_precision(inner):
            weight = full(self.dt_proj.weight)
            bias = full(self.dt_proj.bias)
            step = F.linear(squeezed, weight, bias)
            step = F.softplus(step)
        poles = prepared(self, "poles", lambda: -full(self.log_decay).exp())
        return MambaTerms(step, poles, inputs, outputs)

    def response(self, u: Float[Tensor, "b n i"]) -> Float[Tensor, "b n o"]:
        """Return the mixer's output before its output projection, by a scan in O(N·E·S).

        States follow h_t = exp(Δ_t A) h_(t-1) + Δ_t B_t v_t, where v = silu(c) is the activated
        convolution, and the output is silu(g_t) (C_t h_t + D v_t). The scan runs in float32 or
        better.
        """
        x, gate = self.in_proj(u).chunk(2, -1)
        c = self.convolve(self._with_past(x))
        inner = F.silu(c)
        terms = self.terms(inner)
        with full_precision(u):
            inner = full(inner)
            inputs = terms.inputs[:, :, None]
            signal = terms.step * inner
            drive = signal[..., None] * inputs
            step = terms.step[..., None]
            decay = (step * terms.poles).exp()
            states = scan(decay, drive)
            read = states @ terms.outputs[..., None]
            out = read[..., 0] + self.feedthrough * inner
            opening = F.silu(full(gate))
            gated = out * opening
            return gated.to(u.dtype)

    def _with_past(self, x: Tensor) -> Tensor:
        """Return points (B, N, E) behind k - 1 zeros, which make the convolution causal."""
        return F.pad(x, (0, 0, self.taps - 1, 0))

    # --- the definition ---------------------------------------------------------------------------

    def coefficients(
        self,
        u: Float[Tensor, "b n i"],
        at: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the weights with which the convolution's output c_r, and the projected x_s, enter
        the gated output at t: (B, Nq, N, E) twice.
        """
        n = u.shape[1]
        x, gate = self.in_proj(u).chunk(2, -1)
        c = self.convolve(self._with_past(x))
        terms = self.terms(F.silu(c))

        # M(t, r) of the class, with D on the diagonal.
        step = terms.step[..., None]
        gain = step * terms.inputs[:, :, None]
        dense = selective_matrix(
            terms.step,
            terms.poles,
            gain,
            terms.outputs,
            at,
        )
        now = torch.arange(n, device=u.device) == at[:, :, None]
        diagonal = torch.where(now[..., None], self.feedthrough, 0.0)
        dense = dense + diagonal

        # silu(c) = σ(c) c, so that c_r enters by M(t, r) σ(c_r).
        query_gate = F.silu(reorder(gate, at, 1))
        after = query_gate[:, :, None] * dense * c.sigmoid()[:, None]

        # x_s enters through the taps of the k outputs from s on.
        weight = self.conv.weight[:, 0]
        later = F.pad(after, (0, 0, 0, self.taps - 1))
        before = torch.zeros_like(after)
        for j in range(self.taps):
            tap = weight[:, self.taps - 1 - j]
            before = before + later[:, :, j : j + n] * tap
        return after, before

    def unrolled(
        self,
        u: Float[Tensor, "b n i"],
        at: Tensor,
    ) -> Float[Tensor, "b q k o i"]:
        _, before = self.coefficients(u, at)
        weight = self.in_proj.weight[: self.d_out]
        return before[..., None] * weight

    def offset(self, problem: Problem) -> Tensor | None:
        if self.in_proj.bias is None and self.conv.bias is None:
            return None
        signal = packed(problem)
        after, before = self.coefficients(signal.u, signal.at)
        out = torch.zeros_like(after[:, :, 0])
        if self.conv.bias is not None:
            out = out + after.sum(2) * self.conv.bias
        if self.in_proj.bias is not None:
            bias = self.in_proj.bias[: self.d_out]
            out = out + before.sum(2) * bias
        return out[:, None]

    # --- one step ---------------------------------------------------------------------------------

    def start(self, u: Tensor) -> dict[str, Tensor]:
        batch = u.shape[0]
        window = u.new_zeros(batch, self.taps - 1, self.d_out)
        state = u.new_zeros(batch, *self.log_decay.shape)
        return {"window": window, "state": full(state)}

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Take one step: return the gated output (B, 1, E), without the output projection, and the
        memory after it.

        ``point.u`` is (B, 1, d_in). Its second axis is that of heads, of which this kernel has one,
        and serves here as a sequence of one point. The memory holds ``window`` (B, k - 1, E), the
        projected inputs of the k - 1 points before, and ``state`` (B, E, S) in float32 or better.
        """
        x, gate = self.in_proj(point.u).chunk(2, -1)
        # The k taps of the convolution read k - 1 earlier inputs and this one. Under autocast the
        # projection may return another dtype than that of the window before the first point.
        earlier = memory["window"].to(x.dtype)
        window = torch.cat([earlier, x], 1)
        inner = F.silu(self.convolve(window))
        terms = self.terms(inner)
        with full_precision(x):
            step = terms.step[:, 0]
            inner = full(inner[:, 0])
            signal = step * inner
            drive = signal[..., None] * terms.inputs[:, 0, None]
            rates = step[..., None] * terms.poles
            decay = rates.exp()
            state = decay * memory["state"] + drive

            read = state @ terms.outputs[:, 0, :, None]
            out = read[..., 0] + self.feedthrough * inner
            opening = F.silu(full(gate[:, 0]))
            gated = out * opening
            gated = gated.to(point.u.dtype)
            after = {"window": window[:, 1:], "state": state}
            return gated[:, None], after


@register_converter("transformers.models.mamba.modeling_mamba.MambaMixer")
def from_transformers(module: nn.Module) -> IntegralOperator:
    """Convert Hugging Face's mixer, called without a cache or a mask; padding is the domain's
    ``valid``.

    The mixer casts parts of its scan to float32 whatever its dtype; the operator computes in the
    dtype of its parameters, float32 at the least.
    """
    activation: Any = getattr(module, "activation", None)
    if activation not in ("silu", "swish"):
        raise refuse(module, f"hidden_act={activation!r}", "'silu', 'swish'")
    return _operator(module)


@register_converter("mambapy.mamba.MambaBlock")
def from_mambapy(module: nn.Module) -> IntegralOperator:
    """Convert mamba.py's block, in either of its scan modes."""
    supported = {"inner_layernorms": False, "use_cuda": False}
    refuse_unless(module, supported, module.config)
    return _operator(module)


def _operator(module: Any) -> IntegralOperator:
    """Return the operator of a module with the layers and names of the authors' released code."""
    if module.dt_proj.bias is None:
        raise refuse(module, "dt_proj without bias", "a bias of the step")
    layers = (
        module.in_proj,
        module.conv1d,
        module.x_proj,
        module.dt_proj,
    )
    kernel = MambaKernel(*layers, module.A_log, module.D)
    project = module.out_proj
    return IntegralOperator(
        project.out_features,
        kernel=kernel,
        out_dim=project.out_features,
        residual=False,
        projection=project,
    )
