"""Which linear attention the Triton kernels serve."""

from __future__ import annotations

import torch

from ..launch import grid_refusal

LARGEST = 128  # features, or columns of a value, that the registers of a program hold with little spilling


def linear_attention_refusal(
    dtype: torch.dtype, features: int, width: int, pairs: int
) -> str | None:
    """Why the kernels do not serve features and values of these numbers for these (batch, head)
    pairs, in this precision, or None.
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(features, width) > LARGEST:
        return f"it holds up to {LARGEST} features and {LARGEST} columns of a value, got {features} and {width}"
    return grid_refusal(pairs)
