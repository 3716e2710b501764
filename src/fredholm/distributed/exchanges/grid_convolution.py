"""Convolution on a regular grid in shards: a transform along the grid needs all points of a channel
and a product all channels of a frequency, so that signal and hidden units are transposed between
the ranks before and after each.

A rank holds, one after the other, its points of all channels, all points of its channels, and its
frequencies of all channels: 1/P of the whole every time, and 1/P of the work.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from ...families.ckconv.capabilities import LagFeatures
from ...families.ckconv.grid_convolution import spectrum
from ...families.ckconv.grid_convolution.fft import HiddenConvolution, finished
from ...families.ckconv.grid_convolution.registration import GridSizes
from ...integral.facts import Facts
from ...integral.features import weighed
from ...integral.problem import Problem
from ...ops.backend import at_least_single, cast, full_precision, promoted, wants_triton
from .. import Shards, shares, summed, to_stretches, to_whole, without_holes
from ..exchange import Exchange, register_exchange


@register_exchange(HiddenConvolution, LagFeatures)
class SpectraTransposed(Exchange):
    """Signal and hidden units, between the ranks that have their points and their frequencies."""

    passes = "signal and hidden units, transposed between points and frequencies"

    def refuses(self, form: HiddenConvolution, kernel: LagFeatures, facts: Facts) -> str | None:
        options: Any = form.strategy
        if wants_triton(options.backend):
            return "Triton's kernels transpose nothing between ranks; use backend='auto'"
        return None

    def respond(
        self, form: HiddenConvolution, kernel: LagFeatures, problem: Problem, shards: Shards
    ) -> Tensor:
        with full_precision(problem.uy):
            out = convolve_part(kernel, problem, shards)
        return finished(out, kernel, problem)


def convolve_part(kernel: LagFeatures, problem: Problem, shards: Shards) -> Tensor:
    """∫ K u dμ but for the queries' scale at one rank's points, (B, H, n, d_out)."""
    q, p, grid = problem.quadrature, problem, shards.extents
    assert grid is not None
    real, sizes = without_holes(shards), GridSizes(list(grid), p.layout.causal)
    readout, bias = kernel.readout()
    hidden = _hidden_units(kernel, p, shards, sizes, bias is not None)
    if bias is not None:
        readout = torch.cat([readout, bias[..., None]], -1)
    dtype = promoted(at_least_single(p.uy.dtype), hidden.dtype)
    signal = weighed(cast(p.uy, dtype), q.mass)
    batch, heads, n, width = signal.shape
    rows = signal.permute(1, 3, 0, 2).reshape(heads * width * batch, n)[:, : real.size]
    u, h = _frequencies(rows, hidden.to(dtype).mT, real, sizes)
    out = _Product.apply(u.unflatten(0, (-1, batch)), h, readout.to(dtype))
    out = _points(out.flatten(0, 1), real, sizes).unflatten(0, (heads, -1, batch))
    # as the whole's: points outermost after the batch
    out = torch.cat([out, out.new_zeros(*out.shape[:-1], n - out.shape[-1])], -1)
    return out.permute(2, 3, 0, 1).contiguous().transpose(1, 2)


def _frequencies(
    signal: Tensor, hidden: Tensor, shards: Shards, sizes: GridSizes
) -> tuple[Tensor, ...]:
    """This rank's frequencies of all rows, (R, f), of the signal from its points of them, (R, n),
    and of the hidden units from its share of their lags.
    """
    lags, half = (shares(prod(n), shards.count) for n in (sizes.lags, sizes.half))
    whole = to_whole((signal, hidden), shards, (shards.sizes, lags))
    spectra = [
        _Spectra.apply(rows, sizes, shape)
        for rows, shape in zip(whole, (sizes.grid, sizes.lags), strict=True)
    ]
    return to_stretches(spectra, shards, (half, half), (signal.shape[0], hidden.shape[0]))


def _points(spectra: Tensor, shards: Shards, sizes: GridSizes) -> Tensor:
    """This rank's points of all rows, (R, n), from its frequencies, (R, f)."""
    (whole,) = to_whole((spectra,), shards, (shares(prod(sizes.half), shards.count),))
    kept = _Values.apply(whole, sizes)
    return to_stretches((kept,), shards, (shards.sizes,), (spectra.shape[0],))[0]


