"""Trains every operator on every task with every seed, resumably, and keeps the
tables up to date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...errors import OptionError
from ...files import digest_json, read_state, write_json
from ..report.results import read_history
from ..training.build import build_dataset, build_model
from ..training.folder import RunFolder
from ..training.grid import Cell, Grid, quiet, recipe_cell, recipe_mark, safe_name, scores_of
from ..training.metrics import defined
from ..training.own_files import data_mark
from ..training.tasks import task_of
from . import tables
from .budgets import BUDGETS, REFERENCE, count_points, epochs_in, make_recipe, refusal, solve_size
from .tasks import ComparedTask, Contender, find_task, read_contenders

Report = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What makes two comparisons the same one: results of another setting are not mixed into its
    tables.

    Attributes:
        budget: ``params``, ``flops`` (of one sample forward), or ``time``: as many epochs as fit in
            ``minutes``, widths as for params.
        minutes: of one training, with ``time``.
        changes: further overrides of every task's recipe.
    """

    budget: str = "params"
    minutes: float | None = None
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise OptionError(
                f"budget: received {self.budget!r}; needs one of {', '.join(BUDGETS)}"
            )
        if (self.budget == "time") != (self.minutes is not None):
            raise OptionError(
                f"minutes: received {self.minutes} with budget {self.budget!r}; they belong to "
                "'time'"
            )


@dataclass(frozen=True)
class Run:
    """One training: which row of which table it belongs to, its task's metric, and its cell."""

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

    All models of a task have the same blocks, encoder, data, optimizer, schedule and budget; only
    the operator differs, and the width that the budget gives it. Finished runs are read, unfinished
    ones resumed, and one that fails is recorded with its error. Other tasks of an earlier call with
    the same setting stay in the tables.

    Args:
        tasks: names of :func:`list_tasks`, or recipes whose models take any operator.
        operators: see :func:`fredholm.lab.compare.tasks.read_contenders`; None: all, and
            all baselines.
        out: folder of the runs and tables.
        setting: the budget.
        seeds: repetitions, with seeds 0, 1, …
        report: receives lines of progress.
        worker: share the runs with other workers, on any machines that see ``out``; each writes
            the tables once all runs are there.
        trust_code: of run folders as tasks, see :func:`fredholm.training.load_recipe`.

    Raises:
        OptionError: unknown tasks or operators, numbers below 1, or a folder with results of
            another setting.
        RecipeError: a task whose recipe does not fit.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        Interrupted: Ctrl-C; the same command goes on.
    """
    say, place, setting = report or quiet, Path(out), setting or Setting()
    if seeds < 1:
        raise OptionError(f"seeds: received {seeds}; needs 1 or more")
    # Their imports register operators.
    chosen = [find_task(name, trust_code=trust_code) for name in tasks]
    contenders = read_contenders(operators)
    tables.open_results(place, setting)  # refused before sizes are solved
    with _turn(place):  # sizes are solved once, by whoever comes first
        plans = [plan(task, contenders, place, setting, seeds, say) for task in chosen]
    # A comparison that is cut short has fewer seeds, not fewer operators.
    runs = sorted((run for _, mine in plans for run in mine), key=lambda run: run.seed)
    rows: dict[int, Row] = {}

    def record() -> dict[str, Any]:
        """The tables with what is there so far, beside what other calls have written meanwhile."""
        results = tables.open_results(place, setting)
        _enter(results, plans)
        for number, row in rows.items():
            tables.add(results, runs[number].task, runs[number].operator, row)
        tables.write(place, results)
        return results

    if not worker:
        with _turn(place):
            record()
    grid, cells = Grid(compared), [run.cell for run in runs]
    for cell, result in grid.share(cells) if worker else grid.run(cells):
        number = next(i for i, run in enumerate(runs) if run.cell is cell)
        run, rows[number] = runs[number], _row(runs[number], result)
        score = _score(run, rows[number])
        say(f"[{len(rows)}/{len(runs)}] {run.task} {run.operator} seed {run.seed}: {score}")
        if not worker:
            with _turn(place):
                record()
    with _turn(place):
        results = record()
        tables.write_page(place, results)
    return results


def _turn(place: Path) -> FileLock:
    """Held by one process at a time, while the others wait for it."""
    place.mkdir(parents=True, exist_ok=True)
    return FileLock(place / ".tables.lock")


def _enter(results: dict[str, Any], plans: list[tuple[dict[str, Any], list[Run]]]) -> None:
    """Put the tasks' entries in the place of earlier ones."""
    for entry, _ in plans:
        others = [task for task in results["tasks"] if task["name"] != entry["name"]]
        results["tasks"] = [*others, entry]


