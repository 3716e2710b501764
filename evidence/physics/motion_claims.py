"""The claims about bodies of unknown mass.

ITNet's paper has no such task. Under gravity both the inference of masses and the accelerations are
integrals over the other bodies, with a matrix per displacement, which is ITNet's operator. All
claims were named on 29 November 2026, before the first run, but for those about rollouts at equal
time and about rollouts beside attention, which were added after a look at the results.
"""

from __future__ import annotations

from ..datasets.bodies import LAWS
from ..kit.claims import Claim, means
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME
from ..kit.page import load
from .claims import ATTENTION, NETWORK, RELATIVE, Results, ahead, by_budget
from .models import RELATIVE_ITNET
from .rollouts import rollout_metric, step_metric

FILE = "motion.json"
TITLES = {NETWORK: "an interaction network", RELATIVE: ATTENTION, "egnn": "EGNN"}
TITLES |= {"softmax": "softmax attention", "itnet": "ITNet with absolute positions"}


def results() -> Results:
    """Return the runs by law and budget."""
    found = load(FILE) or {}
    known: Results = {}
    for law in LAWS:
        for budget, rows in by_budget(found.get(law, {})).items():
            known[f"{law}, {budget}"] = rows
    return known


def claim(
    law: str,
    other: str,
    points: int,
    step: int = 1,
    budget: str = EQUAL_STEPS,
    *,
    primary: bool = False,
) -> Claim:
    """Return the claim that ITNet's error after a number of steps is smaller than another's."""
    where, metric = "one step", step_metric(points)
    if step > 1:
        where, metric = f"rollout of {step} steps", rollout_metric(points, step)
    bodies = f"{points} bodies"
    if points != 8:
        bodies += ", never seen"
    text = f"{law.capitalize()}, {bodies}, {where}, {budget}: ITNet is ahead of {TITLES[other]}"
    runs = f"{law}, {budget}"
    sample = ahead(runs, other, metric, RELATIVE_ITNET)
    shown = means(runs, RELATIVE_ITNET, other, metric)
    return Claim(text, "no number", sample, primary=primary, shown=shown)


def explored(law: str) -> list[Claim]:
    """Return the exploratory claims of a law, without those that are primary."""
    return [
        claim(law, "softmax", 8),
        claim(law, "itnet", 8),
        claim(law, NETWORK, 12),
        claim(law, "egnn", 12),
        claim(law, NETWORK, 20),
        claim(law, RELATIVE, 8, 50),
        claim(law, "egnn", 8, 50),
        claim(law, NETWORK, 20, 50),
        claim(law, NETWORK, 8, budget=EQUAL_TIME),
        claim(law, RELATIVE, 8, budget=EQUAL_TIME),
        claim(law, "egnn", 8, budget=EQUAL_TIME),
        claim(law, NETWORK, 8, 50, EQUAL_TIME),
        claim(law, RELATIVE, 8, 50, EQUAL_TIME),
    ]


CLAIMS = [
    claim("gravity", NETWORK, 8, primary=True),
    claim("gravity", RELATIVE, 8, primary=True),
    claim("gravity", "egnn", 8, primary=True),
    claim("gravity", NETWORK, 8, 50, primary=True),
    claim("springs", NETWORK, 8, primary=True),
    *explored("gravity"),
    claim("springs", RELATIVE, 8),
    claim("springs", "egnn", 8),
    claim("springs", NETWORK, 8, 50),
    *explored("springs"),
]
