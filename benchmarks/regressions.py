"""Whether ratios got worse: times of two machines differ, ratios between ways of one case much
less.
"""

from __future__ import annotations

from typing import Any

ALLOWED = 1.5  # a ratio may fall to this part of what it was: spreads of shared machines are wide


def advantage(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """How many times longer every other way of a case takes than ours, by (case, way)."""
    return {(row["case"], row["way"]): row["ratio"] for row in rows if row["ratio"] != 1.0}


def compare_ratios(
    before: list[dict[str, Any]], after: list[dict[str, Any]], allowed: float = ALLOWED
) -> list[str]:
    """One line for every way that was so much slower than ours, and is less so now, by more than
    ``allowed``.

    Cases that are not in both are passed over. Ratios are taken against a case's first way, which
    is ours.

    Example:
        >>> row = {"case": "softmax", "way": "peer", "ratio": 3.0}
        >>> compare_ratios([row], [{**row, "ratio": 1.0001}])
        ['softmax, peer: took 3.00 times as long as ours, now 1.00: ours got slower against it']
        >>> compare_ratios([row], [{**row, "ratio": 2.5}])
        []
    """
    old, new = advantage(before), advantage(after)
    return [
        f"{case}, {way}: took {old[case, way]:.2f} times as long as ours, now {ratio:.2f}: ours "
        "got slower against it"
        for (case, way), ratio in new.items()
        if (case, way) in old and ratio * allowed < old[case, way]
    ]
