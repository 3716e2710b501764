"""The product with the edges of a token graph, and the size of its rows, in one pass: one program
per block of queries.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .parts import activated, product, rows, seen_pairs, write


@triton.jit
def forward(
    query, key, value, mass, density, out, row,
    heads, queries, keys, mass_b, mass_k, density_b, density_h, density_q, density_k,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr, STATISTIC: tl.constexpr, CAUSAL: tl.constexpr,
    DENSITY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # One block of queries of one sample and head: its rows stay in registers.
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    at = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q = rows(query + pair * queries * E, at, queries, E, BLOCK_E)
    total = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
    size = tl.zeros((BLOCK_Q,), tl.float32)

    # Keys from the first to the last that a query of the block sees.
    end = tl.minimum((tile + 1) * BLOCK_Q, keys) if CAUSAL else keys
    for start in range(0, end, BLOCK_K):
        to = start + tl.arange(0, BLOCK_K)
        k = rows(key + pair * keys * E, to, keys, E, BLOCK_E)
        v = rows(value + pair * keys * D, to, keys, D, BLOCK_D)
        m = tl.load(mass + b * mass_b + to * mass_k, mask=to < keys, other=0.0).to(tl.float32)

        # P = ρ φ(q·k), zero where a pair is hidden.
        p = activated(tl.dot(q, tl.trans(k), input_precision=PRECISION), ACTIVATION)
        rho = density + b * density_b + h * density_h
        p *= seen_pairs(
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

        # r = Σ m P², or Σ m |P|, and o = Σ P v.
        if STATISTIC == "squares":
            size += tl.sum(p * p * m[None, :], 1)
        elif STATISTIC == "sums":
            size += tl.sum(tl.abs(p) * m[None, :], 1)
        total += product(p, v, PRECISION)
    write(out + pair * queries * D, at, queries, total, D, BLOCK_D)
    tl.store(row + pair * queries + at, size, mask=at < queries)
