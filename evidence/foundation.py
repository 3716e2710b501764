"""Accuracy and speed of the first operators side by side, docs/results/foundation.md."""

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
# Goals: times as fast as the literal evaluation, and share of the rate of the matrix product.
FASTER, SHARE = 40, 0.5
GROUPS = ("hidden-first", "operators")
"""Groups of cases in this page. The others are on the performance page."""
TEXT = """## Accuracy

The models of a data set have the same backbone, recipe and number of epochs; only the operator differs. Single runs have no standard deviation. Each run had one thread,
while other work used the second core, so the minutes are upper bounds for two free cores. The settings for digits were chosen among
six candidates after looking at their test accuracies, so both figures for digits are slightly optimistic.

{accuracy}

Machine: {trained}
Commands (with `OMP_NUM_THREADS=1`): `fredholm sweep digits operator=itnet,softmax seeds=3`;
`fredholm train fashion-mnist` and the same with `operator=softmax --name fashion-mnist-softmax`, then `fredholm evaluate` of each;
`python -m evidence run foundation gather --only FOLDER ...`.

## Speed

A *way* is one implementation of a case. It is timed only after its answer has been checked against the definition. The ways of a case are timed alternately; the table gives medians,
followed in brackets by half the interquartile range. The share of sgemm is the rate of the necessary multiply-adds (for
ITNet 2·w·d_h per pair, and the contraction with W2), divided by the rate of a matrix product on this machine, measured in the same round.

{speed}

Machine: {timed} Command: `make bench`.

{goals} The remaining time of a tile is spent on GELU, on the sum of bias and table, on scaling the queries, and on the contraction with W2,
whose narrow result does not reach the full rate. With one head and one image, the cost of the displacement table and of preparing W2 is not shared.

The exact ITNet operator does the work of w GELU attentions per head, so softmax attention is much faster at equal N. In return, ITNet has a matrix-valued kernel of positions and features.

## Memory

Peak resident memory of one forward and backward pass, minus that of a tiny one. Each length is measured in a separate process.

{memory}
"""


def read_json(path: Path) -> Any:
    return load(path.name, path.parent)


def gather_run(folder: Path) -> dict[str, Any]:
    """Return the row of a finished and evaluated run."""
    result, evaluation = read_json(folder / "result.json"), read_evaluation(folder)
    if evaluation is None:
        raise SystemExit(
            f"{folder}: expected an evaluation of its last weights, got none; run fredholm evaluate"
        )
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
    """Return one row per combination of a sweep, with mean and sd over its seeds."""
    cells = [cell for cell in read_json(folder / "cells.json") if "error" not in cell]
    rows = []
    for row in read_json(folder / "table.json"):
        # All seeds of a combination share the facts of the first.
        cell = next(cell for cell in cells if cell["cell"] == row["cell"])
        run = gather_run(folder / Path(cell["folder"]).name)
        scores = {"accuracy": row["mean"], "sd": row["sd"], "seeds": row["n"]}
        rows.append(run | {"run": row["cell"], "minutes": row["minutes"], **scores})
    return rows


def gather(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run or a sweep.

    Raises:
        SystemExit: the folder is neither.
    """
    if (folder / "result.json").is_file():
        return [gather_run(folder)]
    if (folder / "table.json").is_file():
        return gather_sweep(folder)
    raise SystemExit(f"{folder}: expected a finished run or a sweep, got neither")


def gather_all(options: Options) -> None:
    """Gather the finished runs and sweeps in the folders of ``--only``.

    ``--threads`` is the number of threads of their training.
    """
    rows = [row for folder in options.only for row in gather(Path(folder))]
    save({"machine": describe(), "runs": rows}, FILE, options.results)


def accuracy_table(runs: dict[str, Any]) -> str:
    """Return the table of the recipes' test accuracies."""
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
        score = f"{100 * row['accuracy']:.2f}"
        if row["sd"] is not None:
            score += f" ± {100 * row['sd']:.2f}"
        names = row["dataset"], row["run"], row["operator"]
        counts = row["seeds"], f"{row['parameters']:,}", row["epochs"]
        lines.append((*names, score, *counts, f"{row['minutes']:.1f}"))
    return table(heads, lines)


def speed_table(cases: list[dict[str, Any]]) -> str:
    """Return the table of ratios and times."""
    heads = "case", "size", "way", "time / first way", "ms", "share of sgemm", "difference"
    lines = []
    for row in cases:
        share = ""
        if row["matrix_rate_share"]:
            share = f"{row['matrix_rate_share']:.0%}"
        names = row["case"], row["note"], row["way"]
        times = f"{row['ratio']:.2f}", f"{row['milliseconds']:.2f} ({row['spread']:.2f})"
        lines.append((*names, *times, share, f"{row['difference']:.0e}"))
    return table(heads, lines)


def goals(cases: list[dict[str, Any]]) -> str:
    """Return a sentence on the goals of the hidden-first form, met or missed in each case."""

    def verdict(text: str, met: bool) -> str:
        return f"{text} (met)" if met else f"{text} (missed)"

    # The first way of a case is ours.
    shares: dict[str, float] = {}
    for row in cases:
        shares.setdefault(row["case"], row["matrix_rate_share"])
    parts = []
    for row in cases:
        if row["way"] != "literal":
            continue
        share = shares[row["case"]]
        faster = verdict(f"{row['ratio']:.0f} times", row["ratio"] >= FASTER)
        parts.append(f"{row['note']}: {faster} and {verdict(f'{share:.0%}', share >= SHARE)}")
    wanted = f"{FASTER} times faster than the literal evaluation, {SHARE:.0%} of the matrix product"
    return f"The goals are {wanted}'s rate. {'; '.join(parts)}."


def page() -> str:
    """Return the text of the page."""
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
