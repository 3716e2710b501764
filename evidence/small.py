"""Overhead of small calls: every operator on few points, and single causal steps, beside
``nn.MultiheadAttention`` on the same signal.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fredholm
from fredholm.operators import create_operator, list_operators

from .kit.clock import SECONDS, difference, in_a_row, in_turn, median_and_spread, require
from .kit.history import draw as draw_history
from .kit.history import history_table, record
from .kit.machine import describe, machine_line
from .kit.page import PAGES, head, load, save, table
from .kit.subject import Options, Subject

FILE = "small.json"
SUBJECT = Subject(
    __name__,
    times={"calls": ":time_calls", "steps": ":time_steps", "tune": ":time_sizes"},
    pages={PAGES / "small.md": ":page"},
    draw=":draw",
    cases=":timed",
    ratios=":committed",
    history=True,
)
LENGTHS = (8, 32, 128, 512)
PEER = "nn.MultiheadAttention"
DIM, STEP_DIM, HEADS = 32, 128, 4
SIZES = (8, 16, 32, 64, 128, 256)
MANY = 1 << 62
"""A crossover that is never reached."""


class Crossover(NamedTuple):
    """The size up to which an operator uses its form for few points.

    Attributes:
        module: that defines the size.
        constant: its name.
        function: a function that only the form for few points calls.
    """

    module: str
    constant: str
    function: str


FAMILIES = "fredholm.families"
FEW = {
    "itnet": Crossover(f"{FAMILIES}.itnet.hidden_first.tiled", "FEW_RECORDED", "one_tile"),
    "ckconv": Crossover(
        f"{FAMILIES}.ckconv.grid_convolution.fft", "FEW", "DirectConvolution.respond"
    ),
    "infsa": Crossover(f"{FAMILIES}.infsa.graph.token_graph", "FEW", "TokenGraph.edges"),
    "luna": Crossover("fredholm.ops.feature_map.bank", "FEW_RECORDED", "_before"),
}
FEW_VALUES = {
    "itnet": Crossover(f"{FAMILIES}.itnet.hidden_first.columns", "FEW_HIDDEN", "few_points"),
    "infsa": Crossover(f"{FAMILIES}.infsa.graph.token_graph", "FEW", "TokenGraph._evenly"),
    "luna": Crossover("fredholm.ops.feature_map.bank", "FEW", "_at_once"),
}
"""Crossovers of operators that have other forms without gradients."""
ROUNDS = 15
# Largest time of a call on eight points, in units of MultiheadAttention's.
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
TEXT = """{head}This page gives the time of operators on few points, in inference, with one sequence and {threads} thread. An operator is timed only after its answer has been compared with its dense
definition. Each reading of the clock covers {seconds:.0f} ms of consecutive calls, and alternates with a reading of `{peer}`. The tables give medians of {rounds} readings,
followed in brackets by half the interquartile range.

Machine: {machine} Command: `python -m evidence time small`.

## A call

d = {dim}, {heads} heads. Each time is followed by its ratio to that of `{peer}`, timed in the same rounds. *Inside* stands for a call inside
[`fredholm.inference`](../inference.md).

{calls}

## A causal step

d = {step_dim}, {heads} heads, the step from point 63 to point 64. Times are in µs, each followed by its ratio to that of `{peer}` for one query and 64 keys of the same
width, which must project all keys again.

{steps}

## Forms by size

For few points, some operators use a form that stores all pairs or the complete kernel; above a certain number of pairs they use another one. The table gives the time of the form for few points divided by
that of the form for many (B 1, {heads} heads, d = {dim}): below 1 the former is faster. These ratios are of the shortest of 7 readings each. A bold ratio means that the operator uses the form for few points.
Command: `python -m evidence time small tune`.

{sizes}

## History

The time of `{peer}` divided by that of a call on eight points, at the commits for which `python -m evidence check small` or `time small` recorded ratios in
`evidence/results/history.json`. `check` fails if a ratio has fallen by more than 15%.
Commit ece91769 is lower than that allows; the cause is not known.

