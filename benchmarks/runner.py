"""Checks every answer, then times the ways of a case in turn."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from .machine import matrix_rate, median_and_spread
from .registry import Case


class WrongAnswer(Exception):
    """A way's answer differs from the reference, so it is not timed."""


def difference(actual: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected magnitude; NaN counts as infinite."""
    error = float(
        (actual.detach().double() - expected.detach().double()).abs().max()
        / expected.detach().abs().max()
    )
    return math.inf if math.isnan(error) else error


def check(case: Case) -> dict[str, float]:
    """Difference of every way from the reference, or WrongAnswer."""
    common, errors = case.reference(), {}
    for name, entry in case.entries.items():
        expected = common if entry.reference is None else entry.reference()
        answer = entry.run()
        if not isinstance(answer, Tensor) or answer.shape != expected.shape:
            raise WrongAnswer(
                f"{case.name}/{name}: the answer has another shape than the reference"
            )
        errors[name] = difference(answer, expected)
        if errors[name] > case.tolerance:
            got = f"{errors[name]:.1e} from the reference, allowed {case.tolerance:.0e}"
            raise WrongAnswer(f"{case.name}/{name}: {got}; refusing to time it")
    return errors


def run(case: Case) -> list[dict[str, object]]:
    """One row a way: median and spread over alternated rounds, ratio to the first way, share of the
    matrix-product rate.
    """
    errors = check(case)
    times: dict[str, list[float]] = {name: [] for name in case.entries}
    rates = []
    for _ in range(case.repeats):
        rates.append(matrix_rate())
        for name, entry in case.entries.items():
            start = time.perf_counter()
            entry.run()
            times[name].append(time.perf_counter() - start)
    rate = torch.tensor(rates).median().item()
    medians = {name: median_and_spread(seconds) for name, seconds in times.items()}
    first = medians[next(iter(medians))][0]
    rows: list[dict[str, object]] = []
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
