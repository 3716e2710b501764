"""A continuous convolution on a regular grid: hidden units convolved by FFT, before the readout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...integral import (
    FFT,
    Facts,
    Form,
    Kernel,
    LagFeatures,
    Problem,
    grid_displacements,
    with_offset,
)
from .grid_convolution import grid_convolution


class HiddenConvolution(Form):
    """The hidden units are functions of the displacement: O(N log N) per hidden unit and channel.

    Padded with zeros to twice the grid, so that nothing wraps around.
    """

    word = FFT
    name = "FFT convolution, hidden units first"
    reason = "the hidden units depend on the displacement alone, and the points form a regular grid"
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        ordered = layout.causal and layout.grid is not None and len(layout.grid) > 1
        if layout.grid is None or layout.pairs or ordered:
            return f"it needs {FFT.needs}; use {FFT.instead} instead"
        return None if isinstance(kernel, LagFeatures) else "it needs LagFeatures"

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        options: Any = self.strategy
        q, grid = problem.quadrature, problem.layout.grid
        assert grid is not None
        causal = problem.layout.causal
        displacements, _ = grid_displacements(problem.x[0], grid)
        if causal:  # displacements to the past alone
            displacements = displacements[grid[0] - 1 :]
        hidden = kernel.lag_features(displacements)
        readout, bias = kernel.readout()
        if bias is not None:  # one more hidden unit, constant
            hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], -1)
            readout = torch.cat([readout, bias[..., None]], -1)
        signal = q.mass[:, None, :, None].to(problem.uy.dtype) * problem.uy
        out = grid_convolution(
            signal, hidden, readout, grid, causal=causal, backend=options.backend
        )
        if q.scale is not None:
            out = out * q.scale[..., None].to(out.dtype)
        return with_offset(out, kernel, problem)
