"""Linear attention backward.

With φ, ψ the features of queries and keys, m the masses, and the response o_i = s_i φ_i·S_i / Z_i
of query i, its gradient g_i gives the rates of the numerator and of the denominator,

    a_i = s_i / Z_i        c_i = -a_i (g_i·o_i), or 0 where Z_i is at its floor

and with them the gradients

    dφ_i = Σ_j m_j (a_i g_i·v_j + c_i) ψ_j
    dψ_j = m_j Σ_i (a_i g_i·v_j + c_i) φ_i
    dv_j = m_j Σ_i (φ_i·ψ_j) a_i g_i
    dm_j = Σ_i (φ_i·ψ_j) (a_i g_i·v_j + c_i)

So the backward needs the same two kinds of sums as the forward: moments of keys, and moments of
queries against [a g, c]. In causal order a block of queries meets its own keys pair by pair, and
the moment of all blocks before it; a block of keys meets its own queries, and the moment of all
blocks after it. Everything is added up in float32.

One program has one block of points of one (batch, head) pair. Arguments that several kernels share
are explained in :mod:`.triton_parts`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_parts import matrix, moment, phi_backward, phi_of


@triton.jit
def rates(
    grad, out, denominator, scale, floor,
    rate, one_rate,
    heads, queries,
    scale_b, scale_h, scale_n,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr, NORMALISED: tl.constexpr,
):  # fmt: skip
    """The rates a and c of a block of queries."""
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < queries
    if SCALED:
        a = tl.load(scale + b * scale_b + h * scale_h + at * scale_n, mask=inside, other=0.0).to(
            tl.float32
        )
    else:
        a = tl.full((BLOCK_N,), 1.0, tl.float32)
    c = tl.zeros((BLOCK_N,), tl.float32)

    # a = s / Z. At its floor Z is constant, and no gradient goes through it.
    if NORMALISED:
        below = a * tl.load(denominator + pair * queries + at, mask=inside, other=0.0)
        low = tl.abs(below) < floor
        a = a / tl.where(low, floor, below)
        g = matrix(grad, pair, at, queries, D, BLOCK_D)
        c = tl.where(low, 0.0, -a * tl.sum(g * matrix(out, pair, at, queries, D, BLOCK_D), 1))
    tl.store(rate + pair * queries + at, a, mask=inside)
    tl.store(one_rate + pair * queries + at, c, mask=inside)


@triton.jit
def query_gradient(
    grad, rate, one_rate,
    query, key, value, mass,
    state, ones,
    q_weight, q_bias, q_readout, q_shift,
    k_weight, k_bias, k_readout, k_shift,
    query_grad, weight_grad, bias_grad, readout_grad, shift_grad,
    heads, queries, keys, sets,
    mass_b, mass_n,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
    L: tl.constexpr, Q_C: tl.constexpr, K_C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACTIVATION: tl.constexpr, NONNEG: tl.constexpr, GIVEN: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries' features or scalars, and its share of the bank's.

    ``state`` and ``ones`` are moments of keys. In registers are a g (BLOCK_N, BLOCK_D), the moment
    (r, BLOCK_D) and dφ (BLOCK_N, r).
    """
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    a = tl.load(rate + pair * queries + at, mask=at < queries, other=0.0)
    c = tl.load(one_rate + pair * queries + at, mask=at < queries, other=0.0)
    g = matrix(grad, pair, at, queries, D, BLOCK_D) * a[:, None]

    # dφ from all keys, or from all blocks before: a g·Σ m v ψᵀ + c Σ m ψ.
    slot = pair * tl.num_programs(0) + tile if CAUSAL else pair
    whole, one = moment(state, ones, slot, BLOCK_L * BLOCK_M, BLOCK_D)
    total = tl.dot(g, tl.trans(whole), input_precision=PRECISION) + c[:, None] * one[None, :]

    # dφ from the keys of this block up to each query.
    if CAUSAL:
        psi = phi_of(
            key, pair, at, keys, h % sets,
            k_weight, k_bias, k_readout, k_shift,
            L, K_C, H, M, BLOCK_L, BLOCK_M, K_C == L, ACTIVATION, NONNEG, GIVEN,
        )  # fmt: skip
        m = tl.load(mass + b * mass_b + at * mass_n, mask=at < keys, other=0.0).to(tl.float32)
        v = matrix(value, pair, at, keys, D, BLOCK_D)
        up = (tl.dot(g, tl.trans(v), input_precision=PRECISION) + c[:, None]) * m[None, :]
        up = tl.where(at[None, :] <= at[:, None], up, 0.0)
        total += tl.dot(up, psi, input_precision=PRECISION)

    phi_backward(
        total,
        query, pair, tile, at, queries, h % sets,
        q_weight, q_bias, q_readout, q_shift,
        query_grad, weight_grad, bias_grad, readout_grad, shift_grad,
        L, Q_C, H, M, BLOCK_L, BLOCK_M, Q_C == L, ACTIVATION, NONNEG, GIVEN,
    )  # fmt: skip


