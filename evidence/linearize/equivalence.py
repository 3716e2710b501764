"""A test whether a converted model keeps at least 99.5% of its teacher's accuracy.

The test is one-sided: by the rule of :mod:`evidence.kit.claims`, the converted model keeps this
share if the confidence interval of its accuracy minus 99.5% of the teacher's, over seeds and
samples, lies above zero, and does not if the interval lies below.

A converted model is tuned on the task once more, which might help by itself. Each teacher is
therefore also tuned by the same recipe, with its softmax left in place.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from fredholm.lab.distill.linearize import fine_tune
from fredholm.lab.distill.scores import evaluate
from fredholm.lab.training.grid import Cell, Report
from fredholm.lab.training.tasks import create_task

from ..kit.answers import pack
from ..kit.claims import Claim, Sample, primary_texts
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.page import load, spread, table
from ..kit.statistics import Rows, Scores, crossed_interval, differences
from ..kit.subject import Options
from .conversions import Taught, convert, task_named, taught
from .tasks import EQUIVALENCE

FILE = "linearize-equivalence.json"
TABLE = Table(FILE, ("task", "method", "seed"))
(NAME,) = EQUIVALENCE
CONVERTED, AGAIN = "luna", "softmax, tuned again"
SHARE = 0.995
"""Share of the teacher's accuracy that is to be kept."""
# Named on 29 November 2026 before the first run.
SEEDS = tuple(range(200, 210))
COMMAND = "python -m evidence run linearize equivalence"


def run(options: Options) -> None:
    """Train the teachers of the missing seeds, and convert them and tune them again."""
    rows = [{"task": NAME, "method": CONVERTED, "seed": seed} for seed in SEEDS[: options.seeds]]

    def cell(row: Row) -> Cell:
        return Cell(row, options.runs / f"{NAME}-{row['seed']}", options.small)

    first = primary_texts(CLAIMS)
    primary = replace(options, primary=first)
    fill(TABLE, rows, work, cell, primary, machine=describe(), seeds=list(SEEDS))


def work(cell: Cell, report: Report) -> Row:
    """Return the rows of a seed: its converted teacher, and its teacher tuned again."""
    seed, small = cell.settings["seed"], bool(cell.given)
    known = taught(NAME, seed, cell.place.parent, small)
    converted = convert(NAME, CONVERTED, seed, known, cell.place, small)
    again = tuned_again(seed, known, cell.place / "again", small)

    # A teacher takes 90 MB, and no other cell needs it.
    taught.cache_clear()
    return {"rows": [converted, {"method": AGAIN} | again]}


def tuned_again(seed: int, known: Taught, folder: Path, small: bool) -> Row:
    """Tune a copy of a teacher by the recipe of its converted model; return its row's fields."""
    task, model = task_named(NAME, small), copy.deepcopy(known.model)
    fine_tune(
        model,
        data=(known.splits["train"], known.splits["val"]),
        folder=folder,
        resume=(folder / "progress.json").is_file(),
        task=task.kind,
        metric=task.metric,
        options=task.tune,
        seed=seed,
    )
    each: list[float] = []
    judged = create_task(task.kind).judge_by(task.metric)
    score = evaluate(model, known.splits["test"], judged, each=each)
    return {
        "samples": task.sizes,
        "scores": {"teacher": known.score, "tuned": score},
        "answers": {"teacher": pack(known.each), "tuned": pack(each)},
        "recovered": 100 * score / known.score,
    }


# --- claims ---------------------------------------------------------------------------------------


def results() -> Rows:
    """Return the rows of the test."""
    return (load(FILE) or {}).get("runs", [])


def by_seed(runs: Rows, method: str, side: str) -> dict[int, Row]:
    """Return accuracy and answers of one side of a method, ``teacher`` or ``tuned``, per seed."""
    found = {}
    for row in runs:
        if (row["task"], row["method"]) == (NAME, method):
            answers = {"accuracy": row["answers"][side]}
            found[row["seed"]] = {"accuracy": row["scores"][side], "answers": answers}
    return found


def beyond_share(method: str, side: str = "teacher", share: float = SHARE) -> Sample:
    """Return a sample: LUNA's accuracy minus a share of that of ``side`` of ``method``, per seed."""

    def sample(runs: Rows) -> Scores:
        one, other = by_seed(runs, CONVERTED, "tuned"), by_seed(runs, method, side)
        pairs = [(one[seed], other[seed]) for seed in one if seed in other]
        return differences(pairs, "accuracy", share)

    return sample


def share_text(runs: Rows, method: str = CONVERTED, side: str = "teacher") -> str:
    """Return the share of a teacher's accuracy that LUNA keeps, with its interval of 95%."""
    margin = beyond_share(method, side)(runs)
    if not isinstance(margin, Scores) or margin.samples is None or len(margin) < 2:
        return ""
    teachers = by_seed(runs, method, side).values()
    accuracy = sum(row["accuracy"] for row in teachers) / len(margin)

    # The interval of a margin in accuracy, relative to the mean accuracy of the teachers.
    low, high = (SHARE + bound / accuracy for bound in crossed_interval(margin.samples))
    kept = SHARE + sum(margin) / len(margin) / accuracy
    return f"{100 * kept:.2f}% of the teacher's, 95% interval {100 * low:.2f} to {100 * high:.2f}%"


EQUIVALENT = Claim(
    "Sentiment, 2,000 test samples: LUNA keeps at least 99.5% of the teacher's accuracy",
    "99.5%",
    beyond_share(CONVERTED),
    primary=True,
    shown=share_text,
)
CLAIMS = [
    EQUIVALENT,
    Claim(
        "Sentiment, 2,000 test samples: LUNA keeps at least 99.5% of the accuracy of a teacher "
        "that is tuned again",
        "no number",
        beyond_share(AGAIN, "tuned"),
        shown=lambda runs: share_text(runs, AGAIN, "tuned"),
    ),
]


# --- page -----------------------------------------------------------------------------------------

TEXT = """`{command}`. The teachers of {count} seeds ({first} to {last}) are fine-tuned on {train} sentences, and tested on {test:,}. The setting, the seeds and
the claim were named before the first run. *Tuned again* is the teacher itself, trained once more by the recipe that tunes the converted model. It is the fairer rival: the conversion trains longer than
the teacher was trained, and so does it. Beside it LUNA keeps {again}.
The number of the claim is LUNA's accuracy minus 99.5% of the teacher's, in points. It is reproduced if its interval over seeds and samples, adjusted for the
page's other primary claims, lies above zero, and contradicted if it lies below.

{table}"""


def section() -> str:
    """Return the part of docs/results/luna.md."""
    runs = results()
    if not runs:
        return f"Open: not run, `{COMMAND}`."
    lines: list[tuple[Any, ...]] = []
    sides = (
        ("teacher", CONVERTED, "teacher"),
        ("LUNA", CONVERTED, "tuned"),
        (AGAIN, AGAIN, "tuned"),
    )
    for label, method, side in sides:
        rows = by_seed(runs, method, side).values()
        lines.append((label, spread((row["accuracy"] for row in rows), digits=2), len(rows)))
    sizes = EQUIVALENCE[NAME].sizes
    return TEXT.format(
        command=COMMAND,
        count=len(SEEDS),
        first=SEEDS[0],
        last=SEEDS[-1],
        train=sizes["train"],
        test=sizes["test"],
        again=share_text(runs, AGAIN, "tuned"),
        table=table(("model", "test accuracy (%)", "seeds"), lines),
    )
