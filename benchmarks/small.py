"""What a call costs where the arithmetic is little: every operator on few points, and single causal
steps, beside ``nn.MultiheadAttention`` on the same signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import fredholm
from fredholm.operators import create_operator, list_operators

from .kit.clock import difference, in_turn, median_and_spread, require
from .kit.machine import describe, machine_line
from .kit.page import PAGES, head, load, save, table
from .kit.subject import Options, Subject

FILE = "small.json"
SUBJECT = Subject(
    __name__,
    times={"calls": ":time_calls", "steps": ":time_steps"},
    pages={PAGES / "small.md": ":page"},
    cases=":timed",
    ratios=":committed",
)
LENGTHS = (8, 32, 128, 512)
PEER = "nn.MultiheadAttention"
DIM, STEP_DIM, HEADS = 32, 128, 4
SECONDS = 0.02  # of calls in a row, for one reading of the clock
ROUNDS = 15
# How much of MultiheadAttention's time a call on eight points may take.
GOALS = {
    "softmax": 1.5,
    "linear_attention": 2.5,
    "linear_infsa": 2.5,
    "infsa": 3.0,
    "itnet_low_rank": 3.6,
    "ckconv": 4.5,
    "luna": 5.0,
    "itnet": 7.0,
}
TEXT = """{head}Inference, one sequence, {threads} thread. A way is timed only after its answer was compared with the operator's dense
definition. Each reading of the clock is of {seconds:.0f} ms of calls in a row; medians of {rounds} readings that take turns with the
peer's, and half the distance between their quartiles in brackets.

Machine: {machine} Command: `python -m benchmarks time small`.

## A call

d = {dim}, {heads} heads. Behind the time: as a multiple of `{peer}`, timed in the same rounds. *Inside* stands for a call inside
[`fredholm.inference`](../inference.md).

{calls}

## A causal step

d = {step_dim}, {heads} heads, the step from point 63 to point 64, µs; as a multiple of `{peer}`'s call for one query and 64 keys of the same
width, which must project all keys again.

{steps}
"""


# --- measuring ------------------------------------------------------------------------------------


def time_calls(options: Options) -> None:
    """Calls of every operator at each length, alone and inside ``inference``."""
    lengths = LENGTHS[:1] if options.small else LENGTHS
    rows = [row for n in lengths for row in calls(n, options.chosen(list_operators()))]
    _keep("calls", rows, options)


def time_steps(options: Options) -> None:
    """One causal step of every operator."""
    _keep("steps", list(steps(options.chosen(list_operators()))), options)


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """The rows again, as ``check`` compares them."""
    names = list_operators()
    for n in LENGTHS:
        yield from calls(n, names)
    yield from steps(names)


def committed() -> list[dict[str, Any]]:
    """The rows of ``check``."""
    return [row for part in ("calls", "steps") for row in load(FILE)[part]]


def calls(n: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of one length: ours first, then the peer, then ours inside ``inference``."""
    torch.manual_seed(0)
    u, peer = torch.randn(1, n, DIM), _peer(DIM)
    for name in names:
        operator = create_operator(name, DIM, heads=HEADS).eval()
        domain = operator.kernel.default_domain(n, device=u.device, dtype=u.dtype)
        ways = {
            "call": lambda op=operator, d=domain: op(u, d),
            PEER: lambda: peer(u, u, u, need_weights=False)[0],
            "inside inference": lambda op=operator, d=domain: op(u, d),
        }
        with torch.no_grad():
            expected = operator.dense(u, domain)
            error = require(name, difference(operator(u, domain), expected), 1e-4)
            with fredholm.inference(operator):
                error = max(error, require(name, difference(operator(u, domain), expected), 1e-4))
        yield from _rows(f"{name} N={n}", ways, operator, error, group="calls")


