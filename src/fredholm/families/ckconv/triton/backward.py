"""Gradients of the hidden units' spectrum and of the readout, through P = Σ_b ĝ conj(û), which
stays in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .parts import load_hidden, load_readout, outer, store_rows


@triton.jit
def hidden_gradient(
    grad, signal, readout, share,
    batch, count, d_in, d_out,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of ĥ from one block of outputs of one head: Σ_oi R[o, i, w] P[o, i, f].

    Written to ``share`` (head and block of outputs, w, f), which torch adds up. In registers are
    the sums (BLOCK_W, BLOCK_F), and P and R of one input at a time.
    """
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    o_blocks = tl.cdiv(d_out, BLOCK_O)
    head = (tl.program_id(1) // o_blocks).to(tl.int64)
    o = tl.program_id(1) % o_blocks * BLOCK_O + tl.arange(0, BLOCK_O)
    real, imaginary = (
        tl.zeros((BLOCK_W, BLOCK_F), tl.float32),
        tl.zeros((BLOCK_W, BLOCK_F), tl.float32),
    )
    row = batch * count
    for i in range(d_in):
        p_re, p_im = outer(
            grad + 2 * head * d_out * row, signal + 2 * (head * d_in + i) * row, f, o, batch,
            d_out, count, row, BLOCK_F, BLOCK_O,
        )  # fmt: skip
        r = load_readout(
            readout + (head * d_out * d_in + i) * WIDTH,
            o,
            d_out,
            d_in * WIDTH,
            WIDTH,
            BLOCK_W,
        )
        real += tl.dot(tl.trans(r), p_re, input_precision=PRECISION)
        imaginary += tl.dot(tl.trans(r), p_im, input_precision=PRECISION)
    block_share = share + 2 * tl.program_id(1).to(tl.int64) * WIDTH * count
    store_rows(block_share, tl.arange(0, BLOCK_W), f, WIDTH, count, count, real, imaginary)


@triton.jit
def readout_gradient(
    grad, signal, hidden, weight, share,
    batch, count, d_in, d_out, blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of R from a run of ``blocks`` blocks of frequencies, for one input:
    Σ_f s_f Re(conj(ĥ[w, f]) P[o, i, f]).

    Written to ``share`` (part, head, o, i, w), which torch adds up. In registers are the sums
    (BLOCK_O, BLOCK_W), and P and ĥ of one block of frequencies at a time. s is ``weight``.
    """
    o_blocks = tl.cdiv(d_out, BLOCK_O)
    head = (tl.program_id(1) // o_blocks).to(tl.int64)
    o = tl.program_id(1) % o_blocks * BLOCK_O + tl.arange(0, BLOCK_O)
    i, row = tl.program_id(2), batch * count
    total = tl.zeros((BLOCK_O, BLOCK_W), tl.float32)
    for block in range(blocks):
        f = (tl.program_id(0) * blocks + block) * BLOCK_F + tl.arange(0, BLOCK_F)
        p_re, p_im = outer(
            grad + 2 * head * d_out * row, signal + 2 * (head * d_in + i) * row, f, o, batch,
            d_out, count, row, BLOCK_F, BLOCK_O,
        )  # fmt: skip

        s = tl.load(weight + f, mask=f < count, other=0.0)[None, :]
        h_re, h_im = load_hidden(hidden, f, count, WIDTH, BLOCK_W)
        # Re(conj(a + ib) (c + id)) = a c + b d
        total += tl.dot(p_re, tl.trans(h_re * s), input_precision=PRECISION)
        total += tl.dot(p_im, tl.trans(h_im * s), input_precision=PRECISION)

    heads = tl.num_programs(1) // o_blocks
    w = tl.arange(0, BLOCK_W)
    place = ((tl.program_id(0) * heads + head) * d_out + o) * d_in + i
    inside = (o < d_out)[:, None] & (w < WIDTH)[None, :]
    tl.store(share + place[:, None].to(tl.int64) * WIDTH + w[None, :], total, mask=inside)
