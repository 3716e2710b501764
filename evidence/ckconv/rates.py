"""Claims about other sampling rates and lost observations, against the obvious baselines.

The baselines resample or fill the series and then classify it with a GRU, a TCN or MiniROCKET.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from ..kit.claims import Claim, Sample
from ..kit.statistics import beyond_best
from .resampled import MINIROCKET
from .resampled import MODELS as RESAMPLED_MODELS

Results = dict[str, Any]


class Condition(NamedTuple):
    """A condition of training and testing.

    Attributes:
        drop: share of the observations that are lost.
        trained: n of the training's rate 1/n.
        tested: n of the test's rate 1/n.
    """

    drop: float
    trained: int
    tested: int


WHOLE = Condition(0.0, 1, 1)
HALF = Condition(0.0, 1, 2)
DOUBLE = Condition(0.0, 2, 1)
LOST = Condition(0.7, 1, 1)


def condition_of(row: dict[str, Any]) -> Condition:
    """Return the condition of a row of results."""
    return Condition(row["drop"], row["trained"], row["tested"])


def ahead_at(dataset: str, at: Condition, others: tuple[str, ...]) -> Sample:
    """Return a sample: accuracy of a CKCNN minus that of the best of others, under a condition."""

    def sample(results: Results) -> list[float]:
        rows = []
        for row in results[dataset]:
            if condition_of(row) == at:
                rows.append({**row, "variant": row["model"]})
        return beyond_best(rows, "ckcnn gaps", others)

    return sample


def accuracies(dataset: str, at: Condition) -> Callable[[Results], str]:
    """Return a function that prints the mean accuracy of every model under a condition."""

    def shown(results: Results) -> str:
        found: dict[str, list[float]] = {}
        for row in results[dataset]:
            if condition_of(row) == at:
                found.setdefault(row["model"], []).append(row["accuracy"])
        return ", ".join(f"{name} {100 * statistics.mean(v):.1f}" for name, v in found.items())

    return shown


CLAIMS = [
    *(
        Claim(
            f"{title}, rate {rates}: ahead of a GRU and a TCN that read series resampled to the rate "
            "of training",
            "Table 5, not compared",
            ahead_at(dataset, condition, RESAMPLED_MODELS),
            shown=accuracies(dataset, condition),
        )
        for dataset, title in (("japanese-vowels", "JapaneseVowels"), ("plaid", "PLAID"))
        for condition, rates in ((HALF, "1 → 1/2"), (DOUBLE, "1/2 → 1"))
    ),
    *(
        Claim(
            f"{title}, {what}: ahead of MiniROCKET on series filled by straight lines",
            f"{table}, not compared",
            ahead_at(dataset, condition, (MINIROCKET,)),
        )
        for dataset, title in (("japanese-vowels", "JapaneseVowels"), ("plaid", "PLAID"))
        for condition, what, table in (
            (LOST, "70% lost", "Table 4"),
            (HALF, "rate 1 → 1/2", "Table 5"),
        )
    ),
]
