"""Trainings in addition to those of a comparison: seeds for which its time was too short, and
operators that were not finalists.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fredholm.lab.compare.clock import FEWEST
from fredholm.lab.compare.halving import Row
from fredholm.lab.compare.search import Search
from fredholm.lab.compare.trials import FINAL


def further(search: Search, labels: Sequence[str], seeds: int) -> list[Row]:
    """Train some finalists with the seeds for which the time was too short."""
    found: list[Row] = []
    steps, rows = search.state["finals"]["steps"], search.state["finals"]["rows"]
    for label in labels:
        runs = [row for row in rows if row["operator"] == label]
        lr = runs[0]["lr"]
        for seed in sorted(set(range(seeds)) - {row["seed"] for row in runs}):
            if search.trials.repeats(label, seed):
                continue
            cell = search.finals.cell(label, lr, steps, seed)
            row = {"operator": label, "lr": lr, "seed": seed}
            found.append(row | search.trials.compute(label, cell))
            search.say(f"a further seed, {seed}: {search.halving.line(found[-1])}")
    return found


def outsiders(search: Search) -> list[Row]:
    """Train the operators that are not finalists with one seed and test them.

    They have as many steps as the finalists, or as many as fit into twice the time.
    """
    trials, halving, rows = search.trials, search.halving, []
    planned = search.state["finals"]["steps"]
    steps = max(planned.values())
    seconds = [trials.pace(label, test=True).seconds(n) for label, n in planned.items()]
    for label, size in search.state["sizes"].items():
        if "refused" in size or label in planned:
            continue
        pace, lr = trials.pace(label, test=True), halving.best_rate(label)
        fits = int((2 * statistics.fmean(seconds) - pace.judging) / pace.step)
        if fits < FEWEST:
            search.say(f"{label}: left out, {FEWEST} of its steps take too long")
            continue
        cell = trials.cell(label, lr, min(steps, fits), FINAL, 0)
        rows.append({"operator": label, "lr": lr, "seed": 0} | trials.compute(label, cell))
        search.say(f"beside the finalists: {halving.line(rows[-1])}")
    return rows
