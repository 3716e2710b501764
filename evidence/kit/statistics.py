"""Statistics of all pages: means over seeds, growth in N, and the test that judges claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .answers import answers_in

Rows = list[dict[str, Any]]


class Summary(NamedTuple):
    """Statistics of one number per seed.

    Attributes:
        mean: over the seeds.
        sd: sample standard deviation; None for one value.
        n: number of seeds.
        p: two-sided p-value; None for one value. It is over seeds and samples by :func:`crossed_p`
            if every seed has a number per test sample, otherwise over the seeds alone, by
            Student's t with n - 1 degrees of freedom.
        samples: number of test samples in that test; 0 for a test over the seeds alone.
    """

    mean: float
    sd: float | None
    n: int
    p: float | None
    samples: int = 0


class Scores(list[float]):
    """One number per seed.

    Attributes:
        samples: the numbers per test sample, (seeds, samples), whose means over samples the values
            are; None if the runs do not have them.
    """

    def __init__(self, values: Iterable[float] = (), samples: np.ndarray | None = None):
        super().__init__(values)
        self.samples = samples


def differences(
    pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]], metric: str, share: float = 1.0
) -> Scores:
    """Return the first row of each pair minus a share of the second, in a metric.

    The result has a number per sample too if all rows have the answers to the same samples. With a
    ``share`` below one it is positive where the first row keeps more than this share of the second.

    Raises:
        ValueError: the rows of a pair differ in ``corpus``, which says what texts a run has read.

    Example:
        >>> rows = {"accuracy": 0.5}, {"accuracy": 0.25}
        >>> differences([rows], "accuracy"), differences([rows], "accuracy", share=0.5)
        ([0.25], [0.375])
    """
    known = list(pairs)
    for one, other in known:
        _check_corpus(one, other)

    values = [one[metric] - share * other[metric] for one, other in known]
    parts = []
    for one, other in known:
        left, right = answers_in(one, metric), answers_in(other, metric)
        if left is None or right is None or len(left) != len(right):
            return Scores(values)
        parts.append(left - share * right)
    if len({len(part) for part in parts}) != 1:
        return Scores(values)
    return Scores(values, np.stack(parts))


def _check_corpus(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise ValueError if two rows come from different texts.

    A data set that changes with its distribution is not the same on every day.
    """
    left, right = one.get("corpus"), other.get("corpus")
    if left != right:
        raise ValueError(
            f"{one['variant']} and {other['variant']}, seed {one['seed']}: expected runs on the same "
            f"texts, got corpus {left!r} and {right!r}; run both again on the texts of today"
        )


def subtract(a: Scores, b: Scores) -> Scores:
    """Return ``a`` minus ``b`` per seed, and per sample if both have numbers of the same samples.

    Example:
        >>> subtract(Scores([0.5]), Scores([0.25]))
        [0.25]
    """
    values = [one - other for one, other in zip(a, b, strict=True)]
    if a.samples is None or b.samples is None or a.samples.shape != b.samples.shape:
        return Scores(values)
    return Scores(values, a.samples - b.samples)


