"""The forward kernel: moments M of the hidden units, one launch over (head, batch entry, block of
rows).

A program holds a block of rows, BQ queries × BW hidden units, and streams the keys:

    S = (scale ⊙ query) Kᵀ + terms        P = ρ σ(S)        M += P V

which is fused attention without its softmax: two matrix products and one activation a pair and
hidden unit. With e the columns of the product and d of a value, a pair and row cost e + d
multiply-adds and one activation. A Hopper SM does about 2,000 bfloat16 multiply-adds and 16
special-function results a clock, so at e = d = 64 and the tanh form (one result) both take the same
time and overlap decides; the erf form takes two results, and the columns of irregular points (e =
192) are bound by the matrix units. M is written once a row (2·d bytes in bfloat16), and W2 is
applied by a following matrix product: fused, every program would read all of W2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .parts import activate, add_terms, matrix, scaled_rows, visible_until, weigh


@triton.jit
def moments_kernel(
    x, out, batch, NQ, NK, W: tl.constexpr, A: tl.constexpr, F: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, BQ: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BA: tl.constexpr,
    BF: tl.constexpr, BD: tl.constexpr, ACTIVATION: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write ``out`` (H, B, NQ, W, D) from ``x``."""
    # Of this program: the head and batch entry, and within them the block of rows.
    blocks = tl.cdiv(W, BW)
    tiles = tl.cdiv(NQ, BQ) * blocks
    pair = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    b, h = (pair % batch).to(tl.int64), (pair // batch).to(tl.int64)
    row = tl.arange(0, BQ * BW)
    q, k = (tile // blocks) * BQ + row // BW, (tile % blocks) * BW + row % BW
    q_ok, k_ok = q < NQ, k < W
    ok = (q_ok & k_ok)[:, None]
    # Of one query, terms of the query alone are computed once per tile and not once per row.
    if BQ == 1:
        qs = (tile // blocks) + tl.arange(0, 1)[:, None]
    else:
        qs = q[:, None]
    first, last = scaled_rows(x, b, h, qs, k[:, None], qs < NQ, k_ok[:, None], A, F, BA, BF)
    bias = matrix(x.query_bias, b, h, q[:, None], k[:, None], ok)
    c = tl.arange(0, BD)[None, :]

    # The moments of the rows stay in registers while the keys stream by.
    total = tl.zeros((BQ * BW, BD), tl.float32)
    for block in range(0, visible_until(x, b, tile // blocks, tl.cdiv(NQ, BQ), NK, BK)):
        j = block * BK + tl.arange(0, BK)
        j_ok = j < NK
        # S = (scale ⊙ query) Kᵀ + terms, (rows, keys).
        s = tl.zeros((BQ * BW, BK), tl.float32)
        if A > 0:
            ca = tl.arange(0, BA)[:, None]
            keys = matrix(x.key, b, h, j[None, :], ca, j_ok[None, :] & (ca < A))
            s = tl.dot(first, keys, s, input_precision=PRECISION)
        if F > 0:
            cf = tl.arange(0, BF)[:, None]
            keys = matrix(x.key, b, h, j[None, :], A + cf, j_ok[None, :] & (cf < F))
            s = tl.dot(last, keys, s, input_precision=PRECISION)
        s = add_terms(
            s + bias,
            x,
            b,
            h,
            qs,
            k[:, None],
            j[None, :],
            qs < NQ,
            k_ok[:, None],
            j_ok[None, :],
            P,
        )
        # P = ρ σ(S), and M += P V.
        hidden, slope = activate(s, ACTIVATION, FAST)
        hidden, slope = weigh(hidden, slope, x, b, h, qs, j[None, :], qs < NQ, j_ok[None, :])
        values = matrix(x.value, b, h, j[:, None], c, j_ok[:, None] & (c < D))
        total = tl.dot(hidden.to(values.dtype), values, total, input_precision=PRECISION)
    place = ((pair.to(tl.int64) * NQ + q[:, None]) * W + k[:, None]) * D + c
    tl.store(out + place, total.to(out.dtype.element_ty), mask=ok & (c < D))
