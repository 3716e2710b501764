"""Limits of the Triton kernels of linear attention."""

from __future__ import annotations

import torch

from ..launch import grid_refusal

LARGEST = 128
"""Features, or columns of a value, that the registers of a program hold with little spilling."""


def linear_attention_refusal(
    dtype: torch.dtype,
    features: int,
    width: int,
    pairs: int,
) -> str | None:
    """Return why the kernels cannot take a call, or None.

    Args:
        dtype: of the sums.
        features: r, the number of features.
        width: c, the number of columns of a value.
        pairs: heads of all batch entries together.

    Example:
        >>> linear_attention_refusal(torch.float64, 16, 16, 4)
        'its sums are in float32, and the tensors are in float64'
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(features, width) > LARGEST:
        limits = f"{LARGEST} features and {LARGEST} columns of a value"
        return f"it holds up to {limits}, got {features} and {width}"
    return grid_refusal(pairs)
