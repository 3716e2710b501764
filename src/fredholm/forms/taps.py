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

SMALL_TAP = 64
"""Entries of a tap up to which transforms are preferred to passing on a state."""


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
        is_small = kernel.d_in * kernel.d_out <= SMALL_TAP
        return is_small or not isinstance(kernel, StateScan)

    def respond(self, kernel: LagTaps, problem: Problem) -> Tensor:
        q = problem.quadrature
        signal = weighed(problem.uy, q.mass)
        back = None
        if q.valid is not None and kernel.skips_padding:
            # Lags count real points only: padding goes to the end, and comes back afterwards.
            order, back = pack(q.valid)
            signal = reorder(signal, order, 2)
        out = causal_convolution(signal, kernel.taps(problem))
        out = reorder(out, back, 2)
        return with_offset(q.scaled(out), kernel, problem)
