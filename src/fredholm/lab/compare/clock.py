"""The time of a search: how much is left, and how many steps each contender gets of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import OptionError

FEWEST = 10  # steps, below which nothing is tried at all
TELLING = 100  # steps, from which a training tells contenders apart
SLOWEST = 4.0  # times its equal share that a trial may take
OVERHEAD = 0.3  # seconds of a trial that are no step


@dataclass
class Clock:
    """Seconds of a search, over all calls that went on with it.

    Attributes:
        minutes: that there are.
        before: seconds of earlier calls.
        timer: what tells the time; ``time.process_time`` counts this process's own alone, on a
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
            raise OptionError(f"minutes: received {self.minutes}; needs a positive number")
        self.begun = self.timer()

    @property
    def spent(self) -> float:
        return self.before + self.timer() - self.begun

    @property
    def left(self) -> float:
        return 60 * self.minutes - self.spent

    @property
    def alone(self) -> bool:
        """Whether it counts this process's time alone."""
        return self.timer is time.process_time

    def __str__(self) -> str:
        return f"{self.spent / 60:.1f} of {self.minutes:g} min"


@dataclass(frozen=True)
class Pace:
    """Seconds that a contender takes for a training step, and beside the steps of a trial."""

    step: float
    judging: float = 0.0

    def seconds(self, steps: int) -> float:
        return steps * self.step + self.judging + OVERHEAD


def fitting(
    paces: Mapping[str, Pace], trials: int, seconds: float, steps: int, least: int
) -> list[str]:
    """The quickest contenders of which ``trials`` with so many steps fit in the seconds together,
    none of them beyond :data:`SLOWEST` equal shares; the ``least`` quickest in any case.

    Example:
        >>> fitting({"a": Pace(0.1), "b": Pace(100.0), "c": Pace(0.2)}, 1, 40.0, 100, 1)
        ['a', 'c']
    """
    cap, spent, chosen = SLOWEST * seconds / max(1, len(paces)), 0.0, []
    for name in sorted(paces, key=lambda name: paces[name].seconds(steps)):
        cost = trials * paces[name].seconds(steps)
        spent += cost
        if len(chosen) >= least and (spent > seconds or cost > cap):
            break
        chosen.append(name)
    return [name for name in paces if name in chosen]


def share_steps(
    paces: Mapping[str, Pace], trials: int, seconds: float, most: int
) -> dict[str, int]:
    """Steps of each contender, so that ``trials`` of every one of them fit in the seconds.

    All get the same number, up to ``most``, but for those that would take more than
    :data:`SLOWEST` equal shares: they get what fits in these. 0: not even :data:`FEWEST` do.

    Example:
        >>> share_steps({"a": Pace(0.1), "b": Pace(0.1)}, 1, 20.6, 1000)
        {'a': 100, 'b': 100}
        >>> share_steps({"a": Pace(0.1), "b": Pace(100.0)}, 1, 20.6, 1000)["b"]
        0
    """
    cap = SLOWEST * seconds / max(1, len(paces) * trials)

    def within(name: str, steps: int) -> int:
        pace = paces[name]
        fits = int((cap - pace.judging - OVERHEAD) / pace.step + 1e-9)
        return 0 if fits < FEWEST else max(FEWEST, min(steps, fits))

    def cost(steps: int) -> float:
        chosen = {name: within(name, steps) for name in paces}
        return trials * sum(paces[name].seconds(n) for name, n in chosen.items() if n)

    low, high = min(FEWEST, most), most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= seconds + 1e-9 else (low, middle - 1)
    return {name: min(most, within(name, low)) for name in paces}


def rounds_of(paces: Mapping[str, Pace], steps: Mapping[str, int]) -> float:
    """Seconds of one trial of each contender."""
    return sum(paces[name].seconds(count) for name, count in steps.items())
