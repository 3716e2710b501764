"""Real conversions.

Each task's pretrained model is fine-tuned once a seed with its own softmax; then every method is
put in its place and trained under one recipe: distilled at one learning rate for all, then tuned on
the task. Scores are those of the test split.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fredholm.lab.distill.linearize import fine_tune
from fredholm.lab.distill.scores import evaluate
from fredholm.lab.training.grid import Cell, Report
from fredholm.lab.training.tasks import create_task
from fredholm.training import linearize

from ..kit.answers import pack
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.subject import Options
from .tasks import ALL, DISTIL, TASKS, Task

TABLE = Table("linearize.json", ("task", "method", "seed"))
METHODS: dict[str, dict[str, Any]] = {
    "luna": {"to": "luna"},
    "hedgehog": {"to": "hedgehog"},
    "t2r": {"to": "t2r"},
    "performer": {"to": "performer", "options": {"features": 64}},
    "luna_long": {"to": "luna", "distil": replace(DISTIL, epochs=5)},
    "luna_longer": {"to": "luna", "distil": replace(DISTIL, epochs=20)},
    "hedgehog_longer": {"to": "hedgehog", "distil": replace(DISTIL, epochs=20)},
    "luna_first": {"to": "luna", "layers": ["*.layer.[0-2].*"]},
    "luna_last": {"to": "luna", "layers": ["*.layer.[3-5].*"]},
    "infsa": {"to": "infsa"},
    "linear_infsa": {"to": "linear_infsa"},
}
COMPARED = ("luna", "hedgehog", "t2r", "performer")
"""Methods under one recipe. Run by name: longer distilling, the first or the last three layers alone,
and InfSA's two forms, which are other operators.
"""


def task_named(name: str, small: bool) -> Task:
    """A task; ``small``: with so few samples and epochs that it only shows whether it runs."""
    task = ALL[name]
    if not small:
        return task
    once = {key: replace(getattr(task, key), epochs=1) for key in ("learn", "tune")}
    return replace(task, sizes={"train": 32, "val": 16, "test": 16}, **once)


def teacher(task: Task, splits: dict[str, Any], folder: Path, seed: int) -> torch.nn.Module:
    """The task's fine-tuned softmax model: trained, resumed or read."""
    torch.manual_seed(seed)
    model = task.teacher(folder.parent)
    if task.head is not None:  # also of what is resumed, which is told by the weights it began with
        task.head(model, splits["train"])
    fine_tune(
        model,
        data=(splits["train"], splits["val"]),
        folder=folder,
        resume=(folder / "progress.json").is_file(),
        say=lambda line: print(f"teacher: {line}", flush=True),
        task=task.kind,
        metric=task.metric,
        options=task.learn,
        seed=seed,
    )
    return model


@cache
def taught(
    name: str, seed: int, runs: Path, small: bool = False
) -> tuple[torch.nn.Module, float, dict[str, Any]]:
    """A task's teacher, its score on the test split, and the splits."""
    task, folder = task_named(name, small), runs / f"{name}-teacher-{seed}"
    splits = task.splits(task.sizes)
    model, kept = teacher(task, splits, folder, seed), folder / "test.json"
    if not kept.is_file():
        score = evaluate(model, splits["test"], create_task(task.kind).judge_by(task.metric))
        kept.write_text(json.dumps(score), encoding="utf-8")
    return model, json.loads(kept.read_text(encoding="utf-8")), splits


def convert(
    name: str,
    method: str,
    seed: int,
    model: torch.nn.Module,
    score: float,
    splits: dict[str, Any],
    folder: Path,
    small: bool = False,
) -> dict[str, Any]:
    """One conversion and its scores on the test split; ``score`` is the teacher's there."""
    task = task_named(name, small)
    judged = create_task(task.kind).judge_by(task.metric)
    conversion = linearize(
        model,
        **{"distil": DISTIL, **METHODS[method]},
        data=(splits["train"], splits["val"]),
        task=task.kind,
        metric=task.metric,
        tune=task.tune,
        folder=folder,
        resume=(folder / "progress.json").is_file(),
        seed=seed,
        say=lambda line: print(f"{name} {method} seed {seed}: {line}", flush=True),
    )
    report, test = conversion.report, splits["test"]
    each: dict[str, list[float]] = {"teacher": [], "tuned": []}
    evaluate(model, test, judged, each=each["teacher"])
    tuned = evaluate(conversion.model, test, judged, each=each["tuned"])
    scores = {"teacher": score, "tuned": tuned}
    student = conversion.model
    if "distilled" in report.scores:
        student.load_state_dict(torch.load(folder / "distilled.pt", weights_only=True))
        scores["distilled"] = evaluate(student, test, judged)
    layers = [{"name": x.name, "before": x.before, "after": x.after} for x in report.layers]
    return {
        "samples": task.sizes,
        "scores": scores,
        "answers": {whose: pack(values) for whose, values in each.items() if values},
        "validation": report.scores,
        "recovered": 100 * scores["tuned"] / scores["teacher"],
        "layers": layers,
        "new_parameters": report.new_parameters,
        "parameters": report.parameters,
        "epochs": report.epochs,
        "minutes": report.minutes,
    }


def work(cell: Cell, report: Report) -> Row:
    """One conversion, of a teacher that is trained first where it is not there yet."""
    given, runs, small = cell.settings, cell.place.parent, bool(cell.given)
    model, score, splits = taught(given["task"], given["seed"], runs, small)
    row = given["task"], given["method"], given["seed"]
    return convert(*row, model, score, splits, cell.place, small)


def run(options: Options) -> None:
    """The tasks and methods of ``--only``; the compared methods, where none of them is named."""
    wanted = options.chosen([*ALL, *METHODS]) if options.only else []
    tasks = [name for name in ALL if name in wanted] or list(TASKS)
    methods = [name for name in METHODS if name in wanted] or list(COMPARED)
    rows = [
        {"task": task, "method": method, "seed": seed}
        for seed in range(options.seeds or 1)
        for task in tasks
        for method in methods
    ]
    recipe = {
        "distil": dataclasses.asdict(DISTIL),
        "tune": {key: dataclasses.asdict(task.tune) for key, task in ALL.items()},
        "teacher": {key: dataclasses.asdict(task.learn) for key, task in ALL.items()},
        "methods": {
            key: {k: v for k, v in one.items() if k != "distil"} for key, one in METHODS.items()
        },
    }

    def cell(row: Row) -> Cell:
        label = f"{row['task']}-{row['method']}-{row['seed']}"
        return Cell(row, options.runs / label, options.small)

    fill(TABLE, rows, work, cell, options, machine=describe(), recipe=recipe)
