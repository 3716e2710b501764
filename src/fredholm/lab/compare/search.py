"""Course of a search: sizes, rungs of successive halving, finalists, the recommendation."""

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
from ..numbers import readable
from ..training.build import build_model
from ..training.failures import TrainingFailed
from ..training.grid import Report, quiet, recipe_mark
from ..training.leases import hold
from ..training.metrics import METRICS, title_of
from ..training.own_files import free_name
from ..training.recipe_files import absolute_overrides
from ..training.tasks import task_of
from . import report as words
from .budgets import REFERENCE, make_recipe, width_override
from .clock import Clock
from .finals import Finals
from .growth import growth
from .halving import FINALISTS, Alive, Halving
from .plain import PLAIN
from .saved import RESULTS, drop_pick, keep_pick, refuse_removed
from .splits import Splits
from .tasks import absolute_source, find_task, import_changes, options_of, read_contenders
from .trial import measure_of
from .trials import Trials, set_aside
from .verdict import conclude


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search, the keywords of :func:`choose` and :func:`open_search`.

    Attributes:
        operators: see :func:`fredholm.lab.compare.tasks.read_contenders`; None: all, and
            all baselines.
        out: the folder; ``runs/compare-NAME`` by default.
        changes: overrides of the recipe.
        seeds: of the finalists, as many as fit.
        always: operators that are finalists in any case.
        command: that trains on the source, for the recommendation.
        report: receives lines of progress.
        trust_code: of a run folder as the source, see :func:`fredholm.training.load_recipe`.
        timer: see :class:`.clock.Clock`.

    Raises:
        OptionError: no seeds.
    """

    operators: str | None = None
    out: str | Path | None = None
    changes: Sequence[str] = ()
    seeds: int = 5
    always: Sequence[str] = ()
    command: str | None = None
    report: Report | None = None
    trust_code: bool = False
    timer: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise OptionError(f"seeds: expected 1 or more, got {self.seeds}; give a larger number")


def choose(
    source: str | Path,
    minutes: float = 30.0,
    **options: Any,
) -> dict[str, Any]:
    """Find the operator that suits a data set, in ``minutes``; write ``choice.json``,
    ``choice.md`` and ``index.html``, and return the content of the first of them.

    Every operator and baseline gets the same backbone with equally many parameters. Rungs of
    successive halving compare them on validation samples and keep the better half. The last ones
    are tried at other learning rates, and trained with several seeds beside methods such as
    gradient boosting on simple features. Only these finalists are judged on the test split. The
    pick is the best on validation. A pick that is not an operator is saved, see :mod:`.saved`.

    The same call continues where an earlier one stopped, with the time that is left. The options
    are those of :class:`SearchOptions`.

    Raises:
        OptionError: no minutes, no seeds, an unknown operator, or a folder of another search.
        RecipeError, DataError: a source that cannot be read, or has changed since the search in
            the folder was begun.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        TrainingFailed: every trial failed.
        InUseError: another process searches in the folder.
        Interrupted: Ctrl-C; the same call continues.
    """
    with ExitStack() as held:
        return open_search(source, minutes, held=held, **options).run()


def open_search(
    source: str | Path,
    minutes: float = 30.0,
    *,
    held: ExitStack | None = None,
    **options: Any,
) -> Search:
    """Open a search that an earlier call began, or a new one.

    Args:
        source: the user's files, or a recipe.
        minutes: of the whole search.
        options: the fields of :class:`SearchOptions`.
        held: receives the lease of the folder, which keeps other processes out until it is closed.
    """
    given = SearchOptions(**options)

    # Imports come first: what the changes and the recipe import may register operators.
    import_changes([str(source)], given.changes, trust_code=given.trust_code)
    # An evaluation may run in another folder.
    changes = absolute_overrides(given.changes)
    task = find_task(str(source), tuple(changes), trust_code=given.trust_code)
    contenders = read_contenders(given.operators)
    place = Path(given.out or Path("runs") / f"compare-{task.name}")
    reference = make_recipe(task, REFERENCE)
    splits = Splits(reference)
    setting = {
        "source": absolute_source(str(source)),
        "minutes": minutes,
        "changes": changes,
        "operators": [contender.label for contender in contenders],
        "seeds": given.seeds,
        "always": list(given.always),
    }
    if splits.mark is not None:
        setting["files"] = splits.mark
    setting["recipe"] = recipe_mark(reference)

    # The lease comes before the state is read: another process may be writing it.
    if held is not None:
        held.enter_context(hold(place, given.report))
    state = _read_state(place, setting)
    clock = Clock(minutes, state.get("spent", 0.0), given.timer)
    trials = Trials.of(
        task,
        contenders,
        splits,
        place,
        clock,
        state.get("sizes", {}),
    )
    search = Search.open(trials, state, setting, given.report or quiet)
    train = shlex.join(["fredholm", "train", str(source), *given.changes])
    search.state["command"] = given.command or train
    return search


def _read_state(place: Path, setting: dict[str, Any]) -> dict[str, Any]:
    """Return the state that an earlier call has left in the folder, empty if there is none.

    Raises:
        OptionError: a folder of a search with another setting.
        DataError: the files have changed since it was begun.
        RecipeError: the recipe has changed, or a file that it imports.
        CheckpointError: a trial of a method that this version does not have.
    """
    state = read_state(place / RESULTS)
    if not state:
        return state
    refuse_removed(place, [row["operator"] for row in state["finals"]["rows"]])
    before = state["setting"]
    # Earlier versions stored the source and the changes as they were typed.
    before["source"] = absolute_source(before["source"])
    before["changes"] = absolute_overrides(before["changes"])
    source = setting["source"]
    if before.get("files") != setting.get("files"):
        raise DataError(
            f"{source}: expected the files of the comparison in {place}, got files that have "
            "changed since it was begun; restore them, or choose another --out"
        )
    if before | {"recipe": setting["recipe"]} != setting:
        # Only what differs: the settings as a whole fill a screen.
        names = sorted(
            key
            for key in setting.keys() | before.keys()
            if key != "recipe" and setting.get(key) != before.get(key)
        )
        wanted = ", ".join(f"{name} {setting.get(name)}" for name in names)
        found = ", ".join(f"{name} {before.get(name)}" for name in names)
        raise OptionError(
            f"{place}: expected a comparison with {wanted}, got one with {found}; choose another "
            "--out"
        )
    if before["recipe"] != setting["recipe"]:
        raise RecipeError(
            f"{source}: expected the recipe of the comparison in {place}, got one that has changed "
            "since it was begun, or whose imported files have; restore it, or choose another --out"
        )
    return state


@dataclass
class Search:
    """A search under way.

    Attributes:
        trials: its trainings.
        state: the content of ``choice.json``.
        say: receives lines of progress.
    """

    trials: Trials
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
        """Begin a search, or continue the one whose ``state`` is not empty."""
        for line in trials.splits.train.remarks():
            say(line)
        unused = set_aside(trials.splits.recipe)
        if unused:
            say(f"trained here without {', '.join(unused)}, which a training in full has")
        search = cls(trials, state, say)
        if not state:
            state |= {"setting": setting, "sizes": trials.sizes} | search._facts()
        return search

    @property
    def splits(self) -> Splits:
        return self.trials.splits

    def _facts(self) -> dict[str, Any]:
        """Return the part of a new state that describes the task, its data and its measure."""
        splits = self.splits
        train = splits.train
        recipe = splits.recipe
        task = task_of(train)
        name, higher = measure_of(train)
        measure = title_of(name)
        if name == "loss":
            measure = task.measure

        # Steps of a whole training: the recipe may limit the steps, the epochs, or both.
        limits = []
        if recipe.training.steps is not None:
            limits.append(recipe.training.steps)
        if recipe.training.epochs is not None:
            limits.append(recipe.training.epochs * self.trials.steps_per_epoch)
        return {
            "name": self.trials.task.name,
            "title": self.trials.task.title,
            "kind": train.kind.many,
            "task": train.task,
            "classes": list(train.classes),
            "samples": {"train": len(train), "val": len(splits.val)},
            "folds": splits.folds,
            "measure": measure,
            "higher": higher,
            "each": task.each_mode == "max",
            "percent": higher and (train.metric is None or METRICS[train.metric].share),
            "full_steps": max(1, min(limits, default=1)),
            "lr": recipe.optimizer.lr,
            "rungs": [],
            "finals": {"steps": {}, "rows": []},
        }

    # --- the course -------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Run the search: rungs, finalists, recommendation. Return the final content of
        ``choice.json``.

        The state is saved after each step, and trials that an earlier call finished are read from
        their files, so a search that was interrupted continues where it stopped. The number of
        seeds and the operators that are ``always`` finalists are those of the saved setting.

        Raises:
            TrainingFailed: no operator can serve the task, or every finalist failed.
        """
        alive = self.shortlist()
        setting = self.state["setting"]
        self.finals.run(alive, setting["seeds"], setting["always"])
        return self.end()

    @property
    def halving(self) -> Halving:
        """The rungs."""
        return Halving(self.trials, self.state, self.say, self._save)

    @property
    def finals(self) -> Finals:
        """The last trainings."""
        return Finals(
            self.trials,
            self.halving,
            self.state,
            self.say,
            self._save,
        )

    def shortlist(self) -> Alive:
        """Return the contenders that all rungs have kept, with their learning rates, the best
        first.
        """
        task = self.trials.task.name
        count = len(self.trials.contenders)
        self.say(f"{task}: {count} operators and baselines ({self.trials.clock})")
        self.measure()

        sizes = self.state["sizes"]
        alive: Alive = [
            (label, self.state["lr"]) for label, size in sizes.items() if "refused" not in size
        ]
        if not alive:
            why = next(iter(sizes.values()))["refused"]
            raise TrainingFailed(f"{task}: no operator serves it: {why}")

        number = 0
        while number == 0 or len(alive) > FINALISTS:
            kept = self.halving.rung(number, alive)
            self._save()
            if not kept:
                # There is no time for another rung: the order is that of the last one.
                break
            alive = kept
            number += 1
        alive = self.halving.tune(alive[:FINALISTS])
        self._save()
        return alive

    def measure(self) -> None:
        """Solve the width of every contender, and time its training step."""
        sizes = self.state["sizes"]
        clock = self.trials.clock
        for label, contender in self.trials.contenders.items():
            if label in sizes:
                continue
            size = self.trials.size(contender)
            sizes[label] = size
            if "refused" in size:
                self.say(f"{label}: cannot serve this task: {size['refused']}")
            else:
                parameters = f"{size['parameters']:,} parameters ({size['off']:+.1%})"
                step = f"{readable(1e3 * size['step'], 3)} ms per step"
                self.say(f"{label}: width {size['dim']}, {parameters}, {step} ({clock})")
            self._save()

    def end(self) -> dict[str, Any]:
        """Conclude: the recommendation, the cost of longer samples, the tables."""
        state = self.state
        # One validation sample more or less does not tell two methods apart.
        rows = state["finals"]["rows"]
        resolution = 0.0
        if state["percent"]:
            resolution = 1 / self._judged_samples(rows)
        verdict = conclude(
            rows,
            state["higher"],
            state["each"],
            resolution,
            state["folds"],
        )
        state["verdict"] = verdict
        if not verdict:
            error = rows[0]["error"]
            raise TrainingFailed(f"{self.trials.task.name}: every finalist failed: {error}")

        grown = state.setdefault("growth", {})
        for line in verdict["table"]:
            label = line["operator"]
            if label not in PLAIN and label not in grown:
                recipe = self.trials.recipe(label, line["lr"], 1)
                model: Any = build_model(recipe, self.splits.train)
                points = state["sizes"][label]["points"]
                grown[label] = growth(model.config.body, points)
        verdict["train"] = self._training_command()

        # A method beside the operators is fitted and saved; an operator has to be trained in full.
        if verdict["pick"] in PLAIN:
            pick = keep_pick(self.trials.place, self.splits, verdict["pick"], rows)
            command = shlex.join(["fredholm", "predict", str(self.trials.place)])
            verdict["predict"] = f"{command} FILE..."
            verdict["fitted"] = pick.samples
        else:
            drop_pick(self.trials.place)
        self._save()
        words.write(self.trials.place, state)
        return state

    def _judged_samples(self, rows: Sequence[dict[str, Any]]) -> int:
        """Return on how many validation samples finalists were judged, over all folds."""
        folds = {row["seed"] % self.splits.folds for row in rows}
        return sum(len(self.splits.fold(fold)[1]) for fold in folds)

    def _training_command(self) -> str | None:
        """Return the command that trains the best operator in full, if there is an operator."""
        verdict = self.state["verdict"]
        label = verdict["operator"]
        if label is None:
            return None
        line = next(line for line in verdict["table"] if line["operator"] == label)
        contender = self.trials.contenders[label]
        options = options_of(self.trials.task, contender)
        operator = contender.name
        if options:
            operator = json.dumps({"name": contender.name, **options})

        # The changes are part of the command already.
        changes = self.state["setting"]["changes"]
        overrides = [part for part in self.trials.task.overrides if part not in changes]
        overrides += [
            f"operator={operator}",
            width_override(self.state["sizes"][label]["dim"]),
            f"optimizer.lr={line['lr']:.3g}",
        ]
        name = self.state["name"]
        free = free_name(name)
        if free != name:
            overrides += ["--name", free]
        return f"{self.state['command']} {shlex.join(overrides)}"

    def _save(self) -> None:
        self.state["spent"] = round(self.trials.clock.spent, 2)
        self.trials.place.mkdir(parents=True, exist_ok=True)
        write_json(self.trials.place / RESULTS, self.state)
