"""``python -m benchmarks.linearize_report``: docs/results/luna.md from the committed results of
``benchmarks.linearize``.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from pathlib import Path
from typing import Any

from .linearize import COMPARED, METHODS, RESULTS, load
from .linearize_speed import WAYS, crossover
from .linearize_tasks import TASKS
from .report import machine_line

LABELS = {
    "luna": "LUNA",
    "hedgehog": "Hedgehog",
    "t2r": "T2R",
    "performer": "Performer, 64 features",
    "luna_long": f"LUNA, stage 1 of {METHODS['luna_long']['distil'].epochs} epochs",
    "infsa": "pure InfSA",
    "linear_infsa": "linear InfSA",
}
HEAD = """# Results: pretrained models made linear

<!-- Written by `python -m benchmarks.linearize_report` from docs/results/luna.json; edit the scripts, not this page. -->

A pretrained model is fine-tuned with its own softmax (the teacher). Then each method takes the softmax's place,
everything else kept, and is trained under one recipe: stage 1, the maps alone, every layer matching its teacher's
attention; stage 2, everything on the task, as long as the validation score improves. Scores are those of test samples
that neither stage has seen. [How it works](../linearize.md).
"""
Found = list[dict[str, Any]]


def spread(values: list[float], digits: int = 2) -> str:
    """Mean ± sample standard deviation; without the latter where there is one value."""
    text = f"{statistics.mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {statistics.stdev(values):.{digits}f}"


def of(runs: Found, task: str, method: str | None = None) -> Found:
    """The runs of a task, and of a method."""
    return [row for row in runs if row["task"] == task and method in (None, row["method"])]


def conversions(runs: Found) -> str:
    """A row a task and method: scores and share recovered."""
    lines = [
        "| task | score | method | teacher | after stage 1 | after stage 2 | recovered (%) | seeds "
        "|",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        for method in METHODS:
            rows = of(runs, task, method)
            if not rows:
                continue
            parts = {
                key: spread([100 * row["scores"][key] for row in rows if key in row["scores"]])
                if any(key in row["scores"] for row in rows)
                else "nothing to distil"
                for key in ("teacher", "distilled", "tuned")
            }
            recovered = spread([row["recovered"] for row in rows], 1)
            score = f"{TASKS[task].metric} × 100"
            cells = [
                TASKS[task].title,
                score,
                LABELS[method],
                *parts.values(),
                recovered,
                str(len(rows)),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def settings(found: dict[str, Any]) -> str:
    """How many samples, the recipe of each task, and how far to trust the scores."""
    runs, recipe = found["runs"], found["recipe"]
    lines = [
        "| task | train | validate | test | teacher: epochs, lr | stage 2: epochs, lr |",
        "|---|---|---|---|---|---|",
    ]
    tests = []
    for task in TASKS:
        rows = of(runs, task)
        if not rows:
            continue
        n, learn, tune = rows[0]["samples"], recipe["teacher"][task], recipe["tune"][task]
        stages = [f"≤ {stage['epochs']}, {stage['lr']:g}" for stage in (learn, tune)]
        lines.append(
            f"| {TASKS[task].title} | {n['train']} | {n['val']} | {n['test']} | "
            f"{' | '.join(stages)} |"
        )
        tests.append(n["test"])
    distil, few = recipe["distil"], min(tests)
    text = (
        f"Stage 1: {distil['epochs']} epoch, AdamW at {distil['lr']:g}; batches of "
        f"{distil['batch_size']} everywhere. Few samples, so "
        f"that one conversion takes a minute or two on one core: with {few} test samples the "
        "standard error of an accuracy near "
        f"one half is {100 * (0.25 / few) ** 0.5:.1f} points, and differences below that say "
        "nothing. Students see the training "
        "samples again in stage 2, so that more than 100% may be the longer training."
    )
    return "\n".join(lines) + "\n\n" + textwrap.fill(text, 118, break_on_hyphens=False)


def goal(runs: Found) -> str:
    """Where LUNA stands against the aim: 99.5% of the teacher, and not behind Hedgehog."""
    lines = []
    for task in TASKS:
        means = {
            m: statistics.mean(row["recovered"] for row in of(runs, task, m))
            for m in METHODS
            if of(runs, task, m)
        }
        if "luna" not in means:
            continue
        reached = "reached" if means["luna"] >= 99.5 else "missed"
        text = f"- {TASKS[task].title}: LUNA recovers {means['luna']:.1f}%, 99.5% {reached}"
        if "hedgehog" in means:
            gap = means["luna"] - means["hedgehog"]
            text += f"; {abs(gap):.1f} points {'ahead of' if gap >= 0 else 'behind'} Hedgehog"
        if "luna_long" in means:
            text += f"; with {METHODS['luna_long']['distil'].epochs} epochs of stage 1 {means['luna_long']:.1f}%"
        lines.append(f"{text}.")
    return "\n".join(lines)


def divergences(runs: Found) -> str:
    """KL(teacher ‖ student) of each layer before and after stage 1, the first seed."""
    lines = []
    for task in TASKS:
        rows = [of(runs, task, method)[0] for method in COMPARED if of(runs, task, method)]
        if not rows:
            continue
        layers = len(rows[0]["layers"])
        lines += [
            f"**{TASKS[task].title}**\n",
            "| method | " + " | ".join(f"layer {i + 1}" for i in range(layers)) + " | mean |",
            "|---|" + "---|" * (layers + 1),
        ]
        for row in rows:
            cells = [_pair(layer["before"], layer["after"]) for layer in row["layers"]]
            parts = [[layer[key] for layer in row["layers"]] for key in ("before", "after")]
            means = [None if None in values else statistics.mean(values) for values in parts]
            lines.append(
                f"| {LABELS[row['method']]} | {' | '.join(cells)} | {_pair(means[0], means[1])} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def _pair(before: float | None, after: float | None) -> str:
    return f"{before:.2f}" if after is None else f"{before:.2f} → {after:.2f}"


def speed(found: dict[str, Any]) -> str:
    """Time and memory of a converted MiniLM against its teacher, with the crossover."""
    rows = found["rows"]
    lines = [
        "| tokens | " + " | ".join(f"{LABELS.get(way, way)}, ms (MiB)" for way in WAYS) + " |",
        "|---|" + "---|" * len(WAYS),
    ]
    for row in rows:
        cells = [f"{row[way]['ms']:.1f} ({row[way]['bytes'] / 2**20:.0f})" for way in WAYS]
        lines.append(f"| {row['length']:,} | {' | '.join(cells)} |")
    lines.append("")
    for key, what in (("ms", "Faster"), ("bytes", "Smaller")):
        parts = []
        for way in WAYS[1:]:
            where = crossover(rows, way, key)
            parts.append(
                f"{LABELS[way]} "
                f"{'at no measured length' if where is None else f'from {where:,} tokens'}"
            )
        lines.append(f"{what} than the teacher: {'; '.join(parts)}.")
    lines += ["", machine_line(found["machine"])]
    return "\n".join(lines)


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    command = "`python -m benchmarks.linearize` runs it and goes on where it stopped; `--tasks`, `--methods` and `--seeds` choose."
    parts = [
        HEAD,
        "## Conversions\n",
        conversions(found["runs"]),
        "",
        settings(found),
        "",
        command,
        "",
    ]
    missing = []
    for task in TASKS:
        absent = [LABELS[method] for method in COMPARED if not of(found["runs"], task, method)]
        if absent:
            missing.append(
                TASKS[task].title
                + ("" if len(absent) == len(COMPARED) else f" with {', '.join(absent)}")
            )
    if missing:
        parts += [f"Not run yet: {'; '.join(missing)}.", ""]
    if goal(found["runs"]):
        parts += [
            "Against the aim (LUNA at 99.5% or more, and not behind Hedgehog):\n",
            goal(found["runs"]),
            "",
        ]
    text = "KL(teacher ‖ student) in nats on validation samples, before stage 1 → after it, inputs as the teacher gives them.\n"
    parts += ["## How near each layer's attention comes\n", text, divergences(found["runs"]), ""]
    parts += ["## Speed and memory\n"]
    if found.get("speed"):
        about = "One forward pass of MiniLM (6 layers, 384 features, 12 heads), batch 1; in brackets the growth of peak resident memory.\n"
        parts += [
            about,
            speed(found["speed"]),
            "",
            "`python -m benchmarks.linearize --speed` measures it.",
        ]
    else:
        parts += ["Not measured yet: `python -m benchmarks.linearize --speed`."]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.linearize_report", description=__doc__
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.with_suffix(".md"))
    args = parser.parse_args()
    args.out.write_text(page(load(args.results)), encoding="utf-8")


if __name__ == "__main__":
    main()
