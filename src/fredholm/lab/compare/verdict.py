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
    quantile = float(student_t.ppf((1 + LEVEL) / 2, count - 1))
    half = quantile * deviation / math.sqrt(count)
    return [mean, mean - half, mean + half]


def paired_interval(
    one: Sequence[float],
    other: Sequence[float],
) -> list[float]:
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
        square = near**2 - 2 * correlation * near * far + far**2
        return math.sqrt(max(0.0, square))

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

    def order(line: Row) -> tuple[float, float]:
        return sign * line["val"], line["val_loss"]

    return sorted(lines, key=order)


def _line(name: str, rows: list[Row]) -> Row:
    mean, sd = mean_and_sd([row["test"]["score"] for row in rows])
    assert mean is not None
    scores = [row["val"]["score"] for row in rows]
    losses = [row["val"]["loss"] for row in rows]
    line: Row = {
        "operator": name,
        "lr": rows[0]["lr"],
        "seeds": len(rows),
        "val": statistics.fmean(scores),
        "val_loss": statistics.fmean(losses),
        "sd": sd,
        "test": mean,
    }

    # For another score than the share of right samples, single samples say nothing about its
    # spread.
    each = [row["test"]["each"] for row in rows]
    if all(map(_counted, each)):
        shares = [statistics.fmean(decoded(one)) for one in each]
        if math.isclose(statistics.fmean(shares), mean):
            count = len(each[0])
            line["samples"] = count
            line["interval"] = list(wilson(mean, count))

    stresses = rows[0].get("stress", {})
    if stresses:
        line["stress"] = {}
        for key in stresses:
            scores = [row["stress"][key] for row in rows]
            line["stress"][key] = statistics.fmean(scores)
    line["seconds"] = statistics.fmean(row["seconds"] for row in rows)
    return line


def paired_difference(
    rows: Sequence[Row],
    one: str,
    other: str,
    higher: bool,
    each: bool,
    folds: int = 1,
) -> Row:
    """Return how much better ``one`` is than ``other`` on the test split.

    The results of equal seeds are compared, which are those on equal folds. A method that draws
    nothing has one result per fold, which is compared with every seed on that fold.

    Args:
        rows: of the finalists' trials.
        one, other: names of two finalists.
        higher: whether larger scores are better.
        each: whether larger numbers of single samples are better.
        folds: number of folds, over which the seeds take turns.

    Returns:
        Intervals ``over_seeds``, the number of ``seeds`` that are compared, and ``over_samples``,
        the number of ``samples``, each with the mean of its numbers over these seeds.
    """
    pairs = _pairs(rows, one, other, folds)
    scores_first = [first["score"] for first, _ in pairs]
    scores_second = [second["score"] for _, second in pairs]
    over_seeds = interval(_gains(scores_first, scores_second, higher))

    each_first = [first["each"] for first, _ in pairs]
    each_second = [second["each"] for _, second in pairs]
    means_first = _means(each_first)
    means_second = _means(each_second)
    counted = all(map(_counted, [*each_first, *each_second]))
    if means_first and counted:
        over_samples = paired_interval(means_first, means_second)
    else:
        over_samples = interval(_gains(means_first, means_second, each))
    return {
        "one": one,
        "other": other,
        "seeds": len(pairs),
        "over_seeds": over_seeds,
        "samples": len(means_first),
        "over_samples": over_samples,
    }


def _gains(
    one: Sequence[float],
    other: Sequence[float],
    higher: bool,
) -> list[float]:
    """Return by how much the first of each two numbers is better."""
    sign = -1
    if higher:
        sign = 1
    return [sign * (a - b) for a, b in zip(one, other)]


def _pairs(
    rows: Sequence[Row],
    one: str,
    other: str,
    folds: int,
) -> list[tuple[Row, Row]]:
    """Return the test results of two finalists with equal seeds, see :func:`paired_difference`."""
    first = _tests(rows, one)
    second = _tests(rows, other)
    pairs = []
    for seed in sorted({*first, *second}):
        mine = first.get(_own_seed(one, seed, folds))
        theirs = second.get(_own_seed(other, seed, folds))
        if mine is not None and theirs is not None:
            pairs.append((mine, theirs))
    return pairs


def _own_seed(name: str, seed: int, folds: int) -> int:
    """Return the seed of the result that stands for ``seed``: of a method that draws nothing the
    first one on the same fold.
    """
    if name in PLAIN and not PLAIN[name].draws:
        return seed % folds
    return seed


def _tests(rows: Sequence[Row], name: str) -> dict[int, Row]:
    """Return the test results of a finalist by seed."""
    tests = {}
    for row in rows:
        if row["operator"] == name and "error" not in row:
            tests[row["seed"]] = row["test"]
    return tests


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
    folds: int = 1,
) -> Row:
    """Choose a contender on validation samples only, and compare it with the next one on the test
    split.

    Args:
        finals: rows of the finalists' trials.
        higher, each: whether a larger score, and a larger number of a sample, is better; see
            :func:`paired_difference`.
        resolution: the largest difference of validation scores that counts as a tie. Of the
            contenders that tie with the best one, the fastest to train is picked.
        folds: see :func:`paired_difference`.

    Returns:
        ``pick``, a name; ``operator``, the best one that is an operator, or None; ``ties``, names
        of the others that tie, if any; ``table`` (of :func:`table`), the pick first. With a second
        finalist also ``runner_up``, ``difference`` (of :func:`paired_difference`) and ``sure``.
        Empty if every finalist failed.
    """
    lines = table(finals, higher)
    if not lines:
        return {}

    # The difference of two shares of samples may exceed the resolution by a rounding error.
    near = resolution * (1 + 1e-9)
    best = lines[0]["val"]
    ties = [line for line in lines if abs(line["val"] - best) <= near]
    fastest = min(ties, key=lambda line: line["seconds"])
    lines.remove(fastest)
    lines.insert(0, fastest)

    pick, *others = [line["operator"] for line in lines]
    operators = (name for name in [pick, *others] if name not in PLAIN)
    result: Row = {
        "pick": pick,
        "operator": next(operators, None),
    }
    if len(ties) > 1:
        ties.remove(fastest)
        result["ties"] = [line["operator"] for line in ties]
    result["table"] = lines
    if others:
        runner_up = others[0]
        difference = paired_difference(finals, pick, runner_up, higher, each, folds)
        result |= {
            "runner_up": runner_up,
            "difference": difference,
            "sure": is_sure(difference),
        }
    return result
