"""Convolution through the fast Fourier transform, where the kernel depends on the lag alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...kernels import Kernel, LagTaps, Layout, Problem, has_trait
from ...ops.scan import causal_convolution, pack, reorder
from ...quadrature import Quadrature
from .base import Keys, Strategy, with_offset
from .exact import Exact

FOURIER = "FFT convolution"


@dataclass(frozen=True)
class FFT(Strategy):
    """O(N log N): the kernel's taps at lags 0 to N - 1, convolved with the signal by FFT, padded so that nothing wraps around.

    Serves kernels with ``LagTaps`` on causal domains where lags are whole steps. A causal step is the kernel's own.

    Example:
        >>> from fredholm.kernels import DiagonalStateSpaceKernel
        >>> str(FFT().plan(DiagonalStateSpaceKernel(8, state=4), Layout(causal=True)))
        'FFT() by FFT convolution: the kernel depends on the lag alone, and lags are whole steps'
    """

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.stepping:
            return Exact().path(kernel, layout)
        if not convolves(kernel, layout):
            raise self.refuse(kernel, "taps at whole lags on a causal domain (LagTaps)", "Exact()")
        return FOURIER

    def reason(self, path: str) -> str:
        return "the kernel depends on the lag alone, and lags are whole steps"

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        taps: Any = kernel
        q = problem.quadrature
        order, back = (None, None) if q.valid is None or not taps.skips_padding else pack(q.valid)
        signal = q.mass[:, None, :, None].to(problem.uy.dtype) * problem.uy
        out = causal_convolution(reorder(signal, order, 2), taps.taps(problem))
        out = reorder(out, back, 2)
        if q.scale is not None:
            out = out * q.scale[..., None].to(out.dtype)
        return with_offset(out, kernel, problem)

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Keys, path: str
    ) -> tuple[Tensor, Keys]:
        return Exact().step(kernel, x, u, quadrature, t, memory, path)


def convolves(kernel: Kernel, layout: Layout) -> bool:
    """Whether the kernel has taps and these static facts make its lags whole steps."""
    return has_trait(kernel, LagTaps) and not layout.stepping and kernel.regular(layout)  # type: ignore[attr-defined]