{history}
"""


# --- measuring ------------------------------------------------------------------------------------


def time_calls(options: Options) -> None:
    """Time calls of every operator at each length, alone and inside ``inference``."""
    rows: list[dict[str, Any]] = []
    for n in LENGTHS[:1] if options.small else LENGTHS:
        rows += calls(n, options.chosen(list_operators()))
    _keep("calls", rows, options)


def time_steps(options: Options) -> None:
    """Time one causal step of every operator."""
    _keep("steps", list(steps(options.chosen(list_operators()))), options)


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time all calls and steps again, for ``check``."""
    names = options.chosen(list_operators())
    for n in LENGTHS:
        yield from calls(n, names)
    yield from steps(names)


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    found = load(FILE)
    return [*found["calls"], *found["steps"]]


def calls(n: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one length: our call, the peer, and our call inside ``inference``."""
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
    """Yield the rows of single steps after 63 points."""
    torch.manual_seed(0)
    u, peer = torch.randn(1, 64, STEP_DIM), _peer(STEP_DIM)
    for name in names:
        operator = create_operator(name, STEP_DIM, heads=HEADS).eval()
        line = operator.kernel.default_domain(64, device=u.device, dtype=u.dtype)
        domain = line.replace(causal=True)
        with torch.no_grad():
            _, state = operator.prefill(u[:, :-1], operator.init_state(1, domain))
            answer, _ = operator.step(u[:, -1], state)
            error = require(name, difference(answer, operator.dense(u, domain)[:, -1]), 1e-4)
        step = lambda op=operator, s=state: op.step(u[:, -1], s)[0]  # noqa: E731
        ways = {
            "step": step,
            PEER: lambda: peer(u[:, -1:], u, u, need_weights=False)[0],
            "inside inference": step,
        }
        yield from _rows(f"{name} step", ways, operator, error, group="steps")


def time_sizes(options: Options) -> None:
    """Time both forms of every operator that has one for few points, at each length."""
    before = load(FILE, options.results) or {}
    rows: list[dict[str, Any]] = []
    for n in SIZES[:2] if options.small else SIZES:
        rows += sizes(n, options.chosen(FEW))
    save(before | {"machine": describe(), "sizes": rows}, FILE, options.results)


def sizes(n: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one length: the ratio of both forms, and the form that is used."""
    for name in names:
        for gradients in (False, True):
            torch.manual_seed(0)
            u = torch.randn(1, n, DIM, requires_grad=gradients)
            operator = create_operator(name, DIM, heads=HEADS).eval()
            domain = operator.kernel.default_domain(n, device=u.device, dtype=u.dtype)

            def call(limit: int | None, op=operator, d=domain, x=u, g=gradients) -> Tensor:
                with _limited(name, g, limit), torch.set_grad_enabled(g):  # noqa: B023
                    out = op(x, d)
                    if not g:
                        return out
                    return torch.autograd.grad(out.sum(), x)[0]

            expected = call(0)
            error = require(name, difference(call(MANY), expected), 1e-4)
            ways = {"few": lambda c=call: c(MANY), "many": lambda c=call: c(0)}
            times = in_turn(ways, 7)
            few, many = min(times["few"]), min(times["many"])
            taken = _taken(name, gradients, lambda c=call: c(None))
            row = {"case": name, "n": n, "gradients": gradients, "ratio": few / many}
            print(
                f"{name:18} N={n:5} gradients={gradients!s:5} {few / many:6.2f} {taken}", flush=True
            )
            yield row | {"taken": taken, "milliseconds": 1e3 * few, "difference": error}


@contextmanager
def _limited(name: str, gradients: bool, limit: int | None) -> Iterator[None]:
    """Set the crossover of an operator to ``limit`` for a while; None doesn't change it."""
    if limit is None:
        yield
        return
    crossover = _few(name, gradients)
    module = importlib.import_module(crossover.module)
    before = getattr(module, crossover.constant)
    try:
        setattr(module, crossover.constant, limit)
        yield
    finally:
        setattr(module, crossover.constant, before)


def _few(name: str, gradients: bool) -> Crossover:
    """Return an operator's crossover with or without gradients."""
    if gradients:
        return FEW[name]
    return FEW_VALUES.get(name, FEW[name])


def _taken(name: str, gradients: bool, call: Callable[[], object]) -> str:
    """Return which form a call uses, ``few`` or ``many``, by the functions that it enters."""
    function = _few(name, gradients).function
    entered: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname == function:
            entered.append(function)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return "few" if entered else "many"


def _peer(dim: int) -> nn.Module:
    return nn.MultiheadAttention(dim, HEADS, batch_first=True).eval()


def _rows(
    case: str,
    ways: dict[str, Callable[[], Tensor]],
    operator: nn.Module,
    error: float,
    **facts: Any,
) -> Iterator[dict[str, Any]]:
    """Time the ways of a case in alternation, the last one inside ``inference``; yield the rows."""
    with torch.no_grad():
        loops = {name: in_a_row(way) for name, way in ways.items()}
        inside = list(ways)[-1]

        def prepared() -> float:
            with fredholm.inference(operator):
                # The first call prepares tensors, which does not count.
                ways[inside]()
                return loops[inside]()

        seconds = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, loop in loops.items():
                seconds[name].append(prepared() if name == inside else loop())
    first, _ = median_and_spread(seconds[next(iter(ways))])
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


def _keep(part: str, rows: list[dict[str, Any]], options: Options) -> None:
    """Replace the rows of a part's timed operators and record all ratios in the history."""
    before = load(FILE, options.results) or {}
    again = {row["case"] for row in rows}
    others = [row for row in before.get(part, []) if row["case"] not in again]
    after = before | {"machine": describe(), part: others + rows}
    save(after, FILE, options.results)
    record("small", [*after.get("calls", []), *after.get("steps", [])], options.results)


# --- the page -------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of docs/results/small.md."""
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
        sizes=_size_table(measured.get("sizes", [])),
        history=history_table("small", _history_cases()),
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
        first = f"{name} N={LENGTHS[0]}"
        ratio = rows[first, "call"]["milliseconds"] / rows[first, PEER]["milliseconds"]
        verdict = "met" if ratio <= GOALS[name] else "missed"
        lines.append((name, *cells, f"≤ {GOALS[name]:g}, {verdict}"))
    heads: list[str] = []
    for n in LENGTHS:
        heads += [f"N = {n}, ms", "inside"]
    return table(("operator", *heads, "goal at N = 8"), lines)


def _step_table(names: list[str], rows: dict[Any, dict[str, Any]]) -> str:
    lines = []
    for name in names:
        peer = rows[f"{name} step", PEER]["milliseconds"]
        cells = []
        for way in ("step", "inside inference"):
            cells.append(_cell(rows[f"{name} step", way], peer, 1e3, 0))
        lines.append((name, *cells))
    return table(("operator", "µs", "inside"), lines)


def _size_table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Not measured yet."
    known = {(row["case"], row["gradients"], row["n"]): row for row in rows}
    lengths = sorted({row["n"] for row in rows})
    lines = []
    for case, gradients in dict.fromkeys((row["case"], row["gradients"]) for row in rows):
        cells = []
        for n in lengths:
            row = known.get((case, gradients, n))
            cell = ""
            if row is not None:
                cell = f"{row['ratio']:.2f}"
                if row["taken"] == "few":
                    cell = f"**{cell}**"
            cells.append(cell)
        lines.append((case, "forward and backward" if gradients else "forward", *cells))
    return table(("operator", "", *(f"N = {n}" for n in lengths)), lines)


def _history_cases() -> dict[str, str]:
    """Return the operators and the names of their rows in the history."""
    return {name: f"{name} N={LENGTHS[0]}: {PEER}" for name in GOALS}


def draw() -> None:
    """Draw docs/images/small.svg."""
    label = f"{PEER} / ours, N = {LENGTHS[0]}"
    draw_history("small", _history_cases(), label, "small.svg")


def _cell(row: dict[str, Any], peer: float, scale: float = 1.0, digits: int = 3) -> str:
    time = f"{scale * row['milliseconds']:.{digits}f} ({scale * row['spread']:.{digits}f})"
    return f"{time} · {row['milliseconds'] / peer:.1f}"
