"""Which convolutions the Triton kernels can compute."""

from __future__ import annotations

import torch
from torch import Tensor

from ....ops.launch import LARGEST_GRID

# Hidden units whose spectrum at a block of frequencies fits into the registers of one program.
WIDEST = 128


def spectrum_refusal(dtype: torch.dtype, hidden: Tensor, readout: Tensor) -> str | None:
    """Why the kernels cannot combine hidden units (L, w) and a readout (H, d_out, d_in, w) in this
    precision, or None.
    """
    if dtype != torch.float32:
        return f"its spectra are in complex64, and the tensors are in {dtype}"
    if hidden.shape[1] > WIDEST:
        return f"it holds up to {WIDEST} hidden units, got {hidden.shape[1]}"
    heads, d_out, d_in, _ = readout.shape
    channels = heads * max(d_out, d_in)
    return (
        f"it takes up to {LARGEST_GRID} channels, got {channels}"
        if channels > LARGEST_GRID
        else None
    )
