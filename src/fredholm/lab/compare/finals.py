"""The finalists of a search: how many, with how many seeds and steps, and their trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .clock import FEWEST, rounds_of, share_steps
from .halving import FINALISTS, Alive, Halving, Row
from .plain import PLAIN, serves
from .trials import FINAL, Trials

LAST = 0.9  # of the time left, for the finalists
# Finalists, the seeds that must fit (None: all), and the share of a whole training that each must
# reach then: the first that does; else few are trained as long as there is time.
PLANS = (
    (FINALISTS, None, 0.5), (FINALISTS, 3, 0.5), (2, 3, 0.5), (2, 3, 0.25), (2, 2, 0.25),
    (2, 1, 0.0),
)  # fmt: skip


@dataclass
class Finals:
    """The last trainings, written into the search's ``state``.

    Attributes:
        trials, halving: of the search.
        state, say, save: what it holds, who hears lines of progress, and what writes it.
    """

    trials: Trials
    halving: Halving
    state: dict[str, Any]
    say: Callable[[str], object]
    save: Callable[[], None]

    def run(self, alive: Alive, seeds: int, always: Sequence[str]) -> None:
        """Train finalists seed by seed and judge them on the test split too: the best of
        ``alive``, those that are ``always``, and the methods beside the operators, which come first
        so that the time that they take is known.
        """
        finals, plain = self.state["finals"], self._beside()
        rows = {(row["operator"], row["seed"]): row for row in finals["rows"]}
        spent = self.trials.clock.spent
        self._round(plain, {}, 0, rows)
        if "plain_seconds" not in finals:
            finals["plain_seconds"] = self.trials.clock.spent - spent
        if not finals["steps"]:
            finals["steps"] = self._plan(alive, seeds, always)
            self.save()
        steps = finals["steps"]
        rates = {label: lr for label, lr in alive if lr is not None}
        chosen: Alive = [(n, rates.get(n, self.halving.best_rate(n))) for n in steps]
        paces = {label: self.trials.pace(label, test=True) for label in steps}
        for seed in range(seeds):
            cells = [self.cell(label, lr, steps, seed) for label, lr in [*chosen, *plain]]
            late = rounds_of(paces, steps) + finals["plain_seconds"] > self.trials.clock.left
            if seed and late and not all(self.trials.known(cell) for cell in cells):
                self.say(f"the time is up after {seed} of {seeds} seeds ({self.trials.clock})")
                break
            self._round([*chosen, *plain], steps, seed, rows)

    def _beside(self) -> Alive:
        """The methods beside the operators that read the samples; pretrained starts that are not
        there, or would take too long, are named in the state's ``left_out``.
        """
        splits, out = self.trials.splits, self.state.setdefault("left_out", {})
        chosen = [name for name in PLAIN if serves(name, splits.train) is None]
        tried = {row["operator"] for row in self.state["finals"]["rows"]}
        for name in chosen:
            start = PLAIN[name].start
            if start is None:
                continue
            start.begin(splits.train)
            if name in tried:
                continue
            parts = splits.train, splits.val, splits.test
            why = start.missing() or start.late(parts, self.trials.clock)
            if why is None:
                out.pop(name, None)
                done = start.prepare(self.trials.clock.timer)
                if done:
                    self.state.setdefault("learnt", {})[name] = done
                    self.say(f"{name}: {done}")
            else:
                out[name] = why
                self.say(f"{name}: left out: {why}")
        return [(name, None) for name in chosen if name not in out]

    def _plan(self, alive: Alive, seeds: int, always: Sequence[str]) -> dict[str, int]:
        """Finalists and their steps: fewer seeds and finalists rather than untrained ones, and no
        less training than the rungs had.
        """
        full, finals, steps = self.state["full_steps"], self.state["finals"], {}
        sizes = self.state["sizes"]
        left = max(self.trials.clock.left, 1.0)
        for count, most, share in PLANS:
            rounds = min(seeds, most or seeds)
            chosen = [label for label, _ in alive[:count]]
            extra = [n for n in always if n not in chosen and "refused" not in sizes.get(n, {})]
            paces = {n: self.trials.pace(n, test=True) for n in chosen + extra if n in sizes}
            seconds = LAST * left - (rounds - 1) * finals["plain_seconds"]
            steps = share_steps(paces, rounds, max(1.0, seconds), full)
            if all(steps[label] >= share * full for label in chosen):
                break
        return {label: max(n, FEWEST, self._tried(label)) for label, n in steps.items()}

    def _tried(self, label: str) -> int:
        """The most steps that a rung gave a contender."""
        return max((rung["steps"].get(label, 0) for rung in self.state["rungs"]), default=0)

    def cell(self, label: str, lr: float | None, steps: dict[str, int], seed: int) -> Any:
        """Return the trial of a finalist with one of the seeds."""
        return self.trials.cell(label, lr, steps.get(label, 0), FINAL, seed, seed=seed)

    def _round(
        self, chosen: Alive, steps: dict[str, int], seed: int, rows: dict[tuple[str, int], Row]
    ) -> None:
        """One seed of each; ``rows`` holds what is there so far."""
        for label, lr in chosen:
            seen = (label, seed) in rows
            cell = self.cell(label, lr, steps, seed)
            row = {"operator": label, "lr": lr, "seed": seed} | self.trials.compute(label, cell)
            rows[label, seed] = row
            self.save()
            if not seen:
                self.say(f"final, seed {seed}: {self.halving.line(row)}")
        self.state["finals"]["rows"] = list(rows.values())
        self.save()
