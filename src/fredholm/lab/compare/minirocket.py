"""MiniROCKET: how often fixed convolutions of a series are above random thresholds, and a ridge
regression on that.

Reference: Dempster, Schmidt and Webb, "MiniRocket: a very fast (almost) deterministic transform
for time series classification" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data import limit_samples
from ..training.calibration import fit_temperature
from ..training.tasks import task_of
from .fitted import Fitted, Linear, Part
from .splits import batches

TAPS = 9  # of a kernel: three weigh 2, the others -1
PATTERNS = torch.tensor([[2.0 if i in p else -1.0 for i in range(TAPS)]
                         for p in combinations(range(TAPS), 3)])  # fmt: skip
PER_KERNEL = 119  # features of each of the 84 kernels: 9,996 in all
DILATIONS = 32  # at most
ALPHAS = np.logspace(-3, 3, 10)  # of the ridge
MOST = 4_000  # samples that the ridge is fitted to
LONGEST = 2_048  # points that a series is brought to at most
WORK = 2_000_000  # points of all training samples, above which there are fewer features
BLOCK = 1 << 18  # numbers of a convolution that are held at once


def minirocket(train: Any, seed: int) -> Rocket:
    """Features of :class:`Convolutions` and a ridge regression, of numbers or of ±1 for each class;
    its penalty and the temperature of the classes by leaving each sample out.

    Every series is brought to the points of the longest training series, evenly spaced, by
    straight lines, which also fill gaps.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    train = limit_samples(train, MOST)
    length = min(max(TAPS, train.batch(torch.arange(len(train)))[0].shape[1]), LONGEST)
    pairs = [
        (evened(inputs, length, train.timed), labels) for inputs, labels in batches(train, 256)
    ]
    series, labels = (torch.cat(part) for part in zip(*pairs))
    count = max(1, min(PER_KERNEL, PER_KERNEL * WORK // (len(series) * length)))
    features = Convolutions.draw(series, seed, count)
    ridge = RidgeCV(ALPHAS, scoring="neg_mean_squared_error", store_cv_results=True)
    scaler: Any = StandardScaler(with_mean=False)
    classes = task_of(train).classifies
    targets = 2.0 * torch.nn.functional.one_hot(labels, len(train.classes)) - 1 if classes else None
    rows = scaler.fit_transform(features(series).numpy())
    ridge.fit(rows, (labels if targets is None else targets).numpy())
    scale = 1.0
    if classes:
        best = int(np.flatnonzero(ridge.alpha_ == ALPHAS)[0])
        scale = 1 / fit_temperature(torch.from_numpy(ridge.cv_results_[..., best]), labels)
    return Rocket(features, Linear.of(ridge, scaler), length, train.timed, scale)


@dataclass(frozen=True, eq=False)
class Convolutions(Part):
    r"""Shares of the points at which :math:`(w_k *_d u)(x) > b`: 84 kernels k of nine taps, by
    dilations d between one and what the length allows, each with several thresholds b.

    Half of the kernels of a dilation see zeros outside the series, the others stay inside.

    Attributes:
        dilations: ascending.
        shares: how many thresholds each dilation has.
        weights: (dilations, 84, 9 C); zero at channels that a kernel does not read.
        thresholds: (84, all of them).
    """

    dilations: list[int]
    shares: list[int]
    weights: Tensor
    thresholds: Tensor

    @property
    def biases(self) -> list[Tensor]:
        """The thresholds of each dilation."""
        return list(self.thresholds.split(self.shares, 1))

    @classmethod
    def draw(cls, series: Float[Tensor, "b c n"], seed: int, count: int) -> Convolutions:
        """``count`` features per kernel. A threshold is a quantile of a kernel's outputs for a
        series that is drawn for the kernel and its dilation; a kernel reads up to nine channels.
        """
        rng = np.random.default_rng(seed)
        dilations, shares = dilated(series.shape[2], count)
        golden = np.arange(1, len(PATTERNS) * count + 1) * (5**0.5 + 1) / 2 % 1
        weights, biases, start = [], [], 0
        for dilation, share in zip(dilations, shares):
            read = torch.from_numpy(_channels(rng, series.shape[1]))
            weight = (read[:, :, None] * PATTERNS[:, None]).flatten(1)
            drawn = series[torch.from_numpy(rng.integers(len(series), size=len(PATTERNS)))]
            outputs = torch.einsum("kt,ktn->kn", weight, shifted(drawn, dilation)).numpy()
            wanted = golden[start : start + len(PATTERNS) * share].reshape(len(PATTERNS), share)
            bias = [np.quantile(one, at) for one, at in zip(outputs, wanted)]
            weights.append(weight)
            biases.append(torch.from_numpy(np.stack(bias)).float())
            start += wanted.size
        return cls(dilations, shares, torch.stack(weights), torch.cat(biases, 1))

    def __call__(self, series: Float[Tensor, "b c n"]) -> Float[Tensor, "b features"]:
        step = max(1, BLOCK // (len(PATTERNS) * series.shape[2]))
        parts = zip(self.dilations, self.weights, self.biases)
        columns = []
        for number, (dilation, weight, bias) in enumerate(parts):
            found = [
                _shares(weight @ shifted(block, dilation), bias, number, 4 * dilation)
                for block in series.split(step)
            ]
            columns.append(torch.cat(found).flatten(1))
        return torch.cat(columns, 1)


def dilated(length: int, count: int) -> tuple[list[int], list[int]]:
    """Return the dilations for series of ``length`` points, and how many of the ``count`` features
    per kernel each of them gets.

    Dilations are evenly spaced on a logarithmic scale, from one to the largest at which a kernel
    still fits into the series, and rounded down. One that several are rounded to gets the features
    of all of them; the first dilations get one more each, so that the sum is ``count``.

    Example:
        >>> dilated(17, 119)
        ([1, 2], [116, 3])
    """
    most = min(count, DILATIONS)
    powers = np.linspace(0, np.log2((length - 1) / (TAPS - 1)), most)
    dilations, counts = np.unique((2**powers).astype(int), return_counts=True)
    shares = (counts * (count / most)).astype(int)

    # What rounding down has left over.
    shares[: count - shares.sum()] += 1
    return dilations.tolist(), shares.tolist()


def shifted(series: Float[Tensor, "b c n"], dilation: int) -> Float[Tensor, "b taps n"]:
    """What each tap of each channel sees, zeros outside."""
    reach = (TAPS - 1) // 2 * dilation
    wide = torch.nn.functional.pad(series, (reach, reach))
    return wide.unfold(2, series.shape[2], dilation).flatten(1, 2)


def _shares(outputs: Tensor, bias: Tensor, number: int, edge: int) -> Float[Tensor, "b k f"]:
    """Shares of the points above each threshold; every other kernel without its edges."""
    result = torch.empty(len(outputs), *bias.shape)
    inside = outputs[..., edge : outputs.shape[2] - edge]
    for some, first in ((outputs, number % 2), (inside, 1 - number % 2)):
        some = some[:, first::2].contiguous()
        above = torch.empty_like(some)  # floats: they are summed several times as fast
        for place in range(bias.shape[1]):
            torch.gt(some, bias[first::2, place, None], out=above)
            result[:, first::2, place] = above.mean(-1)
    return result


def _channels(rng: np.random.Generator, channels: int) -> np.ndarray:
    """Which channels each kernel reads (84, C): up to nine, fewer more often."""
    most = np.log2(min(channels, TAPS) + 1)
    result = np.zeros((len(PATTERNS), channels), np.float32)
    for row, count in zip(result, 2 ** rng.uniform(0, most, len(PATTERNS))):
        row[rng.choice(channels, int(count), replace=False)] = 1
    return result


def evened(
    series: Float[Tensor, "b n c"], length: int, timed: bool
) -> Float[Tensor, "b channels length"]:
    """Series as ``length`` points each, evenly spaced from the first that is there to the last, by
    straight lines between the values of each channel; zeros where a channel has none.

    Example:
        >>> series = torch.tensor([[[0.0], [torch.nan], [4.0], [torch.nan]]])
        >>> evened(series, 5, timed=False).tolist()
        [[[0.0, 1.0, 2.0, 3.0, 4.0]]]
    """
    given = series.double().numpy()
    result = np.zeros((len(given), given.shape[2] - timed, length), np.float32)
    for row, one in zip(result, given):
        here = one[~np.isnan(one).all(1)]
        times = here[:, 0] if timed else np.flatnonzero(~np.isnan(one).all(1)).astype(float)
        if not len(times):
            continue
        places = np.linspace(times[0], times[-1], length)
        for channel, values in zip(row, here[:, int(timed) :].T):
            known = ~np.isnan(values)
            if known.any():
                channel[:] = np.interp(places, times[known], values[known])
    return torch.from_numpy(result)


@dataclass(frozen=True, eq=False)
class Rocket(Fitted):
    """The features of a series, and a ridge regression on them.

    Attributes:
        length: points that a series is brought to.
        timed: whether its first channel is time.
        scale: of the outputs: one over the temperature.
    """

    features: Convolutions
    ridge: Linear
    length: int
    timed: bool
    scale: float

    def __call__(self, inputs: Tensor) -> Tensor:
        found = self.features(evened(inputs, self.length, self.timed))
        return self.scale * self.ridge(found)
