"""Series observed at irregular times: JapaneseVowels and PLAID in bursts, and a task of lags.

A series lies on the ticks of a clock. Each channel is observed at its own ticks, in bursts with long
gaps between them, so that most ticks have no observation at all. There is no coarser clock on which
the observations are regular.
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
EQUAL_STEPS, EQUAL_TIME = "equal steps", "equal time"
SHARE = 0.3
"""Share of the values that are observed."""
VAL_FRACTION = 0.25
"""Share of the training files on which settings are chosen; the runs train on all of them."""

# --- the task of lags -----------------------------------------------------------------------------

TICKS, LAG = 240, 100
"""Ticks of the clock, and the lag of the answer."""
LAG_BURST, LAG_SHARE, DENSITY = 12, 0.5, SHARE / 0.5
"""Mean ticks of a burst, the share of ticks in bursts, and that of the observed ticks in them."""
SAMPLES = {"train": 4_000, "val": 500, "test": 1_000}
DATA_SEEDS = {"train": 11, "val": 12, "test": 13}


class Series(NamedTuple):
    """Series observed at irregular times.

    Attributes:
        values: (N, ticks, C), NaN where a channel is not observed and behind the last tick.
        labels: (N,), classes.
    """

    values: Tensor
    labels: Tensor

    def batch(self, indices: Tensor) -> Series:
        """Return some of the series, without the ticks behind the last observation of them all."""
        values = self.values[indices]
        observed = (~values.isnan()).any(-1).any(0)
        last = int(observed.nonzero().max())
        return Series(values[:, : last + 1], self.labels[indices])


@dataclass(frozen=True)
class Task:
    """A task and the settings of its runs.

    Attributes:
        title: of its tables.
        load: a function of split and seed that returns the series. The splits are ``train`` and
            ``val`` for tuning, and ``full`` (both of them) and ``test`` for the runs.
        channels, classes, length: of the series; length is the number of ticks.
        omegas: of CKCNN's kernels, a smaller and a larger one.
        steps: of a training.
    """

    title: str
    load: Callable[[str, int], Series]
    channels: int
    classes: int
    length: int
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
        return Series(values, known.labels)

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
    return Series(values, labels)


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
    """Return random bits at irregular times, and which of them came ``LAG`` ticks before the last.

    Every observation is a random bit in one of two channels. The label says in which channel, and
    with which bit, something was observed exactly ``LAG`` ticks before the last observation, which
    comes at a random tick. Neither the number of observations in between nor the time since the
    start gives the answer, only the time between the two. Chance is one in four.

    ``seed`` is not used: the series are the same for all seeds.
    """
    if split == "full":
        parts = [lagged("train"), lagged("val")]
        return Series(
            torch.cat([one.values for one in parts]), torch.cat([one.labels for one in parts])
        )

    count, key = SAMPLES[split], DATA_SEEDS[split]
    generator = torch.Generator().manual_seed(key)
    inside = bursts((count, TICKS, 1), LAG_SHARE, LAG_BURST, key)[..., 0]
    observed = inside & (torch.rand(count, TICKS, generator=generator) < DENSITY)
    bits = torch.randint(0, 2, (count, TICKS), generator=generator) * 2.0 - 1
    channels = torch.randint(0, 2, (count, TICKS), generator=generator)

    # The event is one of the observations, so that nothing but its time sets it apart.
    early = observed[:, : TICKS - LAG].double()
    early[~early.any(1), 0] = 1.0
    event = torch.multinomial(early, 1, generator=generator)[:, 0]
    rows = torch.arange(count)
    observed[rows, event] = True
    observed[rows, event + LAG] = True
    observed &= torch.arange(TICKS) <= event[:, None] + LAG

    labels = 2 * channels[rows, event] + (bits[rows, event] > 0).long()
    seen = observed[..., None] & (channels[..., None] == torch.arange(2))
    return Series(torch.where(seen, bits[..., None], torch.nan), labels)


TASKS = {
    "japanese-vowels": Task(
        "JapaneseVowels",
        in_bursts("japanese-vowels", every=1, burst=3, scale="file"),
        channels=12,
        classes=9,
        length=26,
        omegas=(3.0, 10.0),
        steps=400,
    ),
    "plaid": Task(
        "PLAID",
        in_bursts("plaid", every=2, burst=15, scale="series"),
        channels=1,
        classes=11,
        length=672,
        omegas=(30.0, 100.0),
        steps=600,
    ),
    "lag": Task(
        "Lags", lagged, channels=2, classes=4, length=TICKS, omegas=(30.0, 100.0), steps=600
    ),
}
