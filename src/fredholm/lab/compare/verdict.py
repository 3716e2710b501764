"""Recommendation of a search, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..training.metrics import mean_and_sd, wilson
from .plain import PLAIN

LEVEL = 0.95


def interval(differences: Sequence[float]) -> list[float] | None:
    """Mean and 95% interval of paired differences by Student's t; None of fewer than two,
    NaN where one is no finite number.

    Example:
        >>> [round(x, 3) for x in interval([0.1, 0.2, 0.3])]
        [0.2, -0.048, 0.448]
    """
    from scipy.stats import t

    count = len(differences)
    if count < 2:
        return None
    if not all(map(math.isfinite, differences)):
        return [math.nan] * 3
    mean, sd = statistics.fmean(differences), statistics.stdev(differences)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * sd / math.sqrt(count)
    return [mean, mean - half, mean + half]


def paired_interval(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Mean and 95% interval of the difference of two shares of the same samples, from Wilson's
    intervals of both: where both are right on all samples it is not a point, as Student's t would
    have it.

    Args:
        one, other: of each sample whether it is right, or in how many of the seeds, in 0 to 1.

    Reference: Newcombe, "Improved confidence intervals for the difference between binomial
    proportions based on paired data" (1998), without continuity correction.

    Example:
        >>> [round(x, 3) for x in paired_interval([1.0] * 60, [1.0] * 60)]
        [0.0, -0.06, 0.06]
    """
    count = len(one)
    mean, second = statistics.fmean(one), statistics.fmean(other)
    (low, high), (second_low, second_high) = wilson(mean, count), wilson(second, count)
    varies = len(set(one)) > 1 and len(set(other)) > 1
    correlation = statistics.correlation(one, other) if varies else 0.0

    def half(near: float, far: float) -> float:
        return math.sqrt(max(0.0, near**2 - 2 * correlation * near * far + far**2))

    difference = mean - second
    lower = difference - half(mean - low, second_high - second)
    upper = difference + half(high - mean, second - second_low)
    return [difference, lower, upper]


def decoded(each: str | Sequence[float]) -> list[float]:
    """The numbers of single samples, which a file holds as one text where they are 0 and 1."""
    return [float(c) for c in each]


def table(rows: Sequence[dict[str, Any]], higher: bool) -> list[dict[str, Any]]:
    """A line per finalist: means over seeds on validation and test, the best validation first."""
    result = []
    for name in dict.fromkeys(row["operator"] for row in rows):
        mine = [row for row in rows if row["operator"] == name and "error" not in row]
        if not mine:
            continue
        tests = [row["test"]["score"] for row in mine]
        line: dict[str, Any] = {"operator": name, "lr": mine[0]["lr"], "seeds": len(mine)}
        line["val"] = statistics.fmean(row["val"]["score"] for row in mine)
        line["val_loss"] = statistics.fmean(row["val"]["loss"] for row in mine)
        mean, line["sd"] = mean_and_sd(tests)
        assert mean is not None
        line["test"] = mean
        each = [row["test"]["each"] for row in mine]
        right = [statistics.fmean(decoded(one)) for one in each if _counted(one)]
        # Of another score than the share of right samples, samples say nothing of its spread.
        if len(right) == len(each) and math.isclose(statistics.fmean(right), mean):
            line["samples"] = len(each[0])
            line["interval"] = list(wilson(mean, line["samples"]))
        for key in mine[0].get("stress", {}):
            line.setdefault("stress", {})[key] = statistics.fmean(r["stress"][key] for r in mine)
        line["seconds"] = statistics.fmean(row["seconds"] for row in mine)
        result.append(line)
    sign = -1 if higher else 1
    return sorted(result, key=lambda line: (sign * line["val"], line["val_loss"]))


def compared(
    rows: Sequence[dict[str, Any]], one: str, other: str, higher: bool, each: bool
) -> dict[str, Any]:
    """How much better ``one`` is than ``other`` on the test split: over the seeds that both have,
    and over the samples, each with the mean of its numbers over these seeds. ``higher`` and
    ``each`` say whether more is better: of the scores, and of the samples' own numbers.
    """
    by = {
        name: {r["seed"]: r["test"] for r in rows if r["operator"] == name and "error" not in r}
        for name in (one, other)
    }
    seeds = [seed for seed in by[one] if seed in by[other]]
    sign = 1 if higher else -1
    over_seeds = [sign * (by[one][s]["score"] - by[other][s]["score"]) for s in seeds]
    result = {"one": one, "other": other, "seeds": len(seeds), "over_seeds": interval(over_seeds)}
    sign = 1 if each else -1
    first, second = (
        [statistics.fmean(values) for values in zip(*(decoded(by[name][s]["each"]) for s in seeds))]
        for name in (one, other)
    )
    if first and all(_counted(by[name][s]["each"]) for name in (one, other) for s in seeds):
        over_samples = paired_interval(first, second)
    else:
        over_samples = interval([sign * (a - b) for a, b in zip(first, second)])
    return result | {"samples": len(first), "over_samples": over_samples}


def _counted(each: str | Sequence[float]) -> bool:
    """Whether single samples are right or wrong, which a file holds as one text."""
    return isinstance(each, str) and bool(each)


def is_sure(found: dict[str, Any]) -> bool:
    """Whether the difference is above zero over the seeds and over the samples."""
    both = found["over_seeds"], found["over_samples"]
    return all(part is not None and part[1] > 0 for part in both)


def conclude(
    finals: Sequence[dict[str, Any]], higher: bool, each: bool, resolution: float = 0.0
) -> dict[str, Any]:
    """Choose a contender on validation alone, and compare it with the next one on the test split.

    Args:
        finals: rows of the finalists' trials.
        higher, each: whether a larger score, and a larger number of a sample, is better; see
            :func:`compared`.
        resolution: the largest difference of validation scores that counts as a tie. Of the
            contenders that tie with the best one, the fastest to train is picked.

    Returns:
        ``pick``, a name; ``operator``, the best one that is an operator, or None; ``ties``, names
        of the others that tie, if any; ``table``, a line per finalist, the pick first. With a
        second finalist also ``runner_up``, ``difference`` (of :func:`compared`) and ``sure``.
        Empty if every finalist failed.
    """
    lines = table(finals, higher)
    if not lines:
        return {}

    # The difference of two shares of samples may exceed the resolution by a rounding error.
    near = resolution * (1 + 1e-9)
    ties = [line for line in lines if abs(line["val"] - lines[0]["val"]) <= near]
    fastest = min(ties, key=lambda line: line["seconds"])
    lines = [fastest, *(line for line in lines if line is not fastest)]
    names = [line["operator"] for line in lines]

    operators = [name for name in names if name not in PLAIN]
    best_operator = operators[0] if operators else None
    result: dict[str, Any] = {"pick": names[0], "operator": best_operator}
    if len(ties) > 1:
        result["ties"] = [line["operator"] for line in ties if line is not fastest]
    result["table"] = lines

    if len(names) > 1:
        difference = compared(finals, names[0], names[1], higher, each)
        result |= {"runner_up": names[1], "difference": difference, "sure": is_sure(difference)}
    return result
