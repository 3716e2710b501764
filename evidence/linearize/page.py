"""Page docs/results/luna.md."""

from __future__ import annotations

import statistics
import textwrap
from typing import Any

from ..kit.claims import Claim, Sample, claims_section
from ..kit.machine import machine_line
from ..kit.page import head, load, spread, table
from ..kit.statistics import Rows, paired
from . import equivalence
from .conversions import COMPARED, METHODS
from .speed import WAYS, crossover
from .tasks import ALL, TASKS

LABELS = {
    "luna": "LUNA",
    "hedgehog": "Hedgehog",
    "t2r": "T2R",
    "performer": "Performer, 64 features",
    "luna_long": f"LUNA, distilled for {METHODS['luna_long']['distil'].epochs} epochs",
    "luna_longer": f"LUNA, distilled for {METHODS['luna_longer']['distil'].epochs} epochs",
    "hedgehog_longer": f"Hedgehog, distilled for {METHODS['luna_longer']['distil'].epochs} epochs",
    "luna_first": "LUNA in the first three layers, softmax in the others",
    "luna_last": "LUNA in the last three layers, softmax in the others",
    "infsa": "pure InfSA",
    "linear_infsa": "linear InfSA",
}
ABOUT = """A pretrained model is fine-tuned with its original softmax; it is called the *teacher*. Each method then replaces the softmax and nothing else,
and all methods are trained by the same recipe. The stage *distil* trains only the maps, so that the attention of every layer matches the teacher's.
The stage *tune* trains all parameters on the task until the validation score stops improving. Scores are those of test samples,
which neither stage uses. See [the guide](../linearize.md) for details.
"""
COMMAND = "`python -m evidence run linearize` trains the missing runs; `--only` and `--seeds` select runs."
NEARNESS = "KL(teacher ‖ student) in nats on validation samples, before → after distilling. Every layer receives the teacher's inputs."
SPEED = "Time of one forward pass of MiniLM (6 layers, 384 features, 12 heads), batch 1; in brackets the increase of peak resident memory."


def of(runs: Rows, task: str, method: str | None = None) -> Rows:
    """Return the runs of a task, and of a method if one is given."""
    return [row for row in runs if row["task"] == task and method in (None, row["method"])]


# --- claims ---------------------------------------------------------------------------------------


def recovered(task: str) -> Sample:
    """Return a sample: LUNA's score in percent of the teacher's, per seed."""
    return lambda runs: [row["recovered"] for row in of(runs, task, "luna")]


def ahead(task: str) -> Sample:
    """Return a sample: LUNA's percent minus Hedgehog's, per seed."""

    def sample(runs: Rows) -> list[float]:
        rows = [{**row, "variant": row["method"]} for row in of(runs, task)]
        return paired(rows, "luna", "hedgehog", "recovered")

    return sample


CLAIMS = [
    *equivalence.CLAIMS,
    *(
        Claim(
            f"{TASKS[task].title}: LUNA recovers 99.5% of the teacher",
            "99.5%",
            recovered(task),
            above=99.5,
            scale=1,
            digits=1,
        )
        for task in TASKS
    ),
    *(
        Claim(
            f"{TASKS[task].title}: LUNA recovers more than Hedgehog",
            "not behind it",
            ahead(task),
            scale=1,
            digits=1,
        )
        for task in TASKS
    ),
]
NOTE = (
    "The primary claim is that about 2,000 test samples, whose seeds were named before its runs. Shares of a teacher's "
    "score compare with a teacher that was trained less than its conversion, so that more training alone "
    "raises them; only the exploratory claim about a teacher *tuned again* has the control."
)


def results() -> Rows:
    """Return the conversions and the rows of the test of equivalence."""
    return [*load("linearize.json")["runs"], *equivalence.results()]


# --- tables ---------------------------------------------------------------------------------------


def conversions(runs: Rows) -> str:
    """Return a table of scores and recovered shares, with one row per task and method."""
    lines = []
    for name, task in ALL.items():
        for method in METHODS:
            rows = of(runs, name, method)
            if not rows:
                continue
            cells = [task.title, f"{task.metric} × 100", LABELS[method]]
            for stage in ("teacher", "distilled", "tuned"):
                scores = [row["scores"][stage] for row in rows if stage in row["scores"]]
                # A method without parameters of its own has nothing to distil.
                cells.append(spread(scores, digits=2) if scores else "nothing to distil")
            share = spread((row["recovered"] for row in rows), 1, 1)
            lines.append((*cells, share, len(rows)))
    heads = (
        "task",
        "score",
        "method",
        "teacher",
        "distilled",
        "tuned",
        "recovered (%)",
        "seeds",
    )
    return table(heads, lines)


