"""Transformations of sequences before they are embedded: windows, and standardisation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...ops.backend import at_least_single


def windows(
    sequences: Float[Tensor, "b n c"],
    size: int,
    spacing: float = 1.0,
) -> Float[Tensor, "b m p"]:
    """Cut sequences into windows of ``size`` time steps, after resampling them to the time step of
    the training data.

    Sample i lies at i · ``spacing`` training steps. The result has the values at 0, 1, 2, …
    training steps, (B, M, size · C), step by step with the channels innermost, where
    M = ⌈(1 + ⌊(N - 1) spacing⌋) / size⌉.

    Missing values are interpolated linearly between the nearest samples of their channel. Before
    the first sample and after the last one they are constant, and they are zero in a channel
    without any sample. A window without a sample of any channel is NaN.

    Args:
        sequences: N samples of C channels; NaN marks a missing value.
        size: training steps per window.
        spacing: training steps between two samples: 0.5 for sequences sampled twice as densely as
            the training data.

    Example:
        >>> nan = float("nan")
        >>> windows(torch.tensor([[[1.0], [nan], [3.0], [nan], [nan], [nan]]]), 2).tolist()
        [[[1.0, 2.0], [3.0, 3.0], [nan, nan]]]
    """
    batch, count, channels = sequences.shape
    known = ~sequences.isnan()
    # The term 1e-9 keeps a product such as 2.9999… at its whole number.
    steps = 1 + int((count - 1) * spacing + 1e-9)
    number = math.ceil(steps / size)
    # The last window may extend beyond the last sample. Its values there are constant, as they are
    # in a sequence that a batch pads with NaN.
    line = _interpolated(sequences, known, number * size, spacing)

    # The number of the window that each sample lies in, (N,), again with the term 1e-9, which
    # float32 would round away.
    index = torch.arange(count, dtype=torch.float64, device="cpu")
    places = index * spacing + 1e-9
    window = places.long() // size
    window = window.to(sequences.device)

    # Samples per window with a value in any channel, (B, M).
    samples = torch.zeros(batch, number, dtype=torch.int64, device=sequences.device)
    has_value = known.any(-1).long()
    samples = samples.index_add(1, window, has_value)

    line = line.reshape(batch, number, size * channels)
    seen = (samples > 0)[..., None]
    return torch.where(seen, line, torch.nan)


def _interpolated(
    sequences: Tensor,
    known: Tensor,
    steps: int,
    spacing: float,
) -> Tensor:
    """Return the values at ``steps`` steps of training, (B, steps, C), on straight lines between
    known samples.
    """
    count = sequences.shape[1]
    dtype = at_least_single(sequences.dtype)
    index = torch.arange(steps, device=sequences.device, dtype=dtype)
    places = index / spacing

    # The known samples around each step; at an end of a channel both are its last one.
    before = places.floor().long().clamp(max=count - 1)
    after = places.ceil().long().clamp(max=count - 1)
    low = _nearest(known, later=False)[:, before]
    high = _nearest(known, later=True)[:, after]
    first = torch.where(low < 0, high, low)
    high = torch.where(high >= count, low, high)
    low = first
    exists = (low >= 0) & (low < count)
    low = low.clamp(0, count - 1)
    high = high.clamp(0, count - 1)

    values = torch.where(known, sequences, 0.0)
    length = (high - low).clamp(min=1)
    share = (places[:, None] - low) / length
    share = share.clamp(0, 1).to(values.dtype)
    low_value = values.gather(1, low)
    high_value = values.gather(1, high)
    line = torch.lerp(low_value, high_value, share)
    return torch.where(exists, line, 0.0)


def standardised(
    values: Float[Tensor, "b n c"],
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b f"]]:
    r"""Return each channel of each sequence minus its mean m and over its deviation
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
    variance = apart.square().sum(1, keepdim=True) / count
    deviation = (variance + 1e-6).sqrt()
    facts = torch.cat([mean, deviation.log()], -1)
    scaled = apart / deviation
    return torch.where(known, scaled, torch.nan), facts[:, 0]


def _nearest(known: Tensor, later: bool) -> Tensor:
    """Return the index of the nearest known sample at or after each one (N if there is none), or at
    or before it (-1 if there is none).
    """
    count = known.shape[1]
    index = torch.arange(count, device=known.device)[:, None]
    if later:
        places = torch.where(known, index, count)
        following = places.flip(1).cummin(1).values
        return following.flip(1)
    places = torch.where(known, index, -1)
    return places.cummax(1).values
