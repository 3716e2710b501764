"""A causal convolution on a regular line, point by point: the network runs once for each lag."""

from __future__ import annotations

import torch
from torch import Tensor

from ...integral import Exact, Facts, Form, Kernel, Layout, Memory, Problem, with_offset
from ...integral.problem import heads_apart, weighed
from ...ops.backend import cast, full_precision, promoted
from ...quadrature import Quadrature
from .capabilities import LagFeatures
from .grid_convolution.fft import grid_convolution, with_bias

STEP = Layout(cross=True, stepping=True)


class LagSteps(Form):
    """Point t is the first that needs lag t: its hidden units join those of shorter lags in the
    memory. O(t·w·d) per step, without the network at all pairs; stretches by FFT.
    """

    word = Exact
    name = "hidden units of each lag, kept"
    reason = "the hidden units depend on the displacement alone, and steps are regular"
    responds = False
    steps = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        line = layout.keys is not None and len(layout.keys) == 1 and layout.fixed
        if not line or layout.padded or layout.pairs:
            return "lags are no whole steps of a line without padding and pairs"
        return None if isinstance(kernel, LagFeatures) else "it needs LagFeatures"

    def step(
        self,
        kernel: LagFeatures,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        memory = _with_points(kernel, x, u, quadrature, t, memory)
        lags, signal, (readout, bias) = memory["lags"], memory["signal"], kernel.readout()
        dtype = promoted(lags.dtype, signal.dtype)
        with full_precision(u):
            # longest lags first, as the points are: hidden units are summed before the readout
            moment = (cast(signal, dtype).mT @ cast(lags, dtype)[:, None]).flatten(2)
            out = heads_apart(moment, cast(readout, dtype).flatten(2))
            if bias is not None:
                out = out + heads_apart(signal.sum(2, dtype=dtype), cast(bias, dtype))
        return _finished(out[:, :, None], kernel, x, u, quadrature, t), memory

    def prefill(
        self,
        kernel: LagFeatures,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        memory = _with_points(kernel, x, u, quadrature, t, memory)
        hidden, readout = with_bias(memory["lags"][0].flip(0), *kernel.readout())
        signal = memory["signal"]
        out = grid_convolution(signal, hidden, readout, (signal.shape[2],), causal=True)
        return _finished(out[:, :, t:], kernel, x, u, quadrature, t), memory


def _with_points(
    kernel: LagFeatures, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
) -> Memory:
    """The memory with n more points: u times their masses, and the hidden units of as many more
    lags, the longest first.
    """
    n = u.shape[2]
    origin = memory.get("origin", x[:, :1])
    lags = kernel.lag_features((x - origin)[0])[None]
    lags = lags if n == 1 else lags.flip(1)
    signal = weighed(u, quadrature.mass[:, t : t + n])
    if memory:
        lags = torch.cat([lags, memory["lags"]], 1)
        signal = torch.cat([memory["signal"], signal], 2)
    return {"origin": origin, "lags": lags, "signal": signal}


def _finished(
    out: Tensor, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int
) -> Tensor:
    """An integral with the queries' scale and the kernel's offset."""
    if quadrature.scale is not None:
        out = out * quadrature.scale[..., t : t + out.shape[2], None].to(out.dtype)
    return with_offset(out, kernel, Problem(x, x, u, u, quadrature, STEP))
