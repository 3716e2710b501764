"""Samples as rows of numbers, for methods that read such rows: what a kind of data says of its own
(:meth:`fredholm.lab.data.kinds.kind.Kind.summarise`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

Rows = np.ndarray  # (samples, features)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BANDS = 8  # of a spectrum, in octaves
SIDE = 8  # pictures are brought to so many cells a side


def of_series(values: np.ndarray, timed: bool) -> Rows:
    """Of each channel of series (B, N, C): moments, quantiles, the ends, the mean step, and the
    energy in octaves of frequency; of the series its length. NaN is what is not there.
    """
    return np.array([_of_one(series, timed) for series in values])


def _of_one(series: np.ndarray, timed: bool) -> np.ndarray:
    here = ~np.isnan(series).all(1)
    times = series[here, 0] if timed else np.flatnonzero(here).astype(float)
    result = [len(times), times[-1] - times[0] if len(times) else 0.0]
    for channel in series[here, int(timed) :].T:
        known = ~np.isnan(channel)
        result += _of_channel(times[known], channel[known])
    return np.array(result)


def _of_channel(times: np.ndarray, x: np.ndarray) -> list[float]:
    if len(x) < 2:
        return [float(x[0]) if len(x) else np.nan] + [np.nan] * (7 + len(QUANTILES) + BANDS)
    steps = np.diff(x)
    line = np.polyfit(times - times[0], x, 1)[0] if np.ptp(times) > 0 else 0.0
    moments = [x.mean(), x.std(), x[0], x[-1], line, np.abs(steps).mean(), steps.std()]
    crossings = float((np.diff(np.sign(x - x.mean())) != 0).mean())
    even = np.interp(np.linspace(times[0], times[-1], max(len(x), 4)), times, x)
    power = np.abs(np.fft.rfft(even - even.mean()))[1:] ** 2 / len(even)
    edges = 2 ** np.arange(BANDS + 1) - 1
    bands = [power[a:b].sum() if a < len(power) else 0.0 for a, b in pairwise(edges)]
    return [*moments, crossings, *np.quantile(x, QUANTILES), *np.log1p(bands)]


def of_images(images: Any) -> Rows:
    """Pictures (B, C, H, W) as the means of 8 x 8 cells."""
    cells = torch.nn.functional.adaptive_avg_pool2d(torch.as_tensor(images), SIDE)
    return cells.flatten(1).double().numpy()


def of_clouds(clouds: np.ndarray) -> Rows:
    """Of clouds (B, points, C): moments and quantiles of each channel, and of the distance from the
    middle.
    """
    middle = np.nanmean(clouds, 1, keepdims=True)
    radius = np.sqrt(((clouds - middle)[..., :3] ** 2).sum(-1, keepdims=True))
    whole = np.concatenate([clouds, radius], -1)
    parts = [np.nanmean(whole, 1), np.nanstd(whole, 1), *np.nanquantile(whole, QUANTILES, axis=1)]
    return np.concatenate(parts, 1)
