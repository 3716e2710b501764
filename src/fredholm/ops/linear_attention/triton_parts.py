"""Pieces of the linear attention kernels: features given or made from scalars, blocks of rows,
moments.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..feature_map.triton_parts import features, features_backward


@triton.jit
def phi_of(
    base, pair, at, count, set, weight, bias, readout, shift, L: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr, NONNEG: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Features of the points ``at`` of a (batch, head) pair, (points, BLOCK_L·BLOCK_M), zero
    outside. Given ones have M = 1.
    """
    if GIVEN:
        column = tl.arange(0, BLOCK_L)
        inside = (at < count)[:, None] & (column < L)[None, :]
        place = base + (pair * count + at)[:, None].to(tl.int64) * L + column[None, :]
        value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    else:
        value = features(
            base + pair * count * M, at, count, weight + set * (L // C) * H,
            bias + set * (L // C) * H, readout + set * L * H, shift + set * L, L, C, H, M, BLOCK_L,
            BLOCK_M, SHARED, ACTIVATION, NONNEG,
        )  # fmt: skip
    return value


@triton.jit
def phi_backward(
    grad, base, pair, tile, at, count, set, weight, bias, readout, shift, base_grad, weight_grad,
    bias_grad, readout_grad, shift_grad, L: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    M: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr, SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr, NONNEG: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Write what a block's gradient in its features means for what they are made of; the bank's
    share at the block's own place.
    """
    if GIVEN:
        column = tl.arange(0, BLOCK_L)
        inside = (at < count)[:, None] & (column < L)[None, :]
        tl.store(
            base_grad + (pair * count + at)[:, None].to(tl.int64) * L + column[None, :],
            grad,
            mask=inside,
        )
    else:
        rows: tl.constexpr = 1 if SHARED else L
        share = pair * tl.num_programs(0) + tile
        features_backward(
            grad, base + pair * count * M, at, count, weight + set * (L // C) * H,
            bias + set * (L // C) * H, readout + set * L * H, shift + set * L,
            base_grad + pair * count * M, weight_grad + share * rows * H,
            bias_grad + share * rows * H, readout_grad + share * L * H, shift_grad + share * L, L,
            C, H, M, BLOCK_L, BLOCK_M, SHARED, ACTIVATION, NONNEG,
        )  # fmt: skip


@triton.jit
def matrix(base, pair, at, count, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows ``at`` of a pair's contiguous (count, D) matrix in float32, zero outside."""
    column = tl.arange(0, BLOCK_D)
    inside = (at < count)[:, None] & (column < D)[None, :]
    place = base + (pair * count + at)[:, None].to(tl.int64) * D + column[None, :]
    return tl.load(place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def moment(state, ones, slot, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """A moment (BLOCK_R, BLOCK_D) and that of the constant channel."""
    r, d = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    whole = tl.load(state + slot * BLOCK_R * BLOCK_D + r[:, None] * BLOCK_D + d[None, :])
    return whole, tl.load(ones + slot * BLOCK_R + r)
