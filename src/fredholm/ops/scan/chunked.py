"""The recurrence in as few launches as its size allows. Values only; ``recurrence.py``
differentiates it.
"""

from __future__ import annotations

from math import isqrt, prod

import torch
from torch import Tensor

# A step over fewer numbers than this is dominated by its launch, so that more work in fewer steps
# pays.
SMALL_STEP = 1 << 12


def scan_forward(decay: Tensor, drive: Tensor) -> Tensor:
    """All states, (B, N, *S), in steps or in chunks: a static choice by the size of one step."""
    n = drive.shape[1]
    small = drive.shape[0] * prod(drive.shape[2:]) < SMALL_STEP
    return (
        scan_chunked(decay, drive, isqrt(n))
        if n > 64 and (small or drive.is_cuda)
        else scan_steps(decay, drive)
    )


def scan_steps(decay: Tensor, drive: Tensor) -> Tensor:
    """N steps of one multiply-add each."""
    states = torch.empty_like(drive)
    states[:, 0] = drive[:, 0]
    for t in range(1, drive.shape[1]):
        torch.addcmul(drive[:, t], decay[:, t], states[:, t - 1], out=states[:, t])
    return states


def scan_chunked(decay: Tensor, drive: Tensor, chunk: int) -> Tensor:
    """Chunks from zero, side by side; then what each hands to the next. N / chunk + chunk steps,
    and no division.

    A chunk's state is its own plus the product of its decays times the state that it starts from.
    """
    n = drive.shape[1]
    size = -(-n // chunk)
    pad = size * chunk - n
    if pad:
        decay = torch.cat([decay, torch.ones_like(decay[:, :pad])], 1)
        drive = torch.cat([drive, torch.zeros_like(drive[:, :pad])], 1)
    decay, drive = decay.unflatten(1, (size, chunk)), drive.unflatten(1, (size, chunk))
    states, products = torch.empty_like(drive), torch.empty_like(decay)
    states[:, :, 0], products[:, :, 0] = drive[:, :, 0], decay[:, :, 0]
    for t in range(1, chunk):
        torch.addcmul(drive[:, :, t], decay[:, :, t], states[:, :, t - 1], out=states[:, :, t])
        torch.mul(decay[:, :, t], products[:, :, t - 1], out=products[:, :, t])
    for k in range(1, size):
        states[:, k].addcmul_(products[:, k], states[:, k - 1, -1:])
    return states.flatten(1, 2)[:, :n].contiguous()
