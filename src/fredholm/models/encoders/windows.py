"""What is made of sequences before they are embedded: windows, and a scale of their own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def windows(
    sequences: Float[Tensor, "b n c"], size: int, spacing: float = 1.0
) -> Float[Tensor, "b m p"]:
    """The values at 0, 1, 2, … steps of training of sequences sampled every ``spacing`` of them,
    ``size`` steps together: (B, M, size · C) with M = ⌈(1 + ⌊(N - 1) spacing⌋) / size⌉.

    Where no sample is, the value is that of the straight line between the nearest two of its
    channel, before the first and after the last one it is theirs, and of a channel without any it
    is zero. A window in which no sample is, of any channel, is NaN.

    Example:
        >>> nan = float("nan")
        >>> windows(torch.tensor([[[1.0], [nan], [3.0], [nan], [nan], [nan]]]), 2).tolist()
        [[[1.0, 2.0], [3.0, 3.0], [nan, nan]]]
    """
    batch, count, channels = sequences.shape
    known = ~sequences.isnan()
    steps = 1 + int((count - 1) * spacing + 1e-9)
    shape = (batch, -(-steps // size))
    dtype = torch.promote_types(sequences.dtype, torch.float32)
    # The last window goes on beyond the last sample, as it does where a batch is padded.
    places = torch.arange(shape[1] * size, device=sequences.device, dtype=dtype) / spacing
    after = _nearest(known, later=True)
    before = _nearest(known, later=False)
    low = before[:, places.floor().long().clamp(max=count - 1)]
    high = after[:, places.ceil().long().clamp(max=count - 1)]
    low, high = torch.where(low < 0, high, low), torch.where(high >= count, low, high)
    there = (low >= 0) & (low < count)
    low, high = low.clamp(0, count - 1), high.clamp(0, count - 1)
    values = torch.where(known, sequences, 0.0)
    share = (places[:, None] - low) / (high - low).clamp(min=1)
    share = share.clamp(0, 1).to(values.dtype)
    line = torch.lerp(values.gather(1, low), values.gather(1, high), share)
    line = torch.where(there, line, 0.0)
    # The steps at which samples stand, and so the windows that hold any.
    present = known.any(-1)
    # Counted as the number of windows was, whose guard single precision would lose.
    places = torch.arange(count, dtype=torch.float64, device="cpu") * spacing + 1e-9
    step = (places.long() // size).to(sequences.device)
    held = torch.zeros(shape, dtype=torch.int64, device=sequences.device)
    held = held.index_add(1, step, present.long()) > 0
    line = line.reshape(*shape, size * channels)
    return torch.where(held[..., None], line, torch.nan)


def standardised(
    values: Float[Tensor, "b n c"],
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b f"]]:
    r"""Each channel of each sequence less its mean m and over its deviation
    :math:`s = \sqrt{v + 10^{-6}}`, v its variance; and (m, log s) of all channels, (B, 2C). NaN
    stays, and counts for nothing.

    Example:
        >>> values, facts = standardised(torch.tensor([[[1.0], [3.0], [float("nan")]]]))
        >>> values.flatten().tolist(), facts.round(decimals=3).tolist()
        ([-0.9999995231628418, 0.9999995231628418, nan], [[2.0, 0.0]])
    """
    known = ~values.isnan()
    count = known.sum(1, keepdim=True).clamp(min=1)
    zeroed = torch.where(known, values, 0.0)
    mean = zeroed.sum(1, keepdim=True) / count
    apart = torch.where(known, zeroed - mean, 0.0)
    deviation = (apart.square().sum(1, keepdim=True) / count + 1e-6).sqrt()
    facts = torch.cat([mean, deviation.log()], -1)[:, 0]
    return torch.where(known, apart / deviation, torch.nan), facts


def _nearest(known: Tensor, later: bool) -> Tensor:
    """The place of the nearest known sample at or after each one, or at or before it; N or -1
    where there is none.
    """
    count = known.shape[1]
    index = torch.arange(count, device=known.device)[:, None]
    if later:
        places = torch.where(known, index, count)
        return places.flip(1).cummin(1).values.flip(1)
    return torch.where(known, index, -1).cummax(1).values
