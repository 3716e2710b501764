"""Means over seeds, growth in N, and the test by which claims are judged: nowhere else."""

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
    """Values of several seeds: mean, sample standard deviation (None of one value), their number,
    and p, two-sided (None of one value): over seeds and samples by :func:`crossed_p` where every
    seed has a number per test sample, ``samples`` of them; else over the seeds alone, by Student's
    t with n - 1 degrees of freedom.
    """

    mean: float
    sd: float | None
    n: int
    p: float | None
    samples: int = 0


class Scores(list[float]):
    """One number per seed, and where the runs keep them the numbers of all test samples whose means
    they are: ``samples`` (seeds, samples), else None.
    """

    def __init__(self, values: Iterable[float] = (), samples: np.ndarray | None = None):
        super().__init__(values)
        self.samples = samples


def differences(pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]], metric: str) -> Scores:
    """Return the first row of each pair less the second, in a metric: one number per seed, and one
    per sample where all rows keep the answers to equally many.

    Example:
        >>> rows = {"accuracy": 0.5}, {"accuracy": 0.25}
        >>> differences([rows], "accuracy")
        [0.25]
    """
    known = list(pairs)
    values = [one[metric] - other[metric] for one, other in known]
    parts = []
    for one, other in known:
        sides = answers_in(one, metric), answers_in(other, metric)
        if sides[0] is None or sides[1] is None or len(sides[0]) != len(sides[1]):
            return Scores(values)
        parts.append(sides[0] - sides[1])
    if len({len(part) for part in parts}) != 1:
        return Scores(values)
    return Scores(values, np.stack(parts))


def crossed_p(numbers: np.ndarray, against: float = 0.0) -> float:
    r"""Return the two-sided p of the hypothesis that the mean is ``against``, of numbers (seeds,
    samples) in which both the seeds and the test samples are drawn from many.

    The mixed model is :math:`d_{si} = m + a_s + b_i + e_{si}` with random seeds, samples and
    remainder. Its mean squares over S seeds and I samples give the variance of the mean,

    .. math:: v = (M_a + M_b - M_e) / (S I),

    with the degrees of freedom of Satterthwaite. v is at least :math:`M_a / (S I)`, the variance
    that the seeds alone show, and at least :math:`M_b / (S I)`, that of the samples alone. Where
    each seed has other samples, b is zero and the seeds carry their variance.

    Reference: Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    from scipy.stats import t as student

    seeds, samples = numbers.shape
    mean = numbers.mean()
    rows = numbers.mean(1) - mean
    columns = numbers.mean(0) - mean
    rest = numbers - mean - rows[:, None] - columns
    freedom = seeds - 1, samples - 1, (seeds - 1) * (samples - 1)
    of_seeds = samples * float((rows**2).sum()) / freedom[0]
    of_samples = seeds * float((columns**2).sum()) / freedom[1]
    of_rest = float((rest**2).sum()) / freedom[2]

    square = of_seeds + of_samples - of_rest
    if square > max(of_seeds, of_samples):
        parts = zip((of_seeds, of_samples, of_rest), freedom)
        degrees = square**2 / sum(part**2 / own for part, own in parts)
    else:
        square, degrees = max((of_seeds, freedom[0]), (of_samples, freedom[1]))
    if square <= 1e-24 * max(1.0, mean**2):  # all numbers are equal: rounding is no spread
        return 1.0 if math.isclose(mean, against, abs_tol=1e-12) else 0.0
    error = math.sqrt(square / (seeds * samples))
    return float(2 * student.sf(abs(mean - against) / error, degrees))


def summarise(values: Iterable[float], against: float = 0.0) -> Summary | None:
    """Mean, spread, and p of the hypothesis that the mean is ``against``; None of no values.

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
    if sd <= 1e-12 * max(map(abs, known)):  # equal values: rounding is no spread
        return Summary(mean, sd, len(known), 1.0 if math.isclose(mean, against) else 0.0)
    from scipy.stats import ttest_1samp

    return Summary(mean, sd, len(known), float(ttest_1samp(known, against).pvalue))


def mean_sd(values: Sequence[float]) -> dict[str, float]:
    """Mean and sample standard deviation, for a file of results."""
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values)}


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values of several hypotheses, adjusted by Holm's method for being several; None stays, and
    counts: a hypothesis that could not be tested was still one of them.

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
    """Variant ``a`` less ``b``, one difference per seed that both have.

    Example:
        >>> rows = [{"variant": v, "seed": s, "accuracy": x}
        ...         for v, s, x in (("a", 0, 0.5), ("b", 0, 0.25), ("b", 1, 0.9))]
        >>> paired(rows, "a", "b")
        [0.25]
    """
    one, other = ({row["seed"]: row for row in rows if row["variant"] == name} for name in (a, b))
    return differences([(one[seed], other[seed]) for seed in one if seed in other], metric)


def beyond_best(rows: Rows, name: str, others: Sequence[str], metric: str = "accuracy") -> Scores:
    """Variant ``name`` less the best of ``others``, one difference per seed that all have.

    Example:
        >>> rows = [{"variant": v, "seed": 0, "accuracy": x}
        ...         for v, x in (("a", 0.5), ("b", 0.25), ("c", 0.375))]
        >>> beyond_best(rows, "a", ("b", "c")), beyond_best(rows, "a", ("b", "d"))
        ([0.125], [])
    """
    of_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        of_seed.setdefault(row["seed"], {})[row["variant"]] = row
    full = [one for one in of_seed.values() if {name, *others} <= set(one)]
    best = [max((one[other] for other in others), key=lambda row: row[metric]) for one in full]
    return differences(zip((one[name] for one in full), best), metric)


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Exponent b of y = a·x^b, by least squares of the logarithms.

    Example:
        >>> round(slope([1, 2, 4], [3e-9, 12e-9, 48e-9]), 6)
        2.0
    """
    logs = [math.log(v) for v in x], [math.log(v) for v in y]
    return statistics.linear_regression(*logs).slope


def stays_below(curve: dict[int, float], other: dict[int, float]) -> int | None:
    """The least N from which on ``curve`` is below ``other`` wherever both were measured.

    Example:
        >>> stays_below({1: 5.0, 2: 1.0, 4: 1.0}, {1: 2.0, 2: 2.0, 4: 2.0})
        2
    """
    shared = [n for n in curve if n in other]
    above = [n for n in shared if curve[n] >= other[n]]
    return min((n for n in shared if n > max(above, default=0)), default=None)


def in_two_groups(values: Iterable[float]) -> bool:
    """Whether seeds fall into two groups far apart, so that no seed is near their mean: the gap
    between them is most of the range, and the range more than half of the mean; or of shares more
    than half of what they lack of one, and five points.

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
