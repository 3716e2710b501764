"""Gradients of the edge product, whose tiles are made again: formulas in
:mod:`fredholm.families.infsa.graph.tiled`.

A program owns a block of queries, or of keys, or a tile of the density, and walks over the rest:
every sum has one owner.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .parts import activated, product, rows, seen_pairs, slope, write


@triton.jit
def _upstream(up, p, rate, m, STATISTIC: tl.constexpr):
    """The gradient in P: of the product, ``up``, and of the row statistic, whose gradient is
    ``rate``.
    """
    if STATISTIC == "squares":
        up += 2.0 * rate * m * p
    elif STATISTIC == "sums":
        up += rate * m * slope(p, "abs")
    return up


@triton.jit
def backward_queries(
    grad, rate, query, key, value, mass, density, query_grad,
    heads, queries, keys, mass_b, mass_k, density_b, density_h, density_q, density_k,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr, STATISTIC: tl.constexpr, CAUSAL: tl.constexpr,
    DENSITY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient dq = dS k of one block of queries, summed over the keys that they see."""
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    at = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q = rows(query + pair * queries * E, at, queries, E, BLOCK_E)
    g = rows(grad + pair * queries * D, at, queries, D, BLOCK_D)
    r = tl.load(rate + pair * queries + at, mask=at < queries, other=0.0)
    total = tl.zeros((BLOCK_Q, BLOCK_E), tl.float32)
    end = tl.minimum((tile + 1) * BLOCK_Q, keys) if CAUSAL else keys
    for start in range(0, end, BLOCK_K):
        to = start + tl.arange(0, BLOCK_K)
        k = rows(key + pair * keys * E, to, keys, E, BLOCK_E)
        v = rows(value + pair * keys * D, to, keys, D, BLOCK_D)
        m = tl.load(mass + b * mass_b + to * mass_k, mask=to < keys, other=0.0).to(tl.float32)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        rho = density + b * density_b + h * density_h
        seen = seen_pairs(
            rho,
            at[:, None],
            to[None, :],
            queries,
            keys,
            density_q,
            density_k,
            CAUSAL,
            DENSITY,
        )

        # dP = G Vᵀ and the row statistic's part, then dS = ρ φ'(S) dP.
        up = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        up = _upstream(up, activated(s, ACTIVATION) * seen, r[:, None], m[None, :], STATISTIC)
        up *= seen * slope(s, ACTIVATION)
        total += product(up, k, PRECISION)
    write(query_grad + pair * queries * E, at, queries, total, E, BLOCK_E)


@triton.jit
def backward_keys(
    grad, rate, query, key, value, mass, density, key_grad, value_grad, mass_grad,
    heads, queries, keys, mass_b, mass_k, density_b, density_h, density_q, density_k,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr, STATISTIC: tl.constexpr, CAUSAL: tl.constexpr,
    DENSITY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients dk = dSᵀ q and dV = Pᵀ G of one block of keys, and that of their masses, summed
    over the queries that see them.
    """
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    to = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    k = rows(key + pair * keys * E, to, keys, E, BLOCK_E)
    v = rows(value + pair * keys * D, to, keys, D, BLOCK_D)
    m = tl.load(mass + b * mass_b + to * mass_k, mask=to < keys, other=0.0).to(tl.float32)
    total_k = tl.zeros((BLOCK_K, BLOCK_E), tl.float32)
    total_v = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    total_m = tl.zeros((BLOCK_K,), tl.float32)

    # In causal order earlier blocks of queries see none of these keys.
    first = (tile * BLOCK_K) // BLOCK_Q * BLOCK_Q if CAUSAL else 0
    for start in range(first, queries, BLOCK_Q):
        at = start + tl.arange(0, BLOCK_Q)
        q = rows(query + pair * queries * E, at, queries, E, BLOCK_E)
        g = rows(grad + pair * queries * D, at, queries, D, BLOCK_D)
        r = tl.load(rate + pair * queries + at, mask=at < queries, other=0.0)

        # The tile is transposed: keys are its rows.
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        rho = density + b * density_b + h * density_h
        seen = seen_pairs(
            rho,
            at[None, :],
            to[:, None],
            queries,
            keys,
            density_q,
            density_k,
            CAUSAL,
            DENSITY,
        )
        p = activated(s, ACTIVATION) * seen
        total_v += product(p, g, PRECISION)
        if STATISTIC == "squares":
            total_m += tl.sum(p * p * r[None, :], 1)
        elif STATISTIC == "sums":
            total_m += tl.sum(tl.abs(p) * r[None, :], 1)
        up = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        up = _upstream(up, p, r[None, :], m[:, None], STATISTIC) * seen * slope(s, ACTIVATION)
        total_k += product(up, q, PRECISION)
    write(key_grad + pair * keys * E, to, keys, total_k, E, BLOCK_E)
    write(value_grad + pair * keys * D, to, keys, total_v, D, BLOCK_D)
    tl.store(mass_grad + pair * keys + to, total_m, mask=to < keys)


@triton.jit
def backward_density(
    grad, rate, query, key, value, mass, density, density_grad,
    heads, queries, keys, shared_b, shared_h,
    mass_b, mass_k, density_b, density_h, density_q, density_k,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr, STATISTIC: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the density's gradient, summed over the batch entries and heads that share it."""
    density_heads = heads // shared_h
    first_b, first_h = tl.program_id(2) // density_heads, tl.program_id(2) % density_heads
    at = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    to = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    rho = density + first_b.to(tl.int64) * density_b + first_h.to(tl.int64) * density_h
    seen = seen_pairs(
        rho,
        at[:, None],
        to[None, :],
        queries,
        keys,
        density_q,
        density_k,
        CAUSAL,
        True,
    )
    total = tl.zeros((BLOCK_Q, BLOCK_K), tl.float32)

    # Samples and heads that share the density, one after the other: no two programs add to a place.
    for i in range(shared_b * shared_h):
        b, h = first_b + i // shared_h, first_h + i % shared_h
        pair = (b * heads + h).to(tl.int64)
        q = rows(query + pair * queries * E, at, queries, E, BLOCK_E)
        g = rows(grad + pair * queries * D, at, queries, D, BLOCK_D)
        r = tl.load(rate + pair * queries + at, mask=at < queries, other=0.0)
        k = rows(key + pair * keys * E, to, keys, E, BLOCK_E)
        v = rows(value + pair * keys * D, to, keys, D, BLOCK_D)
        m = tl.load(mass + b * mass_b + to * mass_k, mask=to < keys, other=0.0).to(tl.float32)
        raw = activated(tl.dot(q, tl.trans(k), input_precision=PRECISION), ACTIVATION)
        up = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        total += raw * _upstream(up, raw * seen, r[:, None], m[None, :], STATISTIC)
    inside = (at < queries)[:, None] & (to < keys)[None, :]
    if CAUSAL:
        total = tl.where(to[None, :] <= at[:, None], total, 0.0)
    place = (
        density_grad + (tl.program_id(2).to(tl.int64) * queries + at[:, None]) * keys + to[None, :]
    )
    tl.store(place, total, mask=inside)
