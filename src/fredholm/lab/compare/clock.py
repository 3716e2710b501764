"""Time of a search: how much is left, and how many training steps each contender gets of it."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import OptionError

# Steps below which a trial is not worth starting.
FEWEST = 10

# Steps from which a training tells contenders apart.
TELLING = 100

# A trial may take at most this many times its equal share of the time.
SLOWEST = 4.0

# Seconds of a trial that are spent neither on steps nor on judging.
OVERHEAD = 0.3


@dataclass
class Clock:
    """Seconds of a search, over all calls that continued it.

    Attributes:
        minutes: the time of the search.
        before: seconds that earlier calls spent.
        timer: returns seconds. ``time.process_time`` counts only those of this process, for a
            machine that others use as well.

    Raises:
        OptionError: no minutes.

    Example:
        >>> clock = Clock(minutes=2.0, before=30.0)
        >>> 89 < clock.left <= 90
        True
    """

    minutes: float
    before: float = 0.0
    timer: Callable[[], float] = time.perf_counter
    begun: float = field(init=False)

    def __post_init__(self) -> None:
        if not (self.minutes > 0 and math.isfinite(self.minutes)):
            raise OptionError(
                f"minutes: expected a positive number, got {self.minutes}; give more time"
            )
        self.begun = self.timer()

    @property
    def spent(self) -> float:
        """Seconds spent so far."""
        return self.before + self.timer() - self.begun

    @property
    def left(self) -> float:
        """Seconds left, negative once the time is up."""
        return 60 * self.minutes - self.spent

    @property
    def alone(self) -> bool:
        """Whether it counts only this process's time."""
        return self.timer is time.process_time

    def __str__(self) -> str:
        return f"{self.spent / 60:.1f} of {self.minutes:g} min"


@dataclass(frozen=True)
class Pace:
    """Seconds of a contender's training step, and of judging one trial."""

    step: float
    judging: float = 0.0

    def seconds(self, steps: int) -> float:
        """Return the seconds of a trial."""
        return steps * self.step + self.judging + OVERHEAD


def fitting(
    paces: Mapping[str, Pace],
    trials: int,
    seconds: float,
    steps: int,
    least: int,
) -> list[str]:
    """Return the quickest contenders whose ``trials`` of ``steps`` steps fit in the seconds.

    None of them takes more than :data:`SLOWEST` equal shares. The ``least`` quickest are returned
    whether they fit or not.

    Example:
        >>> fitting({"a": Pace(0.1), "b": Pace(100.0), "c": Pace(0.2)}, 1, 40.0, 100, 1)
        ['a', 'c']
    """
    cap = SLOWEST * seconds / max(1, len(paces))
    costs = {}
    for name, pace in paces.items():
        costs[name] = trials * pace.seconds(steps)
    spent = 0.0
    chosen = set()
    for name in sorted(costs, key=costs.__getitem__):
        cost = costs[name]
        spent += cost
        too_slow = spent > seconds or cost > cap
        if too_slow and len(chosen) >= least:
            break
        chosen.add(name)
    return [name for name in paces if name in chosen]


def share_steps(
    paces: Mapping[str, Pace],
    trials: int,
    seconds: float,
    most: int,
) -> dict[str, int]:
    """Return the steps of each contender with which ``trials`` of all of them fit in the seconds.

    All get the same number, at most ``most``, except those that would take more than
    :data:`SLOWEST` equal shares: they get what fits in these, and 0 where that is less than
    :data:`FEWEST`.

    Example:
        >>> share_steps({"a": Pace(0.1), "b": Pace(0.1)}, 1, 20.6, 1000)
        {'a': 100, 'b': 100}
        >>> share_steps({"a": Pace(0.1), "b": Pace(100.0)}, 1, 20.6, 1000)["b"]
        0
    """
    # A small allowance, so that a rounding error never costs a step.
    rounding = 1e-9
    cap = SLOWEST * seconds / max(1, len(paces) * trials)
    fits = {}
    for name, pace in paces.items():
        stepping = cap - pace.judging - OVERHEAD
        fits[name] = int(stepping / pace.step + rounding)

    def limited(steps: int) -> dict[str, int]:
        """Return the steps of those that can have :data:`FEWEST`."""
        able = {}
        for name, count in fits.items():
            if count >= FEWEST:
                able[name] = max(FEWEST, min(steps, count))
        return able

    def cost(steps: int) -> float:
        return trials * rounds_of(paces, limited(steps))

    # The largest common number of steps that fits; the smallest is taken whether it fits or not.
    fewest = min(FEWEST, most)
    larger = range(fewest + 1, most + 1)
    common = fewest + bisect_right(larger, seconds + rounding, key=cost)
    steps = limited(common)
    return {name: min(most, steps.get(name, 0)) for name in paces}


def rounds_of(
    paces: Mapping[str, Pace],
    steps: Mapping[str, int],
) -> float:
    """Return the seconds of one trial of each contender."""
    return sum(paces[name].seconds(count) for name, count in steps.items())
