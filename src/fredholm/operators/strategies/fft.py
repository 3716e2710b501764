"""Convolution through the fast Fourier transform, where the kernel depends on the lag alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import StrategyError
from ...kernels import Kernel, LagFeatures, LagTaps, Layout, Problem, StateScan, has_trait
from ...ops.backend import check_backend
from ...ops.grid_convolution import grid_convolution
from ...ops.scan import causal_convolution, pack, reorder
from ...quadrature import Quadrature
from .base import Keys, Strategy, with_offset
from .exact import Exact, grid_displacements

FOURIER, HIDDEN_FOURIER = "FFT convolution", "FFT convolution, hidden units first"
REASONS = {
    FOURIER: "the kernel depends on the lag alone, and lags are whole steps",
    HIDDEN_FOURIER: "the hidden units depend on the displacement alone, and the points form a "
    "regular grid",
}
# A transform of every tap pays while a tap is a small matrix; above that a state is passed on.
SMALL_TAP = 64


@dataclass(frozen=True)
class FFT(Strategy):
    """O(N log N): the kernel's taps, or its hidden units, convolved with the signal by FFT, padded
    so that nothing wraps around.

    Serves kernels with ``LagTaps`` on causal domains where lags are whole steps, and kernels with
    ``LagFeatures`` on regular grids, causal ones with one axis. A causal step is the kernel's own.

    Args:
        backend: of the product of hidden units' spectra, see :func:`fredholm.ops.grid_convolution`.

    Example:
        >>> from fredholm.kernels import DiagonalStateSpaceKernel
        >>> str(FFT().plan(DiagonalStateSpaceKernel(8, state=4), Layout(causal=True)))
        "FFT(backend='auto') by FFT convolution: the kernel depends on the lag alone, and lags are
        whole steps"
    """

    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.stepping:
            return Exact().path(kernel, layout)
        if convolves_hidden(kernel, layout):
            return HIDDEN_FOURIER
        if not convolves(kernel, layout):
            needs = "taps at whole lags (LagTaps) or hidden units of the displacement on a regular grid (LagFeatures)"
            raise self.refuse(kernel, needs, "Exact()")
        if self.backend == "triton":
            raise StrategyError(
                f"{self!r} would integrate {type(kernel).__name__} by {FOURIER}, which has no "
                "Triton kernel; use backend='auto'"
            )
        return FOURIER

    def suits(self, kernel: Kernel, layout: Layout) -> bool:
        small = kernel.d_in * kernel.d_out <= SMALL_TAP or not has_trait(kernel, StateScan)
        return convolves_hidden(kernel, layout) or (convolves(kernel, layout) and small)

    def reason(self, path: str) -> str:
        return REASONS[path]

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        if path == HIDDEN_FOURIER:
            return _hidden_first(kernel, problem, self.backend)
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
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Keys,
        path: str,
    ) -> tuple[Tensor, Keys]:
        return Exact().step(kernel, x, u, quadrature, t, memory, path)


def _hidden_first(kernel: Any, problem: Problem, backend: str) -> Tensor:
    q, grid = problem.quadrature, problem.layout.grid
    assert grid is not None
    displacements, _ = grid_displacements(problem.x[0], grid)
    causal = problem.layout.causal
    hidden = kernel.lag_features(displacements[grid[0] - 1 :] if causal else displacements)
    readout, bias = kernel.readout()
    if bias is not None:  # one more hidden unit, constant
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], -1)
        readout = torch.cat([readout, bias[..., None]], -1)
    signal = q.mass[:, None, :, None].to(problem.uy.dtype) * problem.uy
    out = grid_convolution(signal, hidden, readout, grid, causal=causal, backend=backend)
    if q.scale is not None:
        out = out * q.scale[..., None].to(out.dtype)
    return with_offset(out, kernel, problem)


def convolves_hidden(kernel: Kernel, layout: Layout) -> bool:
    """Whether the hidden units are functions of the displacement, and displacements those of one
    regular grid.
    """
    regular = (
        layout.grid is not None
        and not layout.pairs
        and (not layout.causal or len(layout.grid) == 1)
    )
    return has_trait(kernel, LagFeatures) and regular


def convolves(kernel: Kernel, layout: Layout) -> bool:
    """Whether the kernel has taps and these static facts make its lags whole steps."""
    return has_trait(kernel, LagTaps) and not layout.stepping and kernel.regular(layout)  # type: ignore[attr-defined]
