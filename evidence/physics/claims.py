"""The claims about forces between charges.

ITNet's paper has no such task, but its kernel of both ends should suit it. All claims were named on
28 November 2026, before the first run.
"""

from __future__ import annotations

from ..kit.claims import Claim, Sample
from ..kit.page import load
from ..kit.statistics import Rows, paired
from .contest import EQUAL_STEPS, EQUAL_TIME, FILE, metric

Results = dict[str, Rows]
RELATIVE, NETWORK = "softmax, relative", "interaction network"


def results() -> Results:
    """Return the runs of each budget."""
    found: Results = {EQUAL_STEPS: [], EQUAL_TIME: []}
    for row in (load(FILE) or {}).get("runs", []):
        found[row["budget"]].append(row)
    return found


def ahead(other: str, points: int, budget: str = EQUAL_STEPS) -> Sample:
    """Return a sample: another model's relative squared error minus ITNet's, per seed."""
    return lambda found: paired(found[budget], other, "itnet", metric(points))


def claim(
    other: str, points: int, budget: str = EQUAL_STEPS, *, primary: bool = False, title: str = ""
) -> Claim:
    """Return the claim that ITNet's error is smaller than another model's."""
    where = f"{points} particles"
    if points != 8:
        where += ", never seen"
    text = f"Charges, {where}, {budget}: ITNet is ahead of {title or other}"
    return Claim(text, "no number", ahead(other, points, budget), primary=primary)


ATTENTION = "attention with relative positions"
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
]
