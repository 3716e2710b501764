"""Comparison of operators: train each on every task with several seeds, and tabulate the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...errors import OptionError
from ...files import digest_json, read_state, write_json
from ..numbers import duration
from ..report.results.curves import read_history
from ..training.build import build_dataset, build_model
from ..training.folder import RunFolder
from ..training.grid import Cell, Grid, quiet, recipe_cell, recipe_mark, safe_name, scores_of
from ..training.metrics import defined
from ..training.own_files import data_mark
from ..training.recipe_files import absolute_overrides
from ..training.tasks import task_of
from . import tables
from .budgets import (
    BUDGETS,
    REFERENCE,
    count_points,
    epochs_in,
    make_recipe,
    refusal,
    solve_size,
    width_override,
)
from .tasks import ComparedTask, Contender, find_task, import_changes, read_contenders

Report = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Budget of a comparison. Results of different settings never share a table.

    Attributes:
        budget: ``params``; ``flops`` of one sample forward; or ``time``: as many epochs as fit in
            ``minutes``, at the widths of ``params``.
        minutes: of one training, with ``time``.
        changes: further overrides of every task's recipe. Files that they ``import`` are imported
            before the tasks are read.

    Raises:
        OptionError: an unknown budget, or minutes that do not go with it.
    """

    budget: str = "params"
    minutes: float | None = None
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise OptionError(
                f"budget: expected one of {', '.join(BUDGETS)}, got {self.budget!r}; name one"
            )
        if self.budget == "time" and self.minutes is None:
            raise OptionError("minutes: expected a number with budget 'time', got None; add it")
        if self.budget != "time" and self.minutes is not None:
            raise OptionError(
                f"minutes: expected none with budget {self.budget!r}, got {self.minutes}; leave "
                "them out or choose budget 'time'"
            )


@dataclass(frozen=True)
class Run:
    """One training of a comparison.

    Attributes:
        task, operator, seed: its place in the tables.
        metric: of the task.
        cell: of the grid.
    """

    task: str
    operator: str
    seed: int
    metric: str
    cell: Cell


