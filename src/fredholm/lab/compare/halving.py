"""Successive halving: the rungs of a search, and the learning rates of the contenders left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import OptionError
from ..numbers import readable
from ..training.failures import TrainingFailed
from ..training.grid import Report
from .clock import FEWEST, TELLING, fitting, share_steps
from .trials import Trials

FINALISTS = 3

# Times the recipe's learning rate: what is tried for the contenders left.
RATES = (1 / 3, 3.0)

# Shares of the time left: of the first rung, of each later one, and of the learning rates.
FIRST = 0.25
LATER = 0.2
TUNING = 0.2

# Share of all the time that no rung may use.
RESERVE = 0.1

# A comparison goes on with the minutes that it was begun with alone.
AGAIN = "compare again with more --minutes and another --out"

Row = dict[str, Any]
Alive = list[tuple[str, float | None]]
"""Contenders with their learning rates, None for one without."""

Entry = tuple[str, Any, int]
"""A trial of a rung: contender, learning rate and fold."""


@dataclass
class Halving:
    """Rungs of a search, written into its ``state`` so that an interrupted search can go on.

    Attributes:
        trials: of the search.
        state: of the search; each entry of its ``rungs`` has the plan and the rows of one rung.
        say: receives lines of progress.
        save: writes the state: with each plan before its trials, and after each trial.
    """

    trials: Trials
    state: dict[str, Any]
    say: Report
    save: Callable[[], None]

    def rung(self, number: int, alive: Alive) -> Alive:
        """Try contenders on validation samples and return the better half.

        Returns no contenders if there is no time for a rung that would tell more than the last.
        """
        rungs = self.state["rungs"]
        if len(rungs) <= number:
            # An earlier call has ended the rungs and gone on to the learning rates.
            if rungs and "rates" in rungs[-1]:
                return []
            plan = self._plan_rung(number, alive)
            if plan is None:
                return []
            rungs.append(plan)
            self.save()

        # An earlier call may have ended this rung.
        rung = rungs[number]
        if "kept" in rung:
            return [(label, lr) for label, lr in rung["kept"]]

        entries = []
        for fold in rung["folds"]:
            for label, lr in alive:
                if label in rung["steps"]:
                    entries.append((label, lr, fold))
        rung["rows"] = self._try(number, entries)

        order = self._order(rung["rows"])
        half = max(FINALISTS, math.ceil(len(alive) / 2))
        # At least one contender leaves, so that the rungs come to an end.
        most = max(1, len(alive) - 1)
        kept = order[: min(half, most)]
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
        steps = rung["steps"]
        alive = [(label, lr) for label, lr in alive if label in steps]
        # The choice is saved before the trials: a search that goes on later has less time left, and
        # would decide otherwise.
        if "rates" not in rung:
            once = 0
            for label, _ in alive:
                pace = self.trials.pace(label)
                once += pace.seconds(steps[label])
            cost = len(RATES) * len(rung["folds"]) * once
            rung["rates"] = []
            if cost <= TUNING * self.trials.clock.left:
                rung["rates"] = [*RATES]
            self.save()

        # An earlier call may have ended the tuning.
        if not rung.get("tuned"):
            entries = [
                (label, lr * rate, fold)
                for rate in rung["rates"]
                for fold in rung["folds"]
                for label, lr in alive
                if lr is not None
            ]
            rung["rows"] = [*rung["rows"], *self._try(number, entries)]
            rung["tuned"] = True

        names = {label for label, _ in alive}
        rows = [row for row in rung["rows"] if row["operator"] in names]
        order = self._order(rows)
        if rung["rates"]:
            rates = ", ".join(f"{label} {lr:.2g}" for label, lr in order)
            self.say(f"learning rates: {rates} ({self.trials.clock})")
        return order

    def _try(self, number: int, entries: list[Entry]) -> list[Row]:
        """Compute the trials of a rung, as many as there is time for, and return a row for each.

        If time runs out, ``cut`` of the rung's state says how many were done. Trials of an earlier
        call are read from their folders, which takes no time. Rows enter the state only in the
        caller; after each trial it is saved for the time that the search has spent.

        Args:
            number: of the rung, from 0; it has been planned.
            entries: its trials, in the order in which they are computed.
        """
        rung = self.state["rungs"][number]
        clock = self.trials.clock
        rows = []
        for place, (label, lr, fold) in enumerate(entries, 1):
            cell = self.trials.cell(
                label,
                lr,
                rung["steps"][label],
                number,
                fold,
            )
            late = clock.left < RESERVE * 60 * clock.minutes
            if late and not self.trials.known(cell):
                rung["cut"] = f"{place - 1} of {len(entries)} trials"
                self.say(f"the time of the rung is up after {rung['cut']}")
                break
            row = {
                "operator": label,
                "lr": lr,
                "fold": fold,
                **self.trials.compute(label, cell),
            }
            rows.append(row)
            self.save()
            self.say(f"[{place}/{len(entries)}] {self.line(row)}")
        return rows

    def _plan_rung(
        self,
        number: int,
        alive: Alive,
    ) -> dict[str, Any] | None:
        """Return the plan of a rung; None if there is no time for one that would tell more than the
        last.

        Args:
            number: of the rung, from 0.
            alive: the contenders left, the best first.

        Returns:
            ``steps``, the training steps of each contender that takes part; ``folds``, the
            validation splits on which each of them is tried; ``seconds``, the time planned for all
            of these trials.
        """
        # The time may be up, and `left` negative: the plan is then for a share of one second.
        left = max(self.trials.clock.left, 1.0)
        paces = {label: self.trials.pace(label) for label, _ in alive}
        if number == 0:
            return self._plan_first(FIRST * left, paces)

        # Rungs after the first have two splits each that no rung before has used: 1 and 2, then 3
        # and 4. After the last split the first one follows, see `Splits.fold`.
        #
        # No contender gets fewer steps than in the rung before. Of the plans that allow this, the
        # first is taken: all contenders on two splits, all on one, the best few on two, on one.
        seconds = LATER * left
        before = self.state["rungs"][number - 1]["steps"]
        folds_in_turn = [[2 * number - 1, 2 * number], [2 * number]]
        if self.state["folds"] == 1:
            folds_in_turn = [[0]]
        full = self.state["full_steps"]
        for count in dict.fromkeys((len(alive), FINALISTS + 1)):
            some = {label: paces[label] for label, _ in alive[:count]}
            for folds in folds_in_turn:
                steps = share_steps(some, len(folds), seconds, full)
                if all(steps[label] >= before[label] for label in some):
                    return {
                        "steps": steps,
                        "folds": folds,
                        "seconds": seconds,
                    }
        return None

    def _plan_first(
        self,
        seconds: float,
        paces: dict[str, Any],
    ) -> dict[str, Any]:
        """Plan the first rung. The slowest contenders are left out where not all can have
        :data:`TELLING` steps.
        """
        full = self.state["full_steps"]
        telling = min(TELLING, full)
        quick = fitting(paces, 1, seconds, telling, FINALISTS)
        quick_paces = {label: paces[label] for label in quick}
        shares = share_steps(quick_paces, 1, seconds, full)
        steps = {label: count for label, count in shares.items() if count}
        if not steps:
            raise OptionError(
                f"minutes: expected time for {FEWEST} steps of an operator, got "
                f"{self.trials.clock.minutes:g}; {AGAIN}"
            )

        left_out = self.state.setdefault("left_out", {})
        for label, pace in paces.items():
            if label not in steps:
                left_out[label] = (
                    f"{telling} steps take {pace.seconds(telling):.0f} s, its share is "
                    f"{seconds / len(paces):.0f} s; {AGAIN}, or with fewer --operators"
                )
                self.say(f"{label}: left out: {left_out[label]}")
        if min(steps.values()) < telling:
            self.say(f"fewer than {telling} steps each tell little: {AGAIN}")
        return {
            "steps": steps,
            "folds": [0],
            "seconds": seconds,
        }

    def _order(self, rows: Iterable[Row]) -> Alive:
        """Return the contenders of some rows, each at its best learning rate, the best first.

        Raises:
            TrainingFailed: every row has an error.
            OptionError: there are no rows.
        """
        groups: dict[tuple[str, Any], list[Row]] = {}
        errors = []
        for row in rows:
            if "error" in row:
                errors.append(row["error"])
                continue
            entry = (row["operator"], row["lr"])
            groups.setdefault(entry, []).append(row)
        if not groups and errors:
            raise TrainingFailed(f"{self.trials.task.name}: every trial failed: {errors[0]}")
        if not groups:
            raise OptionError(
                f"minutes: expected time for one trial, got {self.trials.clock.minutes:g}; {AGAIN}"
            )

        # Sorting is stable: of equal rates and of equal contenders the first one stays first.
        merits = {entry: self._merit(rows) for entry, rows in groups.items()}
        ranked = sorted(merits, key=merits.__getitem__, reverse=True)
        best: dict[str, float | None] = {}
        for label, lr in ranked:
            best.setdefault(label, lr)
        return list(best.items())

    def _merit(self, rows: list[Row]) -> tuple[float, float]:
        """Return the mean score and the mean loss of trials, signed so that larger is better."""
        score = statistics.fmean(row["val"]["score"] for row in rows)
        loss = statistics.fmean(row["val"]["loss"] for row in rows)
        if not self.state["higher"]:
            score = -score
        return score, -loss

    def best_rate(self, label: str) -> float:
        """Return the learning rate at which a contender was best in the last rung that tried it."""
        for rung in reversed(self.state["rungs"]):
            rows = []
            for row in rung["rows"]:
                if row["operator"] == label and "error" not in row:
                    rows.append(row)
            if rows:
                best = max(rows, key=lambda row: self._merit([row]))
                return best["lr"]
        return self.state["lr"]

    def line(self, row: Row) -> str:
        """Return a line about the result of a trial."""
        what = row["operator"]
        if row["lr"] is not None:
            what += f" lr {row['lr']:.2g}"
        clock = self.trials.clock
        if "error" in row:
            return f"{what}: failed: {row['error']} ({clock})"
        score = f"val {self.state['measure']} {readable(row['val']['score'])}"

        # A method beside the operators is fitted without training steps.
        took = f"fitted in {row['seconds']:.1f} s"
        if row["steps"]:
            took = f"{row['steps']} steps in {row['seconds']:.1f} s"
        return f"{what}: {score}, {took} ({clock})"
