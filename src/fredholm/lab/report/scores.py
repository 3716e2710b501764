"""The rows of a comparison as a reader sees them: formatted scores, and the best one first."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
"""A row of results: metric, direction, mean and standard deviation over seeds, and why it failed."""


def score(row: Row) -> str:
    """Format the score of a row: accuracy in percent, other metrics as they are; mean ± standard
    deviation over the seeds.

    Example:
        >>> score({"metric": "accuracy", "mean": 0.91, "sd": 0.012, "n": 3})
        '91.0 ± 1.2'
    """
    if row["mean"] is None:
        if row.get("refused"):
            return "does not serve"
        if row.get("failed"):
            return "failed"
        return "not run"

    # Losses span orders of magnitude: they get two digits, whatever their size.
    factor, style = 1, ".2g"
    if row.get("direction") == "max":
        style = ".3f"
    if row["metric"] == "accuracy":
        factor, style = 100, ".1f"
    values = [row["mean"], row["sd"]]
    return " ± ".join(f"{factor * value:{style}}" for value in values if value is not None)


def best_first(rows: list[Row]) -> list[Row]:
    """Sort the rows of one task, the best score first; those without a score come last."""
    scored = [row for row in rows if row["mean"] is not None]
    others = [row for row in rows if row["mean"] is None]
    scored.sort(key=lambda row: row["mean"], reverse=bool(rows) and rows[0]["direction"] == "max")
    return [*scored, *others]
