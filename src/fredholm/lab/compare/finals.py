"""Finalists of a search: how many, with how many seeds and steps, and their trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..training.grid import Cell
from .clock import FEWEST, rounds_of, share_steps
from .halving import FINALISTS, Alive, Halving, Row
from .plain import PLAIN, serves
from .trials import FINAL, Trials

# Share of the time left that the finalists may take.
LAST = 0.9


class Plan(NamedTuple):
    """How many finalists are trained.

    Attributes:
        finalists: at most.
        seeds: that must fit in the time; None: all.
        share: of a whole training that each finalist must then reach.
    """

    finalists: int
    seeds: int | None
    share: float


# The first plan that fits is taken. The last one always does: it trains few finalists for as long
# as there is time.
PLANS = (
    Plan(FINALISTS, None, 0.5),
    Plan(FINALISTS, 3, 0.5),
    Plan(2, 3, 0.5),
    Plan(2, 3, 0.25),
    Plan(2, 2, 0.25),
    Plan(2, 1, 0.0),
)


@dataclass
class Finals:
    """Last trainings of a search, which they write into its ``state``.

    Attributes:
        trials, halving: of the search.
        state: of the search.
        say: receives lines of progress.
        save: writes the state.
    """

    trials: Trials
    halving: Halving
    state: dict[str, Any]
    say: Callable[[str], object]
    save: Callable[[], None]

    def run(
        self,
        alive: Alive,
        seeds: int,
        always: Sequence[str],
    ) -> None:
        """Train finalists seed by seed and judge them on validation and test.

        They are the best of ``alive``, those named in ``always``, and the methods beside the
        operators. The methods are fitted first, so that their time is known when the steps are
        shared. One that draws nothing has one row per fold, however many seeds there are.
        """
        finals = self.state["finals"]
        plain = self._beside()
        rows = {}
        for row in finals["rows"]:
            # Earlier versions repeated such a row for each further seed.
            if not self.trials.repeats(row["operator"], row["seed"]):
                rows[row["operator"], row["seed"]] = row
        spent = self.trials.clock.spent
        self._round(plain, {}, 0, rows)
        if "plain_seconds" not in finals:
            finals["plain_seconds"] = self.trials.clock.spent - spent

        # A saved plan stays: a search that goes on later has less time and would plan otherwise.
        if not finals["steps"]:
            finals["steps"] = self._plan(alive, seeds, always)
            self.save()
        steps = finals["steps"]

        # Finalists named in ``always`` may have left the rungs early.
        rates = {label: lr for label, lr in alive if lr is not None}
        for label in steps:
            if label not in rates:
                rates[label] = self.halving.best_rate(label)
        entrants: Alive = []
        paces = {}
        for label in steps:
            entrants.append((label, rates[label]))
            paces[label] = self.trials.pace(label, test=True)
        entrants += plain

        for seed in range(seeds):
            new = [entry for entry in entrants if not self.trials.repeats(entry[0], seed)]
            cells = [self.cell(label, lr, steps, seed) for label, lr in new]
            needed = rounds_of(paces, steps) + finals["plain_seconds"]
            late = needed > self.trials.clock.left
            if seed and late and not all(map(self.trials.known, cells)):
                self.say(f"the time is up after {seed} of {seeds} seeds ({self.trials.clock})")
                break
            self._round(new, steps, seed, rows)

    def _beside(self) -> Alive:
        """Return the methods beside the operators that can read the samples.

        A pretrained start that is missing, or would take too long, is left out; the state's
        ``left_out`` says why.
        """
        splits = self.trials.splits
        left_out = self.state.setdefault("left_out", {})
        tried = {row["operator"] for row in self.state["finals"]["rows"]}

        chosen = []
        for name, method in PLAIN.items():
            if serves(name, splits.train) is not None:
                continue
            start = method.start

            # A start that an earlier call has tried is read from its files.
            if start is not None and name not in tried:
                parts = (splits.train, splits.val, splits.test)
                why = start.missing() or start.late(parts, self.trials.clock)
                if why is not None:
                    left_out[name] = why
                    self.say(f"{name}: left out: {why}")
                    continue
                left_out.pop(name, None)
            if name not in left_out:
                chosen.append((name, None))
        return chosen

    def _plan(
        self,
        alive: Alive,
        seeds: int,
        always: Sequence[str],
    ) -> dict[str, int]:
        """Return the finalists and their steps by the first of :data:`PLANS` that fits.

        Seeds and finalists are given up before training is. No finalist gets fewer steps than a
        rung gave it.
        """
        full = self.state["full_steps"]
        sizes = self.state["sizes"]
        left = max(self.trials.clock.left, 1.0)
        able = []
        for name in always:
            if name in sizes and "refused" not in sizes[name]:
                able.append(name)

        steps: dict[str, int] = {}
        for plan in PLANS:
            rounds = min(seeds, plan.seeds or seeds)
            chosen = [label for label, _ in alive[: plan.finalists]]
            finalists = dict.fromkeys([*chosen, *able])
            paces = {label: self.trials.pace(label, test=True) for label in finalists}
            # The methods beside the operators have had their first seed already.
            beside = (rounds - 1) * self.state["finals"]["plain_seconds"]
            seconds = max(1.0, LAST * left - beside)
            steps = share_steps(paces, rounds, seconds, full)
            least = plan.share * full
            if all(steps[label] >= least for label in chosen):
                break

        rungs = self.state["rungs"]
        result = {}
        for label, count in steps.items():
            before = [rung["steps"].get(label, 0) for rung in rungs]
            result[label] = max(count, FEWEST, *before)
        return result

    def cell(
        self,
        label: str,
        lr: float | None,
        steps: dict[str, int],
        seed: int,
    ) -> Cell:
        """Return the trial of a finalist with one of the seeds."""
        return self.trials.cell(
            label,
            lr,
            steps.get(label, 0),
            FINAL,
            seed,
            seed=seed,
        )

    def _round(
        self,
        entrants: Alive,
        steps: dict[str, int],
        seed: int,
        rows: dict[tuple[str, int], Row],
    ) -> None:
        """Train each entrant with one seed, and add the results to ``rows``."""
        for label, lr in entrants:
            new = (label, seed) not in rows
            cell = self.cell(label, lr, steps, seed)
            result = self.trials.compute(label, cell)
            row = {
                "operator": label,
                "lr": lr,
                "seed": seed,
                **result,
            }
            rows[label, seed] = row
            self.save()
            if new:
                self.say(f"final, seed {seed}: {self.halving.line(row)}")
        self.state["finals"]["rows"] = list(rows.values())
        self.save()
