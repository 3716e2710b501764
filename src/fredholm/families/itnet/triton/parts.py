"""Functions that the Triton kernels of the MLP kernel share: activations, the terms of a
pre-activation, a pair's weight.

A tile is a block of *rows*, a row being one hidden unit of one query, against a block of keys: the
integral is an attention of w·Nq rows with GELU in the place of the softmax. All index arguments are
two-dimensional and broadcast to the tile, so that the same functions take (rows, keys) and (keys,
rows).
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..hidden_first.terms import PAIR_TENSORS


class View(NamedTuple):
    """A tensor (batch, head, row, column) as kernels see it: its data and three strides; 0 along
    shared dimensions.
    """

    data: Any
    b: int
    h: int
    n: int


Pairs = namedtuple(
    "Pairs", [*(n for n in PAIR_TENSORS if n != "readout"), "key_stop", "query_start"]
)
"""Everything a tile reads, each a :class:`View` or None; names are those of ``mlp_kernel``.

``key_stop`` holds, for each block of queries, the number of blocks of keys up to the last with a
visible key, ``query_start``, for each block of keys, the first block of queries that sees one of
them.
"""


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    """Return tanh(x), by one special-function result where FAST (error 5e-4, below bfloat16's), by
    two otherwise.
    """
    if FAST:
        y = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        # Of |x|, so that the exponential cannot overflow.
        rest = tl.exp(-2.0 * tl.abs(x))
        y = (1.0 - rest) / (1.0 + rest)
        y = tl.where(x < 0, -y, y)
    return y


@triton.jit
def _erf(x):
    """Return erf(x) to 1.5e-7 (Abramowitz and Stegun 7.1.26), and exp(-x²), which its derivative
    needs as well.
    """
    bell = tl.exp(-x * x)
    t = 1.0 / (1.0 + 0.3275911 * tl.abs(x))
    tail = (
        ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592)
        * t
        * bell
    )
    return tl.where(x < 0, tail - 1.0, 1.0 - tail), bell


@triton.jit
def activate(s, ACTIVATION: tl.constexpr, FAST: tl.constexpr):
    """Return σ(s) and σ'(s). The compiler drops the one that a kernel does not use."""
    if ACTIVATION == "gelu":
        # s Φ(s), with Φ the normal distribution: its slope is Φ(s) + s φ(s).
        erf, bell = _erf(0.7071067811865476 * s)
        cdf = 0.5 + 0.5 * erf
        h = s * cdf
        slope = cdf + 0.3989422804014327 * s * bell
    elif ACTIVATION == "gelu_tanh":
        square = s * s
        t = _tanh(0.7978845608028654 * s * (1.0 + 0.044715 * square), FAST)
        half = 0.5 + 0.5 * t
        h = s * half
        slope = half + 0.3989422804014327 * s * (1.0 - t * t) * (1.0 + 0.134145 * square)
    elif ACTIVATION == "silu":
        half = 1.0 / (1.0 + tl.exp(-s))
        h = s * half
        slope = half * (1.0 + s * (1.0 - half))
    elif ACTIVATION == "relu":
        h = tl.maximum(s, 0.0)
        slope = tl.where(s > 0, 1.0, 0.0)
    elif ACTIVATION == "tanh":
        h = _tanh(s, FAST)
        slope = 1.0 - h * h
    else:
        tl.static_assert(ACTIVATION == "sin")
        h = tl.sin(s)
        slope = tl.cos(s)
    return h, slope


@triton.jit
def matrix(v, b, h, n, c, ok):
    """Return elements (n, c) of one batch entry and head of ``v``, zero where not ``ok``."""
    return tl.load(v.data + b * v.b + h * v.h + n * v.n + c, mask=ok, other=0.0)


@triton.jit
def distance(x, b, q, j, q_ok, j_ok, P: tl.constexpr):
    """Return |x_q - y_j|, for the p coordinates of a position."""
    square = 0.0
    for p in tl.static_range(P):
        at_query = matrix(x.query_positions, b, 0, q, p, q_ok)
        at_key = matrix(x.key_positions, b, 0, j, p, j_ok)
        square += (at_query - at_key) * (at_query - at_key)
    return tl.sqrt(square)


@triton.jit
def add_terms(s, x, b, h, q, k, j, q_ok, k_ok, j_ok, P: tl.constexpr):
    """Return ``s`` plus the terms of the pre-activation that are not products: key bias,
    displacement table, distance.
    """
    if x.key_bias is not None:
        s += matrix(x.key_bias, b, h, j, k, k_ok & j_ok).to(tl.float32)
    if x.table is not None:
        # A pair reads the row of its displacement, the difference of two indices.
        place = tl.load(x.query_index.data + q, mask=q_ok, other=0) - tl.load(
            x.key_index.data + j,
            mask=j_ok,
            other=0,
        )
        s += matrix(x.table, 0, h, place, k, q_ok & k_ok & j_ok).to(tl.float32)
    if x.distance_scale is not None:
        s += matrix(x.distance_scale, 0, h, 0, k, k_ok) * distance(x, b, q, j, q_ok, j_ok, P)
    return s


@triton.jit
def weigh(h, slope, x, b, head, q, j, q_ok, j_ok):
    """Return hidden units and slopes times the pair's density, zero where the key is later."""
    if x.density is not None:
        density = matrix(x.density, b, head, q.to(tl.int64), j, q_ok & j_ok).to(tl.float32)
        h *= density
        slope *= density
    if x.query_time is not None:
        seen = matrix(x.key_time, b, 0, 0, j, j_ok) <= matrix(x.query_time, b, 0, 0, q, q_ok)
        h = tl.where(seen, h, 0.0)
        slope = tl.where(seen, slope, 0.0)
    return h, slope


@triton.jit
def scaled_rows(
    x,
    b,
    h,
    q,
    k,
    q_ok,
    k_ok,
    A: tl.constexpr,
    F: tl.constexpr,
    BA: tl.constexpr,
    BF: tl.constexpr,
):
    """Return rows ``scale ⊙ query`` of the product with the keys: the first A columns, and the last
    F with the second term.

    ``k`` (rows, 1), and ``q`` the same or (1, 1).
    """
    dtype = x.value.data.dtype.element_ty
    first = 0.0
    last = 0.0
    if A > 0:
        c = tl.arange(0, BA)[None, :]
        at_query = matrix(x.query, b, h, q, c, q_ok & (c < A)).to(tl.float32)
        first = (at_query * matrix(x.scale, 0, h, k, c, k_ok & (c < A)).to(tl.float32)).to(dtype)
    if F > 0:
        c = tl.arange(0, BF)[None, :]
        at_query = matrix(x.query, b, h, q, A + c, q_ok & (c < F)).to(tl.float32)
        last = at_query * matrix(x.scale, 0, h, k, A + c, k_ok & (c < F)).to(tl.float32)
        at_query = matrix(x.query2, b, h, q, c, q_ok & (c < F)).to(tl.float32)
        last = (last + at_query * matrix(x.scale2, 0, h, k, c, k_ok & (c < F)).to(tl.float32)).to(
            dtype
        )
    return first, last


@triton.jit
def visible_until(x, b, block, blocks, NK, BK: tl.constexpr):
    """Return how many blocks of keys a block of queries has to visit: none after the last with a
    visible key.
    """
    stop = tl.cdiv(NK, BK)
    if x.key_stop is not None:
        stop = tl.load(x.key_stop.data + b * x.key_stop.b + block, mask=block < blocks, other=0)
    return tl.where(block < blocks, stop, 0)


@triton.jit
def visible_from(x, b, block):
    """Return the first block of queries that a block of keys has to visit."""
    start = 0
    if x.query_start is not None:
        start = tl.load(x.query_start.data + b * x.query_start.b + block)
    return start
