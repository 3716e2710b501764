"""Real conversions: ``python -m benchmarks.linearize [--tasks sentiment …] [--methods luna …]
[--seeds 1] [--runs runs/linearize]``.

Each task's pretrained model is fine-tuned once a seed with its own softmax; then every method is
put in its place and trained under one recipe: stage 1 at one learning rate for all, stage 2 on the
task. Scores are those of the test split. A row is written to docs/results/luna.json after each
conversion; a run that was stopped goes on with the same command, and finished rows are kept.
``--speed`` times a converted MiniLM against its teacher instead. ``python -m
benchmarks.linearize_report`` writes the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fredholm.training import linearize
from fredholm.training.conversion import fine_tune
from fredholm.training.conversion_scores import evaluate
from fredholm.training.metrics import metric_named
from fredholm.training.tasks import create_task

from .linearize_tasks import DISTIL, TASKS, Task
from .machine import describe

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "luna.json"
METHODS: dict[str, dict[str, Any]] = {
    "luna": {"to": "luna"},
    "hedgehog": {"to": "hedgehog"},
    "t2r": {"to": "t2r"},
    "performer": {"to": "performer", "options": {"features": 64}},
    "luna_long": {"to": "luna", "distil": replace(DISTIL, epochs=5)},
    "infsa": {"to": "infsa"},
    "linear_infsa": {"to": "linear_infsa"},
}
COMPARED = ("luna", "hedgehog", "t2r", "performer")
"""Methods under one recipe. Run by name: LUNA with a longer stage 1, and InfSA's two forms, which
are other operators.
"""


def load(path: Path = RESULTS) -> dict[str, Any]:
    """The results so far."""
    return (
        json.loads(path.read_text(encoding="utf-8"))
        if path.is_file()
        else {"runs": [], "speed": None}
    )


def save(found: dict[str, Any], path: Path = RESULTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def teacher(task: Task, splits: dict[str, Any], folder: Path, seed: int) -> torch.nn.Module:
    """The task's fine-tuned softmax model: trained, resumed or read."""
    torch.manual_seed(seed)
    model = task.teacher(folder.parent)
    if task.head is not None and not (folder / "tuned.pt").is_file():
        task.head(model, splits["train"])
    say = lambda line: print(f"teacher: {line}", flush=True)  # noqa: E731
    pair = splits["train"], splits["val"]
    options = {"task": task.kind, "metric": task.metric, "options": task.learn, "seed": seed}
    fine_tune(
        model,
        data=pair,
        folder=folder,
        resume=(folder / "progress.json").is_file(),
        say=say,
        **options,
    )
    return model


def convert(
    name: str,
    method: str,
    seed: int,
    model: torch.nn.Module,
    score: float,
    splits: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """One conversion and its scores on the test split; ``score`` is the teacher's there."""
    task, metric, kind = (
        TASKS[name],
        metric_named(TASKS[name].metric),
        create_task(TASKS[name].kind),
    )
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
    scores = {"teacher": score, "tuned": evaluate(conversion.model, test, metric, kind)}
    student = conversion.model
    if "distilled" in report.scores:
        student.load_state_dict(torch.load(folder / "distilled.pt", weights_only=True))
        scores["distilled"] = evaluate(student, test, metric, kind)
    layers = [{"name": x.name, "before": x.before, "after": x.after} for x in report.layers]
    return {
        "task": name,
        "method": method,
        "seed": seed,
        "samples": task.sizes,
        "scores": scores,
        "validation": report.scores,
        "recovered": 100 * scores["tuned"] / scores["teacher"],
        "layers": layers,
        "new_parameters": report.new_parameters,
        "parameters": report.parameters,
        "epochs": report.epochs,
        "minutes": report.minutes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linearize", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(COMPARED))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/linearize"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--speed", action="store_true", help="time the converted MiniLM instead")
    parser.add_argument("--lengths", nargs="+", type=int, help="of --speed")
    args = parser.parse_args()
    if args.speed:
        from .linearize_speed import LENGTHS, measure

        found = load(args.out)
        found["speed"] = measure(tuple(args.lengths or LENGTHS))
        save(found, args.out)
        return
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        for name in args.tasks:
            wanted = [m for m in args.methods if not _known(load(args.out), name, m, seed)]
            if not wanted:
                continue
            splits = TASKS[name].splits(TASKS[name].sizes)
            model = teacher(TASKS[name], splits, args.runs / f"{name}-teacher-{seed}", seed)
            kept = args.runs / f"{name}-teacher-{seed}" / "test.json"
            if not kept.is_file():
                score = evaluate(
                    model,
                    splits["test"],
                    metric_named(TASKS[name].metric),
                    create_task(TASKS[name].kind),
                )
                kept.write_text(json.dumps(score), encoding="utf-8")
            score = json.loads(kept.read_text(encoding="utf-8"))
            print(
                f"{name} seed {seed}: the teacher's {TASKS[name].metric} on the test split "
                f"{score:.4f}",
                flush=True,
            )
            for method in wanted:
                if _known(load(args.out), name, method, seed):  # by another process meanwhile
                    continue
                row = convert(
                    name, method, seed, model, score, splits, args.runs / f"{name}-{method}-{seed}"
                )
                found = load(args.out)
                found["machine"] = describe()
                found["recipe"] = {
                    "distil": dataclasses.asdict(DISTIL),
                    "tune": {key: dataclasses.asdict(task.tune) for key, task in TASKS.items()},
                    "teacher": {key: dataclasses.asdict(task.learn) for key, task in TASKS.items()},
                    "methods": {
                        key: {k: v for k, v in one.items() if k != "distil"}
                        for key, one in METHODS.items()
                    },
                }
                found["runs"].append(row)
                save(found, args.out)
                print(
                    f"{name} {method} seed {seed}: {row['scores']}, {row['recovered']:.2f}% "
                    "recovered",
                    flush=True,
                )


def _known(found: dict[str, Any], task: str, method: str, seed: int) -> bool:
    return any(
        (row["task"], row["method"], row["seed"]) == (task, method, seed) for row in found["runs"]
    )


if __name__ == "__main__":
    main()
