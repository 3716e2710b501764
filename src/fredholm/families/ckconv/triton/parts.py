"""Pieces of the spectra's kernels: complex tiles, and the kernel's spectrum at a block of
frequencies.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(base, row, f, rows, count, stride):
    """Rows of a complex matrix at frequencies f, real and imaginary parts (row, f), zero outside.
    ``stride``: complex numbers per row.
    """
    inside = (row < rows)[:, None] & (f < count)[None, :]
    place = base + 2 * (row[:, None].to(tl.int64) * stride + f[None, :])
    return tl.load(place, mask=inside, other=0.0), tl.load(place + 1, mask=inside, other=0.0)


@triton.jit
def store_rows(base, row, f, rows, count, stride, real, imaginary):
    """The counterpart of :func:`load_rows`."""
    inside = (row < rows)[:, None] & (f < count)[None, :]
    place = base + 2 * (row[:, None].to(tl.int64) * stride + f[None, :])
    tl.store(place, real, mask=inside)
    tl.store(place + 1, imaginary, mask=inside)


@triton.jit
def load_hidden(hidden, f, count, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """ĥ at frequencies f, (BLOCK_W, f)."""
    return load_rows(hidden, tl.arange(0, BLOCK_W), f, WIDTH, count, count)


@triton.jit
def load_readout(readout, row, rows, stride, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """Some rows of R, (row, BLOCK_W), ``stride`` numbers apart."""
    w = tl.arange(0, BLOCK_W)
    inside = (row < rows)[:, None] & (w < WIDTH)[None, :]
    return tl.load(
        readout + row[:, None].to(tl.int64) * stride + w[None, :], mask=inside, other=0.0
    )


@triton.jit
def outer(
    grad, signal, f, o, batch, d_out, count, row, BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr
):
    """P = Σ_b ĝ conj(û) at outputs o, (o, f), of one head, and the input that ``signal`` begins at;
    ``row``: complex numbers a channel, B·F.
    """
    real, imaginary = (
        tl.zeros((BLOCK_O, BLOCK_F), tl.float32),
        tl.zeros((BLOCK_O, BLOCK_F), tl.float32),
    )
    for b in range(batch):
        g_re, g_im = load_rows(grad + 2 * b * count, o, f, d_out, count, row)
        place = signal + 2 * (b * count + f)
        u_re = tl.load(place, mask=f < count, other=0.0)[None, :]
        u_im = tl.load(place + 1, mask=f < count, other=0.0)[None, :]
        real += g_re * u_re + g_im * u_im
        imaginary += g_im * u_re - g_re * u_im
    return real, imaginary
