"""The backward kernels: every tile is computed again, nothing of size Nq × Nk is kept, and no two
programs write one place.

With the gradient dM of the moments, a tile's gradients are ``U = dM Vᵀ``, ``dS = ρ σ'(S) ⊙ U`` and

    over keys (``rows_kernel``):     M = P V     dQ = dS K    (and the sums that belong to rows)
    over rows (``keys_kernel``):     dV = Pᵀ dM  dK = dSᵀ Q   (and the key bias)
    over batch (``table_kernel``):   dr: dS summed over what shares the table, one number a pair of
    positions

so a pair costs four matrix products in each of the first two, two in the third, where a single
kernel with atomic additions would need seven in all and give different sums every time. What
several programs contribute to one number (blocks of hidden units to dQ and dK, blocks of queries to
d scale) goes to buffers that the caller sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .parts import (
    activate,
    add_terms,
    distance,
    matrix,
    scaled_rows,
    visible_from,
    visible_until,
    weigh,
)


@triton.jit
def _sum_rows(x, BQ: tl.constexpr, BW: tl.constexpr, C: tl.constexpr):
    """Return (BQ·BW, C) summed over a query's hidden units: (BQ, C)."""
    return tl.sum(tl.reshape(x, (BQ, BW, C)), 1)


@triton.jit
def _sum_queries(x, BQ: tl.constexpr, BW: tl.constexpr, C: tl.constexpr):
    """Return (BQ·BW, C) summed over queries: (BW, C)."""
    return tl.sum(tl.reshape(x, (BQ, BW, C)), 0)


@triton.jit
def _accumulate(place, part, ok, step):
    """Add ``part`` to what this program stored there in earlier steps. Held in registers instead,
    these sums would spill.
    """
    before = tl.load(place, mask=ok & (step > 0), other=0.0)
    tl.store(place, before + part, mask=ok)
    tl.debug_barrier()


