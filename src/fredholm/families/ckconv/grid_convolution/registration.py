"""The convolution between two transforms, and its registration as a custom op and its backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log2, prod
from typing import Any

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.custom_op import Op, differentiable_op
from . import spectrum

Product = Callable[[Tensor, Tensor, Tensor], Tensor]
Adjoint = Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]


class GridSizes:
    """Sizes of the transforms: 2n or more an axis, so that what wraps around lands outside the part
    that is kept.
    """

    def __init__(self, grid: list[int], causal: bool):
        self.grid = tuple(grid)
        self.lags = tuple(n if causal else 2 * n - 1 for n in grid)
        self.sizes = [fast_size(2 * n) for n in grid]
        self.dims = tuple(range(-len(grid), 0))
        self.half = [*self.sizes[:-1], self.sizes[-1] // 2 + 1]
        self.start = tuple(0 if causal else n - 1 for n in grid)

    def transform(
        self, x: Tensor, shape: tuple[int, ...], start: tuple[int, ...] | None = None
    ) -> Tensor:
        """The spectrum (H·d, B, F) of x (B, H, points, d), whose points fill ``shape`` from
        ``start`` on (default 0).
        """
        rows = x.transpose(1, 2).flatten(2).permute(2, 0, 1).unflatten(-1, shape)
        return self.spectra(rows, start)

    def spectra(self, rows: Tensor, start: tuple[int, ...] | None = None) -> Tensor:
        """The spectra (R, B, F) of rows (R, B, *shape), which lie from ``start`` on."""
        count, batch, *shape = rows.shape
        out = rows.new_empty(count, batch, prod(self.half), dtype=rows.dtype.to_complex())
        size = self._rows(rows, batch)
        # what lies around the part stays zero
        padded = rows.new_zeros(min(size, count), batch, *self.sizes)
        for first in range(0, count, size):
            part = rows[first : first + size]
            self.part(padded, tuple(shape), start)[: len(part)] = part
            out[first : first + size] = torch.fft.rfftn(padded[: len(part)], dim=self.dims).flatten(
                2
            )
        return out

    def back(
        self, x: Tensor, heads: int, shape: tuple[int, ...], start: tuple[int, ...] | None = None
    ) -> Tensor:
        """The part of ``shape`` from ``start`` on of the signal with spectrum x, (B, H, points, d),
        points outermost after the batch.
        """
        out = x.real.new_empty(x.shape[1], prod(shape), x.shape[0])
        self.values(x, shape, start, out=out.permute(2, 0, 1).unflatten(-1, shape))
        return out.unflatten(-1, (heads, -1)).transpose(1, 2)

    def values(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        start: tuple[int, ...] | None = None,
        out: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The parts (R, B, *shape) from ``start`` on of the rows with spectra x (R, B, F), times
        ``weight`` (F,) where given; written to ``out`` where given.
        """
        (rows, batch), like = x.shape[:2], x.real
        out = like.new_empty(rows, batch, *shape) if out is None else out
        size = self._rows(like, batch)
        for first in range(0, rows, size):
            block = x[first : first + size]
            block = (block if weight is None else block * weight).unflatten(-1, self.half)
            full = torch.fft.irfftn(block, s=self.sizes, dim=self.dims)
            out[first : first + size] = self.part(full, shape, start)
        return out

    def part(self, full: Tensor, shape: tuple[int, ...], start: tuple[int, ...] | None) -> Tensor:
        return full[(..., *(slice(s, s + n) for s, n in zip(start or (0,) * len(shape), shape)))]

    def _rows(self, x: Tensor, batch: int) -> int:
        """Channels to transform at once."""
        return max(1, spectrum.budget(x) // (batch * prod(self.sizes) * x.element_size()))

    def share(self, like: Tensor) -> Tensor:
        """One over the transform's size, twice that where a frequency of the half spectrum stands
        for its conjugate too, (F,).
        """
        last, count = self.sizes[-1], prod(self.sizes)
        row = torch.full((last // 2 + 1,), 2.0 / count, dtype=like.dtype, device=like.device)
        row[0] = 1.0 / count
        if last % 2 == 0:
            row[-1] = 1.0 / count
        return row.repeat(count // last)


def forward(
    product: Product,
    signal: Tensor,
    hidden: Tensor,
    readout: Tensor,
    grid: list[int],
    causal: bool,
) -> Tensor:
    """The convolution with a product of spectra like
    :func:`fredholm.families.ckconv.grid_convolution.spectrum.convolve`.
    """
    if not signal.numel():
        return empty_result(signal, hidden, readout, grid, causal)
    sizes = GridSizes(grid, causal)
    u, h = sizes.transform(signal, sizes.grid), sizes.transform(hidden[None, None], sizes.lags)
    return sizes.back(product(u, h, readout), signal.shape[1], sizes.grid, sizes.start)


def spectrum_of(hidden: Tensor, readout: Tensor, grid: tuple[int, ...], causal: bool) -> Tensor:
    """κ̂ of the whole kernel on a grid, for :func:`convolve_with`: numbers ≈ 2·H·d_out·d_in·N."""
    sizes = GridSizes(list(grid), causal)
    return spectrum.kernel_spectrum(sizes.transform(hidden[None, None], sizes.lags), readout)


def convolve_with(signal: Tensor, kernel: Tensor, grid: tuple[int, ...], causal: bool) -> Tensor:
    """:func:`forward` with a spectrum of :func:`spectrum_of`: one product of spectra."""
    sizes, heads = GridSizes(list(grid), causal), signal.shape[1]
    product = spectrum.apply(sizes.transform(signal, sizes.grid), kernel, heads)
    return sizes.back(product, heads, sizes.grid, sizes.start)


def empty_result(
    signal: Tensor, hidden: Tensor, readout: Tensor, grid: list[int], causal: bool
) -> Tensor:
    """What :func:`forward` returns, without values."""
    b, h, n, _ = signal.shape
    return signal.new_empty(b, n, h, readout.shape[1]).transpose(1, 2)


def backward(
    adjoint: Adjoint,
    grad: Tensor,
    signal: Tensor,
    hidden: Tensor,
    readout: Tensor,
    grid: list[int],
    causal: bool,
    needs: list[bool],
) -> list[Tensor]:
    """Gradients where needed, with an adjoint like
    :func:`fredholm.families.ckconv.grid_convolution.spectrum.adjoint`.
    """
    if not signal.numel():
        empty = empty_gradients(grad, signal, hidden, readout, grid, causal, needs)
        return [x.zero_() for x in empty]
    sizes, heads = GridSizes(grid, causal), signal.shape[1]
    g = sizes.transform(grad, sizes.grid, sizes.start)
    u, h = sizes.transform(signal, sizes.grid), sizes.transform(hidden[None, None], sizes.lags)
    wanted = (needs[0], needs[1], needs[2])
    with full_precision(signal):
        grad_u, grad_h, grad_r = adjoint(g, u, h, readout, sizes.share(signal), wanted)
    gradients = [] if grad_u is None else [sizes.back(grad_u, heads, sizes.grid)]
    gradients += [] if grad_h is None else [sizes.back(grad_h, 1, sizes.lags)[0, 0]]
    return gradients + ([] if grad_r is None else [grad_r])


def empty_gradients(grad, signal, hidden, readout, grid, causal, needs) -> list[Tensor]:
    """What :func:`backward` returns, without values."""
    b, h, n, d = signal.shape
    gradients = (
        signal.new_empty(b, n, h, d).transpose(1, 2),
        hidden.new_empty(hidden.shape),
        readout.new_empty(readout.shape),
    )
    return [x for x, needed in zip(gradients, needs) if needed]


def plain(signal: Tensor, hidden: Tensor, readout: Tensor, grid: list[int], causal: bool) -> Tensor:
    """The convolution with the whole spectrum of the kernel at once."""
    sizes = GridSizes(grid, causal)
    transform = partial(torch.fft.rfftn, s=sizes.sizes, dim=sizes.dims)
    u = transform(signal.mT.unflatten(-1, sizes.grid)).flatten(3)
    h = transform(hidden.mT.unflatten(-1, sizes.lags)).flatten(1)
    kernel = torch.einsum("hoiw,wf->hoif", readout.to(h.dtype), h)
    product = torch.einsum("hoif,bhif->bhof", kernel, u).unflatten(-1, sizes.half)
    full = torch.fft.irfftn(product, s=sizes.sizes, dim=sizes.dims)
    return sizes.part(full, sizes.grid, sizes.start).flatten(3).mT


def _work(signal: Any, readout: Any, grid: Any) -> tuple[int, int, float]:
    """FLOPs of the kernel's spectrum, of its product with the signal's, and of one real transform,
    from shapes.
    """
    (b, h, _, _), (_, d_out, d_in, w) = signal, readout
    sizes = [fast_size(2 * n) for n in grid]
    frequencies = prod(sizes[:-1]) * (sizes[-1] // 2 + 1)
    entries, points = frequencies * h * d_out * d_in, prod(sizes)
    return 4 * entries * w, 8 * entries * b, 2.5 * points * log2(max(points, 2))


def forward_flops(
    signal: Any,
    hidden: Any,
    readout: Any,
    grid: Any,
    causal: bool,
) -> int:
    """FLOPs of the op, from shapes."""
    kernel, product, transform = _work(signal, readout, grid)
    (b, h, _, d_in), d_out = signal, readout[1]
    return kernel + product + round(transform * (b * h * (d_in + d_out) + hidden[-1]))


def backward_flops(
    grad: Any,
    signal: Any,
    hidden: Any,
    readout: Any,
    grid: Any,
    causal: bool,
    needs: Any,
) -> int:
    """FLOPs of the op's backward, from shapes."""
    kernel, product, transform = _work(signal, readout, grid)
    (b, h, _, d_in), d_out = signal, readout[1]
    pairs = needs[1] or needs[2]
    signals = b * h * (d_in + d_out) + hidden[-1] + needs[0] * b * h * d_in + needs[1] * hidden[-1]
    return kernel * sum(needs) + product * (needs[0] + pairs) + round(transform * signals)


def fast_size(n: int) -> int:
    """The next size that is a product of 2, 3 and 5; the size itself where a program leaves it
    free, since a search would fix it.
    """
    if not isinstance(n, int):
        return n
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


def register(name: str, product: Product, adjoint: Adjoint) -> Op:
    """The convolution as a custom op, for one way of multiplying spectra."""
    return differentiable_op(
        name,
        tensors="Tensor signal, Tensor hidden, Tensor readout",
        options="SymInt[] grid, bool causal",
        forward=partial(forward, product),
        backward=partial(backward, adjoint),
        fake=empty_result,
        plain=plain,
        fake_gradients=empty_gradients,
        flops=(forward_flops, backward_flops),
    )


grid_convolution_op = register("grid_convolution", spectrum.convolve, spectrum.adjoint)
