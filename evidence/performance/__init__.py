"""Speed and memory of every operator on a CPU, beside other packages, beside each paper's literal
algorithm, and beside the limits of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..kit.clock import Case, Maker, time_cases
from ..kit.machine import with_rate
from ..kit.memory import operator_memory
from ..kit.page import PAGES, ROOT, load, save
from ..kit.subject import Options, Subject

FILE = "performance.json"
SUBJECT = Subject(
    __name__,
    times={"cases": ":time_operators", "memory": ":time_memory", "roofline": "roofline:time"},
    pages={PAGES / "performance.md": "page:page", ROOT / "README.md": "readme:readme"},
    draw="roofline:draw_committed",
    cases=":timed",
    ratios=":committed",
)
MEASURED = {"itnet": {"width": 32}, "softmax": {}}
"""Operators whose memory is measured, and their options."""


def groups() -> dict[str, Maker]:
    """Return the groups of cases: every operator, the papers' algorithms, and the peers."""
    from ..ckconv import speed as ckconv
    from ..itnet import literal
    from ..operators import operators
    from . import peers

    return {
        "hidden-first": literal.hidden_first,
        "ckconv": ckconv.ckconv,
        "operators": operators,
        "attention": peers.attention,
        "linear attention": peers.linear,
        "classical": peers.classical,
        "graph neural operator": peers.graph_operator,
        "keops": peers.keops,
        "published": published,
    }


def published(points: int = 1024, scalars: int = 16384) -> Iterator[Case]:
    """Yield the cases of literal algorithms beside ours with the same weights.

    They are InfSA's N × N graph, forward and backward, and LUNA's networks per scalar. ITNet's and
    CKConv's algorithms are in separate groups.
    """
    from ..infsa import speed as infsa
    from ..luna import literal as luna

    yield infsa.pure(points, 128, 4)
    for case in luna.map_cases(scalars, 5):
        case.name = f"luna map, {case.name}"
        yield case


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time the groups of ``--only``, or all, and yield their rows."""
    makers = groups()
    for group in options.chosen(makers):
        yield from time_cases(makers[group](), group=group)


def time_operators(options: Options) -> None:
    """Time groups and replace their rows in the file."""
    machine, rows = with_rate(), list(timed(options))
    before = load(FILE, options.results) or {"machine": machine, "cases": [], "memory": []}
    again = {row["group"] for row in rows}
    before["cases"] = [row for row in before["cases"] if row["group"] not in again] + rows
    if not options.only:
        before["machine"] = machine
    save(before, FILE, options.results)


def time_memory(options: Options) -> None:
    """Measure the peak memory of two operators against N."""
    lengths = (128, 256) if options.small else (1024, 2048, 4096, 8192)
    found = [operator_memory(name, lengths, **more) for name, more in MEASURED.items()]
    before = load(FILE, options.results) or {"machine": with_rate(), "cases": []}
    save(before | {"memory": found}, FILE, options.results)


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    return load(FILE)["cases"]