@triton.jit
def rows_kernel(
    x, up, moments, bias_grad, far_grad, query_grad, query2_grad, scale_grad, scale2_grad, batch,
    heads, NQ, NK, W: tl.constexpr, A: tl.constexpr, F: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, BQ: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BA: tl.constexpr,
    BF: tl.constexpr, BD: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
    FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write sums over the keys. A program takes GROUP blocks of queries after one another and sums
    d scale over them.

    With G the groups and Z the blocks of hidden units: ``up`` and ``moments`` (H, B, NQ, W, D),
    ``bias_grad`` and ``far_grad`` (H, B, NQ, W), ``query_grad`` (Z, H, B, NQ, A + F),
    ``query2_grad`` (Z, H, B, NQ, F), ``scale_grad`` (G, H, B, W, A + F), ``scale2_grad`` (G, H, B,
    W, F); each but ``up`` may be None.
    """
    blocks = tl.cdiv(W, BW)
    groups = tl.cdiv(NQ, BQ * GROUP)
    tile = tl.program_id(0) % (groups * blocks)
    pair = (tl.program_id(0) // (groups * blocks)).to(tl.int64)
    b, h = pair % batch, pair // batch
    hidden_block, group = tile % blocks, tile // blocks
    dtype = x.value.data.dtype.element_ty
    row = tl.arange(0, BQ * BW)
    k = hidden_block * BW + row % BW
    k_ok = k < W
    c = tl.arange(0, BD)[None, :]
    ca, cf = tl.arange(0, BA)[None, :], tl.arange(0, BF)[None, :]
    unit = hidden_block * BW + tl.arange(0, BW)[:, None]
    scale_target = (group.to(tl.int64) * heads * batch + pair) * W + unit

    for step in range(0, GROUP):
        # Rows of this block of queries: their scaled queries, biases and moment gradients.
        tile_q = (group * GROUP + step) * BQ
        q = tile_q + row // BW
        q_ok = q < NQ
        ok = (q_ok & k_ok)[:, None]
        if BQ == 1:
            qs = tile_q + tl.arange(0, 1)[:, None]
        else:
            qs = q[:, None]
        first, last = scaled_rows(x, b, h, qs, k[:, None], qs < NQ, k_ok[:, None], A, F, BA, BF)
        bias = matrix(x.query_bias, b, h, q[:, None], k[:, None], ok)
        place = (pair * NQ + q) * W + k
        above = tl.load(up + place[:, None] * D + c, mask=ok & (c < D), other=0.0)

        # Sums over the keys, in registers.
        total = tl.zeros((BQ * BW, BD), tl.float32)
        first_grad, last_grad = (
            tl.zeros((BQ * BW, BA), tl.float32),
            tl.zeros((BQ * BW, BF), tl.float32),
        )
        bias_sum, far_sum = tl.zeros((BQ * BW,), tl.float32), tl.zeros((BQ * BW,), tl.float32)
        for block in range(0, visible_until(x, b, group * GROUP + step, tl.cdiv(NQ, BQ), NK, BK)):
            j = block * BK + tl.arange(0, BK)
            j_ok = j < NK
            # S again, as in the forward.
            s = tl.zeros((BQ * BW, BK), tl.float32)
            if A > 0:
                keys = matrix(x.key, b, h, j[:, None], ca, j_ok[:, None] & (ca < A))
                s = tl.dot(first, tl.trans(keys), s, input_precision=PRECISION)
            if F > 0:
                tail = matrix(x.key, b, h, j[:, None], A + cf, j_ok[:, None] & (cf < F))
                s = tl.dot(last, tl.trans(tail), s, input_precision=PRECISION)
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
            hidden, slope = activate(s, ACTIVATION, FAST)
            hidden, slope = weigh(hidden, slope, x, b, h, qs, j[None, :], qs < NQ, j_ok[None, :])
            values = matrix(x.value, b, h, j[:, None], c, j_ok[:, None] & (c < D))
            if moments is not None:
                total = tl.dot(hidden.to(dtype), values, total, input_precision=PRECISION)
            # dS = ρ σ'(S) ⊙ (dM Vᵀ), and dQ += dS K.
            slope *= tl.dot(above, tl.trans(values), input_precision=PRECISION)
            bias_sum += tl.sum(slope, 1)
            if far_grad is not None:
                far = distance(x, b, qs, j[None, :], qs < NQ, j_ok[None, :], P)
                far_sum += tl.sum(slope * far, 1)
            if A > 0:
                first_grad = tl.dot(slope.to(dtype), keys, first_grad, input_precision=PRECISION)
            if F > 0:
                last_grad = tl.dot(slope.to(dtype), tail, last_grad, input_precision=PRECISION)

        # Results that one program has alone are stored.
        if moments is not None:
            tl.store(
                moments + place[:, None] * D + c,
                total.to(moments.dtype.element_ty),
                mask=ok & (c < D),
            )
        if bias_grad is not None:
            tl.store(bias_grad + place, bias_sum, mask=q_ok & k_ok)
        if far_grad is not None:
            tl.store(far_grad + place, far_sum, mask=q_ok & k_ok)

        # From dQ of a row scale ⊙ query to both factors: over a query's rows, and over queries.
        query = tile_q + tl.arange(0, BQ)[:, None]
        target = (hidden_block * heads * batch + pair) * NQ + query
        if A > 0:
            at_query = matrix(x.query, b, h, qs, ca, (qs < NQ) & (ca < A)).to(tl.float32)
            if scale_grad is not None:
                part = _sum_queries(first_grad * at_query, BQ, BW, BA)
                _accumulate(
                    scale_grad + scale_target * (A + F) + ca,
                    part,
                    (unit < W) & (ca < A),
                    step,
                )
            if query_grad is not None:
                weight = matrix(x.scale, 0, h, k[:, None], ca, k_ok[:, None] & (ca < A)).to(
                    tl.float32
                )
                part = _sum_rows(first_grad * weight, BQ, BW, BA)
                tl.store(query_grad + target * (A + F) + ca, part, mask=(query < NQ) & (ca < A))
        if F > 0:
            inside = cf < F
            if scale_grad is not None:
                at_query = matrix(x.query, b, h, qs, A + cf, (qs < NQ) & inside).to(tl.float32)
                part = _sum_queries(last_grad * at_query, BQ, BW, BF)
                _accumulate(
                    scale_grad + scale_target * (A + F) + A + cf,
                    part,
                    (unit < W) & inside,
                    step,
                )
            if scale2_grad is not None:
                at_query = matrix(x.query2, b, h, qs, cf, (qs < NQ) & inside).to(tl.float32)
                part = _sum_queries(last_grad * at_query, BQ, BW, BF)
                _accumulate(scale2_grad + scale_target * F + cf, part, (unit < W) & inside, step)
            if query_grad is not None:
                weight = matrix(x.scale, 0, h, k[:, None], A + cf, k_ok[:, None] & inside).to(
                    tl.float32
                )
                part = _sum_rows(last_grad * weight, BQ, BW, BF)
                tl.store(query_grad + target * (A + F) + A + cf, part, mask=(query < NQ) & inside)
            if query2_grad is not None:
                weight = matrix(x.scale2, 0, h, k[:, None], cf, k_ok[:, None] & inside).to(
                    tl.float32
                )
                part = _sum_rows(last_grad * weight, BQ, BW, BF)
                tl.store(query2_grad + target * F + cf, part, mask=(query < NQ) & inside)


@triton.jit
def keys_kernel(
    x, up, value_grad, key_grad, key_bias_grad, batch, heads, NQ, NK, W: tl.constexpr,
    A: tl.constexpr, F: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BQ: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, BA: tl.constexpr, BF: tl.constexpr, BD: tl.constexpr,
    ADD: tl.constexpr, ACTIVATION: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write sums over the rows, of one block of keys and one block of hidden units.

    With Z the blocks of hidden units: ``value_grad`` (Z, H, B, NK, D), ``key_grad`` (Z, H, B, NK, A
    + F), ``key_bias_grad`` (H, B, NK, W); each may be None. Where ADD, to what they hold: the
    queries then come in several launches.
    """
    blocks = tl.cdiv(W, BW)
    tiles = tl.cdiv(NK, BK) * blocks
    tile = tl.program_id(0) % tiles
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    b, h = pair % batch, pair // batch
    hidden_block = tile % blocks
    dtype = x.value.data.dtype.element_ty
    j = (tile // blocks) * BK + tl.arange(0, BK)
    j_ok, jc = j < NK, j[:, None]
    row = tl.arange(0, BQ * BW)
    k = hidden_block * BW + row % BW
    k_ok = k < W
    c = tl.arange(0, BD)[None, :]
    ca, cf = tl.arange(0, BA)[None, :], tl.arange(0, BF)[None, :]
    target = ((hidden_block * heads * batch + pair) * NK + jc).to(tl.int64)
    unit = hidden_block * BW + tl.arange(0, BW)[None, :]
    bias_target = key_bias_grad

    # Sums over the rows, in registers; they start from earlier launches' where ADD.
    value_sum = tl.zeros((BK, BD), tl.float32)
    first_sum, last_sum = tl.zeros((BK, BA), tl.float32), tl.zeros((BK, BF), tl.float32)
    bias_sum = tl.zeros((BK, BW), tl.float32)
    if key_bias_grad is not None:
        bias_target = key_bias_grad + (pair * NK + jc) * W + unit
    if ADD:
        if value_grad is not None:
            value_sum = tl.load(
                value_grad + target * D + c,
                mask=j_ok[:, None] & (c < D),
                other=0.0,
            )
        if key_grad is not None:
            if A > 0:
                first_sum = tl.load(
                    key_grad + target * (A + F) + ca,
                    mask=j_ok[:, None] & (ca < A),
                    other=0.0,
                )
            if F > 0:
                last_sum = tl.load(
                    key_grad + target * (A + F) + A + cf,
                    mask=j_ok[:, None] & (cf < F),
                    other=0.0,
                )
        if key_bias_grad is not None:
            bias_sum = tl.load(bias_target, mask=j_ok[:, None] & (unit < W), other=0.0)

    # The keys of this program stay; the queries stream by.
    values = matrix(x.value, b, h, jc, c, j_ok[:, None] & (c < D))
    if A > 0:
        keys = matrix(x.key, b, h, jc, ca, j_ok[:, None] & (ca < A))
    if F > 0:
        tail = matrix(x.key, b, h, jc, A + cf, j_ok[:, None] & (cf < F))
    query_blocks = tl.cdiv(NQ, BQ)
    for block in range(visible_from(x, b, tile // blocks), query_blocks):
        q = block * BQ + row // BW
        q_ok = q < NQ
        ok = (q_ok & k_ok)[:, None]
        if BQ == 1:
            qs = block * BQ + tl.arange(0, 1)[None, :]
            qc = qs
        else:
            qs = q[None, :]
            qc = q[:, None]
        first, last = scaled_rows(x, b, h, qc, k[:, None], qc < NQ, k_ok[:, None], A, F, BA, BF)
        bias = matrix(x.query_bias, b, h, q[None, :], k[None, :], (q_ok & k_ok)[None, :])
        # Sᵀ, (keys, rows).
        s = tl.zeros((BK, BQ * BW), tl.float32)
        if A > 0:
            s = tl.dot(keys, tl.trans(first), s, input_precision=PRECISION)
        if F > 0:
            s = tl.dot(tail, tl.trans(last), s, input_precision=PRECISION)
        s = add_terms(
            s + bias,
            x,
            b,
            h,
            qs,
            k[None, :],
            jc,
            qs < NQ,
            k_ok[None, :],
            j_ok[:, None],
            P,
        )
        hidden, slope = activate(s, ACTIVATION, FAST)
        hidden, slope = weigh(hidden, slope, x, b, h, qs, jc, qs < NQ, j_ok[:, None])
        above = tl.load(
            up + ((pair * NQ + q) * W + k)[:, None] * D + c,
            mask=ok & (c < D),
            other=0.0,
        )
        # dV += Pᵀ dM, dSᵀ = ρ σ'(S)ᵀ ⊙ (V dMᵀ), dK += dSᵀ Q.
        if value_grad is not None:
            value_sum = tl.dot(hidden.to(dtype), above, value_sum, input_precision=PRECISION)
        slope *= tl.dot(values, tl.trans(above), input_precision=PRECISION)
        if key_grad is not None:
            if A > 0:
                first_sum = tl.dot(slope.to(dtype), first, first_sum, input_precision=PRECISION)
            if F > 0:
                last_sum = tl.dot(slope.to(dtype), last, last_sum, input_precision=PRECISION)
        if key_bias_grad is not None:
            bias_sum += tl.sum(tl.reshape(slope, (BK, BQ, BW)), 1)
    if value_grad is not None:
        tl.store(value_grad + target * D + c, value_sum, mask=j_ok[:, None] & (c < D))
    if key_grad is not None:
        if A > 0:
            tl.store(key_grad + target * (A + F) + ca, first_sum, mask=j_ok[:, None] & (ca < A))
        if F > 0:
            tl.store(key_grad + target * (A + F) + A + cf, last_sum, mask=j_ok[:, None] & (cf < F))
    if key_bias_grad is not None:
        tl.store(bias_target, bias_sum, mask=j_ok[:, None] & (unit < W))


@triton.jit
def table_kernel(
    x, up, out, batch, heads, NQ, NK, start_q, stop_q, W: tl.constexpr, A: tl.constexpr,
    F: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BQ: tl.constexpr, BW: tl.constexpr,
    BK: tl.constexpr, BA: tl.constexpr, BF: tl.constexpr, BD: tl.constexpr, SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write ``out`` (H | 1, queries, NK, W): dS of queries ``start_q`` to ``stop_q`` summed over
    the batch, and over the heads where they are SHARED.
    """
    blocks = tl.cdiv(W, BW)
    key_blocks = tl.cdiv(NK, BK)
    tiles = tl.cdiv(stop_q - start_q, BQ) * key_blocks * blocks
    tile = tl.program_id(0) % tiles
    group = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.arange(0, BQ * BW)
    tile_q = start_q + (tile // blocks // key_blocks) * BQ
    q = tile_q + row // BW
    k = (tile % blocks) * BW + row % BW
    j = (tile // blocks % key_blocks) * BK + tl.arange(0, BK)
    q_ok, k_ok, j_ok = q < stop_q, k < W, j < NK
    ok = (q_ok & k_ok)[:, None]
    if BQ == 1:
        qs = tile_q + tl.arange(0, 1)[:, None]
    else:
        qs = q[:, None]
    c = tl.arange(0, BD)[None, :]

    # All samples that share the table's column of a pair pass through one program, so that the sum
    # has one order.
    total = tl.zeros((BQ * BW, BK), tl.float32)
    count = batch
    if SHARED:
        count = heads * batch
    for step in range(0, count):
        pair = group * batch + step
        b, h = pair % batch, pair // batch
        first, last = scaled_rows(x, b, h, qs, k[:, None], qs < stop_q, k_ok[:, None], A, F, BA, BF)
        s = tl.zeros((BQ * BW, BK), tl.float32) + matrix(
            x.query_bias,
            b,
            h,
            q[:, None],
            k[:, None],
            ok,
        )
        if A > 0:
            ca = tl.arange(0, BA)[:, None]
            keys = matrix(x.key, b, h, j[None, :], ca, j_ok[None, :] & (ca < A))
            s = tl.dot(first, keys, s, input_precision=PRECISION)
        if F > 0:
            cf = tl.arange(0, BF)[:, None]
            keys = matrix(x.key, b, h, j[None, :], A + cf, j_ok[None, :] & (cf < F))
            s = tl.dot(last, keys, s, input_precision=PRECISION)
        s = add_terms(
            s,
            x,
            b,
            h,
            qs,
            k[:, None],
            j[None, :],
            qs < stop_q,
            k_ok[:, None],
            j_ok[None, :],
            P,
        )
        hidden, slope = activate(s, ACTIVATION, FAST)
        hidden, slope = weigh(hidden, slope, x, b, h, qs, j[None, :], qs < stop_q, j_ok[None, :])
        above = tl.load(
            up + ((pair * NQ + q) * W + k)[:, None] * D + c,
            mask=ok & (c < D),
            other=0.0,
        )
        values = matrix(x.value, b, h, j[:, None], c, j_ok[:, None] & (c < D))
        total += slope * tl.dot(above, tl.trans(values), input_precision=PRECISION)
    place = ((group * (stop_q - start_q) + q[:, None] - start_q) * NK + j[None, :]) * W + k[:, None]
    tl.store(out + place, total, mask=ok & j_ok[None, :])
