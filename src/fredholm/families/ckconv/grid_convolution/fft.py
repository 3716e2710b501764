"""Convolution on a regular grid by FFT, hidden units before the readout: the form and its op."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ....domain import Domain
from ....errors import ShapeError
from ....integral import (
    FFT,
    Exchange,
    Facts,
    Form,
    Kernel,
    LagFeatures,
    Problem,
    answering,
    grid_displacements,
    prepared,
    with_offset,
)
from ....ops.backend import choose_backend, full_precision
from ....parallel import Shards
from .limits import spectrum_refusal
from .registration import convolve_with, grid_convolution_op, spectrum_of
from .sharded import convolution_sent, convolve_part

KEPT = 1 << 24  # numbers of a kernel's spectrum that are kept between calls


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
        grid = layout.whole_grid if layout.sharded else layout.grid
        ordered = layout.causal and grid is not None and len(grid) > 1
        if grid is None or layout.pairs or ordered:
            return f"it needs {FFT.needs}; use {FFT.instead} instead"
        options: Any = self.strategy
        if layout.sharded and options.backend == "triton":
            return "Triton's kernels transpose nothing between ranks; use backend='auto'"
        return None if isinstance(kernel, LagFeatures) else "it needs LagFeatures"

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        options: Any = self.strategy
        q, grid = problem.quadrature, problem.layout.grid
        assert grid is not None
        causal = problem.layout.causal
        x = problem.x
        displacements = prepared(
            kernel, ("lags", grid, causal), lambda: _lags(x[0], grid, causal), of=(x,)
        )
        hidden = kernel.lag_features(displacements)
        readout, bias = kernel.readout()
        signal = q.mass[:, None, :, None].to(problem.uy.dtype) * problem.uy
        kept = answering(kernel) and options.backend != "triton" and _small(readout, grid)
        if kept and signal.numel():
            dtype = _dtype(signal, hidden)

            def make() -> Tensor:
                with_bias = _with_bias(hidden, readout, bias)
                return spectrum_of(with_bias[0].to(dtype), with_bias[1].to(dtype), grid, causal)

            given = (hidden, readout) if bias is None else (hidden, readout, bias)
            with full_precision(signal):
                spectrum = prepared(kernel, ("spectrum", grid, causal, dtype), make, of=given)
                out = convolve_with(signal.to(dtype), spectrum, grid, causal)
        else:
            hidden, readout = _with_bias(hidden, readout, bias)
            out = grid_convolution(
                signal, hidden, readout, grid, causal=causal, backend=options.backend
            )
        if q.scale is not None:
            out = out * q.scale[..., None].to(out.dtype)
        return with_offset(out, kernel, problem)

    def exchange(self, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
        out = convolve_part(kernel, problem, shards)
        scale = problem.quadrature.scale
        if scale is not None:
            out = out * scale[..., None].to(out.dtype)
        return with_offset(out, kernel, problem)

    def sent(self, kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
        return convolution_sent(kernel, domain, batch)


def _lags(positions: Tensor, grid: tuple[int, ...], causal: bool) -> Tensor:
    """Displacements of a grid, in causal order those to the past alone."""
    displacements, _ = grid_displacements(positions, grid)
    return displacements[grid[0] - 1 :] if causal else displacements


def _with_bias(hidden: Tensor, readout: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The readout's bias as one more hidden unit, which is constant."""
    if bias is None:
        return hidden, readout
    hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], -1)
    return hidden, torch.cat([readout, bias[..., None]], -1)


def _small(readout: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether the spectrum of the whole kernel may be kept."""
    return readout[..., 0].numel() * prod(2 * n for n in grid) <= KEPT


def _dtype(signal: Tensor, hidden: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(signal.dtype, hidden.dtype), torch.float32)


def grid_convolution(
    signal: Float[Tensor, "b h n i"],
    hidden: Float[Tensor, "l w"],
    readout: Float[Tensor, "h o i w"],
    grid: tuple[int, ...],
    *,
    causal: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "b h n o"]:
    r""":math:`out_x = \sum_y \kappa(x - y)\,u_y` on a grid, with
    :math:`\kappa(\delta) = \sum_k R_k\,h_k(\delta)`.

    The readout is linear, so that :math:`\hat\kappa = \sum_k R_k \hat h_k`: w transforms of hidden
    units instead of d_out·d_in of kernel entries, and one real matrix product. Zero-padded to 2n or
    more per axis: what wraps around lands outside the part that is kept. The kernel's spectrum is
    made a block of frequencies at a time, and again in the backward.

    Args:
        signal: u times its masses, points of the grid in row-major order.
        hidden: h at the displacements, (L, w), row-major: from 1 - n to n - 1 an axis, or from 0 to
            n - 1 where ``causal``.
        readout: R.
        grid: extents n of the axes; their product is N.
        causal: lags of a causal line only.
        backend: see :mod:`fredholm.ops.backend`. ``"triton"`` fuses the kernel's spectrum and the
            product at each frequency, so that the former is never in memory; ``"auto"`` is
            ``"torch"``, batched matrix products, until the kernel has been measured faster.

    Cost: O((w + B(d_in + d_out)) N log N + (w + B) d_in d_out N) time; memory O((w + B(d_in +
    d_out)) N), in second derivatives that of the kernel's whole spectrum.

    Raises:
        BackendError: a requested backend that cannot run.
        ShapeError: numbers of points or lags that do not fit the grid, or a causal grid of several
            axes.

    Reference: CKConv §4.1, evaluated hidden units first.

    Example:
        >>> u, h = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([[1.0], [10.0], [100.0]])
        >>> readout = torch.ones(1, 1, 1, 1)
        >>> out = grid_convolution(u.view(1, 1, 3, 1), h, readout, (3,), causal=True)
        >>> out.flatten().round().tolist()
        [1.0, 10.0, 102.0]
    """
    _check(signal, hidden, grid, causal)
    dtype = _dtype(signal, hidden)
    chosen = choose_backend(
        backend,
        "the convolution",
        signal.device,
        lambda: spectrum_refusal(dtype, hidden, readout),
    )
    with full_precision(signal):
        if chosen == "triton":
            from ..triton.op import grid_convolution_triton

            return grid_convolution_triton(
                signal.to(dtype), hidden.to(dtype), readout.to(dtype), list(grid), causal
            )
        return grid_convolution_op(
            signal.to(dtype), hidden.to(dtype), readout.to(dtype), list(grid), causal
        )


def _check(signal: Tensor, hidden: Tensor, grid: tuple[int, ...], causal: bool) -> None:
    points, lags = 1, 1
    for n in grid:
        points, lags = points * n, lags * (n if causal else 2 * n - 1)
    if causal and len(grid) != 1:
        raise ShapeError(f"lags of a causal grid are ordered on one axis only, got the grid {grid}")
    if signal.shape[2] != points or hidden.shape[0] != lags:
        got = f"{signal.shape[2]} points and {hidden.shape[0]} lags"
        raise ShapeError(f"the grid {grid} has {points} points and {lags} displacements, got {got}")
