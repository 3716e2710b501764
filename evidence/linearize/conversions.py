"""Conversions of fine-tuned models to linear attention, on real tasks.

For each task and seed a pretrained model is fine-tuned with softmax attention: the teacher. Then
each method replaces the attention and is trained by one recipe: distilled at one learning rate for
all, then tuned on the task. Scores are those of the test split.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

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
"""Methods with the same recipe, which run by default.

The others run only by name: longer distilling, conversion of three layers, and InfSA's two forms,
which are other operators than linear attention.
"""


def task_named(name: str, small: bool) -> Task:
    """Return a task; with ``small``, with few samples and epochs, for a trial."""
    task = ALL[name]
    if not small:
        return task
    once = {key: replace(getattr(task, key), epochs=1) for key in ("learn", "tune")}
    return replace(task, sizes={"train": 32, "val": 16, "test": 16}, **once)


def teacher(task: Task, splits: dict[str, Any], folder: Path, seed: int) -> torch.nn.Module:
    """Return the task's fine-tuned softmax model, after training, resuming or reading it."""
    torch.manual_seed(seed)
    model = task.teacher(folder.parent)
    # A resumed training needs the head too: it is identified by its initial weights.
    if task.head is not None:
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


class Taught(NamedTuple):
    """A task's teacher, its score on the test split and on each test sample, and the data."""

    model: torch.nn.Module
    score: float
    each: list[float]
    splits: dict[str, Any]


@cache
def taught(name: str, seed: int, runs: Path, small: bool = False) -> Taught:
    """Return a task's teacher with its scores, which are stored beside its weights."""
    task, folder = task_named(name, small), runs / f"{name}-teacher-{seed}"
    splits = task.splits(task.sizes)
    model = teacher(task, splits, folder, seed)
    file = folder / "scores.json"
    if not file.is_file():
        each: list[float] = []
        judged = create_task(task.kind).judge_by(task.metric)
        score = evaluate(model, splits["test"], judged, each=each)
        file.write_text(json.dumps({"score": score, "each": each}), encoding="utf-8")
    found = json.loads(file.read_text(encoding="utf-8"))
    return Taught(model, found["score"], found["each"], splits)


def convert(
    name: str, method: str, seed: int, taught: Taught, folder: Path, small: bool = False
) -> dict[str, Any]:
    """Convert a teacher by a method and return the fields of its row."""
    model, score, answers, splits = taught
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
    each: dict[str, list[float]] = {"teacher": answers, "tuned": []}
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
        "answers": {side: pack(values) for side, values in each.items() if values},
        "validation": report.scores,
        "recovered": 100 * scores["tuned"] / scores["teacher"],
        "layers": layers,
        "new_parameters": report.new_parameters,
        "parameters": report.parameters,
        "epochs": report.epochs,
        "minutes": report.minutes,
    }


def work(cell: Cell, report: Report) -> Row:
    """Convert a teacher, which is trained first if it does not exist yet."""
    settings, runs, small = cell.settings, cell.place.parent, bool(cell.given)
    task, seed = settings["task"], settings["seed"]
    return convert(
        task, settings["method"], seed, taught(task, seed, runs, small), cell.place, small
    )


def run(options: Options) -> None:
    """Run the tasks and methods of ``--only``, by default the compared methods on all tasks."""
    wanted = options.chosen([*ALL, *METHODS]) if options.only else []
    tasks = [name for name in ALL if name in wanted] or list(TASKS)
    methods = [name for name in METHODS if name in wanted] or list(COMPARED)
    rows = [
        {"task": task, "method": method, "seed": seed}
        for seed, task, method in product(range(options.seeds or 1), tasks, methods)
    ]

    # The options of distilling are not JSON.
    plain_methods = {}
    for name, method in METHODS.items():
        plain_methods[name] = {key: value for key, value in method.items() if key != "distil"}
    recipe = {
        "distil": dataclasses.asdict(DISTIL),
        "tune": {key: dataclasses.asdict(task.tune) for key, task in ALL.items()},
        "teacher": {key: dataclasses.asdict(task.learn) for key, task in ALL.items()},
        "methods": plain_methods,
    }

    def cell(row: Row) -> Cell:
        label = f"{row['task']}-{row['method']}-{row['seed']}"
        return Cell(row, options.runs / label, options.small)

    fill(TABLE, rows, work, cell, options, machine=describe(), recipe=recipe)
