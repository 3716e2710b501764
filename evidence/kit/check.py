"""Whether ratios fell: times of two machines differ, ratios between ways of one case much less."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]

ALLOWED = 0.15  # share of a ratio that may be lost


def fallen(before: Rows, after: Rows, allowed: float = ALLOWED) -> list[str]:
    """One line for every way whose time over ours, the first way's, fell by more than ``allowed``:
    ours got slower against it. Cases that are not in both are passed over.

    Example:
        >>> rows = [{"case": "softmax", "way": "ours", "ratio": 1.0}]
        >>> peer = {"case": "softmax", "way": "peer", "ratio": 3.0}
        >>> fallen([*rows, peer], [*rows, {**peer, "ratio": 2.4}])
        ['softmax, peer: took 3.00 times as long as ours, now 2.40 (-20%)']
        >>> fallen([*rows, peer], [*rows, {**peer, "ratio": 2.6}])
        []
    """
    old, new = _ratios(before), _ratios(after)
    return [
        f"{case}, {way}: took {old[group, case, way]:.2f} times as long as ours, now {ratio:.2f} "
        f"({ratio / old[group, case, way] - 1:+.0%})"
        for (group, case, way), ratio in new.items()
        if (group, case, way) in old and ratio < (1 - allowed) * old[group, case, way]
    ]


def _ratios(rows: Rows) -> dict[tuple[str, str, str], float]:
    """By group (two may have cases of one name at different sizes), case and way; the first way of
    a case is ours.
    """
    found, ours = {}, set()
    for row in rows:
        case = row.get("group", ""), row["case"]
        if case in ours:
            found[*case, row["way"]] = row["ratio"]
        ours.add(case)
    return found


def theirs_first(rows: Rows) -> Rows:
    """Rows of cases whose first way is not ours, as :func:`fallen` needs them: each of our ways,
    and what the other way takes beside it.

    Example:
        >>> rows = [{"case": "a", "way": "layer", "ratio": 1.0}, {"case": "a", "way": "ours", "ratio": 0.5}]
        >>> [(row["case"], row["way"], row["ratio"]) for row in theirs_first(rows)]
        [('a: ours', 'ours', 1.0), ('a: ours', 'layer', 2.0)]
    """
    found, first = [], {}
    for row in rows:
        other = first.setdefault((row.get("group", ""), row["case"]), row)
        if other is not row:
            case = {**row, "case": f"{row['case']}: {row['way']}"}
            found.append(case | {"ratio": 1.0})
            found.append(case | {"way": other["way"], "ratio": 1 / row["ratio"]})
    return found