class _Spectra(torch.autograd.Function):
    """Spectra (r, F) of whole rows (r, N) that begin at the transform's first point."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: GridSizes, shape: tuple[int, ...]) -> Tensor:
        ctx.sizes, ctx.shape = sizes, shape
        return sizes.spectra(rows.unflatten(1, shape)[:, None])[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        # torch's own is a transform of complex numbers, twice the work
        weight = 1.0 / ctx.sizes.share(grads[0].real)
        found = ctx.sizes.values(grads[0][:, None], ctx.shape, weight=weight)
        return found[:, 0].flatten(1), None, None


class _Values(torch.autograd.Function):
    """The points of the grid, (r, N), from whole spectra (r, F)."""

    @staticmethod
    def forward(ctx: Any, spectra: Tensor, sizes: GridSizes) -> Tensor:
        ctx.sizes = sizes
        return sizes.values(spectra[:, None], sizes.grid, sizes.start)[:, 0].flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        sizes = ctx.sizes
        found = sizes.spectra(grads[0].unflatten(1, sizes.grid)[:, None], sizes.start)[:, 0]
        return found.mul_(sizes.share(grads[0])), None


def _hidden_units(
    kernel: LagFeatures, problem: Problem, shards: Shards, sizes: GridSizes, constant: bool
) -> Tensor:
    """The hidden units at this rank's share of all displacements, (l, w), one more that is constant
    where the readout has a bias.
    """
    p, share = problem, shares(prod(sizes.lags), shards.count)
    spans = grid_steps(p.x[0].detach(), sizes.grid, shards)
    first = sum(share[: shards.rank])
    index = torch.arange(first, first + share[shards.rank], device=p.x.device)
    hidden = kernel.lag_features(displacements(index, spans, sizes))
    return torch.cat([hidden, torch.ones_like(hidden[:, :1])], -1) if constant else hidden


def grid_steps(x: Tensor, grid: tuple[int, ...], shards: Shards) -> list[Tensor]:
    """Return the vector (p,) along each axis of the whole grid, from its first point to its last.

    Args:
        x: positions of this rank's points, (n, p).
        grid: extents of the whole grid, whose points are numbered in row-major order.
        shards: which rank has which points; the point of a hole is padding.
    """
    # The places in the whole grid of its first point, and of the last point along each axis.
    corners = [0]
    for axis, extent in enumerate(grid):
        corners.append((extent - 1) * prod(grid[axis + 1 :]))

    is_hole = shards.rank in shards.holes
    start = sum(n for r, n in enumerate(shards.sizes[: shards.rank]) if r not in shards.holes)
    positions = []
    for place in corners:
        if not is_hole and start <= place < start + x.shape[0]:
            positions.append(x[place - start])
        else:
            positions.append(torch.zeros_like(x[0]))

    # One rank has a corner, and the others add zeros to it.
    first, *ends = summed(torch.stack(positions), shards).unbind(0)
    return [end - first for end in ends]


def displacements(index: Tensor, spans: list[Tensor], sizes: GridSizes) -> Tensor:
    """Displacements (l, p) of the lags with these row-major numbers."""
    total, rest = torch.zeros((), device=index.device), index
    for n, lags, start, span in reversed(
        list(zip(sizes.grid, sizes.lags, sizes.start, spans, strict=True))
    ):
        lag = rest % lags - start
        rest = rest.div(lags, rounding_mode="floor")
        total = total + (lag.to(span.dtype) / max(1, n - 1))[:, None] * span
    return total


class _Product(torch.autograd.Function):
    """κ̂ û at some frequencies, (H·d_out, B, f), from û (H·d_in, B, f), ĥ (w, f) and R."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, h: Tensor, readout: Tensor) -> Tensor:
        ctx.save_for_backward(u, h, readout)
        return spectrum.convolve(u.clone(), h[:, None], readout)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        u, h, readout = ctx.saved_tensors
        like = u.clone(), h[:, None].clone()
        share = torch.ones(u.shape[-1], dtype=readout.dtype, device=u.device)
        needs = ctx.needs_input_grad
        with full_precision(u):
            of_u, of_h, of_readout = spectrum.adjoint(grads[0], *like, readout, share, needs)
        return of_u, None if of_h is None else of_h[:, 0], of_readout
