"""Pieces of the linear attention kernels: features, matrices of a (batch, head) pair, moments.

Arguments that the kernels share:

    base         features (pairs, count, L), or scalars (pairs, M, count) of a bank
    pair, at     the (batch, head) pair, and the points of the block
    count        points of a pair; those of the block beyond it are padding
    set          the set of the bank that belongs to the head
    weight ...   the bank's w, b, R and c
    L, C, H, M   channels, outputs of a network, its hidden units, directions
    BLOCK_L, BLOCK_M   L and M padded to powers of two; a feature's column is l·BLOCK_M + m
    SHARED       whether a set is one network, C = L
    GIVEN        whether ``base`` has features
    x_b, x_h, x_n   strides of a tensor x over batch, heads and points, 0 where they share it
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..feature_map.triton_parts import features, features_backward


@triton.jit
def phi_of(
    base, pair, at, count, set,
    weight, bias, readout, shift,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr, NONNEG: tl.constexpr,
    GIVEN: tl.constexpr,
):  # fmt: skip
    """Features of the points ``at`` of a pair, (points, BLOCK_L·BLOCK_M), zero in padding.

    Features that come as tensors have M = 1.
    """
    if GIVEN:
        column = tl.arange(0, BLOCK_L)
        inside = (at < count)[:, None] & (column < L)[None, :]
        # In 64 bits: all features of a batch may be more than 2³¹ numbers.
        place = base + (pair * count + at)[:, None].to(tl.int64) * L + column[None, :]
        value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    else:
        # A set has L / C networks of H units.
        value = features(
            base + pair * count * M, at, count,
            weight + set * (L // C) * H,
            bias + set * (L // C) * H,
            readout + set * L * H,
            shift + set * L,
            L, C, H, M, BLOCK_L, BLOCK_M,
            SHARED, ACTIVATION, NONNEG,
        )  # fmt: skip
    return value


@triton.jit
def phi_backward(
    grad,
    base, pair, tile, at, count, set,
    weight, bias, readout, shift,
    base_grad, weight_grad, bias_grad, readout_grad, shift_grad,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr, NONNEG: tl.constexpr,
    GIVEN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block's features or scalars, and its share of the bank's.

    ``grad`` is that of the features, (points, BLOCK_L·BLOCK_M); features that come as tensors have
    M = 1. The share goes to a place of its own, by pair and ``tile``, so that no two programs write
    to one place.
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
            grad, base + pair * count * M, at, count,
            weight + set * (L // C) * H,
            bias + set * (L // C) * H,
            readout + set * L * H,
            shift + set * L,
            base_grad + pair * count * M,
            weight_grad + share * rows * H,
            bias_grad + share * rows * H,
            readout_grad + share * L * H,
            shift_grad + share * L,
            L, C, H, M, BLOCK_L, BLOCK_M,
            SHARED, ACTIVATION, NONNEG,
        )  # fmt: skip


@triton.jit
def matrix(base, pair, at, count, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows ``at`` of a pair's contiguous (count, D) matrix in float32, zero in padding."""
    column = tl.arange(0, BLOCK_D)
    inside = (at < count)[:, None] & (column < D)[None, :]
    place = base + (pair * count + at)[:, None].to(tl.int64) * D + column[None, :]
    return tl.load(place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def moment(state, ones, slot, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """The moment of values in ``slot``, (BLOCK_R, BLOCK_D), and that of ones, (BLOCK_R,)."""
    r, d = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    whole = tl.load(state + slot * BLOCK_R * BLOCK_D + r[:, None] * BLOCK_D + d[None, :])
    return whole, tl.load(ones + slot * BLOCK_R + r)
