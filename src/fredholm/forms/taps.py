"""Convolution with a kernel's taps through the fast Fourier transform."""

from __future__ import annotations

from torch import Tensor

from ..integral.capabilities import LagTaps, StateScan
from ..integral.contract import Form, Kernel, with_offset
from ..integral.facts import Facts
from ..integral.features import weighed
from ..integral.problem import Problem
from ..integral.strategy import FFT
from ..ops.scan import causal_convolution, pack, reorder

# A transform of every tap pays while a tap is a small matrix; above that a state is passed on.
SMALL_TAP = 64


class TapConvolution(Form):
    """The kernel depends on the lag alone, and lags are whole steps: O(N log N) per entry of a tap.

    Padded with zeros to twice the length, so that nothing wraps around.
    """

    word = FFT
    name = "FFT convolution"
    reason = "the kernel depends on the lag alone, and lags are whole steps"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, LagTaps) and kernel.regular(facts.layout):
            return None
        return f"it needs {FFT.needs}; use {FFT.instead} instead"

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return kernel.d_in * kernel.d_out <= SMALL_TAP or not isinstance(kernel, StateScan)

    def respond(self, kernel: LagTaps, problem: Problem) -> Tensor:
        q = problem.quadrature
        valid = q.valid if kernel.skips_padding else None
        order, back = (None, None) if valid is None else pack(valid)
        signal = weighed(problem.uy, q.mass)
        out = causal_convolution(reorder(signal, order, 2), kernel.taps(problem))
        out = reorder(out, back, 2)
        if q.scale is not None:
            out = out * q.scale[..., None].to(out.dtype)
        return with_offset(out, kernel, problem)
