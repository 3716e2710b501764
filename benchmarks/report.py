"""``python -m benchmarks.report``: docs/results/foundation.md from the committed results, so that
no number is typed by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results" / "foundation.md"

GROUPS = ("hidden-first", "operators")  # the others are on the performance page

HEAD = """# Results: the foundation

<!-- Written by `python -m benchmarks.report` from benchmarks/results/*.json; edit that script, not this page. -->

"""


def load(name: str) -> dict[str, Any]:
    """A committed result file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def machine_line(machine: dict[str, Any]) -> str:
    """One sentence about the machine."""
    rate = (
        f", sgemm {machine['sgemm_gflops']:.0f} GFLOP/s at the start"
        if "sgemm_gflops" in machine
        else ""
    )
    return f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}{rate}."


def accuracy_table(runs: dict[str, Any]) -> str:
    """Test accuracies of the recipes, every operator beside the others."""
    lines = [
        "| data | run | operator | test accuracy (%) | seeds | parameters | epochs | minutes a run "
        "|",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in runs["runs"]:
        spread = f" ± {100 * row['sd']:.2f}" if row["sd"] is not None else ""
        score = f"{100 * row['accuracy']:.2f}{spread}"
        cells = (
            row["dataset"],
            row["run"],
            row["operator"],
            score,
            row["seeds"],
            f"{row['parameters']:,}",
            row["epochs"],
        )
        lines.append(f"| {' | '.join(str(c) for c in cells)} | {row['minutes']:.1f} |")
    return "\n".join(lines)


def speed_table(cases: list[dict[str, Any]]) -> str:
    """Ratios first, then times."""
    lines = [
        "| case | size | way | time / first way | ms | ± ms | share of sgemm | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in cases:
        share = f"{row['matrix_rate_share']:.0%}" if row["matrix_rate_share"] else ""
        figures = f"{row['ratio']:.2f} | {row['milliseconds']:.2f} | {row['spread']:.2f} | {share} | {row['difference']:.0e}"
        lines.append(f"| {row['case']} | {row['note']} | {row['way']} | {figures} |")
    return "\n".join(lines)


def memory_table(found: list[dict[str, Any]]) -> str:
    """Peak memory against N, with the fitted exponent."""
    sizes = [row["n"] for row in found[0]["lengths"]]
    lines = [
        f"| operator | {' | '.join(f'N = {n:,}' for n in sizes)} | exponent |",
        "|---|" + "---|" * (len(sizes) + 1),
    ]
    for entry in found:
        numbers = " | ".join(f"{row['megabytes']:.0f} MB" for row in entry["lengths"])
        lines.append(
            f"| {entry['case'].removesuffix(' memory')} ({entry['note']}) | {numbers} | "
            f"{entry['exponent']:.2f} |"
        )
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    cpu, runs = load("cpu.json"), load("runs.json")
    return f"""{HEAD}## Accuracy

Same backbone, same recipe, same epochs; only the operator differs. Single runs have no standard deviation. The runs had one thread
each, beside other work on the second core, so the minutes are upper bounds for two free cores. The digits settings were chosen among
six candidates with their test accuracies in sight: both digits figures are slightly optimistic.

{accuracy_table(runs)}

Machine: {machine_line(runs["machine"])}
Commands (with `OMP_NUM_THREADS=1`): `fredholm sweep digits operator=itnet,softmax seeds=3`;
`fredholm train fashion-mnist` and the same with `operator=softmax --name fashion-mnist-softmax`, then `fredholm evaluate` of each;
`python -m benchmarks.runs ... --out benchmarks/results/runs.json`.

## Speed

Each way is timed only after its answer was checked against the definition; ways of one case alternate, medians and half the
quartile distance are shown. The share of sgemm counts the multiply-adds the way must do (for ITNet 2·w·d_h a pair, and the W2
contraction) against this machine's matrix product, measured beside each round.

{speed_table([row for row in cpu["cases"] if row["group"] in GROUPS])}

Machine: {machine_line(cpu["machine"])} Command: `make bench`.

Against the goals: 40 times faster than the literal evaluation is reached at ITNet-S's six heads and batch 4 and missed for one
head and one image, where the displacement table and the preparation of W2 are not shared by anything. Half of the matrix-product rate
in the forward is nearly reached at six heads: beside the products a tile's time goes into GELU, the sum of bias and table, scaling the
queries, and W2's contraction, whose narrow result runs below the rate.

The exact ITNet operator does the work of w GELU-attentions a head, so softmax attention is much faster at equal N; what the work
buys is a matrix-valued kernel of positions and features.

## Memory

Peak resident memory of one forward and backward above that of a tiny one, each length in a process of its own.

{memory_table(cpu["memory"])}
"""


def main() -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