class Error(NamedTuple):
    """A standard error of a mean, and its degrees of freedom."""

    size: float
    degrees: float


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def errors_of_mean(numbers: np.ndarray) -> list[Error]:
    r"""Return three standard errors of the mean of ``numbers`` (seeds, samples).

    Seeds and test samples are both drawn at random. The mixed model is
    :math:`d_{si} = m + a_s + b_i + e_{si}` with random effects of seeds, samples and their
    interaction. Its mean squares over S seeds and I samples give the variance of the mean

    - that the seeds alone show, :math:`M_a / (S I)`, as Student's t of their means has it;
    - that the samples alone show, :math:`M_b / (S I)`;
    - of both, :math:`(M_a + M_b - M_e) / (S I)`, with Satterthwaite's degrees of freedom. It is left
      out where it is smaller than one of the others.

    Satterthwaite's degrees of freedom are estimates too, and with few seeds sometimes far too large:
    without a difference, p then falls below 1% in up to 1.9% of all draws. Hence a test needs all
    three.

    Reference: Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    seeds, samples = numbers.shape
    mean = float(numbers.mean())
    rows = numbers.mean(1) - mean
    columns = numbers.mean(0) - mean
    rest = numbers - mean - rows[:, None] - columns

    # Mean squares M_a, M_b, M_e and their degrees of freedom.
    seed_freedom, sample_freedom = seeds - 1, samples - 1
    rest_freedom = seed_freedom * sample_freedom
    seed_square = samples * float((rows**2).sum()) / seed_freedom
    sample_square = seeds * float((columns**2).sum()) / sample_freedom
    rest_square = float((rest**2).sum()) / rest_freedom
    squares = [(seed_square, seed_freedom), (sample_square, sample_freedom)]

    square = seed_square + sample_square - rest_square
    if square > max(seed_square, sample_square):
        parts = [
            seed_square**2 / seed_freedom,
            sample_square**2 / sample_freedom,
            rest_square**2 / rest_freedom,
        ]
        squares.append((square, square**2 / sum(parts)))

    errors = []
    for square, degrees in squares:
        # Equal numbers differ by rounding alone, which would make t arbitrarily large.
        if square <= 1e-24 * max(1.0, mean**2):
            square = 0.0
        errors.append(Error(math.sqrt(square / (seeds * samples)), degrees))
    return errors


def crossed_p(numbers: np.ndarray, against: float = 0.0) -> float:
    """Test whether the mean of ``numbers`` (seeds, samples) is ``against``; return the p-value.

    It is the largest of the two-sided p-values of Student's t with the errors of
    :func:`errors_of_mean`: over the seeds, over the samples, and over both.
    """
    from scipy.stats import t as student

    mean = float(numbers.mean())
    found = []
    for size, degrees in errors_of_mean(numbers):
        if size:
            found.append(float(2 * student.sf(abs(mean - against) / size, degrees)))
    if not found:
        return 1.0 if math.isclose(mean, against, abs_tol=1e-12) else 0.0
    return max(found)


def crossed_interval(numbers: np.ndarray, level: float = 0.95) -> Interval:
    """Return the confidence interval of the mean of ``numbers`` (seeds, samples).

    It excludes a bound exactly if :func:`crossed_p` against that bound is below ``1 - level``.
    """
    from scipy.stats import t as student

    mean = float(numbers.mean())
    halves = [
        size * float(student.ppf((1 + level) / 2, degrees))
        for size, degrees in errors_of_mean(numbers)
    ]
    return Interval(mean - max(halves), mean + max(halves))


def summarise(values: Iterable[float], against: float = 0.0) -> Summary | None:
    """Summarise one number per seed and test whether their mean is ``against``; None if empty.

    Example:
        >>> found = summarise([0.1, 0.2, 0.3])
        >>> round(found.mean, 3), round(found.sd, 3), found.n, round(found.p, 4)
        (0.2, 0.1, 3, 0.0742)
    """
    known = [float(value) for value in values]
    if not known:
        return None
    mean = statistics.fmean(known)
    if len(known) < 2:
        return Summary(mean, None, 1, None)
    sd = statistics.stdev(known)
    samples = values.samples if isinstance(values, Scores) else None
    if samples is not None and samples.shape[1] > 1:
        return Summary(mean, sd, len(known), crossed_p(samples, against), samples.shape[1])
    # Equal values differ by rounding alone, which would make t arbitrarily large.
    if sd <= 1e-12 * max(map(abs, known)):
        p = 1.0 if math.isclose(mean, against) else 0.0
        return Summary(mean, sd, len(known), p)
    from scipy.stats import ttest_1samp

    return Summary(mean, sd, len(known), float(ttest_1samp(known, against).pvalue))


def mean_sd(values: Sequence[float]) -> dict[str, float]:
    """Return mean and sample standard deviation by name, for a file of results."""
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values)}


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of several hypotheses by Holm's method.

    None stands for a hypothesis that could not be tested. It remains None but counts as one of the
    hypotheses.

    Example:
        >>> holm([0.01, 0.04, None, 0.03])
        [0.04, 0.09, None, 0.09]
    """
    found: list[float | None] = [None] * len(values)
    largest = 0.0
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(values) - rank) * p))
        found[i] = largest
    return found


