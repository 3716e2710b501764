"""The claims about forces between charges.

ITNet's paper has no such task, but its kernel of both ends should suit it. The claims of the first
contest were named on 28 November 2026, before its first run; those of the second, all exploratory,
on 29 November 2026.
"""

from __future__ import annotations

from typing import Any

from ..kit.claims import Claim, Sample, means
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME
from ..kit.page import load
from ..kit.statistics import Rows, paired
from ..kit.task import BUDGETS
from .charges import AGAIN, FILE, metric
from .models import RELATIVE_ITNET

Results = dict[str, Rows]
RELATIVE, NETWORK = "softmax, relative", "interaction network"
ATTENTION = "attention with relative positions"


def by_budget(part: dict[str, Any]) -> Results:
    """Return the runs of a contest by budget."""
    found: Results = {budget: [] for budget in BUDGETS}
    for row in part.get("runs", []):
        found[row["budget"]].append(row)
    return found


def results() -> Results:
    """Return the runs by budget, those of the second contest with its name before the budget."""
    file = load(FILE) or {}
    found = by_budget(file)
    for budget, rows in by_budget(file.get(AGAIN, {})).items():
        found[f"{AGAIN}, {budget}"] = rows
    return found


def ahead(runs: str, other: str, measure: str, mine: str = "itnet") -> Sample:
    """Return a sample: another model's error minus that of ITNet, per seed.

    Args:
        runs: name of the results.
        other: the other model.
        measure: name of the error.
        mine: which ITNet.
    """
    return lambda found: paired(found[runs], other, mine, measure)


def claim(
    other: str, points: int, budget: str = EQUAL_STEPS, *, primary: bool = False, title: str = ""
) -> Claim:
    """Return the claim that ITNet's error is smaller than another model's."""
    text = f"Charges, {_particles(points)}, {budget}: ITNet is ahead of {title or other}"
    return Claim(
        text,
        "no number",
        ahead(budget, other, metric(points)),
        primary=primary,
        shown=means(budget, "itnet", other, metric(points)),
    )


def claim_again(other: str, points: int, title: str, budget: str = EQUAL_STEPS) -> Claim:
    """Return a claim of the second contest about ITNet without absolute positions."""
    text = (
        f"Charges, {AGAIN}, {_particles(points)}, {budget}: ITNet of displacements is ahead of "
        f"{title}"
    )
    runs = f"{AGAIN}, {budget}"
    return Claim(
        text,
        "no number",
        ahead(runs, other, metric(points), RELATIVE_ITNET),
        shown=means(runs, RELATIVE_ITNET, other, metric(points)),
    )


def _particles(points: int) -> str:
    if points == 8:
        return f"{points} particles"
    return f"{points} particles, never seen"


CLAIMS = [
    claim(RELATIVE, 8, primary=True, title=ATTENTION),
    claim(NETWORK, 8, primary=True, title="an interaction network"),
    claim("egnn", 8, primary=True, title="EGNN"),
    claim(RELATIVE, 12, primary=True, title=ATTENTION),
    claim(NETWORK, 8, EQUAL_TIME, primary=True, title="an interaction network"),
    claim("softmax", 8, title="softmax attention"),
    claim("infsa", 8, title="InfSA"),
    claim("softmax", 12, title="softmax attention"),
    claim(NETWORK, 12, title="an interaction network"),
    claim("egnn", 12, title="EGNN"),
    claim(RELATIVE, 20, title=ATTENTION),
    claim("softmax", 8, EQUAL_TIME, title="softmax attention"),
    claim(RELATIVE, 8, EQUAL_TIME, title=ATTENTION),
    claim("egnn", 8, EQUAL_TIME, title="EGNN"),
    claim_again("itnet", 8, "ITNet with absolute positions"),
    claim_again(RELATIVE, 8, ATTENTION),
    claim_again(NETWORK, 8, "an interaction network"),
    claim_again("egnn", 8, "EGNN"),
    claim_again(RELATIVE, 12, ATTENTION),
    claim_again(NETWORK, 12, "an interaction network"),
    claim_again(RELATIVE, 8, ATTENTION, EQUAL_TIME),
    claim_again(NETWORK, 8, "an interaction network", EQUAL_TIME),
]
