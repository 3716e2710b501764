"""``python -m benchmarks.performance_report``: docs/results/performance.md from committed results.

Every number comes from benchmarks/results/{cpu,roofline}.json; ratios are times of the other way
over ours, so that below 1 we lose.
"""

from __future__ import annotations

from typing import Any

from .report import ROOT, load, machine_line, memory_table
from .roofline import share

PAGE = ROOT / "docs" / "results" / "performance.md"
PEERS = ("attention", "linear attention", "classical", "graph neural operator", "keops")
PUBLISHED = ("hidden-first", "ckconv", "published")


def duels(cases: list[dict[str, Any]], groups: tuple[str, ...]) -> list[dict[str, Any]]:
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


def duel_table(rows: list[dict[str, Any]]) -> str:
    """Ratio first; bold where the other way is faster."""
    lines = [
        "| their time / ours | case | size | other way | ms | ours (ms) | difference of answers |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = f"**{row['ratio']:.2f}**" if row["ratio"] < 1 else f"{row['ratio']:.2f}"
        times = f"{row['milliseconds']:.2f} ± {row['spread']:.2f} | {row['ours']:.2f}"
        lines.append(
            f"| {ratio} | {row['case']} | {row['note']} | {row['way']} | {times} | "
            f"{row['difference']:.0e} |"
        )
    return "\n".join(lines)


def operator_table(cases: list[dict[str, Any]]) -> str:
    """Milliseconds of every operator at one size."""
    mine = [row for row in cases if row["group"] == "operators"]
    names = dict.fromkeys(row["way"] for row in mine)
    found = {
        (row["way"], row["case"].removeprefix(f"{row['way']} ")): row["milliseconds"]
        for row in mine
    }
    softmax = found.get(("softmax", "forward+backward"))
    lines = [
        "| operator | forward (ms) | forward + backward (ms) | / softmax |",
        "|---|---|---|---|",
    ]
    for name in names:
        one, two = found.get((name, "forward")), found.get((name, "forward+backward"))
        cells = ["" if x is None else f"{x:.2f}" for x in (one, two)]
        lines.append(
            f"| {name} | {' | '.join(cells)} | {f'{two / softmax:.1f}' if two and softmax else ''} "
            "|"
        )
    size = f" {mine[0]['note']}." if mine else ""
    return "\n".join(lines) + f"\n\nSize:{size}"


def roofline_table(result: dict[str, Any]) -> str:
    """Measured time beside the least time the cost model allows."""
    rate = result["rates"]
    lines = [
        "| operator | N | MFLOPs | FLOPs a byte | ms | GFLOP/s | of the least time |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = (
            row["operator"],
            f"{row['n']:,}",
            f"{row['flops'] / 1e6:,.1f}",
            f"{row['flops'] / row['bytes']:.1f}",
            f"{1e3 * row['seconds']:.2f}",
            f"{row['flops'] / row['seconds'] / 1e9:.1f}",
            f"{share(row, rate):.0%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def lost(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ways of others that are faster than ours, by more than the spread of either."""
    return [row for row in duels(cases, PEERS + PUBLISHED) if row["ratio"] < 0.97]


def page() -> str:
    """docs/results/performance.md."""
    cpu = load("cpu.json")
    theirs, literal = duels(cpu["cases"], PEERS), duels(cpu["cases"], PUBLISHED)
    roof = (
        load("roofline.json")
        if (ROOT / "benchmarks" / "results" / "roofline.json").is_file()
        else None
    )
    rates = ""
    if roof:
        rate = roof["rates"]
        products, functions, memory = (
            rate[key] / 1e9 for key in ("matrix_flops", "functions", "bytes")
        )
        rates = f"""## How near to the machine

A cost model predicts each operator's FLOPs (held to torch's counter by a test), evaluations of elementary functions, and bytes.
This machine made {products:.0f} GFLOP/s in a matrix product, {functions:.1f} G exponentials a second, and copied {memory:.0f} GB/s when it
was measured. The least time is products and functions after each other, or memory if that is longer.

{roofline_table(roof)}

![FLOP/s against FLOPs a byte](../images/roofline.svg)

Command: `python -m benchmarks.roofline`.

"""
    beside = (
        ""
        if not theirs
        else f"""## Beside what you would use instead

The same weights wherever both compute the same function; otherwise the way's own formula is its reference. Bold: the other way is faster.

{duel_table(theirs)}

"""
    )
    return f"""# Results: performance

<!-- Written by `python -m benchmarks.performance_report` from benchmarks/results/*.json; edit that script, not this page. -->

A way is timed only after its answer was checked against the definition, or a trusted form of it. Ways of a case alternate;
medians and half the quartile distance are shown. Ratios move less between machines than times:
`python -m benchmarks --check benchmarks/results/cpu.json` compares them with these.

Machine: {machine_line(cpu["machine"])} Command: `make bench`.

{beside}## Beside each paper's own algorithm

Written out as published, the same weights.

{duel_table(literal)}

## Operators beside each other

{operator_table(cpu["cases"])}

## Memory

{memory_table(cpu["memory"])}

{rates}"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written to {PAGE}; {len(lost(load('cpu.json')['cases']))} cases lost")


if __name__ == "__main__":
    main()