def compared(cell: Cell, say: Report) -> Row:
    """The work of a comparison: every number of the evaluation, and what the training took."""
    facts, scores = scores_of(cell, say)
    return {k: v for k, v in scores.items() if isinstance(v, int | float) and k != "n"} | facts


def _row(run: Run, result: dict[str, Any]) -> Row:
    if "error" not in result and result.get(run.metric) is None:
        has = ", ".join(sorted(set(result) - {"parameters", "minutes", "epochs"})) or "no number"
        result = {
            "error": f"the task's metric is {run.metric!r}, of which its evaluation says nothing; "
            f"it has {has}; let the task's summary give it, delete {run.cell.place} and run again"
        }
    row = {"seed": run.seed, **result}
    if "error" not in result:
        row["curve"] = _curve(run)
    row.pop("parameters", None)  # of every seed the same; they stand beside the width
    return row


def plan(
    task: ComparedTask,
    contenders: list[Contender],
    place: Path,
    setting: Setting,
    seeds: int,
    say: Report,
) -> tuple[dict[str, Any], list[Run]]:
    """The task's entry of the results, sizes solved and no run yet, and the runs that fill it."""
    common = make_recipe(task, REFERENCE, setting.changes)
    dataset = build_dataset(common, "train")
    objective = task_of(dataset)
    entry: dict[str, Any] = {
        "name": task.name,
        "title": task.title,
        "recipe": task.recipe,
        "samples": len(dataset),
    }
    metric, direction = objective.metric[0].removeprefix("val_"), objective.metric[1]
    entry |= {"overrides": list(task.overrides), "metric": metric, "direction": direction}
    entry |= {"measure": objective.measure}
    entry |= {"points": count_points(dataset, build_model(common, dataset))}
    rows, runs = [], []
    kept = place / task.name / "sizes.json"
    files = data_mark(common)
    of = {"setting": asdict(setting), "recipe": recipe_mark(common), "files": files}
    mark = digest_json(of)
    sizes = _known_sizes(kept, mark)
    for contender in contenders:
        size = sizes.get(contender.label) or _solve_or_refuse(task, contender, dataset, setting)
        sizes[contender.label] = size
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"of": mark, "sizes": sizes})
        rows.append({"operator": contender.label, **size, "runs": []})
        if "refused" in size:
            say(f"{task.name} {contender.label}: does not serve this task: {size['refused']}")
            continue
        say(
            f"{task.name} {contender.label}: width {size['dim']}, {size['parameters']:,} "
            f"parameters ({size['off']:+.1%})"
        )
        changes = [
            f"model.body.dim={size['dim']}",
            *([f"training.epochs={size['epochs']}"] if size["epochs"] else []),
        ]
        for seed in range(seeds):
            name = f"{safe_name(contender.label)},seed={seed}"
            own = (*setting.changes, *changes, f"seed={seed}", f"name={name}")
            cell = recipe_cell(make_recipe(task, contender, own), place / task.name / name, files)
            runs.append(Run(task.name, contender.label, seed, metric, cell))
    return entry | {"rows": rows}, runs


def _known_sizes(kept: Path, mark: str) -> dict[str, Any]:
    """The sizes that an earlier call solved in the same setting, of the same recipe; others are
    solved anew.
    """
    state = read_state(kept)
    return state["sizes"] if state.get("of") == mark else {}


def _solve_or_refuse(
    task: ComparedTask, contender: Contender, dataset: Any, setting: Setting
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
        recipe = make_recipe(task, contender, (*setting.changes, f"model.body.dim={size.dim}"))
        epochs = epochs_in(recipe, dataset, setting.minutes)
    return asdict(size) | {"epochs": epochs}


def _curve(run: Run) -> list[float | None]:
    """The learning curve of a finished run; None where the metric is not defined."""
    history = read_history(RunFolder(run.cell.place).metrics)
    return [defined(round(value, 5)) for value in history[f"val_{run.metric}"]]


def _score(run: Run, row: Row) -> str:
    if "error" in row:
        return f"failed: {row['error']}"
    style = ".4f" if run.metric == "accuracy" else ".4g"
    return f"{run.metric} {row[run.metric]:{style}} in {row['minutes']:.2f} min"
