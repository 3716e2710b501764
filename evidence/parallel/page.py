"""Page docs/results/parallel.md, and the tables of docs/scaling.md."""

from __future__ import annotations

from typing import Any

from ..kit.machine import machine_line
from ..kit.page import DOCS, head, load, table, with_block
from .memory import FILE as MEMORY
from .speed import DIM, HEADS, POINTS
from .speed import FILE as SPEED


def page() -> str:
    """Return the text of docs/results/parallel.md."""
    found = load(MEMORY) or {}
    text = head("A domain in shards: memory, messages, time", "parallel", MEMORY, SPEED)
    text += memory_tables(found) + "\n\n"
    text += machine_line(found.get("machine", {})) + "\n"
    timed = load(SPEED)
    if timed:
        text += f"\n{speed_tables(timed)}\n\n{machine_line(timed['machine'])}\n"
    return text


def memory_tables(found: dict[str, Any]) -> str:
    """Return the tables of memory that were measured."""
    parts = {"memory": memory_table, "limit": limit_table, "weights": weights_table}
    return "\n\n".join(make(found[name]) for name, make in parts.items() if name in found)


def limit_table(limit: dict[str, Any]) -> str:
    """Return the table of a training under a limit of memory."""
    rows = []
    for row in limit["rows"]:
        outcome = "fails" if row["failed"] else "trains to the end"
        rows.append((row["processes"], outcome, f"{row['megabytes']:,}", f"`{row['said']}`"))
    most = limit["footing"] + limit["beyond"]
    command = limit["rows"][1]["command"]
    heads = ("processes", "outcome", "MB of address space", "last message")
    return (
        f"A complete training of a CKCNN on series of {limit['points']:,} points. The address space "
        f"of each process is limited to {most:,} MB (`RLIMIT_AS`): {limit['footing']:,} MB, which "
        "the same command needs at its peak for 64 points, torch and Lightning included, plus "
        f"{limit['beyond']:,} MB. `python -m evidence run parallel limit` applies the limit to\n\n"
        f"    {command}\n\nand to the same command without its last two arguments.\n\n"
        f"{table(heads, rows)}"
    )


def weights_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of memory with sharded weights."""
    shown, parts = [], ("weights", "gradients", "optimizer", "step")
    for row in rows:
        shown.append((row["processes"], *(f"{row[part]:.1f}" for part in parts)))
    heads = ("processes", "weights", "gradients", "AdamW's state", "rise at the peak of a step")
    return (
        f"`training.strategy=fsdp2`, a model with {rows[0]['parameters'] / 1e6:.0f} million "
        "parameters: MB that each process stores between steps, and by how many MB a training step "
        "raises the memory of the process at its peak, including gradients and gathered layers. "
        f"`python -m evidence run parallel weights`\n\n{table(heads, shown)}"
    )


def memory_table(found: list[dict[str, Any]]) -> str:
    """Return the table of a training step's memory with 1, 2 and 4 processes."""
    rows = []
    one_process: dict[str, float] = {}
    for row in found:
        # The first row of a case has one process.
        single = one_process.setdefault(row["case"], row["megabytes"])
        share = row["megabytes"] * row["processes"] / single
        shown = f"{row['megabytes']:.0f}", f"{share:.2f}", f"{row['numbers']:,}"
        rows.append((row["case"], f"{row['points']:,}", row["processes"], *shown))
    heads = ("model", "points", "processes", "MB", "P · MB / MB of one", "numbers sent")
    return (
        "Peak resident memory of one training step (forward, backward, sum of the gradients, "
        "update) above the memory of the idle process, for the process that needs most. The fifth "
        "column is the fourth times the number of processes P, divided by the memory of one "
        "process: 1 if memory decreases as 1/P. An exact ITNet needs more than that on few points. "
        "The numbers that one process gives to its group in the step include the gradients, also if "
        f"it is alone. `python -m evidence run parallel memory`\n\n{table(heads, rows)}"
    )


def scaling() -> str:
    """Return the text of docs/scaling.md with new tables."""
    text = "\n\n".join([memory_tables(load(MEMORY) or {}), speed_tables(load(SPEED) or {})])
    return with_block(DOCS / "scaling.md", "shards", text)


def speed_tables(found: dict[str, Any]) -> str:
    """Return the tables of messages and times that were measured."""
    parts = {"traffic": _traffic_table, "overlap": _overlap_table, "steps": _steps_table}
    return "\n\n".join(make(found[name]) for name, make in parts.items() if name in found)


def _traffic_table(rows: list[dict[str, Any]]) -> str:
    heads = ("operator", "what is sent", "processes")
    heads += tuple(f"{n:,} points{order}" for order in ("", ", causal") for n in POINTS)
    shown = []
    for row in rows:
        words = row["exchange"]
        if row["causal"] != words:
            words += f"; causal: {row['causal']}"
        sent = (f"{number:,}" for number in row["sent"])
        shown.append((f"`{row['operator']}`", words, row["processes"], *sent))
    text = (
        f"Numbers that the first rank sends to the process group in the forward pass of one sample "
        f"({DIM} features, {HEADS} heads), counted. `python -m evidence time parallel traffic`"
    )
    return f"{text}\n\n{table(heads, shown)}"


def _overlap_table(rows: list[dict[str, Any]]) -> str:
    heads = ("ring", "processes", "messages", "sent while computing", "ms computing", "ms waiting")
    shown = []
    for row in rows:
        counts = row["processes"], row["messages"], row["ahead"]
        times = f"{row['computed']:.1f}", f"{row['waited']:.1f}"
        shown.append((f"`{row['operator']}`", *counts, *times))
    text = (
        "One forward pass of a ring, from its trace, on the rank that waits longest. A message "
        "counts as sent while computing if matrix products ran between its start and the wait for "
        "it. The last columns are the time between the two, and the time spent waiting. A backward "
        "pass sends the same keys, the first without overlapping computation, and waits for every "
        "gradient that it sends back. "
        "`python -m evidence time parallel overlap`"
    )
    return f"{text}\n\n{table(heads, shown)}"


def _steps_table(rows: list[dict[str, Any]]) -> str:
    heads = ("model", "points: one, two processes", "ms of one", "ms of two apart")
    heads = (*heads, "ms of two on one domain", "efficiency", "relative to two apart")
    shown = []
    for row in rows:
        points = ", ".join(f"{n:,}" for n in row["points"])
        times = (f"{ms:.0f}" for ms in row["milliseconds"])
        ratios = (f"{row[key]:.2f}" for key in ("efficiency", "of_apart"))
        shown.append((row["case"], points, *times, *ratios))
    text = (
        "Time of a training step, with one thread per process, in three settings: one process with "
        "the complete domain; two independent processes on the same machine; and two processes that "
        "share one domain with twice the work (an exact ITNet's work grows as N²). The efficiency is "
        "the first median divided by the third. The last column is the second divided by the third, "
        "the efficiency without the effect of sharing the machine. "
        "`python -m evidence time parallel steps`"
    )
    return f"{text}\n\n{table(heads, shown)}"
