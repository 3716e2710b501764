"""The product of the kernel's spectrum, or of its adjoint, with the signal's. The kernel's spectrum
stays in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .parts import load_hidden, load_readout, load_rows


@triton.jit
def multiply(
    signal, hidden, readout, out,
    batch, count, d_in, d_out,
    stride_h, stride_i, stride_o,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_B: tl.constexpr,
    ADJOINT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[o, b, f] = Σ_i κ̂[o, i, f] û[i, b, f] for a block of frequencies, outputs and batch
    entries of one head.

    κ̂[o, i, f] = Σ_w R[o, i, w] ĥ[w, f] is made for one input i at a time, (BLOCK_O, BLOCK_F).
    Beside it ĥ (BLOCK_W, BLOCK_F), and the sums (BLOCK_B, BLOCK_O, BLOCK_F) are in registers. The
    batch is innermost, so that one κ̂ serves all its entries. With ``ADJOINT`` κ̂ is conjugated, and
    the caller swaps the strides of o and i.
    """
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    o_blocks = tl.cdiv(d_out, BLOCK_O)
    head = (tl.program_id(1) // o_blocks).to(tl.int64)
    o = tl.program_id(1) % o_blocks * BLOCK_O + tl.arange(0, BLOCK_O)
    b = tl.program_id(2) * BLOCK_B + tl.arange(0, BLOCK_B)

    h_re, h_im = load_hidden(hidden, f, count, WIDTH, BLOCK_W)
    real = tl.zeros((BLOCK_B, BLOCK_O, BLOCK_F), tl.float32)
    imaginary = tl.zeros((BLOCK_B, BLOCK_O, BLOCK_F), tl.float32)
    for i in range(d_in):
        # κ̂ of this input: two real products with ĥ, because R is real.
        r = load_readout(
            readout + head * stride_h + i * stride_i,
            o,
            d_out,
            stride_o,
            WIDTH,
            BLOCK_W,
        )
        k_re = tl.dot(r, h_re, input_precision=PRECISION)[None, :, :]
        k_im = tl.dot(r, h_im, input_precision=PRECISION)[None, :, :]
        if ADJOINT:
            k_im = -k_im

        # κ̂ û, broadcast to (BLOCK_B, BLOCK_O, BLOCK_F).
        u_re, u_im = load_rows(
            signal + 2 * (head * d_in + i) * batch * count,
            b,
            f,
            batch,
            count,
            count,
        )
        u_re, u_im = u_re[:, None, :], u_im[:, None, :]
        real += k_re * u_re - k_im * u_im
        imaginary += k_re * u_im + k_im * u_re

    row = ((head * d_out + o)[None, :] * batch + b[:, None])[:, :, None]
    inside = ((b < batch)[:, None] & (o < d_out)[None, :])[:, :, None] & (f < count)[None, None, :]
    place = out + 2 * (row.to(tl.int64) * count + f[None, None, :])
    tl.store(place, real, mask=inside)
    tl.store(place + 1, imaginary, mask=inside)
