"""Limits of the Triton kernels of the convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from ....ops.launch import LARGEST_GRID

WIDEST = 128
"""Hidden units whose spectrum at a block of frequencies fits the registers of one program."""


def spectrum_refusal(
    dtype: torch.dtype,
    hidden: Tensor,
    readout: Tensor,
) -> str | None:
    """Return why the kernels cannot take a convolution, or None.

    Args:
        dtype: of the sums.
        hidden: hidden units, (L, w).
        readout: (H, d_out, d_in, w).

    Example:
        >>> spectrum_refusal(torch.float32, torch.ones(4, 200), torch.ones(1, 1, 1, 200))
        'it holds up to 128 hidden units, got 200'
    """
    if dtype != torch.float32:
        return f"its spectra are in complex64, and the tensors are in {dtype}"
    if hidden.shape[1] > WIDEST:
        return f"it holds up to {WIDEST} hidden units, got {hidden.shape[1]}"
    heads, d_out, d_in, _ = readout.shape
    channels = heads * max(d_out, d_in)
    if channels > LARGEST_GRID:
        return f"it takes up to {LARGEST_GRID} channels, got {channels}"
    return None
