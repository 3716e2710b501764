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
    return np.array([_of_one(series, timed) for series in values])


def _of_one(series: np.ndarray, timed: bool) -> np.ndarray:
    measured = ~np.isnan(series).all(1)
    times = np.flatnonzero(measured).astype(float)
    values = series[measured]
    if timed:
        times = values[:, 0]
        values = values[:, 1:]
    result = [len(times), 0.0]
    if len(times):
        result[1] = times[-1] - times[0]
    for channel in values.T:
        known = ~np.isnan(channel)
        result += _of_channel(times[known], channel[known])
    return np.array(result)


def _of_channel(times: np.ndarray, x: np.ndarray) -> list[float]:
    # As many numbers as of a longer channel, so that all rows have the same columns.
    if len(x) < 2:
        return [*x, *[np.nan] * (8 + len(QUANTILES) + BANDS - len(x))]
    steps = np.diff(x)
    trend = 0.0
    if np.ptp(times) > 0:
        trend = np.polyfit(times - times[0], x, 1)[0]
    moments = [x.mean(), x.std(), x[0], x[-1], trend, np.abs(steps).mean(), steps.std()]
    crossings = float((np.diff(np.sign(x - x.mean())) != 0).mean())

    # A spectrum needs equal steps: gaps are filled by lines. Without its mean, which is above.
    even_times = np.linspace(times[0], times[-1], max(len(x), 4))
    even = np.interp(even_times, times, x)
    power = np.abs(np.fft.rfft(even - even.mean()))[1:] ** 2 / len(even)
    edges = 2 ** np.arange(BANDS + 1) - 1
    # Octaves beyond the highest frequency are empty slices, whose sum is 0.
    bands = [power[low:high].sum() for low, high in pairwise(edges)]
    return [*moments, crossings, *np.quantile(x, QUANTILES), *np.log1p(bands)]


def of_images(images: Any) -> Rows:
    """Summarise pictures (B, C, H, W) by the means of 8 x 8 cells."""
    cells = torch.nn.functional.adaptive_avg_pool2d(torch.as_tensor(images), SIDE)
    return cells.flatten(1).double().numpy()


def of_clouds(clouds: np.ndarray) -> Rows:
    """Summarise clouds (B, points, C) by moments and quantiles of each channel, and of the distance
    from the centre.
    """
    centre = np.nanmean(clouds, 1, keepdims=True)
    radius = np.sqrt(((clouds - centre)[..., :3] ** 2).sum(-1, keepdims=True))
    channels = np.concatenate([clouds, radius], -1)
    quantiles = np.nanquantile(channels, QUANTILES, axis=1)
    parts = [np.nanmean(channels, 1), np.nanstd(channels, 1), *quantiles]
    return np.concatenate(parts, 1)
