"""Which linear attention the Triton kernels can compute."""

from __future__ import annotations

import torch

from ..launch import grid_refusal

# features, or columns of a value, that the registers of a program hold with little spilling
LARGEST = 128


def linear_attention_refusal(
    dtype: torch.dtype, features: int, width: int, pairs: int
) -> str | None:
    """Why the kernels cannot take features and values of these numbers for these (batch, head)
    pairs, in this precision, or None.
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(features, width) > LARGEST:
        limits = f"{LARGEST} features and {LARGEST} columns of a value"
        return f"it holds up to {limits}, got {features} and {width}"
    return grid_refusal(pairs)
