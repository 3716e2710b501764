"""docs/results/performance.md. Ratios are times of the other way over ours: below 1 we lose."""

from __future__ import annotations

import math
import statistics
from typing import Any

from ..kit.history import entries, name
from ..kit.machine import machine_line
from ..kit.memory import show_megabytes
from ..kit.page import head, load, table
from .roofline import share

Rows = list[dict[str, Any]]
PEERS = ("attention", "linear attention", "classical", "graph neural operator", "keops")
PUBLISHED = ("hidden-first", "ckconv", "published")
TEXT = """A way is timed only after its answer was checked against the definition, or a trusted form of it. Each reading of the clock is of 20 ms of calls in a row; ways of a case alternate;
medians are shown, and behind them half the quartile distance in brackets. Ratios move less between machines than times:
`python -m evidence check performance` compares them with these.

Machine: {machine} Command: `make bench`.

{means}

{beside}## Beside each paper's own algorithm

Written out as published, the same weights.

{published}

## Operators beside each other

{operators}

## Memory

{memory}

{rates}"""
BESIDE = """## Beside what you would use instead

The same weights wherever both compute the same function; otherwise the way's own formula is its reference. Bold: the other way is faster.

{duels}

"""
MEANS = """Over the {rows} rows of the two tables below that were also measured at {commit} ({machine}), the geometric mean of
their time over ours was {before:.2f} there and is {after:.2f} here, {times:.2f} times as much; {losses} of them were below 1, {left} are. Both sides
of a ratio are timed on one machine, so that it moves little between machines."""
RATES = """## How near to the machine

A cost model predicts each operator's FLOPs (held to torch's counter by a test), evaluations of elementary functions, and bytes.
This machine made {products:.0f} GFLOP/s in a matrix product, {functions:.1f} G exponentials a second, and copied {memory:.0f} GB/s when it
was measured. The least time is products and functions after each other, or memory if that is longer. Above 100%: fused softmax
evaluates its exponentials faster than `torch.exp`, whose rate the model counts.

{rows}

![FLOP/s against FLOPs per byte](../images/roofline.svg)

Command: `python -m evidence time performance roofline`.

"""


def duels(cases: Rows, groups: tuple[str, ...]) -> Rows:
    """Rows of ways that are not ours, each with our time beside its own."""
    ours: dict[tuple[str, str], dict[str, Any]] = {}  # the first way of a case is ours
    for row in cases:
        # two groups may time cases of one name at different sizes
        ours.setdefault((row["group"], row["case"]), row)
    rows = []
    for row in cases:
        mine = ours[row["group"], row["case"]]
        if row["group"] in groups and row is not mine:
            rows.append({**row, "ours": mine["milliseconds"], "our way": mine["way"]})
    return rows


def duel_table(rows: Rows) -> str:
    """Ratio first; bold where the other way is faster."""
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
    """Milliseconds of every operator at one size."""
    mine = [row for row in cases if row["group"] == "operators"]
    found = {
        (row["way"], row["case"].removeprefix(f"{row['way']} ")): row["milliseconds"]
        for row in mine
    }
    softmax, lines = found.get(("softmax", "forward+backward")), []
    for way in dict.fromkeys(row["way"] for row in mine):
        one, two = found.get((way, "forward")), found.get((way, "forward+backward"))
        cells = ["" if x is None else f"{x:.2f}" for x in (one, two)]
        lines.append((way, *cells, f"{two / softmax:.1f}" if two and softmax else ""))
    heads = "operator", "forward (ms)", "forward + backward (ms)", "/ softmax"
    size = f" {mine[0]['note']}." if mine else ""
    return f"{table(heads, lines)}\n\nSize:{size}"


def memory_table(found: Rows) -> str:
    """Peak memory against N, with the fitted exponent."""
    sizes = [row["n"] for row in found[0]["lengths"]]
    lines = []
    for entry in found:
        title = f"{entry['case'].removesuffix(' memory')} ({entry['note']})"
        cells = [f"{show_megabytes(row['megabytes'])} MB" for row in entry["lengths"]]
        power = "" if entry["exponent"] is None else f"{entry['exponent']:.2f}"
        lines.append((title, *cells, power))
    return table(("operator", *(f"N = {n:,}" for n in sizes), "exponent"), lines)


def roofline_table(result: dict[str, Any]) -> str:
    """Measured time beside the least time the cost model allows."""
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
    """The geometric mean over the rows that were measured first, then and now."""
    kept = entries("performance")
    if not kept:
        return ""
    first, now = kept[0], {name(row): row["ratio"] for row in duels(cases, PEERS + PUBLISHED)}
    common = [row for row in first["ratios"] if row in now]
    before, after = (
        math.exp(statistics.fmean(math.log(ratios[row]) for row in common))
        for ratios in (first["ratios"], now)
    )
    return MEANS.format(
        rows=len(common),
        commit=first["commit"],
        machine=first["machine"],
        before=before,
        after=after,
        times=after / before,
        losses=sum(first["ratios"][row] < 1 for row in common),
        left=sum(now[row] < 1 for row in common),
    )


def lost(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ways of others that are faster than ours by 5% or more: docs/log.md says of each what bounds
    ours.
    """
    return [row for row in duels(cases, PEERS + PUBLISHED) if row["ratio"] < 0.95]


def page() -> str:
    """docs/results/performance.md."""
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
