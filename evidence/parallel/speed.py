"""Measurements of distributed domains: the size of messages, the overlap of messages and
computation, and the time of a training step.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import torch

from ..kit.machine import describe
from ..kit.page import load, save
from ..kit.ranks import over
from ..kit.subject import Options

FILE = "parallel_speed.json"
COUNTS = (2, 4)
"""Numbers of processes whose messages are counted."""
POINTS = (512, 1024)


class Work(NamedTuple):
    """Number of points of one process, and the exponent of the work's growth with it."""

    points: int
    power: float


# P processes get P times the work of one.
WORK = {
    "InfViT, linear": Work(32768, 1.0),
    "ITNet, low rank": Work(32768, 1.0),
    "CKCNN": Work(32768, 1.0),
    "ITNet, exact": Work(1024, 2.0),
}
REPEATS, ROUNDS = 6, 2
WAYS = {"one": 1, "apart": 2, "together": 2}
"""Ways of a training step, and their numbers of processes."""
RINGS = {"softmax": {}, "itnet": {"width": 16, "frequencies": 8}}
DIM, HEADS = 32, 4


def time_parts(part: str, options: Options, measure: Any) -> None:
    """Measure a part and replace it in the file."""
    found = load(FILE, options.results) or {}
    rows = []
    for row in measure(options):
        print(row, flush=True)
        rows.append(row)
    save({**found, "machine": describe(), part: rows}, FILE, options.results)


# --- numbers --------------------------------------------------------------------------------------


def time_traffic(options: Options) -> None:
    """Count the numbers that the process group carries in a forward."""
    time_parts("traffic", options, _traffic)


def _traffic(options: Options) -> list[dict[str, Any]]:
    sizes, counts = POINTS, COUNTS
    if options.small:
        sizes, counts = (32, 64), COUNTS[:1]
    rows = []
    for count in counts:
        ranks = over(count, count_forward, sizes)
        rows += [{**row, "processes": count} for row in ranks[0]["rows"]]
    return rows


def count_forward(mesh: Any, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Count the numbers that every registered operator sends on a distributed line."""
    from fredholm.distributed import count_traffic
    from fredholm.domain import Domain
    from fredholm.operators import create_operator, list_operators

    rows = []
    for name in list_operators():
        row: dict[str, Any] = {"operator": name, "sent": []}
        for causal in (False, True):
            for n in sizes:
                operator = create_operator(name, DIM, HEADS).eval()
                part = Domain.line(n, causal=causal).shard(mesh)
                with torch.no_grad(), count_traffic() as traffic:
                    operator(torch.randn(1, part.size, DIM), part)
                row["sent"].append(traffic.numbers)
                key = "causal" if causal else "exchange"
                row[key] = operator.plan(part).exchange
        rows.append(row)
    return {"rows": rows}


# --- overlap --------------------------------------------------------------------------------------


def time_overlap(options: Options) -> None:
    """Measure from traces how much of a ring's messages overlaps with computation."""
    time_parts("overlap", options, _overlap)


def _overlap(options: Options) -> list[dict[str, Any]]:
    rows = []
    for count in COUNTS:
        ranks = over(count, trace_rings, 256 if options.small else 2048)
        for name in RINGS:
            found = [rank[name] for rank in ranks]
            worst = max(found, key=lambda each: each["waited"])
            rows.append({"operator": name, "processes": count, **worst})
    return rows


def trace_rings(mesh: Any, n: int) -> dict[str, Any]:
    """Trace a forward of each ring of keys and summarise it."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    from fredholm.domain import Domain
    from fredholm.operators import create_operator

    found = {}
    for name, options in RINGS.items():
        operator = create_operator(name, DIM, HEADS, **options)
        part = Domain.line(n).shard(mesh)
        u = torch.randn(1, part.size, DIM)
        with torch.no_grad():
            operator(u, part)
            dist.barrier()
            with profile(activities=[ProfilerActivity.CPU]) as trace:
                operator(u, part)
        found[name] = overlap_of([(e.name, e.time_range) for e in trace.events() or ()])
    return found


def overlap_of(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """Summarise the events of a trace.

    Returns:
        The number of messages; the number of those during which matrix products ran (``ahead``);
        milliseconds between the beginning of a message and the wait for it (``computed``); and
        milliseconds of the waits (``waited``).
    """
    spans = {kind: {} for kind in ("begins", "is awaited")}
    for name, span in events:
        for kind, found in spans.items():
            if name.startswith("fredholm: ring message") and name.endswith(kind):
                found[name.split()[3]] = span
    products = [s for name, s in events if name in ("aten::bmm", "aten::mm", "aten::addmm")]
    travelled, waited, ahead = 0.0, 0.0, 0
    for message, wait in spans["is awaited"].items():
        begun = spans["begins"][message]
        between = [s for s in products if begun.end <= s.start and s.end <= wait.start]
        # The trace is in microseconds.
        travelled += (wait.start - begun.end) / 1e3
        waited += (wait.end - wait.start) / 1e3
        ahead += bool(between)
    messages = len(spans["is awaited"])
    return {"messages": messages, "ahead": ahead, "computed": travelled, "waited": waited}


# --- time -----------------------------------------------------------------------------------------


def time_steps(options: Options) -> None:
    """Time a training step of one process, of two independent ones, and of two with twice the work
    on one domain, one thread each.
    """
    time_parts("steps", options, _steps)


def _steps(options: Options) -> list[dict[str, Any]]:
    names = options.chosen(WORK)
    times: dict[tuple[str, str], list[float]] = {}
    # The ways alternate, so that changes of the machine affect all of them.
    for _ in range(1 if options.small else ROUNDS):
        for way, count in WAYS.items():
            ranks = over(count, step_times, names, options.small, way == "apart")
            for name in names:
                steps = zip(*(rank["seconds"][name] for rank in ranks))
                times.setdefault((name, way), []).extend(map(max, steps))
    rows = []
    for name in names:
        one, apart, two = (statistics.median(times[name, way]) for way in WAYS)
        sizes = [size_of(name, count, options.small) for count in (1, 2)]
        row = {"case": name, "points": sizes, "milliseconds": [1e3 * one, 1e3 * apart, 1e3 * two]}
        rows.append({**row, "efficiency": one / two, "of_apart": apart / two})
    return rows


def size_of(name: str, count: int, small: bool) -> int:
    """Return the number of points with ``count`` times the work of one process.

    It is a multiple of ``count``.
    """
    n, power = WORK[name]
    if small:
        n = 128
    return count * round(n * count ** (1 / power) / count)


def step_times(mesh: Any, names: list[str], small: bool, apart: bool) -> dict[str, Any]:
    """Measure the seconds of each training step of each model.

    The processes share a domain, unless there is only one or they are ``apart``.
    """
    import torch.distributed as dist

    from fredholm.lab.training.machine import seconds_of

    from .memory import make, step

    found: dict[str, list[float]] = {}
    count = 1 if apart else mesh.size()
    shared = mesh if count > 1 else None
    for name in names:
        model, n = make(name), size_of(name, count, small)
        times = []
        for _ in range(2 if small else REPEATS + 1):
            dist.barrier()
            times.append(seconds_of(lambda: step(model, shared, n)))  # noqa: B023
        # The first step loads libraries and fills caches.
        found[name] = times[1:]
    return {"seconds": found}
