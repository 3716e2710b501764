"""Accuracy and speed of the first operators side by side: docs/results/foundation.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fredholm.lab.report.given import read_evaluation

from .kit.machine import describe, machine_line
from .kit.page import PAGES, head, load, save, table
from .kit.subject import Options, Subject
from .performance.page import memory_table

FILE = "foundation.json"
SUBJECT = Subject(
    __name__, runs={"gather": ":gather_all"}, pages={PAGES / "foundation.md": ":page"}
)
FASTER, SHARE = 40, 0.5  # than the literal evaluation; of the rate of the matrix product
GROUPS = ("hidden-first", "operators")  # the others are on the performance page
TEXT = """## Accuracy

Same backbone, same recipe, same epochs; only the operator differs. Single runs have no standard deviation. The runs had one thread
each, beside other work on the second core, so the minutes are upper bounds for two free cores. The digits settings were chosen among
six candidates with their test accuracies in sight: both digits figures are slightly optimistic.

{accuracy}

Machine: {trained}
Commands (with `OMP_NUM_THREADS=1`): `fredholm sweep digits operator=itnet,softmax seeds=3`;
`fredholm train fashion-mnist` and the same with `operator=softmax --name fashion-mnist-softmax`, then `fredholm evaluate` of each;
`python -m evidence run foundation gather --only FOLDER ...`.

## Speed

Each way is timed only after its answer was checked against the definition; ways of one case alternate, medians are shown,
and behind them half the quartile distance in brackets. The share of sgemm counts the multiply-adds the way must do (for
ITNet 2·w·d_h a pair, and the W2 contraction) against this machine's matrix product, measured beside each round.

{speed}

Machine: {timed} Command: `make bench`.

{goals} Beside the products a tile's time goes into GELU, the sum of bias and table, scaling the queries, and W2's contraction,
whose narrow result runs below the rate; for one head and one image nothing shares the displacement table and the preparation of W2.

The exact ITNet operator does the work of w GELU-attentions a head, so softmax attention is much faster at equal N; what the work
buys is a matrix-valued kernel of positions and features.

## Memory

Peak resident memory of one forward and backward above that of a tiny one, each length in a process of its own.

{memory}
"""


def read_json(path: Path) -> Any:
    return load(path.name, path.parent)


def gather_run(folder: Path) -> dict[str, Any]:
    """What one finished and evaluated run reported."""
    result, evaluation = read_json(folder / "result.json"), read_evaluation(folder)
    if evaluation is None:
        raise SystemExit(f"{folder}: not evaluated with its last weights; run fredholm evaluate")
    return {
        "run": result["name"],
        "dataset": evaluation["dataset"],
        "operator": read_json(folder / "model" / "config.json")["config"]["operator"],
        "accuracy": evaluation["accuracy"],
        "sd": None,
        "seeds": 1,
        "parameters": result["parameters"],
        "epochs": result["epochs"],
        "minutes": result["minutes"],
    }


def gather_sweep(folder: Path) -> list[dict[str, Any]]:
    """One row for each combination of a sweep: mean and sd over its seeds."""
    rows = []
    for row in read_json(folder / "table.json"):
        cell = next(
            c
            for c in read_json(folder / "cells.json")
            if c["cell"] == row["cell"] and "error" not in c
        )
        run = gather_run(folder / Path(cell["folder"]).name)
        rows.append(
            run | {"run": row["cell"], "accuracy": row["mean"], "sd": row["sd"], "seeds": row["n"]}
        )
        rows[-1]["minutes"] = row["minutes"]
    return rows


def gather(folder: Path) -> list[dict[str, Any]]:
    """A run's one row, or a sweep's rows."""
    if (folder / "result.json").is_file():
        return [gather_run(folder)]
    if (folder / "table.json").is_file():
        return gather_sweep(folder)
    raise SystemExit(f"{folder}: neither a finished run nor a sweep")


def gather_all(options: Options) -> None:
    """Finished runs and sweeps, their folders given by ``--only``, with the ``--threads`` they were
    trained with.
    """
    rows = [row for folder in options.only for row in gather(Path(folder))]
    save({"machine": describe(), "runs": rows}, FILE, options.results)


def accuracy_table(runs: dict[str, Any]) -> str:
    """Test accuracies of the recipes, every operator beside the others."""
    heads = (
        "data",
        "run",
        "operator",
        "test accuracy (%)",
        "seeds",
        "parameters",
        "epochs",
        "minutes a run",
    )
    lines = []
    for row in runs["runs"]:
        spread = f" ± {100 * row['sd']:.2f}" if row["sd"] is not None else ""
        names = row["dataset"], row["run"], row["operator"]
        counts = row["seeds"], f"{row['parameters']:,}", row["epochs"]
        lines.append(
            (*names, f"{100 * row['accuracy']:.2f}{spread}", *counts, f"{row['minutes']:.1f}")
        )
    return table(heads, lines)


def speed_table(cases: list[dict[str, Any]]) -> str:
    """Ratios first, then times."""
    heads = "case", "size", "way", "time / first way", "ms", "share of sgemm", "difference"
    lines = []
    for row in cases:
        share = f"{row['matrix_rate_share']:.0%}" if row["matrix_rate_share"] else ""
        times = f"{row['ratio']:.2f}", f"{row['milliseconds']:.2f} ({row['spread']:.2f})"
        lines.append(
            (row["case"], row["note"], row["way"], *times, share, f"{row['difference']:.0e}")
        )
    return table(heads, lines)


def goals(cases: list[dict[str, Any]]) -> str:
    """What became of the goals of hidden units first, case by case."""
    parts = []
    for row in (row for row in cases if row["way"] == "literal"):
        share = next(c["matrix_rate_share"] for c in cases if c["case"] == row["case"])
        reached = [
            f"{text} ({'met' if met else 'missed'})"
            for text, met in (
                (f"{row['ratio']:.0f} times", row["ratio"] >= FASTER),
                (f"{share:.0%}", share >= SHARE),
            )
        ]
        parts.append(f"{row['note']}: {' and '.join(reached)}")
    asked = f"{FASTER} times faster than the literal evaluation, {SHARE:.0%} of the matrix product"
    return f"Against the goals, {asked}'s rate: {'; '.join(parts)}."


def page() -> str:
    """The whole page."""
    cpu, runs = load("performance.json"), load(FILE)
    cases = [row for row in cpu["cases"] if row["group"] in GROUPS]
    title = head("Results: the foundation", "foundation", FILE, "performance.json")
    return title + TEXT.format(
        accuracy=accuracy_table(runs),
        trained=machine_line(runs["machine"]),
        speed=speed_table(cases),
        goals=goals(cases),
        timed=machine_line(cpu["machine"]),
        memory=memory_table(cpu["memory"]),
    )