def paired(rows: Rows, a: str, b: str, metric: str = "accuracy") -> Scores:
    """Return variant ``a`` minus ``b``, one difference per seed that both have.

    Example:
        >>> rows = [{"variant": v, "seed": s, "accuracy": x}
        ...         for v, s, x in (("a", 0, 0.5), ("b", 0, 0.25), ("b", 1, 0.9))]
        >>> paired(rows, "a", "b")
        [0.25]
    """
    one = {row["seed"]: row for row in rows if row["variant"] == a}
    other = {row["seed"]: row for row in rows if row["variant"] == b}
    pairs = [(one[seed], other[seed]) for seed in one if seed in other]
    return differences(pairs, metric)


def beyond_best(rows: Rows, name: str, others: Sequence[str], metric: str = "accuracy") -> Scores:
    """Return variant ``name`` minus the best of ``others``, one difference per seed that all have.

    Example:
        >>> rows = [{"variant": v, "seed": 0, "accuracy": x}
        ...         for v, x in (("a", 0.5), ("b", 0.25), ("c", 0.375))]
        >>> beyond_best(rows, "a", ("b", "c")), beyond_best(rows, "a", ("b", "d"))
        ([0.125], [])
    """
    by_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {})[row["variant"]] = row

    pairs = []
    for variants in by_seed.values():
        if not {name, *others} <= set(variants):
            continue
        best = max((variants[other] for other in others), key=lambda row: row[metric])
        pairs.append((variants[name], best))
    return differences(pairs, metric)


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Fit the exponent b of y = a·x^b by least squares of the logarithms.

    Example:
        >>> round(slope([1, 2, 4], [3e-9, 12e-9, 48e-9]), 6)
        2.0
    """
    logs = [math.log(v) for v in x], [math.log(v) for v in y]
    return statistics.linear_regression(*logs).slope


def stays_below(curve: dict[int, float], other: dict[int, float]) -> int | None:
    """Return the least N from which ``curve`` stays below ``other``, where both were measured.

    Example:
        >>> stays_below({1: 5.0, 2: 1.0, 4: 1.0}, {1: 2.0, 2: 2.0, 4: 2.0})
        2
    """
    shared = [n for n in curve if n in other]
    above = [n for n in shared if curve[n] >= other[n]]
    return min((n for n in shared if n > max(above, default=0)), default=None)


def in_two_groups(values: Iterable[float]) -> bool:
    """Return whether seeds fall into two groups far apart, so that the mean describes neither.

    The gap between the groups must be most of the range, and the range must be wide: more than half
    of the mean, or for shares more than half of (1 - mean) and more than five points. Fewer than
    four seeds are never two groups.

    Example:
        >>> in_two_groups([0.0015, 0.0013, 0.1775, 0.0019]), in_two_groups([0.1, 0.11, 0.083])
        (True, False)
        >>> in_two_groups([0.9998, 0.8258, 0.8254, 0.8254]), in_two_groups([0.91, 0.912, 0.93, 0.911])
        (True, False)
    """
    ordered = sorted(values)
    if len(ordered) < 4:
        return False
    width = ordered[-1] - ordered[0]
    gap = max(after - before for before, after in pairwise(ordered))
    mean = abs(sum(ordered)) / len(ordered)
    share = ordered[0] >= 0 and ordered[-1] <= 1
    near_one = share and width > 0.05 and 2 * width > 1 - mean
    return gap > 0.7 * width and (2 * width > mean or near_one)
