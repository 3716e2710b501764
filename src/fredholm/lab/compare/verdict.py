"""What a search recommends, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..training.metrics import mean_and_sd
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
        line["test"], line["sd"] = mean_and_sd(tests)
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
    parts = [
        [sign * (a - b) for a, b in zip(decoded(by[one][s]["each"]), decoded(by[other][s]["each"]))]
        for s in seeds
    ]
    means = [statistics.fmean(values) for values in zip(*parts)]
    return result | {"samples": len(means), "over_samples": interval(means)}


def is_sure(found: dict[str, Any]) -> bool:
    """Whether the difference is above zero over the seeds and over the samples."""
    both = found["over_seeds"], found["over_samples"]
    return all(part is not None and part[1] > 0 for part in both)


def conclude(finals: Sequence[dict[str, Any]], higher: bool, each: bool) -> dict[str, Any]:
    """The pick, chosen on validation alone; the best operator, where the pick is none; the
    runner-up; and how sure. Empty where every finalist failed. ``higher``, ``each``: see
    :func:`compared`.
    """
    lines = table(finals, higher)
    if not lines:
        return {}
    names = [line["operator"] for line in lines]
    operators = [name for name in names if name not in PLAIN]
    result: dict[str, Any] = {"pick": names[0], "operator": operators[0] if operators else None}
    result["table"] = lines
    if len(names) > 1:
        found = compared(finals, names[0], names[1], higher, each)
        result |= {"runner_up": names[1], "difference": found, "sure": is_sure(found)}
    return result
