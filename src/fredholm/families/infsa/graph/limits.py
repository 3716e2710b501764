"""Which edge products the Triton kernels can compute."""

from __future__ import annotations

import torch
from torch import Tensor

from ....ops.launch import grid_refusal

WIDEST = 256  # columns of a query or a value that the registers of a program hold


def triton_refusal(dtype: torch.dtype, query: Tensor, value: Tensor) -> str | None:
    """Why the kernels cannot compute a product of these tensors in the precision of the computation,
    or None.
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(query.shape[3], value.shape[3]) > WIDEST:
        return f"it holds up to {WIDEST} columns of a query or a value, got {query.shape[3]} and {value.shape[3]}"
    return grid_refusal(value.shape[0] * value.shape[1])
