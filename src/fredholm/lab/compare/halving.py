"""Rungs of successive halving: the steps that each contender is tried with, and those kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import OptionError
from ..training.failures import TrainingFailed
from ..training.grid import Report
from .clock import FEWEST, TELLING, fitting, share_steps
from .trials import Trials

FINALISTS = 3
RATES = (1 / 3, 3.0)  # times the recipe's learning rate, for those that are left
SHARES = (0.25, 0.2)  # of the time left, for the first rung and for each later one
TUNING = 0.2  # of the time left, for other learning rates
RESERVE = 0.1  # of all the time, that no rung may use
Row = dict[str, Any]
Alive = list[tuple[str, float | None]]  # contenders and their rates; None: without one


@dataclass
class Halving:
    """Rungs of a search, kept in its ``state`` so that an interrupted search can go on.

    Attributes:
        trials: of the search.
        state: of the search; each entry of its ``rungs`` has the plan and the rows of one rung.
        say: receives lines of progress.
        save: writes the state, with each plan before its trials, and after each trial.
    """

    trials: Trials
    state: dict[str, Any]
    say: Report
    save: Callable[[], None]

    def rung(self, number: int, alive: Alive) -> Alive:
        """Try contenders on validation; the better half, or nobody where there is no time for a
        rung that would tell more than the last one.
        """
        rungs = self.state["rungs"]
        if len(rungs) <= number:
            over = bool(rungs) and "rates" in rungs[-1]  # an earlier call went on to tune
            plan = {"steps": {}} if over else self._plan_rung(number, alive)
            if not plan["steps"]:
                return []
            rungs.append(plan)
            self.save()
        rung = rungs[number]
        if "kept" in rung:  # an earlier call has ended it
            return [(label, lr) for label, lr in rung["kept"]]
        trials = [
            (label, lr, fold)
            for fold in rung["folds"]
            for label, lr in alive
            if label in rung["steps"]
        ]
        rung["rows"] = self._tried(number, trials)
        order = self._order(self._found(rung["rows"]))
        keep = max(FINALISTS, math.ceil(len(alive) / 2))
        kept = order[: min(keep, max(1, len(alive) - 1))]
        rung["kept"] = [[label, lr] for label, lr in kept]
        names = ", ".join(label for label, _ in kept)
        self.say(f"rung {number + 1}: kept {names} ({self.trials.clock})")
        return kept

    def tune(self, alive: Alive) -> Alive:
        """Try other learning rates; return the contenders, each at its best rate, the best first.

        A rate is tried with the steps and on the folds of the last rung, whose own trials stand for
        the present rate. If there is no time for this, the rates stay as they are. A contender
        without a learning rate (None) only takes its place in the order.
        """
        number = len(self.state["rungs"]) - 1
        rung = self.state["rungs"][number]

        # A contender that the last rung had no time for has no trial to compare with.
        alive = [(label, lr) for label, lr in alive if label in rung["steps"]]

        # The choice is saved before the trials: a search that goes on later has less time left, and
        # would decide otherwise.
        if "rates" not in rung:
            once = sum(self.trials.pace(n).seconds(rung["steps"][n]) for n, _ in alive)
            cost = len(RATES) * len(rung["folds"]) * once
            affordable = cost <= TUNING * self.trials.clock.left
            rung["rates"] = [*RATES] if affordable else []
            self.save()

        trials = [
            (label, lr * rate, fold)
            for rate in rung["rates"]
            for fold in rung["folds"]
            for label, lr in alive
            if lr is not None
        ]
        if not rung.get("tuned"):  # an earlier call may have ended it
            rung["rows"] = [*rung["rows"], *self._tried(number, trials)]
            rung["tuned"] = True

        names = {label for label, _ in alive}
        order = self._order(self._found(row for row in rung["rows"] if row["operator"] in names))
        if rung["rates"]:
            rates = ", ".join(f"{label} {lr:.2g}" for label, lr in order)
            self.say(f"learning rates: {rates} ({self.trials.clock})")
        return order

    def _tried(self, number: int, trials: list[tuple[str, Any, int]]) -> list[Row]:
        """The rows of trials of a rung, as many as there is time for."""
        rung, rows, clock = self.state["rungs"][number], [], self.trials.clock
        for place, (label, lr, fold) in enumerate(trials, 1):
            cell = self.trials.cell(label, lr, rung["steps"][label], number, fold)
            late = clock.left < RESERVE * 60 * clock.minutes
            if late and not self.trials.known(cell):
                rung["cut"] = f"{place - 1} of {len(trials)} trials"
                self.say(f"the time of the rung is up after {rung['cut']}")
                break
            row = {"operator": label, "lr": lr, "fold": fold} | self.trials.compute(label, cell)
            rows.append(row)
            self.save()
            self.say(f"[{place}/{len(trials)}] {self.line(row)}")
        return rows

    def _plan_rung(self, number: int, alive: Alive) -> dict[str, Any]:
        """Steps of each contender. The first rung leaves out the slowest, where not all can have
        :data:`TELLING` steps; a later one has no fewer steps than the one before it, on two
        validation splits if there is time, and else on one, or of fewer contenders.
        """
        full, left = self.state["full_steps"], max(self.trials.clock.left, 1.0)
        paces = {label: self.trials.pace(label) for label, _ in alive}
        seconds = SHARES[min(number, len(SHARES) - 1)] * left
        if number:
            before = self.state["rungs"][number - 1]["steps"]
            for count in dict.fromkeys((len(alive), FINALISTS + 1)):
                some = {label: paces[label] for label, _ in alive[:count]}
                for folds in self._folds(number):
                    steps = share_steps(some, len(folds), seconds, full)
                    if all(steps[label] >= before[label] for label in some):
                        return {"steps": steps, "folds": folds, "seconds": seconds}
            return {"steps": {}}
        telling = min(TELLING, full)
        quick = fitting(paces, 1, seconds, telling, FINALISTS)
        steps = share_steps({label: paces[label] for label in quick}, 1, seconds, full)
        steps = {label: count for label, count in steps.items() if count}
        if not steps:
            raise OptionError(
                f"minutes: received {self.trials.clock.minutes:g}; {FEWEST} steps of no operator "
                "fit in a share of them, give more"
            )
        for label in paces:
            if label not in steps:
                need, each = paces[label].seconds(telling), seconds / len(paces)
                self.say(
                    f"{label}: left out, {telling} of its steps take {need:.0f} s where a share is "
                    f"{each:.0f} s; give more minutes, or name it among fewer --operators"
                )
        if min(steps.values()) < telling:
            self.say(f"fewer than {telling} steps each tell little: give more minutes")
        return {"steps": steps, "folds": [0], "seconds": seconds}

    def _folds(self, number: int) -> list[list[int]]:
        """On which validation splits a later rung may be judged, the most first."""
        if self.state["folds"] == 1:
            return [[0]]
        return [[2 * number - 1, 2 * number], [2 * number]]

    def _found(self, rows: Iterable[Row]) -> dict[tuple[str, float], list[Row]]:
        """Rows by contender and learning rate."""
        found: dict[tuple[str, float], list[Row]] = {}
        for row in rows:
            found.setdefault((row["operator"], row["lr"]), []).append(row)
        return found

    def _order(self, found: dict[tuple[str, float], list[Row]]) -> Alive:
        """Contenders, each at its best rate, the best one first."""
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
        return [(label, best[label][1]) for label in order]

    def _key(self, rows: list[Row]) -> tuple[float, float]:
        sign = 1 if self.state["higher"] else -1
        score = statistics.fmean(row["val"]["score"] for row in rows)
        return sign * score, -statistics.fmean(row["val"]["loss"] for row in rows)

    def best_rate(self, label: str) -> float:
        """The learning rate at which a contender was best in the last rung that tried it."""
        for rung in reversed(self.state["rungs"]):
            rows = [r for r in rung["rows"] if r["operator"] == label and "error" not in r]
            if rows:
                return max(rows, key=lambda row: self._key([row]))["lr"]
        return self.state["lr"]

    def line(self, row: Row) -> str:
        """What came of a trial."""
        rate = "" if row["lr"] is None else f" lr {row['lr']:.2g}"
        what = f"{row['operator']}{rate}"
        if "error" in row:
            return f"{what}: failed: {row['error']} ({self.trials.clock})"
        measure, after = self.state["measure"], f"in {row['seconds']:.1f} s ({self.trials.clock})"
        return f"{what}: val {measure} {row['val']['score']:.4g}, {row['steps']} steps {after}"
