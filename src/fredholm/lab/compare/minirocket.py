"""MiniROCKET: the shares of time for which fixed convolutions of a series exceed random thresholds,
and a ridge regression on them.

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
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ..data import limit_samples
from ..training.calibration import fit_temperature
from ..training.tasks import task_of
from .fitted import Fitted, Linear, Part
from .splits import batches

# Taps of a kernel: three of them have the weight 2, the others -1. That gives 84 kernels.
TAPS = 9
TRIPLES = list(combinations(range(TAPS), 3))
PATTERNS = torch.full((len(TRIPLES), TAPS), -1.0).scatter(1, torch.tensor(TRIPLES), 2.0)

# Features of each kernel, 9,996 in all, and its dilations at most.
PER_KERNEL = 119
DILATIONS = 32

# Penalties of the ridge regression.
ALPHAS = np.logspace(-3, 3, 10)

# The ridge regression is fitted to at most this many samples.
MOST = 4_000

# Points per series at most.
LONGEST = 2_048

# Points of all training samples, above which there are fewer features.
WORK = 2_000_000

# Numbers of a convolution that are in memory at once.
BLOCK = 1 << 18


def minirocket(train: Any, seed: int) -> Rocket:
    """Fit a ridge regression on the features of :class:`Convolutions`.

    Its targets are numbers, or ±1 per class. Leaving out each sample in turn determines the
    penalty, and the temperature of the classes.

    Each series becomes one with as many points as the longest training series, evenly spaced.
    Linear interpolation between its own points also fills gaps.
    """
    train = limit_samples(train, MOST)
    longest = train.batch(torch.arange(len(train)))[0].shape[1]
    length = min(max(TAPS, longest), LONGEST)
    parts = [(evened(inputs, length, train.timed), each) for inputs, each in batches(train, 256)]
    series, labels = (torch.cat(part) for part in zip(*parts))

    # The work grows with samples × points × features.
    count = max(1, min(PER_KERNEL, PER_KERNEL * WORK // (len(series) * length)))
    features = Convolutions.draw(series, seed, count)

    targets = labels
    classifies = task_of(train).classifies
    if classifies:
        targets = 2.0 * torch.nn.functional.one_hot(labels, len(train.classes)) - 1
    scaler: Any = StandardScaler(with_mean=False)
    ridge = RidgeCV(
        ALPHAS,
        scoring="neg_mean_squared_error",
        store_cv_results=True,
    )
    ridge.fit(scaler.fit_transform(features(series).numpy()), targets.numpy())

    scale = 1.0
    if classifies:
        best = int(np.flatnonzero(ridge.alpha_ == ALPHAS)[0])
        left_out = torch.from_numpy(ridge.cv_results_[..., best])
        scale = 1 / fit_temperature(left_out, labels)
    return Rocket(
        features,
        Linear.of(ridge, scaler),
        length,
        train.timed,
        scale,
    )


@dataclass(frozen=True, eq=False)
class Convolutions(Part):
    r"""Features of a series: the shares of its points at which :math:`(w_k *_d u)(x) > b`.

    There are 84 kernels k of nine taps. Dilations d go from one to what the length allows. Each
    pair has several thresholds b. For half of the kernels of a dilation the series continues with
    zeros outside; for the others, only points count at which the kernel stays inside.

    Attributes:
        dilations: ascending.
        shares: number of thresholds per kernel of each dilation.
        weights: (dilations, 84, 9 C); zero at channels that a kernel does not read.
        thresholds: (84, sum of the shares).
    """

    dilations: list[int]
    shares: list[int]
    weights: Tensor
    thresholds: Tensor

    @property
    def biases(self) -> list[Tensor]:
        """Thresholds (84, share) of each dilation."""
        return list(self.thresholds.split(self.shares, 1))

    @classmethod
    def draw(
        cls,
        series: Float[Tensor, "b c n"],
        seed: int,
        count: int,
    ) -> Convolutions:
        """Draw channels and thresholds, ``count`` features per kernel.

        A threshold is a quantile of a kernel's outputs for one series, drawn for each kernel and
        dilation. A kernel reads up to nine channels.
        """
        rng = np.random.default_rng(seed)
        kernels = len(PATTERNS)
        dilations, shares = dilated(series.shape[2], count)

        # Quantiles: multiples of the golden ratio modulo one, which cover (0, 1) evenly.
        golden = (5**0.5 + 1) / 2
        quantiles = np.arange(1, kernels * count + 1) * golden % 1

        weights = []
        thresholds = []
        used = 0
        for dilation, share in zip(dilations, shares):
            channels = torch.from_numpy(_channels(rng, series.shape[1]))
            weight = (channels[:, :, None] * PATTERNS[:, None]).flatten(1)
            drawn = series[torch.from_numpy(rng.integers(len(series), size=kernels))]
            outputs = torch.einsum("kt,ktn->kn", weight, shifted(drawn, dilation)).numpy()

            levels = quantiles[used : used + kernels * share].reshape(kernels, share)
            used += levels.size
            each = [np.quantile(output, level) for output, level in zip(outputs, levels)]
            weights.append(weight)
            thresholds.append(torch.from_numpy(np.stack(each)).float())
        return cls(dilations, shares, torch.stack(weights), torch.cat(thresholds, 1))

    def __call__(
        self,
        series: Float[Tensor, "b c n"],
    ) -> Float[Tensor, "b features"]:
        # Samples at a time; outputs are (samples, 84, n).
        step = max(1, BLOCK // (len(PATTERNS) * series.shape[2]))
        columns = []
        parts = zip(self.dilations, self.weights, self.biases)
        for number, (dilation, weight, bias) in enumerate(parts):
            edge = TAPS // 2 * dilation
            blocks = []
            for block in series.split(step):
                outputs = weight @ shifted(block, dilation)
                blocks.append(_shares(outputs, bias, number, edge).flatten(1))
            columns.append(torch.cat(blocks))
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


def shifted(
    series: Float[Tensor, "b c n"],
    dilation: int,
) -> Float[Tensor, "b taps n"]:
    """Return the series as each tap of each channel reads it, with zeros outside."""
    reach = TAPS // 2 * dilation
    wide = torch.nn.functional.pad(series, (reach, reach))
    return wide.unfold(2, series.shape[2], dilation).flatten(1, 2)


def _shares(
    outputs: Float[Tensor, "b k n"],
    bias: Float[Tensor, "k f"],
    number: int,
    edge: int,
) -> Float[Tensor, "b k f"]:
    """Return the shares of the points above each threshold.

    Every other kernel leaves out ``edge`` points at both ends. Which ones do alternates with the
    ``number`` of the dilation.
    """
    result = torch.empty(len(outputs), *bias.shape)
    inside = outputs[..., edge : outputs.shape[2] - edge]
    for points, first in ((outputs, number % 2), (inside, 1 - number % 2)):
        every_other = points[:, first::2].contiguous()
        # Floating-point numbers are summed several times as fast as booleans.
        above = torch.empty_like(every_other)
        for place in range(bias.shape[1]):
            torch.gt(every_other, bias[first::2, place, None], out=above)
            result[:, first::2, place] = above.mean(-1)
    return result


def _channels(rng: np.random.Generator, channels: int) -> np.ndarray:
    """Draw which channels each kernel reads (84, C): one to nine, fewer more often."""
    most = np.log2(min(channels, TAPS) + 1)
    result = np.zeros((len(PATTERNS), channels), np.float32)
    for row, count in zip(result, 2 ** rng.uniform(0, most, len(PATTERNS))):
        row[rng.choice(channels, int(count), replace=False)] = 1
    return result


def evened(
    series: Float[Tensor, "b n c"],
    length: int,
    timed: bool,
) -> Float[Tensor, "b channels length"]:
    """Interpolate series linearly at ``length`` evenly spaced points each.

    The points go from the first to the last that has a value. A channel without values is zero.

    Args:
        series: with NaN where values are missing.
        timed: whether the first channel is time, and not part of the result.

    Example:
        >>> series = torch.tensor([[[0.0], [torch.nan], [4.0], [torch.nan]]])
        >>> evened(series, 5, timed=False).tolist()
        [[[0.0, 1.0, 2.0, 3.0, 4.0]]]
    """
    points = series.double().numpy()
    result = np.zeros((len(points), points.shape[2] - timed, length), np.float32)
    for row, one in zip(result, points):
        present = np.flatnonzero(~np.isnan(one).all(1))
        if not len(present):
            continue
        here = one[present]
        times = present.astype(float)
        if timed:
            times = here[:, 0]

        places = np.linspace(times[0], times[-1], length)
        for channel, values in zip(row, here[:, int(timed) :].T):
            known = ~np.isnan(values)
            if known.any():
                channel[:] = np.interp(places, times[known], values[known])
    return torch.from_numpy(result)


@dataclass(frozen=True, eq=False)
class Rocket(Fitted):
    """Ridge regression on the features of a series.

    Attributes:
        features: of the series.
        ridge: the regression.
        length: points that a series is interpolated at.
        timed: whether its first channel is time.
        scale: factor of the outputs, one over the temperature.
    """

    features: Convolutions
    ridge: Linear
    length: int
    timed: bool
    scale: float

    def __call__(self, inputs: Tensor) -> Tensor:
        features = self.features(evened(inputs, self.length, self.timed))
        return self.scale * self.ridge(features)
