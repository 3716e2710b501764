"""The claims about fields, all named on 29 November 2026, before the first run.

ITNet's kernel contains that of a graph neural operator: a matrix instead of a number per channel,
and features of both ends beside the positions.
"""

from __future__ import annotations

from ..kit.claims import Claim, Sample
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME
from ..kit.page import load
from ..kit.statistics import Rows, paired
from ..kit.task import BUDGETS

FILE = "fields.json"
TRAINED, TESTED = 16, (16, 32)
"""Sides of the grids."""
CONSTANT = "mean pressure"
"""The control without training."""
TITLES = {"gno": "a graph neural operator", "fno": "a Fourier neural operator"}
TITLES |= {"softmax": "softmax attention", "fno, wide": "a Fourier neural operator of 300,000"}


def metric(resolution: int) -> str:
    """Return the name of the error at a resolution."""
    return f"error {resolution}"


def results() -> dict[str, Rows]:
    """Return the runs by budget."""
    runs = (load(FILE) or {}).get("darcy", {}).get("runs", [])
    return {budget: [row for row in runs if row["budget"] == budget] for budget in BUDGETS}


def ahead(budget: str, other: str, resolution: int) -> Sample:
    """Return a sample: another model's error minus that of ITNet, per seed."""
    return lambda found: paired(found[budget], other, "itnet", metric(resolution))


def claim(
    other: str, resolution: int, budget: str = EQUAL_STEPS, *, primary: bool = False
) -> Claim:
    """Return the claim that ITNet's error is smaller than another model's."""
    grid = f"{resolution} × {resolution}"
    if resolution != TRAINED:
        grid += ", never seen"
    text = f"Darcy's flow, {grid}, {budget}: ITNet is ahead of {TITLES[other]}"
    return Claim(text, "no number", ahead(budget, other, resolution), primary=primary)


CLAIMS = [
    claim("gno", 16, primary=True),
    claim("fno", 16, primary=True),
    claim("gno", 32, primary=True),
    claim("fno", 32, primary=True),
    claim("gno", 16, EQUAL_TIME, primary=True),
    claim("softmax", 16),
    claim("fno, wide", 16),
    claim("softmax", 32),
    claim("fno, wide", 32),
    claim("fno", 16, EQUAL_TIME),
    claim("softmax", 16, EQUAL_TIME),
    claim("gno", 32, EQUAL_TIME),
]
