"""Recommendation of a search, and how certain it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy.stats import t as student_t

from ..training.metrics import mean_and_sd, wilson
from .plain import PLAIN

LEVEL = 0.95

Row = dict[str, Any]
"""Plain data: a row of the finalists' trials, a line of the table, or the verdict."""


def interval(differences: Sequence[float]) -> list[float] | None:
    """Return mean, lower and upper end of Student's 95% interval of paired differences.

    Returns None for fewer than two differences, and NaNs if one of them is not finite.

    Example:
        >>> [round(x, 3) for x in interval([0.1, 0.2, 0.3])]
        [0.2, -0.048, 0.448]
    """
    count = len(differences)
    if count < 2:
        return None
    if not all(map(math.isfinite, differences)):
        return [math.nan] * 3
    mean = statistics.fmean(differences)
    deviation = statistics.stdev(differences)
    half = float(student_t.ppf((1 + LEVEL) / 2, count - 1)) * deviation / math.sqrt(count)
    return [mean, mean - half, mean + half]


def paired_interval(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return mean, lower and upper end of the 95% interval of a difference of two shares of the
    same samples, by Newcombe's method.

    It is made of Wilson's intervals of both shares. If both are right on all samples, it is not a
    point as Student's would be.

    Args:
        one, other: per sample, the share of the seeds in which it is right, 0 to 1.

    Reference: Newcombe, "Improved confidence intervals for the difference between binomial
    proportions based on paired data" (1998), without continuity correction.

    Example:
        >>> [round(x, 3) for x in paired_interval([1.0] * 60, [1.0] * 60)]
        [0.0, -0.06, 0.06]
    """
    count = len(one)
    first = statistics.fmean(one)
    second = statistics.fmean(other)
    first_low, first_high = wilson(first, count)
    second_low, second_high = wilson(second, count)

    # The correlation with a constant is not defined, and counts as zero.
    correlation = 0.0
    if len(set(one)) > 1 and len(set(other)) > 1:
        correlation = statistics.correlation(one, other)

    def half(near: float, far: float) -> float:
        return math.sqrt(max(0.0, near**2 - 2 * correlation * near * far + far**2))

    difference = first - second
    lower = difference - half(first - first_low, second_high - second)
    upper = difference + half(first_high - first, second - second_low)
    return [difference, lower, upper]


def decoded(each: str | Sequence[float]) -> list[float]:
    """Return the numbers per sample, which a file holds as one text if they are all 0 or 1."""
    return [float(character) for character in each]


def table(rows: Sequence[Row], higher: bool) -> list[Row]:
    """Return a line per finalist, the best on validation first.

    Each has the ``operator``, its ``lr`` and number of ``seeds``; means over the seeds of the
    scores ``val`` and ``test``, of ``val_loss`` and of ``seconds``; and the standard deviation
    ``sd`` of the test scores. If the score is a share of right samples, also the number of test
    ``samples`` and Wilson's ``interval``; of series, the mean scores under ``stress``.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row:
            groups.setdefault(row["operator"], []).append(row)
    lines = [_line(name, own) for name, own in groups.items()]

    sign = 1
    if higher:
        sign = -1
    return sorted(lines, key=lambda line: (sign * line["val"], line["val_loss"]))


def _line(name: str, rows: list[Row]) -> Row:
    mean, sd = mean_and_sd([row["test"]["score"] for row in rows])
    assert mean is not None
    line: Row = {
        "operator": name,
        "lr": rows[0]["lr"],
        "seeds": len(rows),
        "val": statistics.fmean(row["val"]["score"] for row in rows),
        "val_loss": statistics.fmean(row["val"]["loss"] for row in rows),
        "sd": sd,
        "test": mean,
    }

    # For another score than the share of right samples, single samples say nothing about its
    # spread.
    each = [row["test"]["each"] for row in rows]
    if all(map(_counted, each)):
        share = statistics.fmean(statistics.fmean(decoded(one)) for one in each)
        if math.isclose(share, mean):
            line["samples"] = len(each[0])
            line["interval"] = list(wilson(mean, line["samples"]))

    stresses = rows[0].get("stress", {})
    if stresses:
        line["stress"] = {
            key: statistics.fmean(row["stress"][key] for row in rows) for key in stresses
        }
    line["seconds"] = statistics.fmean(row["seconds"] for row in rows)
    return line


def compared(
    rows: Sequence[Row],
    one: str,
    other: str,
    higher: bool,
    each: bool,
) -> Row:
    """Return how much better ``one`` is than ``other`` on the test split.

    Args:
        rows: of the finalists' trials.
        one, other: names of two finalists.
        higher: whether larger scores are better.
        each: whether larger numbers of single samples are better.

    Returns:
        Intervals ``over_seeds``, the number of ``seeds`` that both have, and ``over_samples``, the
        number of ``samples``, each with the mean of its numbers over these seeds.
    """
    first = _tests(rows, one)
    second = _tests(rows, other)
    seeds = [seed for seed in first if seed in second]
    sign = 1 if higher else -1
    over_seeds = interval([sign * (first[s]["score"] - second[s]["score"]) for s in seeds])

    each_first = [first[seed]["each"] for seed in seeds]
    each_second = [second[seed]["each"] for seed in seeds]
    means_first = _means(each_first)
    means_second = _means(each_second)
    if means_first and all(map(_counted, [*each_first, *each_second])):
        over_samples = paired_interval(means_first, means_second)
    else:
        sign = 1 if each else -1
        pairs = zip(means_first, means_second)
        over_samples = interval([sign * (a - b) for a, b in pairs])
    return {
        "one": one,
        "other": other,
        "seeds": len(seeds),
        "over_seeds": over_seeds,
        "samples": len(means_first),
        "over_samples": over_samples,
    }


def _tests(rows: Sequence[Row], name: str) -> dict[int, Row]:
    """Return the test results of a finalist by seed."""
    own = [row for row in rows if row["operator"] == name and "error" not in row]
    return {row["seed"]: row["test"] for row in own}


def _means(each: list[str | list[float]]) -> list[float]:
    """Return the mean of each sample's numbers over the seeds."""
    return [statistics.fmean(values) for values in zip(*map(decoded, each))]


def _counted(each: str | Sequence[float]) -> bool:
    """Return whether single samples are right or wrong, which a file holds as one text."""
    return isinstance(each, str) and bool(each)


def is_sure(found: Row) -> bool:
    """Return whether a difference is above zero, both over the seeds and over the samples."""
    for part in (found["over_seeds"], found["over_samples"]):
        if part is None:
            return False
        _, low, _ = part
        # NaN is not above zero either.
        if not low > 0:
            return False
    return True


def conclude(
    finals: Sequence[Row],
    higher: bool,
    each: bool,
    resolution: float = 0.0,
) -> Row:
    """Choose a contender on validation samples only, and compare it with the next one on the test
    split.

    Args:
        finals: rows of the finalists' trials.
        higher, each: whether a larger score, and a larger number of a sample, is better; see
            :func:`compared`.
        resolution: the largest difference of validation scores that counts as a tie. Of the
            contenders that tie with the best one, the fastest to train is picked.

    Returns:
        ``pick``, a name; ``operator``, the best one that is an operator, or None; ``ties``, names
        of the others that tie, if any; ``table`` (of :func:`table`), the pick first. With a second
        finalist also ``runner_up``, ``difference`` (of :func:`compared`) and ``sure``. Empty if
        every finalist failed.
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

    best_operator = next((name for name in names if name not in PLAIN), None)
    result: Row = {"pick": names[0], "operator": best_operator}
    if len(ties) > 1:
        result["ties"] = [line["operator"] for line in ties if line is not fastest]
    result["table"] = lines

    if len(names) > 1:
        difference = compared(finals, names[0], names[1], higher, each)
        result |= {
            "runner_up": names[1],
            "difference": difference,
            "sure": is_sure(difference),
        }
    return result
