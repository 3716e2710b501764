"""Pieces of the edge product's kernels: activations, blocks of rows, what hides a pair."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activated(s, ACTIVATION: tl.constexpr):
    """φ(s)."""
    if ACTIVATION == "relu":
        value = tl.where(s < 0.0, 0.0, s)
    elif ACTIVATION == "abs":
        value = tl.abs(s)
    else:
        value = 0.5 * s * (1.0 + tl.erf(s * 0.7071067811865476))
    return value


@triton.jit
def slope(s, ACTIVATION: tl.constexpr):
    """φ'(s)."""
    if ACTIVATION == "relu":
        value = tl.where(s > 0.0, 1.0, 0.0)
    elif ACTIVATION == "abs":
        value = tl.where(s > 0.0, 1.0, tl.where(s < 0.0, -1.0, 0.0))
    else:
        normal = 0.3989422804014327 * tl.exp(-0.5 * s * s)
        value = 0.5 * (1.0 + tl.erf(s * 0.7071067811865476)) + s * normal
    return value


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b, with a in float32 rounded to b's precision."""
    return tl.dot(a.to(b.dtype), b, input_precision=PRECISION)


@triton.jit
def rows(base, index, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows ``index`` of a contiguous (count, WIDTH) matrix, (·, BLOCK), zero outside."""
    column = tl.arange(0, BLOCK)
    inside = (index < count)[:, None] & (column < WIDTH)[None, :]
    return tl.load(
        base + index[:, None].to(tl.int64) * WIDTH + column[None, :],
        mask=inside,
        other=0.0,
    )


@triton.jit
def write(base, index, count, value, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The counterpart of :func:`rows`."""
    column = tl.arange(0, BLOCK)
    inside = (index < count)[:, None] & (column < WIDTH)[None, :]
    tl.store(base + index[:, None].to(tl.int64) * WIDTH + column[None, :], value, mask=inside)


@triton.jit
def seen_pairs(
    base,
    q,
    k,
    queries,
    keys,
    stride_q,
    stride_k,
    CAUSAL: tl.constexpr,
    DENSITY: tl.constexpr,
):
    """Return the factor of φ: the density, and zero after the query and outside. q and k broadcast
    against each other.
    """
    inside = (q < queries) & (k < keys)
    if CAUSAL:
        inside = inside & (k <= q)
    if DENSITY:
        at = base + q.to(tl.int64) * stride_q + k.to(tl.int64) * stride_k
        seen = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    else:
        seen = tl.where(inside, 1.0, 0.0)
    return seen
