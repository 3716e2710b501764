"""The claims about other rates and lost observations beside what anybody would do first: resample or
fill the series, then take a GRU, a TCN or MiniROCKET.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from ..kit.claims import Claim, Sample
from ..kit.statistics import beyond_best
from .resampled import MINIROCKET
from .resampled import MODELS as RESAMPLED_MODELS

Results = dict[str, Any]
Condition = tuple[float, int, int]  # observations lost, rates trained and tested
WHOLE: Condition = (0.0, 1, 1)
HALF: Condition = (0.0, 1, 2)
DOUBLE: Condition = (0.0, 2, 1)
LOST: Condition = (0.7, 1, 1)


def ahead_at(dataset: str, at: Condition, others: tuple[str, ...]) -> Sample:
    """By how much a CKCNN is more accurate under a condition than the best of others, seed by seed."""

    def sample(results: Results) -> list[float]:
        rows = [
            {**row, "variant": row["model"]}
            for row in results[dataset]
            if (row["drop"], row["trained"], row["tested"]) == at
        ]
        return beyond_best(rows, "ckcnn gaps", others)

    return sample


def accuracies(dataset: str, at: Condition) -> Callable[[Results], str]:
    """Mean accuracy of every model under a condition."""

    def shown(results: Results) -> str:
        found: dict[str, list[float]] = {}
        for row in results[dataset]:
            if (row["drop"], row["trained"], row["tested"]) == at:
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
