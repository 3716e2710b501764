"""Page docs/results/lra.md."""

from __future__ import annotations

import statistics
from typing import Any

from ..kit.claims import claims_tables
from ..kit.page import head, load, spread, table
from ..kit.statistics import Rows
from . import image
from .rows import ATTENTIONS, CLAIMS, PUBLISHED, TABLE, TASKS, rows_of


def task_table(runs: Rows, task: str) -> str:
    """Return the table of a task: mean ± standard deviation over seeds for each attention."""
    lines = []
    for attention in ATTENTIONS:
        rows = [run for run in rows_of(runs, task) if run["attention"] == attention]
        if rows:
            loss = f"{statistics.mean(run['loss'] for run in rows):.3f}"
            accuracy = spread(run["accuracy"] for run in rows)
            lines.append((attention, accuracy, loss, len(rows), f"{rows[0]['parameters']:,}"))
    return table(("attention", "test accuracy (%)", "test loss", "seeds", "parameters"), lines)


def page(found: dict[str, Any] | None = None) -> str:
    """Return the text of the page, from the committed results by default."""
    found = found or load(TABLE.file)
    machine, runs = found["machine"], found["runs"]
    parts = [
        head("Results: the Long Range Arena at CPU size", "lra", TABLE.file, image.FILE)
        + "All models of a task have the same backbone (`lra_skyformer`: two layers, width 64, two heads, feed-forward 128, mean "
        "pooling) and recipe; only the attention differs.\n"
        "Sequences are short and training takes minutes, so the scores cannot be compared with "
        "published ones.",
        "## Short rows of two tasks",
        f"`python -m evidence run lra`, {machine['processor']}, torch {machine['torch']}. No learning "
        "rate was tuned, so these\nrows show only that everything runs.",
        claims_tables(CLAIMS, runs, found),
    ]
    for name, task in TASKS.items():
        if not rows_of(runs, name):
            continue
        # A shell would split an override at its spaces.
        overrides = [f'"{text}"' if " " in text else text for text in task.overrides]
        command = f"`fredholm train {task.recipe} operator=… {' '.join(overrides)}`"
        parts += [f"### {task.title}", command, task_table(runs, name)]
    parts += ["## Image, all pictures of CIFAR-10 in grey at 16 x 16", image.section()]
    figures = ", ".join(f"{name} {value}" for name, value in PUBLISHED.items())
    parts.append(
        f"## Published\n\nAverages over the five tasks of the Arena, LUNA's Table 1:\n{figures}.\n"
        "They are not reproduced here: the full "
        "recipes (`lra-*-full`, see [the guide](../lra.md)) take hours each on a GPU."
    )
    return "\n\n".join(parts) + "\n"
