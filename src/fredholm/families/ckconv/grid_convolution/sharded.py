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

from ....domain import Domain
from ....integral import Exchange, Problem
from ....parallel import (
    Shards,
    shares,
    summed,
    to_columns,
    to_rows,
    transposed_numbers,
    without_holes,
)
from . import spectrum
from .registration import GridSizes


def convolve_part(kernel: Any, problem: Problem, shards: Shards) -> Tensor:
    """∫ K u dμ but for the queries' scale at one rank's points, (B, H, n, d_out)."""
    q, p, grid = problem.quadrature, problem, shards.extents
    assert grid is not None
    real, sizes = without_holes(shards), GridSizes(list(grid), p.layout.causal)
    readout, bias = kernel.readout()
    hidden = _hidden_units(kernel, p, shards, sizes, bias is not None)
    if bias is not None:
        readout = torch.cat([readout, bias[..., None]], -1)
    signal = q.mass[:, None, :, None].to(p.uy.dtype) * p.uy
    dtype = torch.promote_types(signal.dtype, hidden.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    batch, heads, n, width = signal.shape
    rows = signal.to(dtype).permute(2, 1, 3, 0).reshape(n, heads * width * batch)[: real.size]
    u = _frequencies(rows, real, real.sizes, sizes, sizes.grid)
    h = _frequencies(
        hidden.to(dtype), real, shares(prod(sizes.lags), real.count), sizes, sizes.lags
    )
    out = _Product.apply(u.unflatten(1, (-1, batch)), h, readout.to(dtype))
    out = _points(out.flatten(1), real, sizes)
    out = torch.cat([out, out.new_zeros(n - len(out), out.shape[1])])
    return out.view(n, readout.shape[0], readout.shape[1], batch).permute(3, 1, 0, 2)


def convolution_sent(kernel: Any, domain: Domain, batch: int) -> Exchange:
    """What :func:`convolve_part` sends: four transposed matrices of the signal, two of the hidden
    units, and where the corners of the grid are.
    """
    shards = domain.shards
    assert shards is not None
    assert shards.extents is not None
    sizes, count = GridSizes(list(shards.extents), domain.causal), shards.count
    with torch.no_grad():
        readout, bias = kernel.readout()
    heads, d_out, d_in, units = readout.shape
    units += bias is not None
    frequencies, lags = shares(prod(sizes.half), count), shares(prod(sizes.lags), count)
    numbers = 0
    for rows, width, away in (
        (shards.sizes, heads * d_in * batch, False),
        (shards.sizes, heads * d_out * batch, True),
        (lags, units, False),
    ):
        numbers += transposed_numbers(shards, rows, width, away)
        numbers += transposed_numbers(shards, frequencies, width, not away, 2)
    numbers += (len(shards.extents) + 1) * domain.dim
    return Exchange("signal and hidden units, transposed between points and frequencies", numbers)


def _frequencies(
    rows: Tensor,
    shards: Shards,
    parts: tuple[int, ...],
    sizes: GridSizes,
    shape: tuple[int, ...],
) -> Tensor:
    """This rank's frequencies of all columns, (f, C), from its ``rows`` (n, C) of values on a grid
    of ``shape``.
    """
    columns = to_columns(rows, shards, parts).mT.unflatten(1, shape)
    some = _some(columns)
    full = torch.fft.rfftn(some, s=sizes.sizes, dim=sizes.dims)[: len(columns)].flatten(1).mT
    return to_rows(full, shards, shares(len(full), shards.count), rows.shape[1])


def _points(spectra: Tensor, shards: Shards, sizes: GridSizes) -> Tensor:
    """This rank's points of all columns, (n, C), from its frequencies (f, C)."""
    parts = shares(prod(sizes.half), shards.count)
    columns = to_columns(spectra, shards, parts).mT.unflatten(1, sizes.half)
    full = torch.fft.irfftn(_some(columns), s=sizes.sizes, dim=sizes.dims)[: len(columns)]
    kept = sizes.part(full, sizes.grid, sizes.start).flatten(1).mT
    return to_rows(kept, shards, shards.sizes, spectra.shape[1])


def _some(columns: Tensor) -> Tensor:
    """The columns, or one of zeros where there are fewer than ranks: MKL transforms no empty batch,
    and what was received must stay in the graph.
    """
    if len(columns):
        return columns
    return torch.cat([columns, columns.new_zeros(1, *columns.shape[1:])])


def _hidden_units(
    kernel: Any, problem: Problem, shards: Shards, sizes: GridSizes, constant: bool
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
    """The span of each axis of the whole grid, (p,), from the ranks that have its corners."""
    corners = [0] + [(n - 1) * prod(grid[axis + 1 :]) for axis, n in enumerate(grid)]
    start = sum(n for r, n in enumerate(shards.sizes[: shards.rank]) if r not in shards.holes)
    found = []
    for place in corners:
        mine = start <= place < start + len(x) and shards.rank not in shards.holes
        found.append(x[place - start] if mine else torch.zeros_like(x[0]))
    first, *ends = summed(torch.stack(found), shards).unbind(0)
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
    """κ̂ û at some frequencies, (f, H·d_out, B), from û (f, H·d_in, B), ĥ (f, w) and R."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, h: Tensor, readout: Tensor) -> Tensor:
        ctx.save_for_backward(u, h, readout)
        u, h = u.permute(1, 2, 0), h.mT[:, None]
        return spectrum.convolve(u.clone(), h, readout).permute(2, 0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        u, h, readout = ctx.saved_tensors
        like = u.permute(1, 2, 0).clone(), h.mT[:, None].clone()
        share = torch.ones(len(u), dtype=readout.dtype, device=u.device)
        gradient = grads[0].permute(1, 2, 0)
        found = spectrum.adjoint(gradient, *like, readout, share, ctx.needs_input_grad)
        of_u, of_h, of_readout = found
        return (
            None if of_u is None else of_u.permute(2, 0, 1),
            None if of_h is None else of_h[:, 0].mT,
            of_readout,
        )
