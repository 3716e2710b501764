"""Samples as rows of a few numbers, for methods that read tables
(:meth:`fredholm.lab.data.kinds.kind.Kind.summarise`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

Rows = np.ndarray
"""(samples, features)."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BANDS = 8
"""Octaves of a spectrum."""
SIDE = 8
"""Cells per side of a picture."""


def of_series(values: np.ndarray, timed: bool) -> Rows:
    """Summarise series (B, N, C): their number of points and duration, and of each channel moments,
    both ends, the trend, steps, quantiles, and the energy in octaves of frequency.

    Args:
        values: NaN where nothing was measured.
        timed: whether the first channel is time.
    """
    rows = [_of_one(series, timed) for series in values]
    return np.array(rows)


def _of_one(series: np.ndarray, timed: bool) -> np.ndarray:
    measured = ~np.isnan(series).all(1)
    values = series[measured]
    if timed:
        times = values[:, 0]
        values = values[:, 1:]
    else:
        times = np.flatnonzero(measured).astype(float)

    duration = 0.0
    if len(times):
        duration = times[-1] - times[0]
    result = [len(times), duration]
    for channel in values.T:
        known = ~np.isnan(channel)
        result += _of_channel(times[known], channel[known])
    return np.array(result)


def _of_channel(times: np.ndarray, x: np.ndarray) -> list[float]:
    # As many numbers as of a longer channel, so that all rows have the same columns.
    if len(x) < 2:
        columns = 8 + len(QUANTILES) + BANDS
        unknown = [np.nan] * (columns - len(x))
        return [*x, *unknown]

    trend = 0.0
    if np.ptp(times) > 0:
        line = np.polyfit(times - times[0], x, 1)
        trend = line[0]
    steps = np.diff(x)
    signs = np.sign(x - x.mean())
    crossings = np.diff(signs) != 0
    return [
        x.mean(),
        x.std(),
        x[0],
        x[-1],
        trend,
        np.abs(steps).mean(),
        steps.std(),
        float(crossings.mean()),
        *np.quantile(x, QUANTILES),
        *_octaves(times, x),
    ]


def _octaves(times: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return log(1 + energy) of each octave of frequency, the lowest first; without the mean."""
    # A spectrum needs equal steps: gaps are filled by lines.
    even_times = np.linspace(times[0], times[-1], max(len(x), 4))
    even = np.interp(even_times, times, x)
    spectrum = np.fft.rfft(even - even.mean())
    power = np.abs(spectrum)[1:] ** 2 / len(even)

    edges = 2 ** np.arange(BANDS + 1) - 1
    # Octaves beyond the highest frequency are empty slices, whose sum is 0.
    bands = [power[low:high].sum() for low, high in pairwise(edges)]
    return np.log1p(bands)


def of_images(images: Any) -> Rows:
    """Summarise pictures (B, C, H, W) by the means of 8 x 8 cells."""
    pixels = torch.as_tensor(images)
    cells = torch.nn.functional.adaptive_avg_pool2d(pixels, SIDE)
    return cells.flatten(1).double().numpy()


def of_clouds(clouds: np.ndarray) -> Rows:
    """Summarise clouds (B, points, C) by moments and quantiles of each channel, and of the distance
    from the centre.
    """
    centre = np.nanmean(clouds, 1, keepdims=True)
    offsets = (clouds - centre)[..., :3]
    squares = (offsets**2).sum(-1, keepdims=True)
    channels = np.concatenate([clouds, np.sqrt(squares)], -1)

    mean = np.nanmean(channels, 1)
    std = np.nanstd(channels, 1)
    quantiles = np.nanquantile(channels, QUANTILES, axis=1)
    return np.concatenate([mean, std, *quantiles], 1)
