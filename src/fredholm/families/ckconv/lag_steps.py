"""A causal convolution on a regular line, point by point, where the network runs once per lag."""

from __future__ import annotations

import torch
from torch import Tensor

from ...integral import Exact, Facts, Form, Kernel, Layout, Memory, Problem, with_offset
from ...integral.features import weighed
from ...ops.backend import cast, full_precision, promoted
from ...ops.tiles import heads_apart
from ...quadrature import Quadrature
from .capabilities import LagFeatures
from .grid_convolution.fft import grid_convolution, with_bias

STEP = Layout(cross=True, stepping=True)


class LagSteps(Form):
    """Causal steps that keep the hidden units of each lag.

    Point t is the first that needs lag t, whose hidden units join those of shorter lags in the
    memory. A step costs O(t·w·d), and evaluates the network once; several points at once
    (:meth:`prefill`) take an FFT.
    """

    word = Exact
    name = "hidden units of each lag, kept"
    reason = "the hidden units depend on the displacement alone, and steps are regular"
    responds = False
    steps = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        one_axis = layout.keys is not None and len(layout.keys) == 1
        line = one_axis and layout.fixed
        if not line or layout.padded or layout.pairs:
            return "lags are no whole steps of a line without padding and pairs"
        if not isinstance(kernel, LagFeatures):
            return "it needs LagFeatures"
        return None

    def step(
        self,
        kernel: LagFeatures,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        memory = _with_points(
            kernel,
            x,
            u,
            quadrature,
            t,
            memory,
        )
        lags = memory["lags"]
        signal = memory["signal"]
        readout, bias = kernel.readout()
        dtype = promoted(lags.dtype, signal.dtype)
        with full_precision(u):
            # The longest lag comes first, as the first point does. Hidden units are summed before
            # the readout: (B, H, d, t + 1) @ (1, 1, t + 1, w).
            of_lags = cast(lags, dtype)[:, None]
            moment = cast(signal, dtype).mT @ of_lags
            columns = cast(readout, dtype).flatten(2)
            out = heads_apart(moment.flatten(2), columns)
            if bias is not None:
                total = signal.sum(2, dtype=dtype)
                out = out + heads_apart(total, cast(bias, dtype))
        out = _finished(
            out[:, :, None],
            kernel,
            x,
            u,
            quadrature,
            t,
        )
        return out, memory

    def prefill(
        self,
        kernel: LagFeatures,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Return the outputs at the n points from number ``t`` on, and the memory with them.

        Shape: x (1 | B, n, p) and u (B, H, n, d) to (B, H, n, o).

        The FFT runs over all t + n points of the memory, because the new outputs also read the
        earlier ones. Outputs at those are computed too, and dropped.
        """
        memory = _with_points(
            kernel,
            x,
            u,
            quadrature,
            t,
            memory,
        )
        # The convolution takes lag 0 first; the memory has the longest lag first.
        lags = memory["lags"][0].flip(0)
        hidden, readout = with_bias(lags, *kernel.readout())
        signal = memory["signal"]
        points = signal.shape[2]
        out = grid_convolution(
            signal,
            hidden,
            readout,
            (points,),
            causal=True,
        )
        new = _finished(
            out[:, :, t:],
            kernel,
            x,
            u,
            quadrature,
            t,
        )
        return new, memory


def _with_points(
    kernel: LagFeatures,
    x: Tensor,
    u: Tensor,
    quadrature: Quadrature,
    t: int,
    memory: Memory,
) -> Memory:
    """Return the memory with n more points.

    It has the first position ``origin`` (1 | B, 1, p), ``signal`` u times masses (B, H, t, d), and
    ``lags``, the hidden units of as many lags (1, t, w), the longest first.
    """
    n = u.shape[2]
    origin = memory.get("origin", x[:, :1])
    # Point t lies t steps from the first one: its displacement is the new lag. All samples have
    # the same.
    displacements = (x - origin)[0]
    lags = kernel.lag_features(displacements)[None]
    if n > 1:
        lags = lags.flip(1)
    mass = quadrature.mass[:, t : t + n]
    signal = weighed(u, mass)
    if memory:
        lags = torch.cat([lags, memory["lags"]], 1)
        signal = torch.cat([memory["signal"], signal], 2)
    return {
        "origin": origin,
        "lags": lags,
        "signal": signal,
    }


def _finished(
    out: Tensor,
    kernel: Kernel,
    x: Tensor,
    u: Tensor,
    quadrature: Quadrature,
    t: int,
) -> Tensor:
    """Return an integral with the queries' scale and the kernel's offset."""
    if quadrature.scale is not None:
        last = t + out.shape[2]
        scale = quadrature.scale[..., t:last, None]
        out = out * scale.to(out.dtype)
    problem = Problem(
        x,
        x,
        u,
        u,
        quadrature,
        STEP,
    )
    return with_offset(out, kernel, problem)
