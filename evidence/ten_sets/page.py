"""Page docs/results/ten-sets.md."""

from __future__ import annotations

from typing import Any, NamedTuple

from scipy.stats import t

from fredholm.lab.compare.plain import PLAIN, TITLES

from ..kit.claims import LEVEL
from ..kit.machine import machine_line
from ..kit.page import head, load, table
from ..kit.statistics import holm
from .run import FILE, GRU, MINIROCKET
from .sets import SETS

TEXT = """{head}Does `fredholm compare` pick a good operator for data that it has not seen before? Each public data set is written to files like those of a user and passed to the code of `fredholm compare PATH`, which picks an
operator on validation samples alone. The pick is then compared, on the same test samples, with

- MiniROCKET of aeon, for series (it is trained on the validation samples as well);
- a GRU in the same backbone;
- the methods that `compare` offers beside the operators ({own}).

Scores are means over seeds, ± the sample standard deviation.
Fields are scored by their relative L2 error, where less is better. Sets whose largest class has over three times the samples of the smallest
are scored by the mean accuracy over classes; comparisons by sample use the plain accuracy.

{counts} Machine: {machine} Command: `python -m evidence run ten-sets --minutes M`. The minutes of a search are processor time,
so other work on the machine does not shorten it. If the time was too short for some seeds of the pick, of the best finalist, of the GRU or of the simple methods,
these were trained afterwards.

## What was picked

*Regret* is the difference on the test samples between the best operator (or baseline in the backbone) and the pick. If the pick is not an operator, the number in brackets compares with the best
operator that was picked. Finalists have one to five seeds. Operators that were not finalists have one, and at most as many steps: fewer if these would take over twice the finalists' time. So part of a regret is chance, or time.

{picks}

## Beside the others

The table gives the score of the pick minus the score of another method, in points. (For fields, the unit is a hundredth of the error and the sign is reversed, so that more is better.) *Over seeds* and *over samples* are means with 95% intervals
of Student's t over the seeds and over the test samples. *McNemar p* tests the majority votes of both methods. *p* is the larger of the p-values
of both intervals (for deterministic methods, the one over samples), adjusted by Holm's method over all rows. Below {level}, one of the two methods is ahead. These comparisons
are not primary claims, and the test lacks the third p-value of [the rule](claims.md): nothing is concluded from them.

{beside}

Where one of its methods is ahead, `compare` recommends it. Its `minirocket` is the published transform without numba, whose releases need an older numpy; aeon's
`MiniROCKET` is the independent reference.

## All scores

{scores}

## Lost samples and half the rate

This table is about series. From the test series, 30% or 50% of the points are removed, or every other one; no model was trained for this. The table lists the pick, the operator that was picked, and MiniROCKET,
for which gaps are filled by linear interpolation.

{lost}

## What the time allowed

{times}
"""


def page() -> str:
    """Return the text of the page."""
    found = load(FILE)
    if found is None:
        return head("Ten public sets", "ten-sets", FILE) + "Not run yet.\n"
    rows = sorted(found["runs"], key=lambda row: list(SETS).index(row["set"]))
    missing = [name for name in SETS if name not in {row["set"] for row in rows}]
    counts = f"This page has {len(rows)} of the ten sets"
    if missing:
        counts += f"; not run: {', '.join(missing)}"
    counts += "."
    return TEXT.format(
        head=head("Ten public sets", "ten-sets", FILE),
        counts=counts,
        machine=machine_line(found["machine"]),
        picks=table(
            ("set", "task", "pick", "test", "best operator", "test", "regret"),
            map(_pick, rows),
        ),
        beside=table(
            ("set", "pick less", "seeds", "over seeds", "over samples", "McNemar p", "p", ""),
            _beside(rows),
        ),
        level=LEVEL,
        own=", ".join(TITLES[name] for name in PLAIN if name in _judged(rows)),
        scores=_scores(rows),
        lost=_lost(rows),
        times=table(
            (
                "set",
                "samples to train, test",
                "minutes given",
                "used",
                "whole row",
                "steps",
                "in full",
            ),
            map(_time, rows),
        ),
    )


def _points(value: float, digits: int = 1) -> str:
    return f"{100 * value:+.{digits}f}"


def _score(line: dict[str, Any]) -> str:
    """Format a score in percent, with its standard deviation if there are several seeds."""
    text = f"{100 * line['test']:.1f}"
    if line["sd"] is not None:
        text += f" ± {100 * line['sd']:.1f}"
    return text


