"""Ways of computing one thing: every answer is checked, then the ways are timed in turn."""

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
SECONDS = 0.02  # of calls in a row, for one reading of the clock


class WrongAnswer(Exception):
    """A way's answer differs from the reference, so it is not timed."""


@dataclass
class Entry:
    """One way of computing a case's answer.

    Attributes:
        run: one evaluation; its answer is compared with the reference.
        flops: multiply-adds times two that the way must do, for the share of the machine's
            matrix-product rate; or None.
        reference: the trusted answer of a way that computes another function for the same job;
            None: the case's.
    """

    run: Callable[[], object]
    flops: float | None = None
    reference: Callable[[], Tensor] | None = None


@dataclass
class Case:
    """Ways of computing one thing, timed in turn.

    Attributes:
        name: unique within its group.
        reference: the trusted answer (the definition, in the same precision).
        entries: name to way; the first is the one that ratios are taken against.
        tolerance: largest difference allowed, relative to the largest reference value.
        note: what is computed, for the table.
        repeats: timed rounds.
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
    """Largest difference relative to the largest expected magnitude; NaN counts as infinite."""
    gap = (actual.detach().double() - expected.detach().double()).abs().max()
    error = float(gap / expected.detach().abs().max())
    return math.inf if math.isnan(error) else error


def require(what: str, error: float, allowed: float) -> float:
    """The error again, or WrongAnswer where it is above what is allowed, or not a number."""
    if error <= allowed:
        return error
    text = f"{what}: {error:.1e} from the reference, allowed {allowed:.0e}"
    raise WrongAnswer(f"{text}; refusing to time it")


def check(case: Case) -> dict[str, float]:
    """Difference of every way from the reference, or WrongAnswer."""
    common, errors = case.reference(), {}
    for name, entry in case.entries.items():
        expected = common if entry.reference is None else entry.reference()
        answer = entry.run()
        if not isinstance(answer, Tensor) or answer.shape != expected.shape:
            raise WrongAnswer(f"{case.name}/{name}: another shape than the reference's")
        errors[name] = require(f"{case.name}/{name}", difference(answer, expected), case.tolerance)
    return errors


def median_and_spread(times: list[float]) -> tuple[float, float]:
    """Median and half the distance between the quartiles, seconds."""
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return statistics.median(times), (quartiles[2] - quartiles[0]) / 2


def in_turn(
    ways: dict[str, Callable[[], object]],
    repeats: int,
    seconds: float = math.inf,
    warm: bool = True,
) -> dict[str, list[float]]:
    """Times of each way, in turn, after a round that does not count: ``repeats`` rounds, or fewer
    once ``seconds`` a way are spent, but two at least.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values() if warm else ():
        way()
    for number in range(repeats):
        if number >= 2 and sum(map(sum, times.values())) > seconds * len(ways):
            break
        for name, way in ways.items():
            times[name].append(seconds_of(way))
    return times


def in_a_row(way: Callable[[], object]) -> Callable[[], float]:
    """A reading of the clock: seconds a call, of as many calls in a row as take :data:`SECONDS`
    after one that does not count, so that neither the clock nor what ran before plays a role; of
    one call that takes longer.
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
    """One row a way: median and spread over alternated rounds, ratio to the first way, share of the
    matrix-product rate.
    """
    errors = check(case)
    readings = {name: in_a_row(entry.run) for name, entry in case.entries.items()}
    rates: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in readings}
    for _ in range(case.repeats):
        rates.append(matrix_rate())
        for name, reading in readings.items():
            times[name].append(reading())
    rate = statistics.median(rates)
    medians = {name: median_and_spread(seconds) for name, seconds in times.items()}
    first = medians[next(iter(medians))][0]
    rows: Rows = []
    for name, (median, spread) in medians.items():
        flops = case.entries[name].flops
        rows.append(
            {
                "case": case.name,
                "way": name,
                "ratio": median / first,
                "milliseconds": median * 1e3,
                "spread": spread * 1e3,
                "matrix_rate_share": flops / median / rate if flops else None,
                "difference": errors[name],
                "note": case.note,
                **case.extra,
            }
        )
    return rows


def time_cases(cases: Iterable[Case], **facts: Any) -> Iterator[dict[str, Any]]:
    """Rows of several cases, with more ``facts`` each, printed as they come."""
    for case in cases:
        for row in run(case):
            share = f"{row['matrix_rate_share']:.0%}" if row["matrix_rate_share"] else ""
            figures = f"{row['ratio']:7.2f} {row['milliseconds']:10.2f} {share:>5}"
            print(f"{row['case']:56} {row['way']:30} {figures}  {row['note']}", flush=True)
            yield facts | row


def with_gradients(output: Tensor, inputs: list[Tensor]) -> Tensor:
    """One tensor of an output's values and the gradients of its sum of squares: what a training
    step must get right.
    """
    found = torch.autograd.grad(output.square().sum(), inputs)
    return torch.cat([output.detach().flatten(), *(g.flatten() for g in found)])


def no_grad(call: Callable[..., Tensor], *arguments: Any) -> Callable[[], Tensor]:
    """The call with these arguments, without gradients."""
    return torch.no_grad()(lambda: call(*arguments))
