"""docs/results/ten-sets.md."""

from __future__ import annotations

from typing import Any

from scipy.stats import t

from fredholm.lab.compare.plain import PLAIN, TITLES

from ..kit.claims import LEVEL
from ..kit.machine import machine_line
from ..kit.page import head, load, table
from ..kit.statistics import holm
from .run import FILE, GRU, MINIROCKET
from .sets import SETS

TEXT = """{head}Each set is written to files as users have them and given to the code of `fredholm compare PATH`, which picks on
validation samples alone; then its pick stands beside MiniROCKET (of aeon, series alone, trained on the validation samples too), a GRU in the same backbone, and the
methods that `compare` has beside the operators ({own}), all on the same test samples. Scores are means over seeds, ± their sample standard deviation.
Fields are judged by their relative L2 error, where less is better; sets whose largest class has over three times the samples of the smallest
by the mean accuracy over classes, but sample by sample by what is right.

{counts} Machine: {machine} Command: `python -m evidence run ten-sets --minutes M`; minutes of a search are those of its own processor,
so that other work on the machine does not shorten it. Seeds of the pick, the best operator that was a finalist, the GRU and the simple methods for which
the minutes were too short were trained afterwards.

## What was picked

*Regret*: how much better the best operator or baseline of the backbone is on the test samples than the pick; in brackets, than the best
operator that was picked, where the pick is none. Operators that were no finalists have one seed, so part of a regret is chance.

{picks}

## Beside the others

The pick less the other, in points (of fields in hundredths of the error, its sign turned, so that more is better): mean and 95% interval of
Student's t over the seeds, the same over the test samples, p of McNemar's test of the two majorities, and p: the larger of the two of
the intervals (of methods that have no chance in them, that over the samples), adjusted by Holm's method over all rows. Below {level} one of them wins.

{beside}

Where one of these methods wins, `compare` recommends it. Its own `minirocket` is the published transform without numba, whose releases need an older numpy; aeon's
`MiniROCKET` remains the outside reference.

## All scores

{scores}

## Lost samples and half the rate

Of series: the test series have lost 30% or 50% of their points, or every other one; nothing was trained for it. The pick, then MiniROCKET,
whose gaps are filled by straight lines.

{lost}

## What the time allowed

{times}
"""


def page() -> str:
    """The whole page."""
    found = load(FILE)
    if found is None:
        return head("Ten public sets", "ten-sets", FILE) + "Not run yet.\n"
    rows = sorted(found["runs"], key=lambda row: list(SETS).index(row["set"]))
    missing = [name for name in SETS if name not in {row["set"] for row in rows}]
    counts = f"Here are {len(rows)} of the ten sets"
    counts += f"; not run: {', '.join(missing)}." if missing else "."
    return TEXT.format(
        head=head("Ten public sets", "ten-sets", FILE),
        counts=counts,
        machine=machine_line(found["machine"]),
        picks=table(
            ("set", "what is asked", "pick", "test", "best operator", "test", "regret"),
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
    sd = "" if line["sd"] is None else f" ± {100 * line['sd']:.1f}"
    return f"{100 * line['test']:.1f}{sd}"


def _line(row: dict[str, Any], name: str) -> dict[str, Any]:
    return next(line for line in row["lines"] if line["operator"] == name)


def _pick(row: dict[str, Any]) -> tuple[str, ...]:
    own = "" if row["pick"] == row["operator"] else f" ({_points(row['operator_regret'])})"
    best, pick = _line(row, row["best_operator"]), _line(row, row["pick"])
    regret = _points(row["regret"]) + own
    title = SETS[row["set"]].title
    return row["set"], title, row["pick"], _score(pick), row["best_operator"], _score(best), regret


def _beside(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    lines = []
    pairs = [(row, found) for row in rows for found in row["beside"]]
    adjusted = holm([_chance(found, row["samples"]["test"]) for row, found in pairs])
    for (row, found), chance in zip(pairs, adjusted):
        spans = []
        for key in ("over_seeds", "over_samples"):
            part = found[key]
            text = (
                ""
                if part is None
                else f"{_points(part[0])} ({_points(part[1])} to {_points(part[2])})"
            )
            spans.append(text)
        majorities, p = ("" if x is None else f"{x:.3f}" for x in (found["p"], chance))
        word = "open"
        if chance is not None and chance < LEVEL:
            word = f"{found['one' if found['over_samples'][0] > 0 else 'other']} wins"
        seeds = str(found["seeds"])
        lines.append((row["set"], found["other"], seeds, *spans, majorities, p, word))
    return lines


def _chance(found: dict[str, Any], samples: int) -> float | None:
    """The larger of the two p-values, over seeds and over samples, which must both be small; None
    without either, or where they point to different sides.
    """
    seeds, each = found["over_seeds"], found["over_samples"]
    if seeds is None or each is None or seeds[0] * each[0] < 0:
        return None
    return max(_p(seeds, found["seeds"]), _p(each, samples))


def _p(part: list[float], count: int) -> float:
    """Of the paired t whose 95% interval this is; zero of differences that are all the same."""
    mean, low, high = part
    if high - low < 1e-12:
        return 0.0
    error = (high - low) / 2 / t.ppf(0.975, count - 1)
    return float(2 * t.sf(abs(mean) / error, count - 1))


def _judged(rows: list[dict[str, Any]]) -> list[str]:
    """Whatever was judged on any of the sets."""
    return list(dict.fromkeys(line["operator"] for row in rows for line in row["lines"]))


def _scores(rows: list[dict[str, Any]]) -> str:
    """A column a set."""
    names = _judged(rows)
    models = sorted(name for name in names if name not in (GRU, MINIROCKET, *PLAIN))
    order = [*models, *(name for name in (GRU, MINIROCKET, *PLAIN) if name in names)]
    lines = []
    for name in order:
        cells = []
        for row in rows:
            mine = [line for line in row["lines"] if line["operator"] == name]
            mark = "**" if name == row["pick"] else ""
            cells.append(f"{mark}{_score(mine[0])}{mark}" if mine else "–")
        lines.append((name, *cells))
    return table(("", *(row["set"] for row in rows)), lines)


def _lost(rows: list[dict[str, Any]]) -> str:
    lines, kinds = [], []
    for row in rows:
        for name in (row["pick"], row["operator"], MINIROCKET):
            found = [line for line in row["lines"] if line["operator"] == name]
            if (
                not found
                or "stress" not in found[0]
                or (row["set"], name) in [one[:2] for one in lines]
            ):
                continue
            kinds = kinds or list(found[0]["stress"])
            cells = [f"{100 * found[0]['stress'][kind]:.1f}" for kind in kinds]
            lines.append((row["set"], name, _score(found[0]), *cells))
    return table(("set", "", "all samples", *kinds), lines)


def _time(row: dict[str, Any]) -> tuple[str, ...]:
    steps = list(row["steps"].values())
    span = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    used = f"{row['processor_minutes']:.1f}"
    size = f"{row['samples']['train']:,}, {row['samples']['test']:,}"
    given = f"{row['minutes']:g}"
    whole = f"{row['seconds'] / 60:.1f}"
    note = SETS[row["set"]].shown
    size += f" ({note})" if note else ""
    return row["set"], size, given, used, whole, span, f"{row['full_steps']:,}"