def settings(found: dict[str, Any]) -> str:
    """Return a table of samples and recipes, and a text on the precision of the scores."""
    runs, recipe = found["runs"], found["recipe"]
    lines, tests = [], []
    for task in ALL:
        rows = of(runs, task)
        if not rows:
            continue
        n, learn, tune = rows[0]["samples"], recipe["teacher"][task], recipe["tune"][task]
        stages = [f"≤ {stage['epochs']}, {stage['lr']:g}" for stage in (learn, tune)]
        lines.append((ALL[task].title, n["train"], n["val"], n["test"], *stages))
        tests.append(n["test"])
    distil, few = recipe["distil"], min(tests)
    text = (
        f"Distil takes {distil['epochs']} epoch with AdamW at {distil['lr']:g}; all batches have "
        f"{distil['batch_size']} samples. The data sets are small, so "
        f"that one conversion takes a minute or two on one core. With {few} test samples the "
        "standard error of an accuracy near "
        f"one half is {100 * (0.25 / few) ** 0.5:.1f} points, and smaller differences have no "
        "meaning. Students are trained on the same "
        "samples again in tune, so a recovery of more than 100% may be due to the longer training."
    )
    heads = "task", "train", "validate", "test", "teacher: epochs, lr", "tune: epochs, lr"
    return table(heads, lines) + "\n\n" + textwrap.fill(text, 118, break_on_hyphens=False)


def divergences(runs: Rows) -> str:
    """Return tables of KL(teacher ‖ student) per layer before and after distilling, first seed."""
    parts = []
    for task in TASKS:
        rows = [of(runs, task, method)[0] for method in COMPARED if of(runs, task, method)]
        if not rows:
            continue
        lines = []
        for row in rows:
            before = [layer["before"] for layer in row["layers"]]
            after = [layer["after"] for layer in row["layers"]]
            cells = [_pair(*pair) for pair in zip(before, after)]
            lines.append((LABELS[row["method"]], *cells, _pair(_mean(before), _mean(after))))
        heads = ("method", *(f"layer {i + 1}" for i in range(len(rows[0]["layers"]))), "mean")
        parts += [f"**{TASKS[task].title}**", table(heads, lines)]
    return "\n\n".join(parts)


def _mean(values: list[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return statistics.mean(known)


def _pair(before: float | None, after: float | None) -> str:
    if after is None:
        return f"{before:.2f}"
    return f"{before:.2f} → {after:.2f}"


def speed(found: dict[str, Any]) -> str:
    """Return a table of a converted MiniLM's time and memory, and where it beats its teacher."""
    rows, lines, parts = found["rows"], [], []
    for row in rows:
        cells = []
        for way in WAYS:
            size = "–"
            if row[way]["bytes"]:
                size = f"{row[way]['bytes'] / 2**20:.0f}"
            cells.append(f"{row[way]['ms']:.1f} ({size})")
        lines.append((f"{row['length']:,}", *cells))

    for key, what in (("ms", "Faster"), ("bytes", "Smaller")):
        texts = []
        for way in WAYS[1:]:
            n = crossover(rows, way, key)
            where = "at no measured length" if n is None else f"from {n:,} tokens"
            texts.append(f"{LABELS[way]} {where}")
        parts.append(f"{what} than the teacher: {'; '.join(texts)}.")
    heads = ("tokens", *(f"{LABELS.get(way, way)}, ms (MiB)" for way in WAYS))
    return f"{table(heads, lines)}\n\n" + "\n".join(parts) + f"\n\n{machine_line(found['machine'])}"


def missing(runs: Rows) -> str:
    """Return a sentence about the tasks and methods that were not run."""
    parts = []
    for name, task in TASKS.items():
        absent = [LABELS[method] for method in COMPARED if not of(runs, name, method)]
        if len(absent) == len(COMPARED):
            parts.append(task.title)
        elif absent:
            parts.append(f"{task.title} with {', '.join(absent)}")
    if not parts:
        return ""
    return f"Not run yet: {'; '.join(parts)}."


def page(found: dict[str, Any] | None = None) -> str:
    """Return the text of the page, by default from the committed results."""
    known: dict[str, Any] = found or load("linearize.json")
    runs = known["runs"]
    claimed = runs if found else results()
    fast = ["Not measured yet: `python -m evidence time linearize`."]
    if known.get("speed"):
        command = "Command: `python -m evidence time linearize`."
        fast = [SPEED, speed(known["speed"]), command]
    parts = [
        head(
            "Results: pretrained models made linear",
            "linearize",
            "linearize.json",
            equivalence.FILE,
        )
        + ABOUT,
        # Only the test of equivalence was named before its runs.
        claims_section(CLAIMS, claimed, load(equivalence.FILE), NOTE).rstrip(),
        "## Equivalence to the teacher",
        equivalence.section(),
        "## Conversions",
        conversions(runs),
        settings(known),
        COMMAND,
        missing(runs),
        "## How near each layer's attention comes",
        NEARNESS,
        divergences(runs),
        "## Speed and memory",
        *fast,
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"
