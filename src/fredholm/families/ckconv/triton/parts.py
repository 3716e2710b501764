"""Pieces of the spectra's kernels: complex tiles, readouts, outer products.

Spectra are contiguous (H·d, B, F) and complex: number n has its real part at 2n, and its imaginary
part at 2n + 1. ``f`` are the frequencies of a block, ``o`` outputs of one head, ``count`` is F, and
``batch`` B. Rows and frequencies outside are zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(base, row, f, rows, count, stride):
    """Rows of a complex matrix at frequencies f: real and imaginary parts, (row, f) each.

    ``stride`` counts complex numbers from row to row, and ``rows`` is the number of rows.
    """
    # In 64 bits: a spectrum may have more than 2³¹ numbers.
    inside = (row < rows)[:, None] & (f < count)[None, :]
    place = base + 2 * (row[:, None].to(tl.int64) * stride + f[None, :])
    return tl.load(place, mask=inside, other=0.0), tl.load(place + 1, mask=inside, other=0.0)


@triton.jit
def store_rows(base, row, f, rows, count, stride, real, imaginary):
    """Write rows as :func:`load_rows` reads them."""
    inside = (row < rows)[:, None] & (f < count)[None, :]
    place = base + 2 * (row[:, None].to(tl.int64) * stride + f[None, :])
    tl.store(place, real, mask=inside)
    tl.store(place + 1, imaginary, mask=inside)


@triton.jit
def load_hidden(hidden, f, count, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """ĥ at frequencies f: real and imaginary parts, (BLOCK_W, f) each."""
    return load_rows(hidden, tl.arange(0, BLOCK_W), f, WIDTH, count, count)


@triton.jit
def load_readout(readout, row, rows, stride, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """Some rows of R, (row, BLOCK_W), ``stride`` numbers apart."""
    w = tl.arange(0, BLOCK_W)
    inside = (row < rows)[:, None] & (w < WIDTH)[None, :]
    return tl.load(
        readout + row[:, None].to(tl.int64) * stride + w[None, :],
        mask=inside,
        other=0.0,
    )


@triton.jit
def outer(
    grad,
    signal,
    f,
    o,
    batch,
    d_out,
    count,
    row,
    BLOCK_F: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """P = Σ_b ĝ conj(û) for the outputs o of one head and one input, (o, f) each.

    ``grad`` begins at the head's first output, ``signal`` at the input; ``row`` is B·F, the complex
    numbers of a channel. One batch entry is in registers at a time.
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
        # (a + ib) (c - id)
        real += g_re * u_re + g_im * u_im
        imaginary += g_im * u_re - g_re * u_im
    return real, imaginary
