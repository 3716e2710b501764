"""The runs on GLUE's tasks together: each task's own measure, and their mean.

``python -m evidence run glue --runs runs/glue`` evaluates the runs below a folder, prints one line
per task, and writes ``glue.json`` there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from fredholm.errors import DataError
from fredholm.files import write_json
from fredholm.lab.training.metrics import title_of
from fredholm.lab.training.recipe_files import read_plain
from fredholm.training import evaluate

from .datasets.glue import TASKS, GlueOptions
from .kit.subject import Options, Subject

SUBJECT = Subject(__name__, runs={"mean": ":run"})


def run(options: Options) -> None:
    """Evaluate all runs below ``--runs``."""
    summary = evaluate_glue(options.runs)
    print("\n".join(lines(summary)), flush=True)
    write_json(options.runs / "glue.json", summary)


def glue_runs(folder: str | Path) -> list[Path]:
    """The runs directly below ``folder`` that classify or score a task of GLUE and have a model,
    sorted; recipes are read, and nothing that they import is executed.

    Raises:
        DataError: there is none.
    """
    runs = [path.parent for path in sorted(Path(folder).glob("*/recipe.yaml"))]
    runs = [run for run in runs if (run / "model").is_dir() and _task(run) is not None]
    if not runs:
        raise DataError(
            f"{folder}: holds no finished run on a task of GLUE; needs a folder of runs such as "
            "that of `fredholm sweep itnet-glue data.options.task=cola,sst2`"
        )
    return runs


def _task(run: Path) -> str | None:
    """The task of GLUE that a run learns; None for another data set, or for hidden tokens."""
    data = read_plain(run / "recipe.yaml")["data"]
    if data["name"] != "glue" or data["masked"] is not None:
        return None
    return GlueOptions(**data["options"]).task


def evaluate_glue(
    folder: str | Path,
    split: str = "test",
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate all runs on GLUE below ``folder``: the measures of every task, and the mean of the
    tasks' chief ones.

    The chief measures are the paper's: Matthews' correlation for CoLA, F1 for MRPC and QQP,
    Spearman's correlation for STS-B, accuracy for the others (MNLI: matched). A task with several
    runs, such as seeds, counts once, with their mean.

    Returns: ``tasks`` (of each its ``scores``, ``runs``, ``n`` and ``notes``), ``missing`` (tasks
    without a run) and ``mean``; None in the place of a score, and of a mean with it, where a
    correlation is not defined.

    Raises:
        DataError: no run on GLUE there.
        TrustError: a run's recipe imports a file, and ``trust_code`` is not given.
    """
    runs: dict[str, list[Path]] = {}
    for run in glue_runs(folder):
        runs.setdefault(_task(run) or "", []).append(run)
    tasks: dict[str, dict[str, Any]] = {}
    for name in TASKS:
        if name not in runs:
            continue
        results = [evaluate(run, split, overrides, trust_code=trust_code) for run in runs[name]]
        notes = dict.fromkeys(note for result in results for note in result.get("notes", ()))
        tasks[name] = {
            "scores": {
                score: _mean(result["scores"][score] for result in results)
                for score in TASKS[name].measures
            },
            "runs": [str(run) for run in runs[name]],
            "n": results[0]["n"],
            "notes": list(notes),
        }
    return {
        "split": split,
        "tasks": tasks,
        "missing": [name for name in TASKS if name not in tasks],
        "mean": _mean(row["scores"][TASKS[name].measures[0]] for name, row in tasks.items()),
    }


def _mean(scores: Iterable[float | None]) -> float | None:
    """None where one of them is not defined."""
    known = list(scores)
    return None if None in known else fmean(score for score in known if score is not None)


def lines(summary: dict[str, Any]) -> list[str]:
    """Return one line per task, and the mean with what it is the mean of."""
    result = []
    for task, row in summary["tasks"].items():
        scores = ", ".join(_named(name, value) for name, value in row["scores"].items())
        runs = f" (mean of {len(row['runs'])} runs)" if len(row["runs"]) > 1 else ""
        result.append(f"{task:<5} {scores}, n {row['n']}{runs}")
        result += [f"      {note}" for note in row["notes"]]
    missing = f"; no run of {', '.join(summary['missing'])}" if summary["missing"] else ""
    count = len(summary["tasks"])
    mean = _named(f"mean of {count} task" + "s" * (count > 1), summary["mean"])
    return [*result, mean + missing]


def _named(name: str, value: float | None) -> str:
    return f"{title_of(name)} {'undefined' if value is None else f'{value:.4f}'}"
