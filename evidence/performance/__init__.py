"""Speed and memory of every operator on a CPU: beside the packages that users would pick instead,
beside each paper's own algorithm, and beside what the machine could do.
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
MEASURED = {"itnet": {"width": 32}, "softmax": {}}  # memory


def groups() -> dict[str, Maker]:
    """Groups of cases: those of every operator, of the papers' algorithms, and of the peers."""
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
    """InfSA's N × N graph, forward and backward, and LUNA's networks per scalar, beside ours with
    the same weights. ITNet's and CKConv's own algorithms are groups of their own.
    """
    from ..infsa import speed as infsa
    from ..luna import literal as luna

    yield infsa.pure(points, 128, 4)
    for case in luna.map_cases(scalars, 5):
        case.name = f"luna map, {case.name}"
        yield case


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Rows of the groups in ``options.only``."""
    makers = groups()
    for group in options.chosen(makers):
        yield from time_cases(makers[group](), group=group)


def time_operators(options: Options) -> None:
    """Groups that are not timed now stay as they were."""
    machine, rows = with_rate(), list(timed(options))
    before = load(FILE, options.results) or {"machine": machine, "cases": [], "memory": []}
    again = {row["group"] for row in rows}
    before["cases"] = [row for row in before["cases"] if row["group"] not in again] + rows
    if not options.only:
        before["machine"] = machine
    save(before, FILE, options.results)


def time_memory(options: Options) -> None:
    """Peak memory of two operators against N."""
    lengths = (128, 256) if options.small else (1024, 2048, 4096, 8192)
    found = [operator_memory(name, lengths, **more) for name, more in MEASURED.items()]
    before = load(FILE, options.results) or {"machine": with_rate(), "cases": []}
    save(before | {"memory": found}, FILE, options.results)


def committed() -> list[dict[str, Any]]:
    """The rows of ``check``."""
    return load(FILE)["cases"]