def _line(row: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return a method's line of a set, or None if it was not tested there."""
    return next((line for line in row["lines"] if line["operator"] == name), None)


def _pick(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a set's cells in the table of picks."""
    best, pick = _line(row, row["best_operator"]), _line(row, row["pick"])
    assert best is not None
    assert pick is not None
    regret = _points(row["regret"])
    if row["pick"] != row["operator"]:
        regret += f" ({_points(row['operator_regret'])})"
    title = SETS[row["set"]].title
    return row["set"], title, row["pick"], _score(pick), row["best_operator"], _score(best), regret


class Interval(NamedTuple):
    """A mean difference and its 95% interval."""

    mean: float
    low: float
    high: float


def _interval(numbers: list[float] | None) -> Interval | None:
    if numbers is None:
        return None
    return Interval(*numbers)


def _beside(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the lines that compare each pick with each other method."""
    lines = []
    pairs = [(row, found) for row in rows for found in row["beside"]]
    adjusted = holm([_p_value(found, row["samples"]["test"]) for row, found in pairs])
    for (row, found), p in zip(pairs, adjusted):
        over_seeds, over_samples = _interval(found["over_seeds"]), _interval(found["over_samples"])
        verdict = "open"
        if p is not None and p < LEVEL:
            assert over_samples is not None
            winner = found["one"] if over_samples.mean > 0 else found["other"]
            verdict = f"{winner} is ahead"
        cells = [row["set"], found["other"], str(found["seeds"])]
        cells += [_span(over_seeds), _span(over_samples), _decimals(found["p"]), _decimals(p)]
        lines.append((*cells, verdict))
    return lines


def _span(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{_points(interval.mean)} ({_points(interval.low)} to {_points(interval.high)})"


def _decimals(p: float | None) -> str:
    if p is None:
        return ""
    return f"{p:.3f}"


def _p_value(found: dict[str, Any], samples: int) -> float | None:
    """Return the larger of the p-values over seeds and over samples, which must both be small.

    It is None if one of them is missing, or if the means have opposite signs.
    """
    over_seeds, over_samples = _interval(found["over_seeds"]), _interval(found["over_samples"])
    if over_seeds is None or over_samples is None or over_seeds.mean * over_samples.mean < 0:
        return None
    return max(_p(over_seeds, found["seeds"]), _p(over_samples, samples))


def _p(interval: Interval, count: int) -> float:
    """Return the p-value of the paired t test with a 95% interval; 0 for equal differences."""
    mean, low, high = interval
    if high - low < 1e-12:
        return 0.0
    error = (high - low) / 2 / t.ppf(0.975, count - 1)
    return float(2 * t.sf(abs(mean) / error, count - 1))


def _judged(rows: list[dict[str, Any]]) -> list[str]:
    """Return the methods that were tested on any of the sets."""
    return list(dict.fromkeys(line["operator"] for row in rows for line in row["lines"]))


def _scores(rows: list[dict[str, Any]]) -> str:
    """Return the table of all scores with one column per set."""
    names = _judged(rows)
    models = sorted(name for name in names if name not in (GRU, MINIROCKET, *PLAIN))
    order = [*models, *(name for name in (GRU, MINIROCKET, *PLAIN) if name in names)]
    lines = []
    for name in order:
        cells = []
        for row in rows:
            line = _line(row, name)
            cell = "–" if line is None else _score(line)
            if line is not None and name == row["pick"]:
                cell = f"**{cell}**"
            cells.append(cell)
        lines.append((name, *cells))
    return table(("", *(row["set"] for row in rows)), lines)


def _lost(rows: list[dict[str, Any]]) -> str:
    """Return the table of scores with lost samples and at half the rate."""
    lines: list[tuple[str, ...]] = []
    kinds: list[str] = []
    for row in rows:
        # The pick may be the operator.
        for name in dict.fromkeys((row["pick"], row["operator"], MINIROCKET)):
            line = _line(row, name)
            if line is None or "stress" not in line:
                continue
            kinds = kinds or list(line["stress"])
            cells = [f"{100 * line['stress'][kind]:.1f}" for kind in kinds]
            lines.append((row["set"], name, _score(line), *cells))
    return table(("set", "", "all samples", *kinds), lines)


def _time(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a set's cells in the table of times."""
    fewest, most = min(row["steps"].values()), max(row["steps"].values())
    steps = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    size = f"{row['samples']['train']:,}, {row['samples']['test']:,}"
    note = SETS[row["set"]].shown
    if note:
        size += f" ({note})"
    minutes = f"{row['minutes']:g}", f"{row['processor_minutes']:.1f}", f"{row['seconds'] / 60:.1f}"
    return row["set"], size, *minutes, steps, f"{row['full_steps']:,}"
