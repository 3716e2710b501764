"""Fair timing: check the answers of several ways of one computation, then time them in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fredholm.lab.training.machine import seconds_of

from .machine import matrix_rate

Rows = list[dict[str, Any]]
SECONDS = 0.02
"""Shortest interval that the clock measures; fast calls are repeated within it."""


class WrongAnswer(Exception):
    """A way's answer differs from the reference, so it is not timed."""


@dataclass
class Entry:
    """One way of computing a case's answer.

    Attributes:
        run: one evaluation; its answer is compared with the reference.
        flops: floating-point operations of the way (two per multiply-add), from which its share
            of the machine's matrix-product rate follows; None if unknown.
        reference: returns the correct answer of a way that computes another function for the same
            purpose; None for the case's reference.
    """

    run: Callable[[], object]
    flops: float | None = None
    reference: Callable[[], Tensor] | None = None


@dataclass
class Case:
    """A computation and several ways of doing it.

    Attributes:
        name: unique within its group.
        reference: returns the correct answer (by the definition, in the same precision).
        entries: the ways by name; ratios are relative to the first.
        tolerance: largest difference allowed, relative to the largest reference value.
        note: sizes and options, for the table.
        repeats: number of timed rounds.
        extra: further fields of the case's rows.
    """

    name: str
    reference: Callable[[], Tensor]
    entries: dict[str, Entry]
    tolerance: float = 1e-4
    note: str = ""
    repeats: int = 7
    extra: dict[str, object] = field(default_factory=dict)


Maker = Callable[[], Iterable[Case]]


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected magnitude; inf for NaN."""
    gap = (actual.detach().double() - expected.detach().double()).abs().max()
    error = float(gap / expected.detach().abs().max())
    return math.inf if math.isnan(error) else error


def require(what: str, error: float, allowed: float) -> float:
    """Return an error that is small enough.

    Raises:
        WrongAnswer: the error is above ``allowed``, or NaN.
    """
    if error <= allowed:
        return error
    raise WrongAnswer(
        f"{what}: expected an error of at most {allowed:.0e}, got {error:.1e}; refusing to time it"
    )


def check(case: Case) -> dict[str, float]:
    """Return the difference of every way from the reference.

    Raises:
        WrongAnswer: an answer has another shape or differs by more than the tolerance.
    """
    common = case.reference()
    errors: dict[str, float] = {}
    for name, entry in case.entries.items():
        expected = common
        if entry.reference is not None:
            expected = entry.reference()
        answer = entry.run()
        if not isinstance(answer, Tensor) or answer.shape != expected.shape:
            shape = getattr(answer, "shape", type(answer).__name__)
            raise WrongAnswer(
                f"{case.name}/{name}: expected a tensor {tuple(expected.shape)}, got {shape}; "
                f"refusing to time it"
            )
        errors[name] = require(f"{case.name}/{name}", difference(answer, expected), case.tolerance)
    return errors


def median_and_spread(times: list[float]) -> tuple[float, float]:
    """Return the median and half the distance between the quartiles, seconds."""
    if len(times) < 2:
        return times[0], 0.0
    quartiles = statistics.quantiles(times, n=4)
    return statistics.median(times), (quartiles[2] - quartiles[0]) / 2


def in_turn(
    ways: dict[str, Callable[[], object]],
    repeats: int,
    seconds: float = math.inf,
    warm: bool = True,
) -> dict[str, list[float]]:
    """Time the ways in alternation, after a warm-up round if ``warm``.

    Returns:
        Seconds of each way in ``repeats`` rounds. Rounds end early, but not before the second,
        once they took ``seconds`` per way on average.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    if warm:
        for way in ways.values():
            way()
    for number in range(repeats):
        if number >= 2 and sum(map(sum, times.values())) > seconds * len(ways):
            break
        for name, way in ways.items():
            times[name].append(seconds_of(way))
    return times


def in_a_row(way: Callable[[], object]) -> Callable[[], float]:
    """Return a function that measures the seconds per call of ``way``.

    A fast way is called once for warming up, then in a row for about :data:`SECONDS`. Neither the
    clock's resolution nor the cache contents left by other code then matter. A slow way is called
    once.
    """
    once = seconds_of(way)
    if once < SECONDS:
        once = min(once, *(seconds_of(way) for _ in range(2)))
    count = math.ceil(SECONDS / once)
    if count == 1:
        return lambda: seconds_of(way)

    def many() -> None:
        for _ in range(count):
            way()

    def reading() -> float:
        way()
        return seconds_of(many) / count

    return reading


def run(case: Case) -> Rows:
    """Check and time a case; return one row per way.

    A row has the median and the spread over alternating rounds, the ratio to the first way, and
    the share of the machine's matrix-product rate.
    """
    errors = check(case)
    readings = {name: in_a_row(entry.run) for name, entry in case.entries.items()}

    # The machine's rate is measured in every round, since its clock frequency varies.
    rates: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in readings}
    for _ in range(case.repeats):
        rates.append(matrix_rate())
        for name, reading in readings.items():
            times[name].append(reading())
    rate = statistics.median(rates)

    medians = {name: median_and_spread(seconds) for name, seconds in times.items()}
    first, _ = next(iter(medians.values()))
    rows: Rows = []
    for name, (median, spread) in medians.items():
        flops = case.entries[name].flops
        share = None
        if flops:
            share = flops / median / rate
        rows.append(
            {
                "case": case.name,
                "way": name,
                "ratio": median / first,
                "milliseconds": median * 1e3,
                "spread": spread * 1e3,
                "matrix_rate_share": share,
                "difference": errors[name],
                "note": case.note,
                **case.extra,
            }
        )
    return rows


def time_cases(cases: Iterable[Case], **facts: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of several cases with the fields ``facts`` added, and print each."""
    for case in cases:
        for row in run(case):
            share = ""
            if row["matrix_rate_share"]:
                share = f"{row['matrix_rate_share']:.0%}"
            figures = f"{row['ratio']:7.2f} {row['milliseconds']:10.2f} {share:>5}"
            print(f"{row['case']:56} {row['way']:30} {figures}  {row['note']}", flush=True)
            yield facts | row


def with_gradients(output: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return an output's values and the gradients of its sum of squares in one vector.

    A training step must compute both correctly.
    """
    found = torch.autograd.grad(output.square().sum(), inputs)
    return torch.cat([output.detach().flatten(), *(g.flatten() for g in found)])


def no_grad(call: Callable[..., Tensor], *arguments: Any) -> Callable[[], Tensor]:
    """Bind the arguments of a call and disable gradients in it."""
    return torch.no_grad()(lambda: call(*arguments))
