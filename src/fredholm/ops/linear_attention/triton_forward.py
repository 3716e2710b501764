"""Linear attention forward: moments of blocks of points, and the responses of blocks of queries.

With φ_i and ψ_j features of queries and keys, m the masses and s the queries' scale, query i gets

    y_i = s_i φ_i·S_i / Z_i
    S_i = Σ_j m_j ψ_j v_jᵀ
    Z_i = s_i φ_i·Σ_j m_j ψ_j, or the floor where that is smaller in magnitude

and in causal order the sums end at i. One program has one block of points of one (batch, head)
pair. Arguments that several kernels share are explained in :mod:`.triton_parts`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_parts import matrix, moment, phi_of


@triton.jit
def moments(
    base, value, rate, one_rate,
    weight, bias, readout, shift,
    state, ones,
    heads, count, sets, tiles,
    rate_b, rate_h, rate_n,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr, NONNEG: tl.constexpr,
    GIVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Moments of features: Σ φ ⊗ rate·value and Σ φ·one_rate over ``tiles`` blocks of points.

    Of keys both rates are the masses. Program (split, pair) adds up ``tiles`` blocks in a row and
    writes to a slot of its own: ``state`` (pairs, splits, r, BLOCK_D) and ``ones``
    (pairs, splits, r), with r = BLOCK_L · BLOCK_M. Without an order torch adds up the slots; in
    causal order a slot is one block, and :func:`carry` replaces it by the sum of those before it.

    In registers are the sums (r, BLOCK_D) and (r,), and of the current block φ (BLOCK_N, r) and the
    values (BLOCK_N, BLOCK_D).
    """
    split, pair = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    block_r: tl.constexpr = BLOCK_L * BLOCK_M
    total = tl.zeros((block_r, BLOCK_D), tl.float32)
    total_one = tl.zeros((block_r,), tl.float32)

    for i in range(tiles):
        at = (split * tiles + i) * BLOCK_N + tl.arange(0, BLOCK_N)
        phi = phi_of(
            base, pair, at, count, h % sets,
            weight, bias, readout, shift,
            L, C, H, M, BLOCK_L, BLOCK_M, SHARED, ACTIVATION, NONNEG, GIVEN,
        )  # fmt: skip
        # Points beyond the last one have rates of zero and add nothing.
        place = b * rate_b + h * rate_h + at * rate_n
        a = tl.load(rate + place, mask=at < count, other=0.0).to(tl.float32)
        c = tl.load(one_rate + place, mask=at < count, other=0.0).to(tl.float32)
        v = matrix(value, pair, at, count, D, BLOCK_D) * a[:, None]
        total += tl.dot(tl.trans(phi), v, input_precision=PRECISION)
        total_one += tl.sum(phi * c[:, None], 0)

    r, d, slot = tl.arange(0, block_r), tl.arange(0, BLOCK_D), pair * tl.num_programs(0) + split
    tl.store(state + slot * block_r * BLOCK_D + r[:, None] * BLOCK_D + d[None, :], total)
    tl.store(ones + slot * block_r + r, total_one)


@triton.jit
def carry(state, slots, WIDTH: tl.constexpr, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """Replace each of a pair's moments, (slots, WIDTH), by the sum of those before it, or after it.

    A program walks over the slots with BLOCK entries of the moment in registers. Each slot is read
    before it is overwritten, so the sums are made in place.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    before = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(1).to(tl.int64) * slots
    for i in range(slots):
        place = state + (first + ((slots - 1 - i) if REVERSE else i)) * WIDTH + column
        here = tl.load(place, mask=inside, other=0.0)
        tl.store(place, before, mask=inside)
        before += here


@triton.jit
def respond(
    query, key, value, mass, scale, floor,
    state, ones, out, denominator,
    q_weight, q_bias, q_readout, q_shift,
    k_weight, k_bias, k_readout, k_shift,
    heads, queries, keys, sets,
    mass_b, mass_n, scale_b, scale_h, scale_n,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
    L: tl.constexpr, Q_C: tl.constexpr, K_C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACTIVATION: tl.constexpr, NONNEG: tl.constexpr, GIVEN: tl.constexpr,
    CAUSAL: tl.constexpr, SCALED: tl.constexpr, NORMALISED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Responses of a block of queries, and their denominators before scale and floor.

    In registers are φ of the block (BLOCK_N, r), the moment (r, BLOCK_D) and the sums
    (BLOCK_N, BLOCK_D). In causal order the moment is that of all blocks before, and the block then
    meets its own keys pair by pair, (BLOCK_N, BLOCK_N).
    """
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    phi = phi_of(
        query, pair, at, queries, h % sets,
        q_weight, q_bias, q_readout, q_shift,
        L, Q_C, H, M, BLOCK_L, BLOCK_M, Q_C == L, ACTIVATION, NONNEG, GIVEN,
    )  # fmt: skip

    # All keys, or all blocks before this one.
    slot = pair * tl.num_programs(0) + tile if CAUSAL else pair
    whole, one = moment(state, ones, slot, BLOCK_L * BLOCK_M, BLOCK_D)
    total = tl.dot(phi, whole, input_precision=PRECISION)
    below = tl.sum(phi * one[None, :], 1)

    # The keys of this block, in pairs. Padded keys have mass zero.
    if CAUSAL:
        psi = phi_of(
            key, pair, at, keys, h % sets,
            k_weight, k_bias, k_readout, k_shift,
            L, K_C, H, M, BLOCK_L, BLOCK_M, K_C == L, ACTIVATION, NONNEG, GIVEN,
        )  # fmt: skip
        m = tl.load(mass + b * mass_b + at * mass_n, mask=at < keys, other=0.0).to(tl.float32)
        pairs = tl.dot(phi, tl.trans(psi), input_precision=PRECISION) * m[None, :]
        pairs = tl.where(at[None, :] <= at[:, None], pairs, 0.0)
        total += tl.dot(pairs, matrix(value, pair, at, keys, D, BLOCK_D), input_precision=PRECISION)
        below += tl.sum(pairs, 1)

    # y = s φ·S / Z. The denominator's floor keeps 0 / 0 out where all features are zero.
    if SCALED:
        s = tl.load(
            scale + b * scale_b + h * scale_h + at * scale_n,
            mask=at < queries,
            other=0.0,
        ).to(tl.float32)
    else:
        s = tl.full((BLOCK_N,), 1.0, tl.float32)
    rate = s
    if NORMALISED:
        rate = s / tl.where(tl.abs(s * below) < floor, floor, s * below)

    column = tl.arange(0, BLOCK_D)
    inside = (at < queries)[:, None] & (column < D)[None, :]
    place = out + (pair * queries + at)[:, None].to(tl.int64) * D + column[None, :]
    tl.store(place, total * rate[:, None], mask=inside)
    tl.store(denominator + pair * queries + at, below, mask=at < queries)
