"""The convolution between two transforms, and its registration as a custom op with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log2, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.custom_op import Op, differentiable_op
from . import spectrum

Product = Callable[[Tensor, Tensor, Tensor], Tensor]
Adjoint = Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]


def lags_of_axes(grid: Sequence[int], causal: bool) -> tuple[int, ...]:
    """Return the number of lags along each axis: 0 to n - 1 in causal order, else 1 - n to n - 1.

    Example:
        >>> lags_of_axes((3, 4), causal=False), lags_of_axes((3,), causal=True)
        ((5, 7), (3,))
    """
    if causal:
        return tuple(grid)
    return tuple(2 * n - 1 for n in grid)


class GridSizes:
    """Sizes of the transforms on a grid, and the transforms.

    Each axis is padded with zeros to 2n points or more. A convolution of n points with up to 2n - 1
    lags then wraps around only outside the part that is returned.

    Args:
        grid: extents n of the axes.
        causal: whether the lags are 0 to n - 1, else 1 - n to n - 1.

    Attributes:
        lags: lags of each axis.
        sizes: points of each axis, padded.
        half: frequencies of each axis, of which a real transform has half on the last.
        start: where the convolution's points begin among the padded ones.
    """

    def __init__(self, grid: list[int], causal: bool):
        self.grid = tuple(grid)
        self.lags = lags_of_axes(grid, causal)
        self.sizes = [fast_size(2 * n) for n in grid]
        self.dims = tuple(range(-len(grid), 0))
        *others, last = self.sizes
        self.half = [*others, last // 2 + 1]

        # The result of the first point has the lag zero, which is first in causal order alone.
        self.start = tuple(n - 1 for n in grid)
        if causal:
            self.start = (0,) * len(grid)

    def transform(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        start: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Return the spectrum (H·d, B, F) of x (B, H, points, d).

        Its points fill a box of ``shape`` from ``start`` on, 0 by default.
        """
        # One row per channel of a head, (H·d, B, points).
        rows = x.transpose(1, 2).flatten(2)
        rows = rows.permute(2, 0, 1)
        boxes = rows.unflatten(-1, shape)
        return self.spectra(boxes, start)

    def spectra(
        self,
        rows: Tensor,
        start: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Return the spectra (R, B, F) of rows (R, B, *shape), which lie from ``start`` on."""
        count, batch, *shape = rows.shape
        frequencies = prod(self.half)
        dtype = rows.dtype.to_complex()
        out = rows.new_empty(count, batch, frequencies, dtype=dtype)

        # Some rows at a time, whose padded copy (size, B, *sizes) fits the budget. The padding
        # around the box is written once and stays zero.
        size = self._rows(rows, batch)
        most = min(size, count)
        padded = rows.new_zeros(most, batch, *self.sizes)
        for first in range(0, count, size):
            part = rows[first : first + size]
            used = padded[: len(part)]
            box = self.part(used, tuple(shape), start)
            box.copy_(part)
            spectra = torch.fft.rfftn(used, dim=self.dims)
            out[first : first + size] = spectra.flatten(2)
        return out

    def back(
        self,
        x: Tensor,
        heads: int,
        shape: tuple[int, ...],
        start: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Return the signal with spectrum x in the box of ``shape`` from ``start`` on,
        (B, H, points, d).

        In memory points come right after the batch, as they do in features.
        """
        rows, batch, _ = x.shape
        out = x.real.new_empty(batch, prod(shape), rows)
        as_rows = out.permute(2, 0, 1)
        as_rows = as_rows.unflatten(-1, shape)
        self.values(x, shape, start, out=as_rows)
        by_head = out.unflatten(-1, (heads, -1))
        return by_head.transpose(1, 2)

    def values(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        start: tuple[int, ...] | None = None,
        out: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Return the rows with spectra x (R, B, F) in a box, (R, B, *shape).

        Args:
            x: spectra.
            shape, start: of the box.
            out: where to write, or None.
            weight: a factor of each frequency, (F,), or None.
        """
        rows, batch = x.shape[:2]
        like = x.real
        if out is None:
            out = like.new_empty(rows, batch, *shape)

        # Some rows at a time: the padded ones, (size, B, *sizes), exist for no more than these.
        size = self._rows(like, batch)
        for first in range(0, rows, size):
            block = x[first : first + size]
            if weight is not None:
                block = block * weight
            block = block.unflatten(-1, self.half)
            full = torch.fft.irfftn(
                block,
                s=self.sizes,
                dim=self.dims,
            )
            out[first : first + size] = self.part(full, shape, start)
        return out

    def part(
        self,
        full: Tensor,
        shape: tuple[int, ...],
        start: tuple[int, ...] | None,
    ) -> Tensor:
        """Return a view of the box of ``shape`` from ``start`` on, in padded points (…, *sizes)."""
        corner = start or (0,) * len(shape)
        box = []
        for first, n in zip(corner, shape):
            box.append(slice(first, first + n))
        return full[(..., *box)]

    def _rows(self, x: Tensor, batch: int) -> int:
        """Return the number of rows to transform at once."""
        bytes_per_row = batch * prod(self.sizes) * x.element_size()
        return max(1, spectrum.budget(x) // bytes_per_row)

    def share(self, like: Tensor) -> Tensor:
        """Return the weight of each frequency of the half spectrum in Parseval's sum, (F,).

        One over the transform's size, and twice that where a frequency represents its conjugate as
        well: everywhere but at zero and, in even sizes, at the last frequency of the last axis.
        Its dtype and device are those of ``like``.
        """
        last = self.sizes[-1]
        count = prod(self.sizes)
        row = torch.full(
            (last // 2 + 1,),
            2.0 / count,
            dtype=like.dtype,
            device=like.device,
        )
        row[0] = 1.0 / count
        if last % 2 == 0:
            row[-1] = 1.0 / count

        # The other axes have all their frequencies, with the same weights in each.
        return row.repeat(count // last)


def forward(
    product: Product,
    signal: Tensor,
    hidden: Tensor,
    readout: Tensor,
    grid: list[int],
    causal: bool,
) -> Tensor:
    """Return the convolution, κ * u = F⁻¹(κ̂ û).

    Args:
        product: of spectra, like
            :func:`fredholm.families.ckconv.grid_convolution.spectrum.convolve`.
        signal, hidden, readout, grid, causal: see :func:`grid_convolution`.
    """
    # torch.fft raises on a tensor without elements.
    if not signal.numel():
        return empty_result(signal, hidden, readout, grid, causal)
    sizes = GridSizes(grid, causal)
    u = sizes.transform(signal, sizes.grid)
    h = sizes.transform(hidden[None, None], sizes.lags)
    heads = signal.shape[1]
    result = product(u, h, readout)
    return sizes.back(result, heads, sizes.grid, sizes.start)


def spectrum_of(
    hidden: Tensor,
    readout: Tensor,
    grid: tuple[int, ...],
    causal: bool,
) -> Tensor:
    """Return κ̂ of the kernel at all frequencies, for :func:`convolve_with`.

    About 2·H·d_out·d_in·N complex numbers.
    """
    sizes = GridSizes(list(grid), causal)
    h = sizes.transform(hidden[None, None], sizes.lags)
    return spectrum.kernel_spectrum(h, readout)


def convolve_with(
    signal: Tensor,
    kernel: Tensor,
    grid: tuple[int, ...],
    causal: bool,
) -> Tensor:
    """Return :func:`forward` with a spectrum of :func:`spectrum_of`."""
    sizes = GridSizes(list(grid), causal)
    heads = signal.shape[1]
    u = sizes.transform(signal, sizes.grid)
    product = spectrum.apply(u, kernel, heads)
    return sizes.back(product, heads, sizes.grid, sizes.start)


def empty_result(
    signal: Tensor,
    hidden: Tensor,
    readout: Tensor,
    grid: list[int],
    causal: bool,
) -> Tensor:
    """Return a result of :func:`forward` without values."""
    b, h, n, _ = signal.shape
    d_out = readout.shape[1]
    out = signal.new_empty(b, n, h, d_out)
    return out.transpose(1, 2)


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
    """Return the gradients of signal, hidden units and readout, those that are needed.

    The gradient of the result lies where the result lay among the padded points, so that its
    transform is that of the padded result.

    Args:
        adjoint: of spectra, like
            :func:`fredholm.families.ckconv.grid_convolution.spectrum.adjoint`.
        grad: of the result.
        signal, hidden, readout, grid, causal: see :func:`grid_convolution`.
        needs: which gradients are wanted.
    """
    # torch.fft raises on a tensor without elements.
    if not signal.numel():
        empty = empty_gradients(
            grad,
            signal,
            hidden,
            readout,
            grid,
            causal,
            needs,
        )
        return [x.zero_() for x in empty]

    sizes = GridSizes(grid, causal)
    g = sizes.transform(grad, sizes.grid, sizes.start)
    u = sizes.transform(signal, sizes.grid)
    h = sizes.transform(hidden[None, None], sizes.lags)
    needs_u, needs_h, needs_readout = needs
    share = sizes.share(signal)
    with full_precision(signal):
        grad_u, grad_h, grad_readout = adjoint(
            g,
            u,
            h,
            readout,
            share,
            (needs_u, needs_h, needs_readout),
        )

    heads = signal.shape[1]
    gradients = []
    if grad_u is not None:
        of_signal = sizes.back(grad_u, heads, sizes.grid)
        gradients.append(of_signal)
    if grad_h is not None:
        # Hidden units are a signal of one sample and one head.
        of_hidden = sizes.back(grad_h, 1, sizes.lags)
        gradients.append(of_hidden[0, 0])
    if grad_readout is not None:
        gradients.append(grad_readout)
    return gradients


def empty_gradients(
    grad: Tensor,
    signal: Tensor,
    hidden: Tensor,
    readout: Tensor,
    grid: list[int],
    causal: bool,
    needs: list[bool],
) -> list[Tensor]:
    """Return results of :func:`backward` without values."""
    b, h, n, d = signal.shape
    of_signal = signal.new_empty(b, n, h, d)
    gradients = (
        of_signal.transpose(1, 2),
        hidden.new_empty(hidden.shape),
        readout.new_empty(readout.shape),
    )
    return [x for x, needed in zip(gradients, needs) if needed]


def plain(
    signal: Tensor,
    hidden: Tensor,
    readout: Tensor,
    grid: list[int],
    causal: bool,
) -> Tensor:
    """Return the convolution in torch's operations, with κ̂ at all frequencies at once."""
    sizes = GridSizes(grid, causal)
    transform = partial(
        torch.fft.rfftn,
        s=sizes.sizes,
        dim=sizes.dims,
    )
    signal_on_grid = signal.mT.unflatten(-1, sizes.grid)
    hidden_on_lags = hidden.mT.unflatten(-1, sizes.lags)
    u = transform(signal_on_grid)
    u = u.flatten(3)
    h = transform(hidden_on_lags)
    h = h.flatten(1)
    kernel = torch.einsum(
        "hoiw,wf->hoif",
        readout.to(h.dtype),
        h,
    )

    # A matrix product at each frequency, (H, F, d_out, d_in) @ (H, F, d_in, B). Where d_in is 1,
    # ``einsum`` would multiply number by number. Such a complex product has strides that depend on
    # those of dimensions of size 1, which AOTInductor predicts wrongly: samples and channels would
    # change places.
    kernel = kernel.permute(0, 3, 1, 2)
    product = kernel @ u.permute(1, 3, 2, 0)
    product = product.permute(3, 0, 2, 1)
    product = product.unflatten(-1, sizes.half)
    full = torch.fft.irfftn(
        product,
        s=sizes.sizes,
        dim=sizes.dims,
    )
    out = sizes.part(full, sizes.grid, sizes.start)
    return out.flatten(3).mT


# --- FLOPs ----------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """FLOPs of the kernel's spectrum, of its product with the signal's, and of one transform."""

    kernel: int
    product: int
    transform: float


def _work(signal: Any, readout: Any, grid: Any) -> _Work:
    """Count FLOPs from shapes."""
    b, h, _, _ = signal
    _, d_out, d_in, w = readout
    sizes = [fast_size(2 * n) for n in grid]
    frequencies_of_last = sizes[-1] // 2 + 1
    frequencies = prod(sizes[:-1]) * frequencies_of_last
    entries = frequencies * h * d_out * d_in
    points = prod(sizes)
    # A real times a complex number counts 4 with its addition, two complex ones 8, and a real
    # transform half of the usual 5·n·log₂ n.
    return _Work(
        kernel=4 * entries * w,
        product=8 * entries * b,
        transform=2.5 * points * log2(max(points, 2)),
    )


def forward_flops(
    signal: Any,
    hidden: Any,
    readout: Any,
    grid: Any,
    causal: bool,
) -> int:
    """Count the FLOPs of the op, from shapes."""
    work = _work(signal, readout, grid)
    b, h, _, d_in = signal
    _, d_out, _, w = readout
    transforms = b * h * (d_in + d_out) + w
    of_transforms = round(work.transform * transforms)
    return work.kernel + work.product + of_transforms


def backward_flops(
    grad: Any,
    signal: Any,
    hidden: Any,
    readout: Any,
    grid: Any,
    causal: bool,
    needs: Any,
) -> int:
    """Count the FLOPs of the op's backward, from shapes."""
    work = _work(signal, readout, grid)
    b, h, _, d_in = signal
    _, d_out, _, w = readout
    needs_u, needs_h, needs_readout = needs

    # Transforms of ĝ, û and ĥ, and back those of the gradients.
    transforms = b * h * (d_in + d_out) + w
    transforms += needs_u * b * h * d_in + needs_h * w

    # Gradients of ĥ and of R begin with the same outer products.
    outer = needs_h or needs_readout
    of_kernel = work.kernel * sum(needs)
    of_product = work.product * (needs_u + outer)
    of_transforms = round(work.transform * transforms)
    return of_kernel + of_product + of_transforms


# --- registration ---------------------------------------------------------------------------------


def fast_size(n: int) -> int:
    """Return the smallest product of 2, 3 and 5 that is at least ``n``: a fast transform's size.

    A symbol of a traced program is returned as it is, because a search would fix its value.

    Example:
        >>> fast_size(14)
        15
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
    """Register the convolution as a custom op with its own way of multiplying spectra.

    Args:
        name: of the op.
        product, adjoint: see :func:`forward` and :func:`backward`.
    """
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
