"""The claims about irregular times.

CKConv's paper compares with GRU-D and neural CDEs on data that are not available here. All claims
were named on 29 November 2026, before the first run.
"""

from __future__ import annotations

from ...kit.claims import Claim, Sample
from ...kit.contest import EQUAL_STEPS, EQUAL_TIME
from ...kit.page import load
from ...kit.statistics import Rows, beyond_best
from .models import CKCNN, GRU_D, MINIROCKET, NCDE, TCN
from .tasks import FILE, TASKS

Results = dict[tuple[str, str], Rows]
TITLES = {
    GRU_D: "GRU-D",
    NCDE: "a neural CDE",
    MINIROCKET: "MiniROCKET on interpolated series",
    TCN: "a TCN on a grid",
}
OTHERS, NETWORKS = (GRU_D, NCDE, MINIROCKET), (GRU_D, NCDE)


def results() -> Results:
    """Return the runs of each task and budget."""
    found: Results = {}
    for row in (load(FILE) or {}).get("runs", []):
        found.setdefault((row["task"], row["budget"]), []).append(row)
    return found


def ahead(task: str, others: tuple[str, ...], budget: str) -> Sample:
    """Return a sample: accuracy of a CKCNN minus that of the best of others, per seed."""
    return lambda found: beyond_best(found.get((task, budget), []), CKCNN, others)


def claim(
    task: str, others: tuple[str, ...], budget: str = EQUAL_STEPS, *, primary: bool = False
) -> Claim:
    """Return the claim that a CKCNN is ahead of one other model, or of the best of several."""
    *most, last = (TITLES[name] for name in others)
    named = last
    if most:
        named = f"the best of {', '.join(most)} and {last}"
    text = f"{TASKS[task].title}, irregular times, {budget}: a CKCNN is ahead of {named}"
    return Claim(text, "no number", ahead(task, others, budget), primary=primary)


CLAIMS = [
    *(claim(task, OTHERS, primary=True) for task in TASKS),
    *(claim(task, NETWORKS, EQUAL_TIME, primary=True) for task in ("plaid", "lag")),
    claim("japanese-vowels", NETWORKS, EQUAL_TIME),
    *(claim(task, (name,)) for task in TASKS for name in TITLES),
    claim("lag", (TCN,), EQUAL_TIME),
]
