r"""Products of spectra, a block of frequencies at a time, so that no more of the kernel's spectrum
exists than fits a cache.

With R the readout and h the hidden units, a kernel :math:`\kappa = \sum_k R_k h_k` has the spectrum
:math:`\hat\kappa = \sum_k R_k \hat h_k`, and the convolution with u is :math:`\hat\kappa\,\hat u`
at each frequency. Spectra are (channels, B, F), with F the frequencies of a real transform,
flattened. A block of f of them is seen as pairs of real numbers: R is real, so that κ̂ is one real
matrix product, and the product with û one small real product per frequency. Where heads have one
channel κ̂ is no larger than the signal, and there are no blocks.

Numbers that are pairs lie in one of two ways: *in turn* (real, imaginary, real, …) along a row, or
real parts *above* imaginary parts, as rows of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CACHE, DEVICE = 1 << 21, 1 << 28
"""Bytes of a block, on a CPU and elsewhere."""
NARROW = 16
"""Columns below which a product is made of the transposes: BLAS runs along the columns of a small
product.
"""


class Gradients(NamedTuple):
    """Gradients of û (H·d_in, B, F), ĥ (w, 1, F) and R, each None where not needed."""

    u: Tensor | None
    h: Tensor | None
    readout: Tensor | None


def convolve(
    u: Tensor,
    h: Tensor,
    readout: Tensor,
) -> Tensor:
    """Return κ̂ û, (H·d_out, B, F). Where d_in = d_out it overwrites û.

    Args:
        u: û, (H·d_in, B, F).
        h: ĥ, (w, 1, F).
        readout: R, (H, d_out, d_in, w).
    """
    heads, d_out, d_in, _ = readout.shape
    if d_out == d_in == 1:
        kernel = _channelwise(h, readout)
        return u.mul_(kernel[:, None])

    out = u
    if d_out != d_in:
        _, batch, frequencies = u.shape
        out = u.new_empty(heads * d_out, batch, frequencies)

    # In memory are κ̂ of the block, (f·H, 2·d_out, d_in), and û and κ̂ û of the block.
    for block in _blocks(readout, u):
        kernel = _kernel(h, readout, block)
        out[..., block] = _product(kernel, u, heads, block)
    return out


def kernel_spectrum(h: Tensor, readout: Tensor) -> Tensor:
    """Return κ̂ at all frequencies, for :func:`apply`.

    (H, F) where heads have one channel, else real parts above imaginary parts,
    (F·H, 2·d_out, d_in).
    """
    if readout.shape[1] == readout.shape[2] == 1:
        return _channelwise(h, readout)
    every = slice(None)
    kernel = _kernel(h, readout, every)
    return kernel.contiguous()


def apply(
    u: Tensor,
    kernel: Tensor,
    heads: int,
) -> Tensor:
    """Return κ̂ û as :func:`convolve` does, with the spectrum of :func:`kernel_spectrum`."""
    if kernel.dim() == 2:
        return u.mul_(kernel[:, None])
    every = slice(None)
    return _product(kernel, u, heads, every)


def _product(
    kernel: Tensor,
    u: Tensor,
    heads: int,
    block: slice,
) -> Tensor:
    """Return κ̂ û of a block of frequencies, (H·d_out, B, f).

    With κ̂ = A + iC, A û and C û are one real product, and κ̂ û = A û + i (C û).
    """
    d_out = kernel.shape[1] // 2
    both = _complex(_times(kernel, _pairs(u, heads, block)))
    of_real = both[:, :d_out]
    of_imaginary = both[:, d_out:]
    product = torch.add(of_real, of_imaginary, alpha=1j)

    batch = u.shape[1]
    product = product.view(-1, heads * d_out, batch)
    return product.permute(1, 2, 0)


# --- gradients ------------------------------------------------------------------------------------


def adjoint(
    grad: Tensor,
    u: Tensor,
    h: Tensor,
    readout: Tensor,
    share: Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    r"""Return the gradients of û, ĥ and R, where needed. Overwrites û and ĥ.

    With ĝ the gradient of κ̂ û and P a matrix (d_out, d_in) per head and frequency,

    .. math:: \hat g_u = \hat\kappa^H \hat g, \quad P = \sum_b \hat g\,\hat u^H, \quad
        \hat g_{h,k} = \langle R_k, P \rangle, \quad
        g_{R_k} = \sum_f s_f\,\mathrm{Re}(\overline{\hat h_k} P)

    Args:
        grad: ĝ, (H·d_out, B, F).
        u, h, readout: as for :func:`convolve`.
        share: s, (F,), by Parseval: one over the transform's size, and twice that where a frequency
            of the half spectrum represents its conjugate as well.
        needs: which gradients are wanted, of u, h and R.
    """
    heads, d_out, d_in, width = readout.shape
    if d_out == d_in == 1:
        return _adjoint_channelwise(
            grad,
            u,
            h,
            readout,
            share,
            needs,
        )
    needs_u, needs_h, needs_readout = needs
    batch = u.shape[1]
    matrix = readout.reshape(-1, width)
    grad_readout = None
    if needs_readout:
        grad_readout = torch.zeros_like(matrix)

    # In memory are of one block ĝ, û, P and κ̂. A block is read before its place in û and ĥ is
    # overwritten by its gradients.
    for block in _blocks(readout, u):
        g = _pairs(grad, heads, block)
        signal = _pairs(u, heads, block)
        # ĝ above -iĝ: their real products with û are the real and the imaginary part of P, and
        # those with κ̂ that of the gradient.
        turned = torch.cat([g, _turned(g)], 1)
        outer = None
        if needs_h or needs_readout:
            outer = _outer(turned, signal, heads, d_out * d_in)

        if outer is not None and grad_readout is not None:
            # A frequency has two rows, of real and of imaginary parts.
            shares = share[block].repeat_interleave(2)
            columns = _columns(h, block) * shares[:, None]
            grad_readout.addmm_(outer.mT, columns)
        if needs_u:
            kernel = _kernel(h, readout, block)
            of_u = _complex(_times(kernel.mT, turned))
            of_u = of_u.view(-1, heads * d_in, batch)
            u[..., block] = of_u.permute(1, 2, 0)
        if outer is not None and needs_h:
            of_h = outer @ matrix
            of_h = of_h.unflatten(0, (-1, 2))
            real = of_h[:, 0]
            imaginary = of_h[:, 1]
            gradient = torch.complex(real, imaginary)
            h[:, 0, block] = gradient.mT

    if grad_readout is not None:
        grad_readout = grad_readout.view_as(readout)
    return Gradients(
        u=u if needs_u else None,
        h=h if needs_h else None,
        readout=grad_readout,
    )


def _outer(
    turned: Tensor,
    signal: Tensor,
    heads: int,
    entries: int,
) -> Tensor:
    """Return P of a block, real above imaginary part at each frequency, (2f, H·d_out·d_in)."""
    products = turned @ signal.mT
    products = products.view(-1, heads, 2, entries)
    products = products.transpose(1, 2)
    return products.reshape(-1, heads * entries)


def _adjoint_channelwise(
    grad: Tensor,
    u: Tensor,
    h: Tensor,
    readout: Tensor,
    share: Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """Return :func:`adjoint` where heads have one channel, at all frequencies at once.

    κ̂ and P are then one number per head and frequency, (H, F), and R is a matrix (H, w).
    """
    needs_u, needs_h, needs_readout = needs
    grad_u = grad_h = grad_readout = None
    if needs_h or needs_readout:
        # P = Σ_b ĝ conj(û)
        outer = (grad * u.conj()).sum(1)
        if needs_readout:
            weighted = _flat(outer * share)
            units = _flat(h)
            of_matrix = weighted @ units.mT
            grad_readout = of_matrix.view_as(readout)
        if needs_h:
            matrix = readout.flatten(1)
            of_h = matrix.mT @ _flat(outer)
            grad_h = _complex(of_h)[:, None]
    if needs_u:
        kernel = _channelwise(h, readout)
        conjugate = kernel.conj()
        grad_u = grad * conjugate[:, None]
    return Gradients(grad_u, grad_h, grad_readout)


# --- blocks and layouts ---------------------------------------------------------------------------


def budget(x: Tensor) -> int:
    """Return the bytes of a block on the device of x."""
    if x.device.type == "cpu":
        return CACHE
    return DEVICE


def _blocks(readout: Tensor, u: Tensor) -> Iterator[slice]:
    """Yield spans of frequencies of which κ̂ fits the budget."""
    heads, d_out, d_in, _ = readout.shape
    # κ̂ has a complex matrix per head at each frequency.
    bytes_per_frequency = 2 * heads * d_out * d_in * readout.element_size()
    size = max(1, budget(u) // bytes_per_frequency)
    frequencies = u.shape[-1]
    for start in range(0, frequencies, size):
        stop = min(start + size, frequencies)
        yield slice(start, stop)


def _channelwise(h: Tensor, readout: Tensor) -> Tensor:
    """Return κ̂ where heads have one channel, (H, F)."""
    matrix = readout.flatten(1)
    units = _flat(h)
    return _complex(matrix @ units)


def _flat(x: Tensor) -> Tensor:
    """Return spectra as rows of real numbers in turn, (rows, 2·F)."""
    rows = x.flatten(1)
    numbers = torch.view_as_real(rows)
    return numbers.flatten(1)


def _complex(pairs: Tensor) -> Tensor:
    """Return real numbers in turn, (…, 2·n), as n complex ones."""
    numbers = pairs.unflatten(-1, (-1, 2))
    return torch.view_as_complex(numbers)


def _columns(h: Tensor, block: slice) -> Tensor:
    """Return ĥ of a block as (2f, w): one row of real parts, one of imaginary parts, and so on."""
    width = h.shape[0]
    of_block = h[:, 0, block]
    parts = torch.view_as_real(of_block)
    rows = parts.permute(1, 2, 0)
    return rows.reshape(-1, width)


def _kernel(
    h: Tensor,
    readout: Tensor,
    block: slice,
) -> Tensor:
    """Return κ̂ of a block, real parts above imaginary parts, (f·H, 2·d_out, d_in)."""
    heads, d_out, d_in, width = readout.shape
    matrix = readout.reshape(-1, width)
    kernel = _columns(h, block) @ matrix.mT
    # From a real and an imaginary part of all heads to both parts of each head.
    kernel = kernel.view(-1, 2, heads, d_out * d_in)
    kernel = kernel.transpose(1, 2)
    return kernel.reshape(-1, 2 * d_out, d_in)


def _pairs(
    x: Tensor,
    heads: int,
    block: slice,
) -> Tensor:
    """Return a spectrum of a block as real numbers in turn, (f·H, d, 2·B)."""
    channels = x.shape[0] // heads
    rows = x[..., block].permute(2, 0, 1)
    rows = rows.contiguous()
    pairs = torch.view_as_real(rows)
    return pairs.view(len(rows) * heads, channels, -1)


def _turned(pairs: Tensor) -> Tensor:
    """Return -i times numbers whose real and imaginary parts are in turn."""
    turned = _complex(pairs) * -1j
    return torch.view_as_real(turned).flatten(-2)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, contiguous."""
    if b.shape[-1] >= NARROW:
        return a @ b
    transposed = b.mT @ a.mT
    return transposed.mT.contiguous()
