"""Page docs/results/sparse.md."""

from __future__ import annotations

import statistics
from typing import Any

from ..kit.machine import machine_line
from ..kit.page import head, load
from . import FILE

TITLE = "Few neighbours: speed and memory"
INTRODUCTION = """Times of operators on domains with few neighbours per query are compared with those of other implementations: processor seconds of one thread, alternating over
seven rounds, after a check of the answers (`python -m evidence time sparse`). *Times as fast* is the median over rounds of the other implementation's time
divided by ours, followed in brackets by the lowest ratio: above 1 ours is faster. Both have the same weights and compute the same function.
*neuraloperator with index_add* is its layer with one `index_add` in place of the loop over rows that pip installs, which favours it. {machine}
"""


def page() -> str:
    """Return the text of the page."""
    found = load(FILE)
    text = head(TITLE, "sparse", FILE)
    if found is None:
        return text + "Not measured yet.\n"
    text += INTRODUCTION.format(machine=machine_line(found["machine"]))
    text += "\n" + _cases(found["cases"])
    if "sizes" in found:
        text += "\n## How far it goes\n\n" + _sizes(found["sizes"])
    if "debian" in found:
        text += "\n## All of Debian's packages at once\n\n" + _debian(found["debian"])
    return text


def _cases(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | beside | direction | ms | times as fast | goal | memory, MB | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        memory, memory_goal = "", ""
        if row.get("megabytes") is not None:
            share = row["peer_megabytes"] / max(row["megabytes"], 1.0)
            memory = f"{row['megabytes']:.0f} of {row['peer_megabytes']:.0f} (1/{share:.0f})"
            if row["memory_goal"]:
                memory_goal = f"≤ 1/{row['memory_goal']:.0f}" + _met(share >= row["memory_goal"])
        goal = ""
        if row["goal"]:
            goal = f"≥ {row['goal']:g}" + _met(row["times"] >= row["goal"])
        cells = [
            row["case"],
            row["peer"],
            row["direction"],
            f"{row['ours'] * 1e3:.0f}",
            f"{row['times']:.1f} ({row['lowest']:.1f})",
            goal,
            memory,
            memory_goal,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _met(reached: bool) -> str:
    return ", met" if reached else ", missed"


def _sizes(found: dict[str, Any]) -> str:
    lines = []
    for row in found["points"]:
        lines.append(
            f"- {row['n']:,} points with their 16 nearest, forward of softmax attention (d 32): "
            f"{row['seconds']:.1f} s, {row['megabytes']:.0f} MB in addition to the search and the inputs."
        )
    time, memory = found["seconds_exponent"], found["megabytes_exponent"]
    lines.append(f"- Exponents in N: time {time:.2f} (goal 1.1), memory {memory:.2f} (goal 1.0).")
    for row in found["graphs"]:
        lines.append(
            f"- 100,000 nodes and 1,000,000 edges, forward and backward of {row['operator']} (d 64): "
            f"{row['seconds']:.1f} s, {row['process_megabytes'] / 1e3:.2f} GB for the process."
        )
    search, nodes = found["search"], found["nodes"]
    lines.append(
        f"- Search of {search['n']:,} points to sorted rows ({search['edges']:,} edges): "
        f"{search['ratio']:.2f} times the time of scipy's `query_pairs` converted to a CSR matrix (goal 1.2)."
    )
    lines.append(
        f"- Node classification on a synthetic graph of {nodes['nodes']:,} nodes and "
        f"{nodes['edges']:,} edges, one node with {nodes['longest']:,} of them: "
        f"{nodes['preparation']:.0f} s of preparation, {nodes['seconds']:.1f} s per step, "
        f"{nodes['process_megabytes'] / 1e3:.2f} GB for the process."
    )
    return "\n".join(lines) + "\n"


def _debian(rows: list[dict[str, Any]]) -> str:
    """Return the section on accuracy with and without the dependencies, mean ± sd over seeds."""
    first = rows[0]
    text = (
        f"The task is to predict the section of a package from the words of its synopsis. The graph has {first['nodes']:,} nodes and "
        f"{first['dependencies']:,} edges, one node with {first['longest']:,} of them. Each of {first['steps']} steps "
        f"uses all nodes. Packages of one source are in one split. Scores are those of "
        "the packages in the test split (`fredholm data fetch debian-graph`, then `python -m "
        "evidence run sparse debian`).\n\n"
        "| attention over | accuracy, % | seeds | s per step | GB for the process |\n"
        "|---|---|---|---|---|\n"
    )
    for edges, name in ((True, "a package and its dependencies"), (False, "the package alone")):
        part = [row for row in rows if row["edges"] is edges]
        right = [100 * row["right"] for row in part]
        spread = statistics.stdev(right) if len(right) > 1 else 0.0
        seconds = statistics.median(row["seconds"] for row in part)
        memory = max(row["process_megabytes"] for row in part) / 1e3
        text += (
            f"| {name} | {statistics.mean(right):.1f} ± {spread:.1f} | {len(part)} | "
            f"{seconds:.1f} | {memory:.2f} |\n"
        )
    return text + f"| the most common section | {100 * first['commonest']:.1f} | | | |\n"
