"""Series observed at irregular times: JapaneseVowels and PLAID in bursts, and a task of lags.

JapaneseVowels and PLAID lie on the ticks of a clock. Each channel is observed at its own ticks, in
bursts with long gaps between them, so that most ticks have no observation at all. There is no
coarser clock on which the observations are regular. The times of the task of lags are real numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.lab import data

FILE = "ckconv-irregular.json"
SHARE = 0.3
"""Share of the values that are observed."""
VAL_FRACTION = 0.25
"""Share of the training files on which settings are chosen; the runs train on all of them."""

# --- the task of lags -----------------------------------------------------------------------------

LAG, POINTS, LATEST = 25.37, 40, 35.0
"""The lag of the answer, the largest number of observations, and the latest time of the event."""
CLOSE, GAP, ENDS = (0.3, 0.9), (4.0, 12.0), 1 / 8
"""Times between two observations of a burst and across a gap, and the probability of a gap."""
SAMPLES = {"train": 4_000, "val": 500, "test": 1_000}
DATA_SEEDS = {"train": 11, "val": 12, "test": 13}


class Series(NamedTuple):
    """Series observed at irregular times.

    Attributes:
        times: (N, points), which do not decrease.
        values: (N, points, C), NaN where a channel is not observed and behind the last observation.
        labels: (N,), classes.
    """

    times: Tensor
    values: Tensor
    labels: Tensor

    def batch(self, indices: Tensor) -> Series:
        """Return some of the series, without the points behind the last observation of them all."""
        values = self.values[indices]
        observed = (~values.isnan()).any(-1).any(0)
        points = int(observed.nonzero().max()) + 1
        return Series(self.times[indices, :points], values[:, :points], self.labels[indices])


@dataclass(frozen=True)
class Task:
    """A task and the settings of its runs.

    Attributes:
        title: of its tables.
        load: a function of split and seed that returns the series. The splits are ``train`` and
            ``val`` for tuning, and ``full`` (both of them) and ``test`` for the runs.
        channels, classes: of the series.
        length: of the time axis.
        clock: whether the points are the ticks of a clock, with gaps between the observations.
        unit: mean time between two observations of a channel.
        grids: a coarser and a finer step of the grid of a model that needs one.
        dropout: of a ckcnn, with half of it at the input, and of a tcn.
        omegas: of CKCNN's kernels, a smaller and a larger one.
        steps: of a training.
    """

    title: str
    load: Callable[[str, int], Series]
    channels: int
    classes: int
    length: int
    clock: bool
    unit: float
    grids: tuple[float, float]
    dropout: float
    omegas: tuple[float, float]
    steps: int


def bursts(shape: tuple[int, ...], share: float, length: float, seed: int) -> Tensor:
    """Return which values (N, ticks, C) are observed: bursts of random lengths with gaps between.

    Bursts and gaps have geometric lengths; the first tick follows the same law as all others.

    Args:
        shape: N, ticks and C.
        share: expected share of observed values.
        length: mean ticks of a burst.
        seed: of the generator.

    Example:
        >>> found = bursts((500, 40, 2), share=0.3, length=4, seed=0)
        >>> abs(float(found.float().mean()) - 0.3) < 0.01
        True
    """
    series, ticks, channels = shape
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(ticks, series, channels, generator=generator)
    end = 1 / length
    begin = end * share / (1 - share)

    inside = draws[0] < share
    found = [inside]
    for draw in draws[1:]:
        inside = torch.where(inside, draw >= end, draw < begin)
        found.append(inside)
    return torch.stack(found, 1)


def in_bursts(dataset: str, every: int, burst: float, scale: str) -> Callable[[str, int], Series]:
    """Return the function that loads a data set of which only bursts are observed.

    Args:
        dataset: its name.
        every: n, to read every n-th sample of the files.
        burst: mean ticks of a burst.
        scale: ``"file"`` or ``"series"``, what is scaled to mean 0 and deviation 1. A series is
            scaled by its observed values.
    """

    def load(split: str, seed: int) -> Series:
        known = complete(dataset, split, every)
        # Training and test series of one seed have different bursts.
        key = 10 * seed + list(FILES).index(split)
        observed = bursts(tuple(known.values.shape), SHARE, burst, key)
        observed &= ~known.values.isnan()

        # A series without any observation could not be read.
        empty = ~observed.flatten(1).any(1)
        observed[empty, 0] = True
        values = torch.where(observed, known.values, torch.nan)
        if scale == "series":
            values = standardised(values)
        return known._replace(values=values)

    return load


FILES = {
    "train": ("train", VAL_FRACTION),
    "val": ("val", VAL_FRACTION),
    "full": ("train", 0),
    "test": ("test", 0),
}
"""Our splits to those of a data set and the share of its validation split."""


@cache
def complete(dataset: str, split: str, every: int) -> Series:
    """Return the complete series of a data set, scaled by its training file."""
    name, fraction = FILES[split]
    options: dict[str, Any] = {"every": every}
    found = data.create_dataset(dataset, name, val_fraction=fraction, options=options)
    values, labels = found.batch(range(len(found)))
    times = torch.arange(values.shape[1]).to(values.dtype).expand(len(values), -1)
    return Series(times, values, labels)


def standardised(values: Tensor) -> Tensor:
    """Scale every series to mean 0 and deviation 1 of its observed values, per channel.

    A channel with a single value, or equal ones, is only shifted.
    """
    mean = values.nanmean(1, keepdim=True)
    deviation = (values - mean).square().nanmean(1, keepdim=True).sqrt()
    deviation = torch.where(deviation > 1e-6, deviation, 1.0)
    return (values - mean) / deviation


@cache
def lagged(split: str, seed: int = 0) -> Series:
    """Return random bits at irregular times, and which of them came ``LAG`` before the last.

    Every observation is a random bit in one of two channels. The label says in which channel, and
    with which bit, something was observed exactly ``LAG`` before the last observation, which comes
    at a random time. Neither the number of observations in between nor the time since the start
    gives the answer, only the time between the two. Chance is one in four.

    ``seed`` is not used: the series are the same for all seeds.
    """
    if split == "full":
        parts = zip(lagged("train"), lagged("val"))
        return Series(*(torch.cat(pair) for pair in parts))

    count = SAMPLES[split]
    generator = torch.Generator().manual_seed(DATA_SEEDS[split])

    def uniform(low: float, high: float) -> Tensor:
        draws = torch.rand(count, POINTS, generator=generator, dtype=torch.float64)
        return low + (high - low) * draws

    apart = torch.where(uniform(0, 1) < ENDS, uniform(*GAP), uniform(*CLOSE))
    times = apart.cumsum(1) - apart[:, :1]
    bits = torch.randint(0, 2, (count, POINTS), generator=generator) * 2.0 - 1
    channels = torch.randint(0, 2, (count, POINTS), generator=generator)

    # The event is one of the observations, so that nothing but its time sets it apart. Those after
    # the end are left out, and the first of them becomes the last observation.
    rows = torch.arange(count)
    early = (times <= LATEST).double()
    early[:, -1] = 0.0
    event = torch.multinomial(early, 1, generator=generator)[:, 0]
    end = times[rows, event] + LAG
    last = (times < end[:, None]).sum(1).clamp(max=POINTS - 1)
    times[rows, last] = end
    observed = (torch.arange(POINTS) <= last[:, None])[..., None]
    seen = observed & (channels[..., None] == torch.arange(2))

    labels = 2 * channels[rows, event] + (bits[rows, event] > 0).long()
    values = torch.where(seen, bits[..., None], torch.nan)
    return Series(torch.minimum(times, end[:, None]).float(), values, labels)


TASKS = {
    "japanese-vowels": Task(
        "JapaneseVowels",
        in_bursts("japanese-vowels", every=1, burst=3, scale="file"),
        channels=12,
        classes=9,
        length=26,
        clock=True,
        unit=1 / SHARE,
        grids=(2, 1),
        dropout=0.2,
        omegas=(3.0, 10.0),
        steps=600,
    ),
    "plaid": Task(
        "PLAID",
        in_bursts("plaid", every=2, burst=15, scale="series"),
        channels=1,
        classes=11,
        length=672,
        clock=True,
        unit=1 / SHARE,
        grids=(2, 1),
        dropout=0.2,
        omegas=(30.0, 100.0),
        steps=600,
    ),
    "lag": Task(
        "Lags",
        lagged,
        channels=2,
        classes=4,
        length=64,
        clock=False,
        unit=1.5,
        grids=(0.6, 0.15),
        dropout=0.0,
        omegas=(30.0, 100.0),
        steps=400,
    ),
}
