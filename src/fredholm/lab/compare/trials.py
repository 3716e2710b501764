"""The trials of a search: what a contender costs, its recipe, and its cell of the grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..training.build import build_model
from ..training.grid import Cell, Grid, Result, recipe_cell, safe_name
from ..training.recipe import Recipe
from ..training.tasks import task_of
from .budgets import count_points, make_recipe, refusal, solve_size
from .clock import FEWEST, OVERHEAD, Clock, Pace
from .plain import PLAIN
from .splits import Splits
from .tasks import ComparedTask, Contender
from .trial import Given, run_trial

FINAL = -1  # the rung of the finalists
# What a recipe says of its length and its averages is replaced, and samples are not blended.
NEUTRAL = (
    "training.epochs=null", "training.max_minutes=null", "training.ema_decay=null",
    "training.early_stop=null", "training.phases=null", "data.mixup=0.0", "data.cutmix=0.0",
    "schedule.name=cosine", "schedule.warmup_epochs=0",
    *(f"schedule.{key}=null" for key in ("factor", "patience", "metric", "milestones", "every")),
)  # fmt: skip


@dataclass
class Trials:
    """Makes the trials of a search and computes them, each once.

    Attributes:
        task, contenders: what is compared on what.
        splits: the data.
        place: folder of the trials.
        clock: the time.
        sizes: of each contender, see :meth:`size`.
        batch: samples of a step.
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
        """Trials in batches of the recipe, or of all samples where they are fewer."""
        batch = min(splits.recipe.data.batch_size, len(splits.fold(0)[0]))
        known = {contender.label: contender for contender in contenders}
        return cls(task, known, splits, place, clock, sizes, batch)

    def size(self, contender: Contender) -> dict[str, Any]:
        """Its width at the parameters of softmax attention, what it then has and how long a step
        takes; or why it cannot serve.
        """
        train = self.splits.train
        why = refusal(self.task, contender, train, ())
        if why:
            return {"refused": why.partition("\n")[0]}
        size = solve_size(self.task, contender, train, "params")
        recipe = make_recipe(self.task, contender, (f"model.body.dim={size.dim}",))
        model: Any = build_model(recipe, train)
        whole = self.batch
        few = min(2, whole)
        # Twice: the first call of a model is slower.
        once = _step_seconds(model, train, few, 2, self.clock.timer) * whole / few
        # A step of which not even the fewest fit in the time of a trial is not tried as a whole.
        hopeless = once * FEWEST > 60 * self.clock.minutes / 4
        step = once if hopeless else _step_seconds(model, train, whole, 4, self.clock.timer)
        return asdict(size) | {"step": step, "points": count_points(train, model)}

    def pace(self, label: str, test: bool = False) -> Pace:
        """Judging is a forward pass, a third of a step, of each sample; a step is what it took in
        the trials so far, where there are any.
        """
        step = self.sizes[label].get("trained", self.sizes[label]["step"])
        judged = len(self.splits.fold(0)[1]) + (4 * len(self.splits.test) if test else 0)
        return Pace(step, step / self.batch * judged / 3)

    def recipe(self, label: str, lr: float | None, steps: int, seed: int = 0) -> Recipe:
        """The recipe of a trial: the task's, with so many steps and nothing else of its length."""
        size = self.sizes.get(label, {})
        changes = [*NEUTRAL, f"training.steps={max(1, steps)}", f"seed={seed}"]
        changes += [f"schedule.warmup_steps={max(1, steps // 10)}"]
        changes += [f"data.batch_size={self.batch}"]
        changes += [f"optimizer.lr={lr!r}"] if lr is not None else []
        changes += [f"model.body.dim={size['dim']}"] if "dim" in size else []
        contender = self.contenders.get(label, Contender("softmax", "softmax", {}))
        return make_recipe(self.task, contender, tuple(changes))

    def cell(
        self, label: str, lr: float | None, steps: int, rung: int, fold: int, seed: int = 0
    ) -> Cell:
        """A trial; ``rung`` may be :data:`FINAL`."""
        fold = fold % self.splits.folds
        if label in PLAIN:  # the same with every seed
            seed = fold
        recipe = self.recipe(label, lr, steps, seed)
        seconds = self.pace(label, rung == FINAL).seconds(steps) if label not in PLAIN else 60.0
        settings = recipe_cell(recipe, self.place, self.splits.mark).settings
        settings |= {"fold": fold, "test": rung == FINAL}
        settings |= {"method": label if label in PLAIN else "model"}
        most = None if self.clock.alone else round(max(3 * seconds, 5.0) / 60, 4)
        rate = "" if lr is None else f",lr={lr:.3g}"
        part = "final" if rung == FINAL else f"rung={rung}"
        name = f"{part},{safe_name(label)}{rate},fold={fold},seed={seed}"
        return Cell(settings, self.place / "trials" / name, Given(recipe, most))

    def _grid(self) -> Grid:
        return Grid(partial(run_trial, self.splits))

    def known(self, cell: Cell) -> bool:
        """Whether a trial is done."""
        return self._grid().read(cell) is not None

    def compute(self, label: str, cell: Cell) -> Result:
        """The result of a trial, see :func:`.trial.run_trial`; what a step took is noted."""
        known, begun = self.known(cell), self.clock.spent
        result = self._grid().compute(cell)
        if not known and result.get("steps", 0) >= FEWEST:
            judging = self.pace(label, cell.settings["test"]).judging
            took = (self.clock.spent - begun - judging - OVERHEAD) / result["steps"]
            # Its batches too are read, and the loop around it runs: never less than measured.
            self.sizes[label]["trained"] = max(took, self.sizes[label]["step"])
        return result


def _step_seconds(
    model: Any, dataset: Any, batch: int, repeats: int, timer: Callable[[], float]
) -> float:
    """Seconds of a training step, its batch read too: the shortest, which other work on the machine
    disturbs least.
    """
    optimizer, task = torch.optim.AdamW(model.parameters(), lr=1e-4), task_of(dataset)
    chosen, times = torch.arange(min(batch, len(dataset))), []
    for _ in range(repeats):
        start = timer()
        inputs, labels = dataset.batch(chosen)
        optimizer.zero_grad()
        task.loss(model.train()(inputs), labels).backward()
        optimizer.step()
        times.append(timer() - start)
    return min(times)
