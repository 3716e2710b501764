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

    def refuses(
        self,
        form: HiddenConvolution,
        kernel: LagFeatures,
        facts: Facts,
    ) -> str | None:
        if wants_triton(form.strategy.backend):
            return "Triton's kernels transpose nothing between ranks; use backend='auto'"
        return None

    def respond(
        self,
        form: HiddenConvolution,
        kernel: LagFeatures,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        with full_precision(problem.uy):
            out = convolve_part(kernel, problem, shards)
        return finished(out, kernel, problem)


def convolve_part(kernel: LagFeatures, problem: Problem, shards: Shards) -> Tensor:
    """Return ∫ K u dμ at one rank's points, but for the queries' scale, (B, H, n, d_out)."""
    assert shards.extents is not None
    sizes = GridSizes(list(shards.extents), problem.layout.causal)
    real = without_holes(shards)

    # The readout's bias belongs to one more hidden unit, which is constant.
    readout, bias = kernel.readout()
    hidden = _hidden_units(
        kernel,
        problem,
        shards,
        sizes,
        bias is not None,
    )
    if bias is not None:
        readout = torch.cat([readout, bias[..., None]], -1)
    dtype = promoted(at_least_single(problem.uy.dtype), hidden.dtype)
    signal = weighed(cast(problem.uy, dtype), problem.quadrature.mass)

    # One row per head, channel and sample, (H · d_in · B, n), without the placeholder of a rank
    # that has no points.
    batch, heads, n, width = signal.shape
    by_channel = signal.permute(1, 3, 0, 2)
    rows = by_channel.reshape(heads * width * batch, n)
    rows = rows[:, : real.size]

    u, h = _frequencies(
        rows,
        hidden.to(dtype).mT,
        real,
        sizes,
    )
    product = _Product.apply(
        u.unflatten(0, (-1, batch)),
        h,
        readout.to(dtype),
    )
    out = _points(product.flatten(0, 1), real, sizes)

    # The placeholder gets zero. In memory, points are outermost after the batch, as in one process.
    out = out.unflatten(0, (heads, -1, batch))
    missing = n - out.shape[-1]
    zeros = out.new_zeros(*out.shape[:-1], missing)
    out = torch.cat([out, zeros], -1)
    by_point = out.permute(2, 3, 0, 1).contiguous()
    return by_point.transpose(1, 2)


def _frequencies(
    signal: Tensor,
    hidden: Tensor,
    shards: Shards,
    sizes: GridSizes,
) -> tuple[Tensor, ...]:
    """Return this rank's frequencies of all rows, (R, f): of the signal from its points of them,
    (R, n), and of the hidden units from its share of their lags.
    """
    lags = shares(prod(sizes.lags), shards.count)
    half = shares(prod(sizes.half), shards.count)

    # Transforms need complete rows. Afterwards each rank has all rows of its frequencies.
    of_signal, of_hidden = to_whole((signal, hidden), shards, (shards.sizes, lags))
    spectra = (
        _Spectra.apply(of_signal, sizes, sizes.grid),
        _Spectra.apply(of_hidden, sizes, sizes.lags),
    )
    return to_stretches(
        spectra,
        shards,
        (half, half),
        (signal.shape[0], hidden.shape[0]),
    )


def _points(spectra: Tensor, shards: Shards, sizes: GridSizes) -> Tensor:
    """Return this rank's points of all rows, (R, n), from its frequencies, (R, f)."""
    half = shares(prod(sizes.half), shards.count)
    (whole,) = to_whole((spectra,), shards, (half,))
    values = _Values.apply(whole, sizes)
    (points,) = to_stretches(
        (values,),
        shards,
        (shards.sizes,),
        (spectra.shape[0],),
    )
    return points


class _Spectra(torch.autograd.Function):
    """Spectra (r, F) of whole rows (r, N) that begin at the transform's first point."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sizes: GridSizes,
        shape: tuple[int, ...],
    ) -> Tensor:
        ctx.sizes = sizes
        ctx.shape = shape
        on_grid = rows.unflatten(1, shape)[:, None]
        return sizes.spectra(on_grid)[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        """Return the transposed transform of the gradient.

        It is the inverse transform without the weights of the frequencies, which are divided out.
        torch's own gradient is a transform of complex numbers, twice the work.
        """
        (grad,) = grads
        weight = 1.0 / ctx.sizes.share(grad.real)
        of_rows = ctx.sizes.values(grad[:, None], ctx.shape, weight=weight)
        return of_rows[:, 0].flatten(1), None, None


class _Values(torch.autograd.Function):
    """The points of the grid, (r, N), from whole spectra (r, F)."""

    @staticmethod
    def forward(ctx: Any, spectra: Tensor, sizes: GridSizes) -> Tensor:
        ctx.sizes = sizes
        values = sizes.values(spectra[:, None], sizes.grid, sizes.start)
        return values[:, 0].flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        """Return the transposed inverse transform of the gradient: its spectrum, times the weights
        of the frequencies.
        """
        (grad,) = grads
        sizes: GridSizes = ctx.sizes
        on_grid = grad.unflatten(1, sizes.grid)[:, None]
        of_spectra = sizes.spectra(on_grid, sizes.start)[:, 0]
        return of_spectra.mul_(sizes.share(grad)), None


def _hidden_units(
    kernel: LagFeatures,
    problem: Problem,
    shards: Shards,
    sizes: GridSizes,
    constant: bool,
) -> Tensor:
    """Return the hidden units at this rank's share of all displacements, (l, w), and one more that
    is constant where the readout has a bias.
    """
    spans = grid_steps(problem.x[0].detach(), sizes.grid, shards)
    share = shares(prod(sizes.lags), shards.count)
    first = sum(share[: shards.rank])
    index = torch.arange(
        first,
        first + share[shards.rank],
        device=problem.x.device,
    )
    hidden = kernel.lag_features(displacements(index, spans, sizes))
    if not constant:
        return hidden
    ones = torch.ones_like(hidden[:, :1])
    return torch.cat([hidden, ones], -1)


def grid_steps(
    x: Tensor,
    grid: tuple[int, ...],
    shards: Shards,
) -> list[Tensor]:
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

    # This rank's points among those of the grid; a hole has none.
    real = without_holes(shards)
    positions = []
    for place in corners:
        if real.start <= place < real.start + real.size:
            positions.append(x[place - real.start])
        else:
            positions.append(torch.zeros_like(x[0]))

    # One rank has a corner, and the others add zeros to it.
    first, *ends = summed(torch.stack(positions), shards).unbind(0)
    return [end - first for end in ends]


def displacements(
    index: Tensor,
    spans: list[Tensor],
    sizes: GridSizes,
) -> Tensor:
    """Return the displacements (l, p) of the lags with these row-major numbers."""
    total = torch.zeros((), device=index.device)
    rest = index
    axes = list(
        zip(
            sizes.grid,
            sizes.lags,
            sizes.start,
            spans,
            strict=True,
        )
    )

    # The last axis has the lowest digits of a number.
    for extent, lags, start, span in reversed(axes):
        lag = rest % lags - start
        rest = rest.div(lags, rounding_mode="floor")
        # An axis of n points spans n - 1 steps.
        share_of_span = lag.to(span.dtype) / max(1, extent - 1)
        total = total + share_of_span[:, None] * span
    return total


class _Product(torch.autograd.Function):
    """κ̂ û at some frequencies, (H·d_out, B, f), from û (H·d_in, B, f), ĥ (w, f) and R."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        h: Tensor,
        readout: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(u, h, readout)
        return spectrum.convolve(u.clone(), h[:, None], readout)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        u, h, readout = ctx.saved_tensors
        # The gradient has the weights of the frequencies already, from :class:`_Values`.
        share = torch.ones(
            u.shape[-1],
            dtype=readout.dtype,
            device=u.device,
        )
        needs = ctx.needs_input_grad
        # The adjoint overwrites the spectra that it reads.
        u = u.clone()
        h = h[:, None].clone()
        with full_precision(u):
            of_u, of_h, of_readout = spectrum.adjoint(
                grad,
                u,
                h,
                readout,
                share,
                needs,
            )
        if of_h is not None:
            of_h = of_h[:, 0]
        return of_u, of_h, of_readout
