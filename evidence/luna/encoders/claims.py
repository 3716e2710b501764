"""The claims about encoders of long texts.

LUNA's paper has no such task; it reports the mean of five tasks of the Long Range Arena. All claims
were named on 29 November 2026, before the first run.
"""

from __future__ import annotations

from ...kit.claims import Claim, Sample
from ...kit.contest import EQUAL_STEPS, EQUAL_TIME
from ...kit.page import load
from ...kit.statistics import Rows, paired
from .contest import FILE, HEDGEHOG_OTHER_RATE, LUNA_AGAIN, OTHER_RATE, accuracy_at
from .texts import LENGTHS, LONGEST, TRAINED

Results = dict[str, Rows]
LABELS = {
    "hedgehog": "Hedgehog",
    "performer": "Performer",
    HEDGEHOG_OTHER_RATE: f"Hedgehog at a rate of {OTHER_RATE}",
}


def results() -> Results:
    """Return the runs of each budget."""
    found: Results = {EQUAL_STEPS: [], EQUAL_TIME: []}
    for row in (load(FILE) or {}).get("runs", []):
        found[row["budget"]].append(row)
    return found


def ahead(other: str, length: int, budget: str) -> Sample:
    """Return a sample: LUNA's accuracy minus that of another attention, per seed."""
    mine = LUNA_AGAIN if other == HEDGEHOG_OTHER_RATE else "luna"
    return lambda found: paired(found[budget], mine, other, accuracy_at(length))


def claim(
    other: str, length: int = TRAINED, budget: str = EQUAL_STEPS, *, primary: bool = False
) -> Claim:
    """Return the claim that LUNA is more accurate than another attention."""
    text = f"Hidden words, {length:,} tokens, {budget}: LUNA above {LABELS.get(other, other)}"
    return Claim(text, "no number", ahead(other, length, budget), primary=primary)


CLAIMS = [
    claim("hedgehog", primary=True),
    claim("softmax", primary=True),
    claim("hedgehog", LONGEST, primary=True),
    claim("softmax", LONGEST, primary=True),
    claim("hedgehog", TRAINED, EQUAL_TIME, primary=True),
    claim("performer"),
    claim("elu + 1"),
    claim("performer", LONGEST),
    claim("elu + 1", LONGEST),
    claim("softmax", TRAINED, EQUAL_TIME),
    claim("performer", TRAINED, EQUAL_TIME),
    claim("elu + 1", TRAINED, EQUAL_TIME),
    claim(HEDGEHOG_OTHER_RATE),
    # Named after the runs.
    *(claim("hedgehog", length, EQUAL_TIME) for length in LENGTHS if length > TRAINED),
]
