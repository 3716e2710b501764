"""Rungs of successive halving: who is tried with how many steps, and who is kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import OptionError
from ..failures import TrainingFailed
from ..grid import Cell, Report
from .clock import FEWEST, share_steps
from .trials import Trials

FINALISTS = 3
RATES = (1 / 3, 1.0, 3.0)  # times the recipe's learning rate
SHARES = (0.25, 0.25)  # of the time left, for the first rung and for each later one
ENOUGH = 30  # steps, from which several learning rates are tried
RESERVE = 0.1  # of all the time, that no rung may use
Row = dict[str, Any]
Alive = list[tuple[str, float | None]]  # contenders and their rates; None: not yet chosen


@dataclass
class Halving:
    """The rungs of a search, written into its ``state``."""

    trials: Trials
    state: dict[str, Any]
    say: Report

    def rung(self, number: int, alive: Alive) -> Alive:
        """Try contenders on validation, each at its learning rate or at all; the better half with
        their rates.
        """
        while len(self.state["rungs"]) <= number:
            self.state["rungs"].append(self._plan_rung(number, alive))
        rung, found = self.state["rungs"][number], {}
        if not rung["steps"]:
            return []
        cells = list(self._rung_cells(number, rung, alive))
        for place, (label, lr, cell) in enumerate(cells, 1):
            if (
                self.trials.clock.left < RESERVE * 60 * self.trials.clock.minutes
                and not self.trials.known(cell)
            ):
                rung["cut"] = f"{place - 1} of {len(cells)} trials"
                self.say(f"the time of the rung is up after {rung['cut']}")
                break
            row = {"operator": label, "lr": lr, "fold": cell.settings["fold"]}
            row |= self.trials.compute(cell)
            found.setdefault((label, lr), []).append(row)
            self.say(f"[{place}/{len(cells)}] {self.line(row)}")
        rung["rows"] = [row for rows in found.values() for row in rows]
        kept = self._better_half(found, len(alive))
        rung["kept"] = [[label, lr] for label, lr in kept]
        names = ", ".join(f"{label} (lr {lr:.2g})" for label, lr in kept)
        self.say(f"rung {number + 1}: kept {names} ({self.trials.clock})")
        return kept

    @property
    def _late(self) -> bool:
        clock = self.trials.clock
        return clock.left < RESERVE * 60 * clock.minutes

    def _plan_rung(self, number: int, alive: Alive) -> dict[str, Any]:
        """Steps of each contender, and the learning rates of the first rung: the recipe's alone,
        where there is not time for :data:`ENOUGH` steps at all of them.
        """
        paces = {label: self.trials.pace(label) for label, _ in alive}
        seconds = SHARES[min(number, len(SHARES) - 1)] * max(self.trials.clock.left, 1.0)
        rates, steps = [1.0], {}
        for rates in ([*RATES], [1.0]) if alive[0][1] is None else ([1.0],):
            trials = len(self._folds(number)) * len(rates)
            steps = share_steps(paces, trials, seconds, self.state["full_steps"])
            if max(steps.values()) >= min(ENOUGH, self.state["full_steps"]):
                break
        for label in [label for label, count in steps.items() if not count]:
            step = self.trials.sizes[label]["step"]
            self.say(f"{label}: left out, {FEWEST} steps of {step:.1f} s do not fit in its share")
        if not any(steps.values()) and number == 0:
            raise OptionError(
                f"minutes: received {self.trials.clock.minutes:g}; {FEWEST} steps of no operator "
                "fit in a share of them, give more"
            )
        kept = {label: count for label, count in steps.items() if count}
        return {"steps": kept, "rates": rates, "seconds": seconds}

    def _folds(self, number: int) -> list[int]:
        """Which validation splits a rung is judged on."""
        return [0] if number == 0 or self.state["folds"] == 1 else [2 * number - 1, 2 * number]

    def _rung_cells(
        self, number: int, rung: dict[str, Any], alive: Alive
    ) -> Iterator[tuple[str, float, Cell]]:
        """The trials of a rung, the recipe's own learning rate first."""
        for rate in sorted(rung["rates"], key=lambda rate: abs(math.log(rate))):
            for fold in self._folds(number):
                for label, own in alive:
                    if label in rung["steps"]:
                        lr = self.state["lr"] * rate if own is None else own
                        steps = rung["steps"][label]
                        yield label, lr, self.trials.cell(label, lr, steps, number, fold)

    def _better_half(self, found: dict[Any, list[Row]], count: int) -> Alive:
        """The best contenders, each at its best rate, the best one first."""
        best: dict[str, tuple[Any, float]] = {}
        for (label, lr), rows in found.items():
            good = [row for row in rows if "error" not in row]
            if good:
                key = self._key(good)
                if label not in best or key > best[label][0]:
                    best[label] = (key, lr)
        if not best:
            failed = next((row["error"] for rows in found.values() for row in rows), None)
            if failed is None:
                raise OptionError(
                    f"minutes: received {self.trials.clock.minutes:g}; no trial came to its end "
                    "in them, give more"
                )
            raise TrainingFailed(f"{self.trials.task.name}: every trial failed: {failed}")
        order = sorted(best, key=lambda label: best[label][0], reverse=True)
        keep = max(FINALISTS, math.ceil(count / 2))
        return [(label, best[label][1]) for label in order[: min(keep, max(1, count - 1))]]

    def _key(self, rows: list[Row]) -> tuple[float, float]:
        sign = 1 if self.state["higher"] else -1
        score = statistics.fmean(row["val"]["score"] for row in rows)
        return sign * score, -statistics.fmean(row["val"]["loss"] for row in rows)

    def best_rate(self, label: str) -> float:
        """The learning rate at which a contender was best in the first rung."""
        rows = [r for r in self.state["rungs"][0]["rows"] if r["operator"] == label]
        good = [row for row in rows if "error" not in row]
        return max(good, key=lambda row: self._key([row]))["lr"] if good else self.state["lr"]

    def line(self, row: Row) -> str:
        """What came of a trial."""
        rate = "" if row["lr"] is None else f" lr {row['lr']:.2g}"
        what = f"{row['operator']}{rate}"
        if "error" in row:
            return f"{what}: failed: {row['error']} ({self.trials.clock})"
        measure, after = self.state["measure"], f"in {row['seconds']:.1f} s ({self.trials.clock})"
        return f"{what}: val {measure} {row['val']['score']:.4g}, {row['steps']} steps {after}"
