"""The claims about fields, named on 29 November 2026, before the first recorded run, and those
about a graph operator of values on 30 November, before its first run.

ITNet's kernel generalises that of a graph neural operator: a matrix instead of a number per channel,
and features of both ends beside the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from ..kit.claims import Claim, Sample, means
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME
from ..kit.page import load
from ..kit.statistics import Rows, paired
from ..kit.task import BUDGETS
from .models import GNO_OF_VALUES, WIDE

FILE = "fields.json"
TRAINED = 16
"""Side of the grid in training."""
TESTED = (16, 32)
CONSTANT = "mean pressure"
"""The control without training."""
TITLES = {
    "gno": "a graph neural operator",
    GNO_OF_VALUES: "a graph neural operator of positions and values",
    "fno": "a Fourier neural operator",
    WIDE: "a Fourier neural operator with ten times the parameters",
    "softmax": "softmax attention",
}


def metric(resolution: int) -> str:
    """Return the name of the error at a resolution."""
    return f"error {resolution}"


TRIED = "tried settings"
"""Key of the tries among the results of :func:`results`."""


def results() -> dict[str, Rows]:
    """Return the runs by budget, and the tried settings."""
    found = (load(FILE) or {}).get("darcy", {})
    runs = found.get("runs", [])
    by_budget = {budget: [row for row in runs if row["budget"] == budget] for budget in BUDGETS}
    return by_budget | {TRIED: found.get("tuning", [])}


def ahead(budget: str, other: str, resolution: int) -> Sample:
    """Return a sample: another model's error minus that of ITNet, per seed."""
    return lambda found: paired(found[budget], other, "itnet", metric(resolution))


def beside(budget: str, other: str, resolution: int) -> Callable[[dict[str, Rows]], str]:
    """Return a function that prints ITNet's and another model's error, cost and number of tries."""
    errors = means(budget, "itnet", other, metric(resolution))

    def shown(found: dict[str, Rows]) -> str:
        seconds, tries = [], []
        for name in ("itnet", other):
            runs = [row["seconds"] for row in found[budget] if row["variant"] == name]
            if not runs:
                return ""
            seconds.append(f"{fmean(runs):.0f}")
            tries.append(str(sum(row["variant"] == name for row in found[TRIED])))
        return (
            f"{errors(found)}; CPU seconds {' and '.join(seconds)}; settings tried "
            f"{' and '.join(tries)}"
        )

    return shown


def claim(
    other: str, resolution: int, budget: str = EQUAL_STEPS, *, primary: bool = False
) -> Claim:
    """Return the claim that ITNet's error is smaller than another model's."""
    grid = f"{resolution} × {resolution}"
    if resolution != TRAINED:
        grid += ", not used in training"
    text = f"Darcy's flow, {grid}, {budget}: ITNet is ahead of {TITLES[other]}"
    sample = ahead(budget, other, resolution)
    shown = beside(budget, other, resolution)
    return Claim(text, "no number", sample, primary=primary, shown=shown)


CLAIMS = [
    claim("gno", 16, primary=True),
    claim("fno", 16, primary=True),
    claim("gno", 32, primary=True),
    claim("fno", 32, primary=True),
    claim("gno", 16, EQUAL_TIME, primary=True),
    claim("softmax", 16),
    claim(WIDE, 16),
    claim("softmax", 32),
    claim(WIDE, 32),
    claim("fno", 16, EQUAL_TIME),
    claim("softmax", 16, EQUAL_TIME),
    claim("gno", 32, EQUAL_TIME),
    claim(GNO_OF_VALUES, 16),
    claim(GNO_OF_VALUES, 32),
    claim(GNO_OF_VALUES, 16, EQUAL_TIME),
    claim(GNO_OF_VALUES, 32, EQUAL_TIME),
]
