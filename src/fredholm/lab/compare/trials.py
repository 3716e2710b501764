"""Trials of a search: what a contender costs, its recipe, and its cell of the grid."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..training.build import build_model
from ..training.grid import Cell, Grid, Result, recipe_cell, safe_name
from ..training.recipe import Recipe
from .budgets import (
    REFERENCE,
    batch_times,
    count_points,
    make_recipe,
    refusal,
    solve_size,
    width_override,
)
from .clock import FEWEST, OVERHEAD, Clock, Pace
from .plain import PLAIN
from .splits import Splits
from .tasks import ComparedTask, Contender
from .trial import Given, run_trial

# In the place of a rung's number: the trials of the finalists.
FINAL = -1

# Overrides that take out what a recipe says about its length, its averages and its blending of
# samples. A trial counts in steps.
NEUTRAL = (
    "training.epochs=null",
    "training.max_minutes=null",
    "training.ema_decay=null",
    "training.early_stop=null",
    "training.phases=null",
    "data.mixup=0.0",
    "data.cutmix=0.0",
    "schedule.name=cosine",
    "schedule.warmup_epochs=0",
    "schedule.factor=null",
    "schedule.patience=null",
    "schedule.metric=null",
    "schedule.milestones=null",
    "schedule.every=null",
)


def set_aside(recipe: Recipe) -> list[str]:
    """Return the options of a recipe that a whole training has and trials do not, beside its length
    and its schedule; see :data:`NEUTRAL`.
    """
    options = {
        "training.ema_decay": recipe.training.ema_decay,
        "training.phases": recipe.training.phases,
        "data.mixup": recipe.data.mixup,
        "data.cutmix": recipe.data.cutmix,
    }
    return [key for key, value in options.items() if value]


@dataclass
class Trials:
    """Trials of a search, each computed once.

    Attributes:
        task: that contenders are compared on.
        contenders: by label.
        splits: the data.
        place: folder of the search.
        clock: its time.
        sizes: of each contender, see :meth:`size`.
        batch: samples per batch.
    """

    task: ComparedTask
    contenders: dict[str, Contender]
    splits: Splits
    place: Path
    clock: Clock
    sizes: dict[str, dict[str, Any]]
    batch: int

    @classmethod
    def of(
        cls,
        task: ComparedTask,
        contenders: list[Contender],
        splits: Splits,
        place: Path,
        clock: Clock,
        sizes: dict[str, dict[str, Any]],
    ) -> Trials:
        """Return trials with the recipe's batch size, or of all samples where they are fewer."""
        train, _ = splits.fold(0)
        batch = min(splits.recipe.data.batch_size, len(train))
        known = {contender.label: contender for contender in contenders}
        return cls(
            task,
            known,
            splits,
            place,
            clock,
            sizes,
            batch,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch, each of which accumulates as many batches as in a run."""
        return math.ceil(self._batches_per_epoch / self.splits.recipe.training.accumulate)

    @property
    def samples_per_step(self) -> float:
        """Samples in an optimizer step: the mean over an epoch, whose last step may have fewer."""
        return self.batch * self._batches_per_epoch / self.steps_per_epoch

    @property
    def _batches_per_epoch(self) -> int:
        return max(1, len(self.splits.train) // self.batch)

    def size(self, contender: Contender) -> dict[str, Any]:
        """Return the width at which a contender has about as many parameters as softmax attention,
        and what it costs there. Builds models and runs a few training batches.

        Returns:
            The fields of :class:`.budgets.Size`; ``step``, the seconds of a training step; and
            ``points``, the number of points of a sample. A contender that cannot serve the task has
            the reason alone, in one line: ``refused``.
        """
        train = self.splits.train

        # Refusals are rows of tables, which have room for the first line of the error.
        why = refusal(self.task, contender, train, ())
        if why:
            return {"refused": why.partition("\n")[0]}
        size = solve_size(self.task, contender, train, "params")
        recipe = make_recipe(self.task, contender, (width_override(size.dim),))
        model = build_model(recipe, train)
        points = count_points(train, model)

        # Estimate from two samples, which a slow contender can afford. The first batch is slower.
        # Of several times the shortest is the least disturbed by other work on the machine.
        few = min(2, self.batch)
        times = batch_times(model, recipe, train, few, 2, self.clock.timer)
        per_sample = min(times) / few
        step = per_sample * self.samples_per_step

        # Time a full batch only if a quarter of the search has time for the fewest steps of a
        # trial. Else the contender will hardly be trained, and the estimate stands.
        if step * FEWEST <= 60 * self.clock.minutes / 4:
            times = batch_times(model, recipe, train, self.batch, 4, self.clock.timer)
            step = min(times) * self.samples_per_step / self.batch
        return {
            **asdict(size),
            "step": step,
            "points": points,
        }

    def pace(self, label: str, test: bool = False) -> Pace:
        """Return the pace of a contender: as in its trials so far, else as it was measured.

        Args:
            label: of the contender.
            test: whether the test split is judged too, with and without :data:`.stress.STRESSES`.
        """
        size = self.sizes[label]
        step = size.get("trained", size["step"])
        _, val = self.splits.fold(0)
        judged = len(val)
        if test:
            judged += 4 * len(self.splits.test)

        # Judging is a forward pass, a third of a training step.
        return Pace(step, step / self.samples_per_step * judged / 3)

    def recipe(
        self,
        label: str,
        lr: float | None,
        steps: int,
        seed: int = 0,
    ) -> Recipe:
        """Return the task's recipe with a number of steps and no other limit.

        Methods beside the operators, which are not among the contenders, get the reference's.
        """
        warmup = max(1, steps // 10)
        changes = [
            *NEUTRAL,
            f"training.steps={max(1, steps)}",
            f"seed={seed}",
            f"schedule.warmup_steps={warmup}",
            f"data.batch_size={self.batch}",
        ]
        if lr is not None:
            changes.append(f"optimizer.lr={lr!r}")
        size = self.sizes.get(label, {})
        if "dim" in size:
            changes.append(width_override(size["dim"]))
        contender = self.contenders.get(label, REFERENCE)
        return make_recipe(self.task, contender, tuple(changes))

    def cell(
        self,
        label: str,
        lr: float | None,
        steps: int,
        rung: int,
        fold: int,
        seed: int = 0,
    ) -> Cell:
        """Return a trial; ``rung`` may be :data:`FINAL`, ``fold`` any number."""
        fold = fold % self.splits.folds
        final = rung == FINAL
        if label in PLAIN:
            # To a method that draws nothing only the fold makes a difference.
            if not PLAIN[label].draws:
                seed = fold
            method = label
            seconds = 60.0
        else:
            method = "model"
            seconds = self.pace(label, final).seconds(steps)

        recipe = self.recipe(label, lr, steps, seed)
        settings = recipe_cell(recipe, self.place, self.splits.mark).settings
        settings |= {
            "fold": fold,
            "test": final,
            "method": method,
        }

        # A trial that takes three times as long as expected is cut off by the clock on the wall,
        # which says nothing about a process's own time.
        most = None
        if not self.clock.alone:
            most = round(max(3 * seconds, 5.0) / 60, 4)

        stage = f"rung={rung}"
        if final:
            stage = "final"
        parts = [stage, safe_name(label)]
        if lr is not None:
            parts.append(f"lr={lr:.3g}")
        parts += [f"fold={fold}", f"seed={seed}"]
        folder = self.place / "trials" / ",".join(parts)
        return Cell(settings, folder, Given(recipe, most))

    def repeats(self, label: str, seed: int) -> bool:
        """Return whether a finalist's trial with this seed is the same as one with a lower seed.

        Seeds take turns over the folds, and a method that draws nothing is the same on each fold
        whatever the seed.
        """
        if label not in PLAIN or PLAIN[label].draws:
            return False
        return seed >= self.splits.folds

    def _grid(self) -> Grid:
        return Grid(partial(run_trial, self.splits))

    def known(self, cell: Cell) -> bool:
        """Return whether a trial is done."""
        return self._grid().read(cell) is not None

    def compute(self, label: str, cell: Cell) -> Result:
        """Return the result of a trial, see :func:`.trial.run_trial`, and note its pace."""
        known = self.known(cell)
        begun = self.clock.spent
        result = self._grid().compute(cell)
        if not known and result.get("steps", 0) >= FEWEST:
            judging = self.pace(label, cell.settings["test"]).judging
            stepping = self.clock.spent - begun - judging - OVERHEAD

            # The loop around the steps takes time as well: never less than was measured alone.
            size = self.sizes[label]
            size["trained"] = max(stepping / result["steps"], size["step"])
        return result
