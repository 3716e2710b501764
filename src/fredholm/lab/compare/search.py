"""The course of a search: sizes, rungs of successive halving, finalists, the recommendation."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DataError, OptionError, RecipeError
from ...files import read_state, write_json
from ..training.build import build_model
from ..training.failures import TrainingFailed
from ..training.grid import Report, quiet, recipe_mark
from ..training.leases import hold
from ..training.metrics import METRICS, title_of
from ..training.tasks import task_of
from . import report as words
from .budgets import REFERENCE, make_recipe
from .clock import Clock
from .finals import Finals
from .growth import growth
from .halving import FINALISTS, Alive, Halving
from .plain import PLAIN
from .saved import RESULTS, drop_pick, keep_pick
from .splits import Splits
from .tasks import find_task, options_of, read_contenders
from .trial import measure_of
from .trials import Trials
from .verdict import conclude


def choose(source: str | Path, minutes: float = 30.0, **given: Any) -> dict[str, Any]:
    """Find the operator that suits a data set, in ``minutes``; write ``choice.json``,
    ``choice.md`` and ``index.html``, and return what the first of them holds.

    Every operator and baseline gets the same backbone, at equal parameters. Rungs of successive
    halving compare them on validation samples and keep the better half; the last ones are tried at
    other learning rates, and trained with several seeds beside gradient boosting on simple
    features, and these alone are judged on the test split. The pick is the best on validation. The
    same call goes on where an earlier one stopped, with the time that is left. A pick that is no
    operator is saved, see :mod:`.saved`. Arguments are those of :func:`open_search`.

    Raises:
        OptionError: no minutes, no seeds, an unknown operator, or a folder of another search.
        RecipeError, DataError: a source that cannot be read, or has changed since the search in
            the folder was begun.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        TrainingFailed: every trial failed.
        InUseError: another process searches in the folder.
        Interrupted: Ctrl-C; the same call goes on.
    """
    with ExitStack() as held:
        return open_search(source, minutes, held=held, **given).run()


def open_search(
    source: str | Path,
    minutes: float = 30.0,
    *,
    operators: str | None = None,
    out: str | Path | None = None,
    changes: Sequence[str] = (),
    seeds: int = 5,
    always: Sequence[str] = (),
    command: str | None = None,
    report: Report | None = None,
    trust_code: bool = False,
    timer: Callable[[], float] = time.perf_counter,
    held: ExitStack | None = None,
) -> Search:
    """A search, before or after its beginning.

    Args:
        source: files of the user's, or a recipe.
        minutes: of all of it.
        operators: see :func:`fredholm.lab.compare.tasks.read_contenders`; None: all, and
            all baselines.
        out: the folder; ``runs/compare-NAME`` by default.
        changes: overrides of the recipe.
        seeds: of the finalists, as many as fit.
        always: operators that are finalists whatever they reach.
        command: that trains on the source, for the recommendation.
        report: receives lines of progress.
        trust_code: of a run folder as the source, see :func:`fredholm.training.load_recipe`.
        timer: see :class:`.clock.Clock`.
        held: keeps other processes out of the folder, from before its state is read, until it is
            closed.
    """
    if seeds < 1:
        raise OptionError(f"seeds: received {seeds}; needs 1 or more")
    # Its imports register operators.
    task = find_task(str(source), tuple(changes), trust_code=trust_code)
    contenders = read_contenders(operators)
    place = Path(out or Path("runs") / f"compare-{task.name}")
    setting = {"source": str(source), "minutes": minutes, "changes": list(changes)}
    setting |= {"operators": [c.label for c in contenders], "seeds": seeds, "always": [*always]}
    reference = make_recipe(task, REFERENCE)
    splits = Splits(reference)
    setting |= {} if splits.mark is None else {"files": splits.mark}
    setting |= {"recipe": recipe_mark(reference)}
    if held is not None:
        held.enter_context(hold(place, report))
    state = _state(place, setting)
    clock = Clock(minutes, state.get("spent", 0.0), timer)
    trials = Trials.of(task, contenders, splits, place, clock, state.get("sizes", {}))
    search = Search.open(trials, state, setting, report or quiet)
    given = shlex.join(["fredholm", "train", str(source), *changes])
    search.state["command"] = command or given
    return search


def _state(place: Path, setting: dict[str, Any]) -> dict[str, Any]:
    """What an earlier call has left in the folder, or nothing.

    Raises:
        OptionError: a folder of a search with another setting.
        DataError: the files have changed since it was begun.
        RecipeError: the recipe has, or a file that it imports.
    """
    state = read_state(place / RESULTS)
    if not state:
        return state
    before = state["setting"]
    if before.get("files") != setting.get("files"):
        raise DataError(
            f"{setting['source']}: has changed since the comparison in {place} was begun, whose "
            "results are of the files as they were; restore them, or choose another --out"
        )
    recipe = setting["recipe"]
    if {**before, "recipe": recipe} != setting:
        raise OptionError(
            f"{place}: holds a comparison with {state['setting']}; received {setting}; choose "
            "another --out"
        )
    if before["recipe"] != recipe:
        raise RecipeError(
            f"{setting['source']}: the recipe (or a file it imports) has changed since the "
            f"comparison in {place} was begun; restore it, or choose another --out"
        )
    return state


@dataclass
class Search:
    """A search under way; ``state`` is what ``choice.json`` holds.

    Attributes:
        trials: makes and computes trainings.
        place: folder of the results.
        say: receives lines of progress.
    """

    trials: Trials
    place: Path
    state: dict[str, Any]
    say: Report

    @classmethod
    def open(
        cls,
        trials: Trials,
        state: dict[str, Any],
        setting: dict[str, Any],
        say: Report,
    ) -> Search:
        """Begin a search, or go on with the one whose ``state`` is not empty."""
        for line in trials.splits.train.remarks():
            say(line)
        search = cls(trials, trials.place, state, say)
        if not state:
            state |= {"setting": setting, "sizes": trials.sizes} | search._facts()
        return search

    @property
    def splits(self) -> Splits:
        return self.trials.splits

    @property
    def clock(self) -> Clock:
        return self.trials.clock

    def _facts(self) -> dict[str, Any]:
        """What is compared on what."""
        train, recipe = self.splits.train, self.splits.recipe
        (name, higher), task = measure_of(train), task_of(train)
        full = recipe.training.steps
        if recipe.training.epochs is not None:
            by_epochs = recipe.training.epochs * max(1, len(train) // self.trials.batch)
            full = by_epochs if full is None else min(full, by_epochs)
        return {
            "name": self.trials.task.name,
            "title": self.trials.task.title,
            "kind": train.kind.many,
            "task": train.task,
            "classes": list(train.classes),
            "samples": {"train": len(train), "val": len(self.splits.val)},
            "folds": self.splits.folds,
            "measure": task.measure if name == "loss" else title_of(name),
            "higher": higher,
            "each": task.each_mode == "max",
            "percent": higher and (train.metric is None or METRICS[train.metric].share),
            "full_steps": max(1, full or 1),
            "lr": recipe.optimizer.lr,
            "rungs": [],
            "finals": {"steps": {}, "rows": []},
        }

    # --- the course -------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """All of it; what is there already is read."""
        alive, setting = self.shortlist(), self.state["setting"]
        self.finals.run(alive, setting["seeds"], setting["always"])
        return self.end()

    @property
    def halving(self) -> Halving:
        """The rungs."""
        return Halving(self.trials, self.state, self.say, self._save)

    @property
    def finals(self) -> Finals:
        """The last trainings."""
        return Finals(self.trials, self.halving, self.state, self.say, self._save)

    def shortlist(self) -> Alive:
        """The contenders that all rungs have kept, with their learning rates, the best first."""
        self.say(
            f"{self.trials.task.name}: {len(self.trials.contenders)} operators and baselines, "
            f"{self.clock.minutes:g} minutes ({self.clock})"
        )
        self.measure()
        alive: Alive = [(label, self.state["lr"]) for label in self.serving]
        if not alive:
            why = next(iter(self.state["sizes"].values()))["refused"]
            raise TrainingFailed(f"{self.trials.task.name}: no operator serves it: {why}")
        number = 0
        while number == 0 or len(alive) > FINALISTS:
            kept = self.halving.rung(number, alive)
            self._save()
            if not kept:  # no time for another rung: the best of the last one
                break
            alive, number = kept, number + 1
        alive = self.halving.tune(alive[:FINALISTS])
        self._save()
        return alive

    @property
    def serving(self) -> list[str]:
        return [label for label, size in self.state["sizes"].items() if "refused" not in size]

    def measure(self) -> None:
        """The width of every contender, and the time of its training step."""
        sizes = self.state["sizes"]
        for label, contender in self.trials.contenders.items():
            if label in sizes:
                continue
            sizes[label] = self.trials.size(contender)
            if "refused" in sizes[label]:
                self.say(f"{label}: does not serve this task: {sizes[label]['refused']}")
            else:
                size = sizes[label]
                self.say(
                    f"{label}: width {size['dim']}, {size['parameters']:,} parameters "
                    f"({size['off']:+.1%}), {1e3 * size['step']:.1f} ms a step ({self.clock})"
                )
            self._save()

    def end(self) -> dict[str, Any]:
        """The recommendation, what longer samples cost, and the tables."""
        state = self.state
        # One validation sample more or less does not tell two methods apart.
        resolution = 1 / max(1, state["samples"]["val"]) if state["percent"] else 0.0
        rows = state["finals"]["rows"]
        state["verdict"] = conclude(rows, state["higher"], state["each"], resolution)
        if not state["verdict"]:
            failed = state["finals"]["rows"][0]["error"]
            raise TrainingFailed(f"{self.trials.task.name}: every finalist failed: {failed}")
        grown = state.setdefault("growth", {})
        for line in state["verdict"]["table"]:
            label = line["operator"]
            if label not in PLAIN and label not in grown:
                body = build_model(
                    self.trials.recipe(label, line["lr"], 1), self.splits.train
                ).config.body  # type: ignore[union-attr]
                grown[label] = growth(body, state["sizes"][label]["points"])
        state["verdict"]["train"] = self._command()
        self._keep()
        self._save()
        words.write(self.place, state)
        return state

    def _keep(self) -> None:
        """The recommended method, where it is none of the operators: fitted and saved."""
        verdict, rows = self.state["verdict"], self.state["finals"]["rows"]
        if verdict["pick"] not in PLAIN:
            drop_pick(self.place)
            return
        pick = keep_pick(self.place, self.splits, verdict["pick"], rows)
        verdict["predict"] = f"{shlex.join(['fredholm', 'predict', str(self.place)])} FILE..."
        verdict["fitted"] = pick.samples

    # --- parts of it ------------------------------------------------------------------------------

    def _command(self) -> str | None:
        """The command that trains the best operator in full."""
        verdict = self.state["verdict"]
        label = verdict["operator"]
        if label is None:
            return None
        line = next(line for line in verdict["table"] if line["operator"] == label)
        contender = self.trials.contenders[label]
        options = options_of(self.trials.task, contender)
        chosen = json.dumps({"name": contender.name, **options}) if options else contender.name
        parts = [o for o in self.trials.task.overrides if o not in self.state["setting"]["changes"]]
        parts += [f"operator={chosen}", f"model.body.dim={self.state['sizes'][label]['dim']}"]
        parts += [f"optimizer.lr={line['lr']:.3g}"]
        return f"{self.state['command']} {shlex.join(parts)}"

    def _save(self) -> None:
        self.state["spent"] = round(self.clock.spent, 2)
        self.place.mkdir(parents=True, exist_ok=True)
        write_json(self.place / RESULTS, self.state)
