"""Evaluation of runs on the tasks of GLUE: each task's own measures, and their mean.

``python -m evidence run glue --runs runs/glue`` evaluates the runs below a folder, prints one line
per task, and writes ``glue.json`` there. Runs whose recipes import a file need ``--import FILE``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from fredholm.errors import DataError, TrustError
from fredholm.files import write_json
from fredholm.lab.training.metrics import named_score
from fredholm.lab.training.recipe_files import read_plain
from fredholm.training import evaluate

from .datasets.glue import TASKS, GlueOptions
from .kit.subject import Options, Subject

SUBJECT = Subject(__name__, runs={"mean": ":evaluate_all"})


def evaluate_all(options: Options) -> None:
    """Evaluate all runs below the folder of runs; print their scores and write them there.

    Raises:
        DataError: no run on GLUE there.
        TrustError: a run's recipe imports a file that ``--import`` did not name.
    """
    try:
        summary = evaluate_glue(options.runs)
    except TrustError as error:
        # The flag that the library's error names is one of `fredholm`, not of this command.
        raise TrustError(f"{error}; python -m evidence takes --import FILE instead") from error

    print("\n".join(score_lines(summary)), flush=True)
    write_json(options.runs / "glue.json", summary)


def glue_runs(folder: str | Path) -> list[Path]:
    """List the runs directly below ``folder`` that learn a task of GLUE and have a model.

    Their recipes are read; nothing that they import is executed.

    Raises:
        DataError: there is none.
    """
    runs = []
    for path in sorted(Path(folder).glob("*/recipe.yaml")):
        run = path.parent
        if (run / "model").is_dir() and _task(run) is not None:
            runs.append(run)
    if not runs:
        raise DataError(
            f"{folder}: expected finished runs on tasks of GLUE, got none; make some with "
            "`fredholm sweep itnet-glue data.options.task=cola,sst2`"
        )
    return runs


def _task(run: Path) -> str | None:
    """Return the task of GLUE that a run learns; None for another data set or hidden tokens."""
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
    """Evaluate all runs on GLUE below ``folder``.

    The result holds all measures of every task, and the mean of their main ones, which are the
    paper's: Matthews' correlation for CoLA, F1 for MRPC and QQP, Spearman's correlation for STS-B,
    accuracy for the others (MNLI: matched). A task with several runs, such as seeds, counts once,
    with their mean.

    Returns: ``tasks`` (each with ``scores``, ``runs``, ``n`` and ``notes``), ``missing`` (tasks
    without a run) and ``mean``. A correlation that is not defined is None, and so is any mean that
    contains it.

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
        scores = {
            measure: _mean(result["scores"][measure] for result in results)
            for measure in TASKS[name].measures
        }
        tasks[name] = {
            "scores": scores,
            "runs": [str(run) for run in runs[name]],
            "n": results[0]["n"],
            "notes": list(notes),
        }

    # The measure of the paper's table is the one that a task lists first.
    main_scores = [next(iter(task["scores"].values())) for task in tasks.values()]
    return {
        "split": split,
        "tasks": tasks,
        "missing": [name for name in TASKS if name not in tasks],
        "mean": _mean(main_scores),
    }


def _mean(scores: Iterable[float | None]) -> float | None:
    """Return the mean of scores; None if one of them is not defined."""
    values = []
    for score in scores:
        if score is None:
            return None
        values.append(score)
    return fmean(values)


def score_lines(summary: dict[str, Any]) -> list[str]:
    """Return one line of scores per task of GLUE, and the mean over those tasks.

    ``summary`` is what :func:`evaluate_glue` returns. The last line also names the tasks that have
    no run, which the mean leaves out.
    """
    lines = []
    for task, row in summary["tasks"].items():
        scores = ", ".join(named_score(name, value) for name, value in row["scores"].items())
        # A task may have several runs, such as one per seed.
        averaged = ""
        if len(row["runs"]) > 1:
            averaged = f" (mean of {len(row['runs'])} runs)"
        lines.append(f"{task:<5} {scores}, n {row['n']}{averaged}")
        lines += [f"      {note}" for note in row["notes"]]

    count = len(summary["tasks"])
    title = f"mean of {count} task"
    if count > 1:
        title += "s"
    missing = ""
    if summary["missing"]:
        missing = f"; no run of {', '.join(summary['missing'])}"
    lines.append(f"{named_score(title, summary['mean'])}{missing}")
    return lines