def compare(
    tasks: list[str],
    operators: str | None = None,
    out: str | Path = "runs/compare",
    *,
    setting: Setting | None = None,
    seeds: int = 1,
    report: Report | None = None,
    worker: bool = False,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Train every operator on every task and write ``compare.json``, ``compare.csv``,
    ``compare.md`` and ``index.html`` into ``out``.

    All models of a task have the same blocks, encoder, data, optimizer, schedule and budget. They
    differ only in the operator, and in the width that the budget gives it. Finished runs are read
    and unfinished ones resumed; a run that fails is recorded with its error. Other tasks of an
    earlier call with the same setting stay in the tables.

    Args:
        tasks: names of :func:`list_tasks`, or recipes whose models take any operator.
        operators: see :func:`fredholm.lab.compare.tasks.read_contenders`; None: all, and
            all baselines.
        out: folder of the runs and tables.
        setting: the budget.
        seeds: number of repetitions, with seeds 0, 1, …
        report: receives lines of progress.
        worker: share the runs with other workers, on any machines that see ``out``. Each worker
            writes the tables once all runs are there.
        trust_code: of run folders as tasks, see :func:`fredholm.training.load_recipe`.

    Raises:
        OptionError: unknown tasks or operators, two tasks of one name, numbers below 1, or a
            folder with results of another setting, or of another task of the same name.
        RecipeError: a task whose recipe does not fit.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        Interrupted: Ctrl-C; the same command continues.
    """
    say = report or quiet
    place = Path(out)
    setting = setting or Setting()
    if seeds < 1:
        raise OptionError(f"seeds: expected 1 or more, got {seeds}; give a larger number")

    # Imports come first: what the changes and the recipes import may register operators.
    import_changes(tasks, setting.changes, trust_code=trust_code)
    setting = replace(setting, changes=tuple(absolute_overrides(setting.changes)))
    chosen = [find_task(name, trust_code=trust_code) for name in tasks]
    _refuse_equal_names(tasks, chosen)
    contenders = read_contenders(operators)
    # A folder of another setting is refused before sizes are solved, which takes a while.
    tables.open_results(place, setting)

    # Sizes are solved once, by whichever worker comes first.
    with _lock(place):
        plans = [plan(task, contenders, place, setting, seeds, say) for task in chosen]
    entries = [entry for entry, _ in plans]

    # All operators have a first seed before any has a second one: a comparison that is cut short
    # lacks seeds, not operators.
    runs = [run for _, own in plans for run in own]
    runs.sort(key=lambda run: run.seed)
    rows: list[tuple[Run, Row]] = []

    def record() -> dict[str, Any]:
        """Add the results so far to the tables, which other calls may have written meanwhile;
        return the contents of ``compare.json``.
        """
        results = tables.open_results(place, setting)
        tables.put(results, entries)
        for run, row in rows:
            tables.add(results, run.task, run.operator, row)
        tables.write(place, results)
        return results

    grid = Grid(train_and_score)
    cells = [run.cell for run in runs]
    if worker:
        results_of_cells = grid.share(cells)
    else:
        results_of_cells = grid.run(cells)
        with _lock(place):
            record()

    by_folder = {run.cell.place: run for run in runs}
    for cell, result in results_of_cells:
        run = by_folder[cell.place]
        row = _row(run, result)
        rows.append((run, row))
        where = f"[{len(rows)}/{len(runs)}] {run.task} {run.operator} seed {run.seed}"
        say(f"{where}: {_score(run, row)}")
        if not worker:
            with _lock(place):
                record()

    with _lock(place):
        results = record()
        tables.write_page(place, results)
    return results


def _refuse_equal_names(sources: list[str], tasks: list[ComparedTask]) -> None:
    """Refuse two tasks of one name, whose runs would lie in one folder."""
    first: dict[str, str] = {}
    for source, task in zip(sources, tasks):
        if task.name in first:
            raise OptionError(
                f"task: expected tasks of different names, got {first[task.name]!r} and "
                f"{source!r}, both named {task.name!r}; rename one, or leave it out"
            )
        first[task.name] = source


def _lock(place: Path) -> FileLock:
    """Return the lock of a folder's tables; processes wait for each other."""
    place.mkdir(parents=True, exist_ok=True)
    return FileLock(place / ".tables.lock")


def train_and_score(cell: Cell, say: Report) -> Row:
    """Train and evaluate a cell; return every number of the evaluation and the training's cost."""
    facts, scores = scores_of(cell, say)
    numbers = {}
    for key, value in scores.items():
        if isinstance(value, int | float) and key != "n":
            numbers[key] = value
    return numbers | facts


def _row(run: Run, result: dict[str, Any]) -> Row:
    """Return what the tables hold of a run: its seed, its numbers and its learning curve."""
    if "error" in result:
        return {"seed": run.seed, **result}
    if result.get(run.metric) is None:
        numbers = sorted(set(result) - {"parameters", "minutes", "epochs"})
        error = (
            f"evaluation: expected the task's metric {run.metric!r}, got "
            f"{', '.join(numbers) or 'no numbers'}; add it to the task's summary, delete "
            f"{run.cell.place} and run again"
        )
        return {"seed": run.seed, "error": error}

    # Parameters are the same for every seed; they are listed beside the width.
    row = {
        "seed": run.seed,
        **result,
        "curve": _curve(run),
    }
    row.pop("parameters", None)
    return row


def plan(
    task: ComparedTask,
    contenders: list[Contender],
    place: Path,
    setting: Setting,
    seeds: int,
    say: Report,
) -> tuple[dict[str, Any], list[Run]]:
    """Return the task's entry in the results, with sizes and no runs yet, and the runs to do.

    Sizes that an earlier call solved in the same setting, for the same recipe and files, are read
    from ``sizes.json``. A contender that cannot serve the task has an entry with the reason, and no
    runs.

    Args:
        task: the task.
        contenders: operators and baselines.
        place: folder of the comparison; runs go into ``place/<task>/<contender>,seed=<number>``.
        setting: the budget.
        seeds: runs of each contender, with seeds 0, 1, …
        say: receives one line per contender.

    Raises:
        OptionError: the folder has results of another task of this name.
    """
    # The recipe of the reference has what all contenders share: data, encoder, training.
    common = make_recipe(task, REFERENCE, setting.changes)
    dataset = build_dataset(common, "train")
    objective = task_of(dataset)
    name, direction = objective.metric
    metric = name.removeprefix("val_")

    # The runs of another task of this name must stay.
    files = data_mark(common)
    identity = {
        "name": task.name,
        "recipe_mark": recipe_mark(common),
        "files_mark": files,
    }
    tables.refuse_other(tables.open_results(place, setting), identity)

    saved = place / task.name / "sizes.json"
    mark = digest_json(
        {
            "setting": asdict(setting),
            "recipe": identity["recipe_mark"],
            "files": files,
        }
    )
    state = read_state(saved)
    sizes: dict[str, Any] = {}
    if state.get("of") == mark:
        sizes = state["sizes"]

    rows = []
    runs = []
    for contender in contenders:
        label = contender.label
        size = sizes.get(label) or _solve_or_refuse(task, contender, dataset, setting)
        sizes[label] = size
        # Saved after each contender, since solving one may take minutes.
        saved.parent.mkdir(parents=True, exist_ok=True)
        write_json(saved, {"of": mark, "sizes": sizes})
        rows.append({"operator": label, **size, "runs": []})
        if "refused" in size:
            say(f"{task.name} {label}: cannot serve this task: {size['refused']}")
            continue
        parameters = f"{size['parameters']:,} parameters ({size['off']:+.1%})"
        say(f"{task.name} {label}: width {size['dim']}, {parameters}")

        changes = [*setting.changes, width_override(size["dim"])]
        if size["epochs"]:
            changes.append(f"training.epochs={size['epochs']}")
        for seed in range(seeds):
            folder = f"{safe_name(label)},seed={seed}"
            own = (*changes, f"seed={seed}", f"name={folder}")
            recipe = make_recipe(task, contender, own)
            cell = recipe_cell(recipe, place / task.name / folder, files)
            runs.append(Run(task.name, label, seed, metric, cell))

    entry = {
        **identity,
        "title": task.title,
        "recipe": task.recipe,
        "samples": len(dataset),
        "overrides": list(task.overrides),
        "metric": metric,
        "direction": direction,
        "measure": objective.measure,
        "points": count_points(dataset, build_model(common, dataset)),
        "rows": rows,
    }
    return entry, runs


def _solve_or_refuse(
    task: ComparedTask,
    contender: Contender,
    dataset: Any,
    setting: Setting,
) -> dict[str, Any]:
    """Return the fields of a contender's :class:`.budgets.Size` and its ``epochs``, or under
    ``refused`` the reason why it cannot be trained on the task.

    The width is the one that meets the budget. ``epochs`` is None, for those of the recipe, unless
    the budget is a time: then a few steps of the model are timed on this machine.
    """
    why = refusal(task, contender, dataset, setting.changes)
    if why:
        return {"refused": why}

    size = solve_size(task, contender, dataset, setting.budget, setting.changes)
    epochs = None
    if setting.minutes is not None:
        recipe = make_recipe(task, contender, (*setting.changes, width_override(size.dim)))
        epochs = epochs_in(recipe, dataset, setting.minutes)
    return asdict(size) | {"epochs": epochs}


def _curve(run: Run) -> list[float | None]:
    """Return the learning curve of a finished run, None at epochs without a defined metric."""
    history = read_history(RunFolder(run.cell.place).metrics)
    return [defined(round(value, 5)) for value in history[f"val_{run.metric}"]]


def _score(run: Run, row: Row) -> str:
    if "error" in row:
        return f"failed: {row['error']}"
    style = ".4g"
    if run.metric == "accuracy":
        style = ".4f"
    return f"{run.metric} {row[run.metric]:{style}} in {duration(60 * row['minutes'])}"
