"""Regressions of speed. Times differ between machines; ratios between ways of one case differ much
less, so ratios are compared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Rows = list[dict[str, Any]]

ALLOWED = 0.15
"""Share of a ratio that may be lost."""


class Way(NamedTuple):
    """A way of computing a case; two groups may have cases of one name at different sizes."""

    group: str
    case: str
    name: str


def fallen(before: Rows, after: Rows, allowed: float = ALLOWED) -> list[str]:
    """Return one line per way whose ratio (its time over ours) fell by more than ``allowed``.

    The first way of a case is ours, so ours became slower against that way. Cases that are missing
    from one of the lists are skipped.

    Example:
        >>> rows = [{"case": "softmax", "way": "ours", "ratio": 1.0}]
        >>> peer = {"case": "softmax", "way": "peer", "ratio": 3.0}
        >>> fallen([*rows, peer], [*rows, {**peer, "ratio": 2.4}])
        ['softmax, peer: took 3.00 times as long as ours, now 2.40 (-20%)']
        >>> fallen([*rows, peer], [*rows, {**peer, "ratio": 2.6}])
        []
    """
    old = _ratios(before)
    lines = []
    for way, ratio in _ratios(after).items():
        if way in old and ratio < (1 - allowed) * old[way]:
            change = ratio / old[way] - 1
            lines.append(
                f"{way.case}, {way.name}: took {old[way]:.2f} times as long as ours, "
                f"now {ratio:.2f} ({change:+.0%})"
            )
    return lines


def _ratios(rows: Rows) -> dict[Way, float]:
    """Return the ratio of every way except the first of each case, which is ours."""
    found: dict[Way, float] = {}
    seen: set[tuple[str, str]] = set()
    for row in rows:
        case = row.get("group", ""), row["case"]
        if case in seen:
            found[Way(*case, row["way"])] = row["ratio"]
        seen.add(case)
    return found


def theirs_first(rows: Rows) -> Rows:
    """Turn round cases whose first way is a peer's, for :func:`fallen`.

    Each of our ways becomes a case of its own, with the peer's time relative to it.

    Example:
        >>> rows = [{"case": "a", "way": "layer", "ratio": 1.0}, {"case": "a", "way": "ours", "ratio": 0.5}]
        >>> [(row["case"], row["way"], row["ratio"]) for row in theirs_first(rows)]
        [('a: ours', 'ours', 1.0), ('a: ours', 'layer', 2.0)]
    """
    found: Rows = []
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        other = first.setdefault((row.get("group", ""), row["case"]), row)
        if other is row:
            continue
        case = {**row, "case": f"{row['case']}: {row['way']}"}
        found.append(case | {"ratio": 1.0})
        found.append(case | {"way": other["way"], "ratio": 1 / row["ratio"]})
    return found