@triton.jit
def key_gradient(
    grad, rate, one_rate,
    query, key, value, mass,
    state, ones,
    q_weight, q_bias, q_readout, q_shift,
    k_weight, k_bias, k_readout, k_shift,
    key_grad, value_grad, mass_grad,
    weight_grad, bias_grad, readout_grad, shift_grad,
    heads, queries, keys, sets,
    mass_b, mass_n,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
    L: tl.constexpr, Q_C: tl.constexpr, K_C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACTIVATION: tl.constexpr, NONNEG: tl.constexpr, GIVEN: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys' features or scalars, values and masses, and its share of the
    bank's.

    ``state`` and ``ones`` are moments of queries against [a g, c]. In registers are ψ (BLOCK_N, r),
    v (BLOCK_N, BLOCK_D), the moment (r, BLOCK_D), and dψ and dv before the factor m.
    """
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    psi = phi_of(
        key, pair, at, keys, h % sets,
        k_weight, k_bias, k_readout, k_shift,
        L, K_C, H, M, BLOCK_L, BLOCK_M, K_C == L, ACTIVATION, NONNEG, GIVEN,
    )  # fmt: skip
    v = matrix(value, pair, at, keys, D, BLOCK_D)
    m = tl.load(mass + b * mass_b + at * mass_n, mask=at < keys, other=0.0).to(tl.float32)

    # dψ / m and dv / m from all queries, or from all blocks after: v·Σ a g φᵀ + Σ c φ, and
    # ψ·Σ φ (a g)ᵀ.
    slot = pair * tl.num_programs(0) + tile if CAUSAL else pair
    whole, one = moment(state, ones, slot, BLOCK_L * BLOCK_M, BLOCK_D)
    total = tl.dot(v, tl.trans(whole), input_precision=PRECISION) + one[None, :]
    total_v = tl.dot(psi, whole, input_precision=PRECISION)

    # Both from the queries of this block from each key on.
    if CAUSAL:
        phi = phi_of(
            query, pair, at, queries, h % sets,
            q_weight, q_bias, q_readout, q_shift,
            L, Q_C, H, M, BLOCK_L, BLOCK_M, Q_C == L, ACTIVATION, NONNEG, GIVEN,
        )  # fmt: skip
        a = tl.load(rate + pair * queries + at, mask=at < queries, other=0.0)
        c = tl.load(one_rate + pair * queries + at, mask=at < queries, other=0.0)
        g = matrix(grad, pair, at, queries, D, BLOCK_D) * a[:, None]
        # Rows are keys here, and columns queries.
        after = at[None, :] >= at[:, None]
        up = tl.dot(v, tl.trans(g), input_precision=PRECISION) + c[None, :]
        total += tl.dot(tl.where(after, up, 0.0), phi, input_precision=PRECISION)
        pairs = tl.dot(psi, tl.trans(phi), input_precision=PRECISION)
        total_v += tl.dot(tl.where(after, pairs, 0.0), g, input_precision=PRECISION)

    column = tl.arange(0, BLOCK_D)
    inside = (at < keys)[:, None] & (column < D)[None, :]
    place = value_grad + (pair * keys + at)[:, None].to(tl.int64) * D + column[None, :]
    tl.store(place, total_v * m[:, None], mask=inside)
    # dm = ψ·(dψ / m)
    tl.store(mass_grad + pair * keys + at, tl.sum(psi * total, 1), mask=at < keys)
    phi_backward(
        total * m[:, None],
        key, pair, tile, at, keys, h % sets,
        k_weight, k_bias, k_readout, k_shift,
        key_grad, weight_grad, bias_grad, readout_grad, shift_grad,
        L, K_C, H, M, BLOCK_L, BLOCK_M, K_C == L, ACTIVATION, NONNEG, GIVEN,
    )  # fmt: skip