def steps(names: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of single steps, after 63 points."""
    torch.manual_seed(0)
    u, peer = torch.randn(1, 64, STEP_DIM), _peer(STEP_DIM)
    for name in names:
        operator = create_operator(name, STEP_DIM, heads=HEADS).eval()
        line = operator.kernel.default_domain(64, device=u.device, dtype=u.dtype)
        domain = line.replace(causal=True)
        with torch.no_grad():
            _, state = operator.prefill(u[:, :-1], operator.init_state(1, domain))
            answer = operator.step(u[:, -1], state)[0]
            error = require(name, difference(answer, operator.dense(u, domain)[:, -1]), 1e-4)
        step = lambda op=operator, s=state: op.step(u[:, -1], s)[0]  # noqa: E731
        ways = {
            "step": step,
            PEER: lambda: peer(u[:, -1:], u, u, need_weights=False)[0],
            "inside inference": step,
        }
        yield from _rows(f"{name} step", ways, operator, error, group="steps")


def _peer(dim: int) -> nn.Module:
    return nn.MultiheadAttention(dim, HEADS, batch_first=True).eval()


def _rows(
    case: str,
    ways: dict[str, Callable[[], Tensor]],
    operator: nn.Module,
    error: float,
    **facts: Any,
) -> Iterator[dict[str, Any]]:
    """Rows of the ways of one case, timed in turn; the last is timed inside ``inference``."""
    with torch.no_grad():
        loops = {name: _in_a_row(way) for name, way in ways.items()}
        inside = list(ways)[-1]

        def prepared() -> float:
            with fredholm.inference(operator):
                ways[inside]()  # makes what is prepared, which is no part of a call
                return loops[inside]()

        seconds = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, loop in loops.items():
                seconds[name].append(prepared() if name == inside else loop())
    first = median_and_spread(seconds[next(iter(ways))])[0]
    for name, times in seconds.items():
        median, spread = median_and_spread(times)
        row = {
            "case": case,
            "way": name,
            "ratio": median / first,
            "milliseconds": 1e3 * median,
            "spread": 1e3 * spread,
            "difference": error,
        }
        print(f"{case:28} {name:24} {row['ratio']:7.2f} {row['milliseconds']:9.4f} ms", flush=True)
        yield facts | row


def _in_a_row(way: Callable[[], object]) -> Callable[[], float]:
    """Seconds a call, of so many calls in a row that the clock's own cost plays no role."""
    way()
    once = min(in_turn({"": way}, 3)[""])
    count = max(1, math.ceil(SECONDS / once))

    def loop() -> float:
        def many() -> None:
            for _ in range(count):
                way()

        return in_turn({"": many}, 1, warm=False)[""][0] / count

    return loop


def _keep(part: str, rows: list[dict[str, Any]], options: Options) -> None:
    """Write one part; operators that are not timed now stay as they were."""
    before = load(FILE, options.results) or {}
    again = {row["case"] for row in rows}
    kept = [row for row in before.get(part, []) if row["case"] not in again]
    save(before | {"machine": describe(), part: kept + rows}, FILE, options.results)


# --- the page -------------------------------------------------------------------------------------


def page() -> str:
    """docs/results/small.md."""
    measured = load(FILE)
    if measured is None:
        return head("Small problems", "small", FILE) + "Not measured yet.\n"
    rows = {(row["case"], row["way"]): row for row in committed()}
    names = [name for name in GOALS if (f"{name} N={LENGTHS[0]}", "call") in rows]
    return TEXT.format(
        head=head("Small problems", "small", FILE),
        machine=machine_line(measured["machine"]),
        threads=measured["machine"]["threads"],
        seconds=1e3 * SECONDS,
        rounds=ROUNDS,
        dim=DIM,
        step_dim=STEP_DIM,
        heads=HEADS,
        peer=PEER,
        calls=_call_table(names, rows),
        steps=_step_table(names, rows),
    )


def _call_table(names: list[str], rows: dict[Any, dict[str, Any]]) -> str:
    lines = []
    for name in names:
        cells = []
        for n in LENGTHS:
            case = f"{name} N={n}"
            peer = rows[case, PEER]["milliseconds"]
            for way in ("call", "inside inference"):
                cells.append(_cell(rows[case, way], peer))
        lines.append((name, *cells, f"{GOALS[name]:g}"))
    heads = [word for n in LENGTHS for word in (f"N = {n}, ms", "inside")]
    return table(("operator", *heads, "goal at N = 8"), lines)


def _step_table(names: list[str], rows: dict[Any, dict[str, Any]]) -> str:
    lines = []
    for name in names:
        peer = rows[f"{name} step", PEER]["milliseconds"]
        cells = [
            _cell(rows[f"{name} step", way], peer, 1e3, 0) for way in ("step", "inside inference")
        ]
        lines.append((name, *cells))
    return table(("operator", "µs", "inside"), lines)


def _cell(row: dict[str, Any], peer: float, scale: float = 1.0, digits: int = 3) -> str:
    time = f"{scale * row['milliseconds']:.{digits}f} ({scale * row['spread']:.{digits}f})"
    return f"{time} · {row['milliseconds'] / peer:.1f}"
