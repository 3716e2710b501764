"""The page docs/results/performance.md, from the committed measurements.

A ratio is the time of the other way over ours: below 1 the other way is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from ..kit.history import entries, name
from ..kit.machine import machine_line
from ..kit.memory import show_megabytes
from ..kit.page import head, load, table
from .roofline import share

Rows = list[dict[str, Any]]
PEERS = ("attention", "linear attention", "classical", "graph neural operator", "keops")
PUBLISHED = ("hidden-first", "ckconv", "published")
TEXT = """Each *way* (an implementation of a case) is timed only after its answer has been checked against the definition, or a trusted form of it. Each reading of the clock covers 20 ms of consecutive calls; the ways of a case alternate.
The tables give medians, followed in brackets by half the interquartile range. Ratios vary less between machines than times;
`python -m evidence check performance` compares new ratios with these.

Machine: {machine} Command: `make bench`.

{means}

{beside}## Beside each paper's own algorithm

The published algorithms are implemented as written, with the same weights.

{published}

## Operators compared

{operators}

## Memory

{memory}

{rates}"""
BESIDE = """## Beside what you would use instead

Both ways have the same weights if they compute the same function; otherwise each way is checked against its own formula. A bold ratio means that the other way is faster.

{duels}

"""
MEANS = """{rows} rows of the two tables below were also measured at commit {commit} ({machine}). Over these rows, the geometric mean of the ratio (the other way's time divided by ours)
was {before:.2f} then and is {after:.2f} now, {times:.2f} times as much; {losses} ratios were below 1, and {left} are now. Both sides
of a ratio are timed on one machine, so it varies little between machines."""
RATES = """## How near to the machine

A cost model predicts each operator's FLOPs (compared with torch's counter by a test), evaluations of elementary functions, and bytes.
This machine was measured at {products:.0f} GFLOP/s in a matrix product, {functions:.1f} G exponentials per second, and {memory:.0f} GB/s of copied
memory. The *least time* is that of products plus functions, or that of memory if it is longer. Fused softmax can exceed 100%, because it
evaluates exponentials faster than `torch.exp`, whose rate the model uses.

{rows}

![FLOP/s against FLOPs per byte](../images/roofline.svg)

Command: `python -m evidence time performance roofline`.

"""


def duels(cases: Rows, groups: tuple[str, ...]) -> Rows:
    """Return the rows of other ways, each with our time beside its own."""
    # The first way of a case is ours. Two groups may time cases of one name at different sizes.
    ours: dict[tuple[str, str], dict[str, Any]] = {}
    for row in cases:
        ours.setdefault((row["group"], row["case"]), row)
    rows = []
    for row in cases:
        mine = ours[row["group"], row["case"]]
        if row["group"] in groups and row is not mine:
            rows.append({**row, "ours": mine["milliseconds"], "our way": mine["way"]})
    return rows


def duel_table(rows: Rows) -> str:
    """Return the table of other ways, the ratio first and bold where the other way is faster."""
    heads = (
        "their time / ours",
        "case",
        "size",
        "other way",
        "ms",
        "ours (ms)",
        "difference of answers",
    )
    lines = []
    for row in rows:
        ratio = f"**{row['ratio']:.2f}**" if row["ratio"] < 1 else f"{row['ratio']:.2f}"
        times = f"{row['milliseconds']:.2f} ({row['spread']:.2f})", f"{row['ours']:.2f}"
        names = row["case"], row["note"], row["way"]
        lines.append((ratio, *names, *times, f"{row['difference']:.0e}"))
    return table(heads, lines)


def operator_table(cases: Rows) -> str:
    """Return the table of every operator's milliseconds at one size."""
    rows = [row for row in cases if row["group"] == "operators"]
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        direction = row["case"].removeprefix(f"{row['way']} ")
        times.setdefault(row["way"], {})[direction] = row["milliseconds"]
    softmax = times.get("softmax", {}).get("forward+backward")

    lines = []
    for way, found in times.items():
        both = found.get("forward+backward")
        cells = [_milliseconds(found.get("forward")), _milliseconds(both)]
        ratio = f"{both / softmax:.1f}" if both and softmax else ""
        lines.append((way, *cells, ratio))
    heads = "operator", "forward (ms)", "forward + backward (ms)", "/ softmax"
    size = f" {rows[0]['note']}." if rows else ""
    return f"{table(heads, lines)}\n\nSize:{size}"


def _milliseconds(time: float | None) -> str:
    return "" if time is None else f"{time:.2f}"


def memory_table(found: Rows) -> str:
    """Return the table of peak memory against N, with the fitted exponent."""
    sizes = [row["n"] for row in found[0]["lengths"]]
    lines = []
    for entry in found:
        title = f"{entry['case'].removesuffix(' memory')} ({entry['note']})"
        cells = [f"{show_megabytes(row['megabytes'])} MB" for row in entry["lengths"]]
        power = "" if entry["exponent"] is None else f"{entry['exponent']:.2f}"
        lines.append((title, *cells, power))
    return table(("operator", *(f"N = {n:,}" for n in sizes), "exponent"), lines)


def roofline_table(result: dict[str, Any]) -> str:
    """Return the table of measured times beside the least time that the cost model allows."""
    heads = "operator", "N", "MFLOPs", "FLOPs per byte", "ms", "GFLOP/s", "of the least time"
    lines = [
        (
            row["operator"],
            f"{row['n']:,}",
            f"{row['flops'] / 1e6:,.1f}",
            f"{row['flops'] / row['bytes']:.1f}",
            f"{1e3 * row['seconds']:.2f}",
            f"{row['flops'] / row['seconds'] / 1e9:.1f}",
            f"{share(row, result['rates']):.0%}",
        )
        for row in result["rows"]
    ]
    return table(heads, lines)


def means(cases: Rows) -> str:
    """Return the sentence on the mean ratio at the first entry of the history, and now."""
    history = entries("performance")
    if not history:
        return ""
    first = history[0]
    then, now = first["ratios"], {}
    for row in duels(cases, PEERS + PUBLISHED):
        now[name(row)] = row["ratio"]
    common = [row for row in then if row in now]
    before = _geometric_mean(then[row] for row in common)
    after = _geometric_mean(now[row] for row in common)
    return MEANS.format(
        rows=len(common),
        commit=first["commit"],
        machine=first["machine"],
        before=before,
        after=after,
        times=after / before,
        losses=sum(then[row] < 1 for row in common),
        left=sum(now[row] < 1 for row in common),
    )


def _geometric_mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def lost(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the other ways that are at least 5% faster; docs/log.md states the reason for each."""
    return [row for row in duels(cases, PEERS + PUBLISHED) if row["ratio"] < 0.95]


def page() -> str:
    """Return the text of docs/results/performance.md."""
    cpu, roof = load("performance.json"), load("roofline.json")
    theirs, rates = duels(cpu["cases"], PEERS), ""
    if roof:
        names = {"products": "matrix_flops", "functions": "functions", "memory": "bytes"}
        found = {name: roof["rates"][key] / 1e9 for name, key in names.items()}
        rates = RATES.format(**found, rows=roofline_table(roof))
    title = head("Results: performance", "performance", "performance.json", "roofline.json")
    return title + TEXT.format(
        machine=machine_line(cpu["machine"]),
        means=means(cpu["cases"]),
        beside=BESIDE.format(duels=duel_table(theirs)) if theirs else "",
        published=duel_table(duels(cpu["cases"], PUBLISHED)),
        operators=operator_table(cpu["cases"]),
        memory=memory_table(cpu["memory"]),
        rates=rates,
    )
