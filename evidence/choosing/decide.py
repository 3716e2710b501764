"""The decision table at the head of docs/choosing.md.

Each row has the best classical layer and the best operator of ours, both chosen on validation, and
their scores on the test split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fredholm.lab.compare import ComparedTask

from ..kit.claims import LEVEL
from ..kit.page import spread, table
from ..kit.statistics import Rows, holm, mean_sd, paired, summarise
from .contest import FILE, upwards
from .elements import CLASSICAL, ELEMENTS, OURS, RATES, ROWS, SEEDS, Element

MISSING = "not measured yet"


def of(rows: Rows, element: Element, operator: str) -> Rows:
    """Return the runs of an operator on a task."""
    return [row for row in rows if (row["task"], row["operator"]) == (element.name, operator)]


def best(rows: Rows, element: Element, names: tuple[str, ...]) -> list[str]:
    """Return the operators with the best mean validation, in their order; none if none has a run."""
    sign = 1 if upwards(element.name) else -1
    means: dict[str, float] = {}
    for name in names:
        values = [row["val"] for row in of(rows, element, name)]
        if values:
            means[name] = sign * sum(values) / len(values)
    top = max(means.values(), default=0.0)
    return [name for name, mean in means.items() if math.isclose(mean, top)]


def complete(found: dict[str, Any], element: Element) -> bool:
    """Return whether every operator that accepts the task has all its seeds."""
    sizes = of_task(found["sizes"], element)
    refused = {row["operator"] for row in sizes if "refused" in row}
    for name in element.operators:
        if name not in refused and len(of(found["runs"], element, name)) < SEEDS:
            return False
    return True


def decisions(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per question.

    A row has the two best operators, their difference in favour of ours for each seed (``gap``),
    and its p-value, adjusted over the six rows by Holm's method. ``gap`` is None while runs are
    missing. ``equal`` has the groups of operators that validation does not tell apart; the first of
    them is taken.
    """
    rows: list[dict[str, Any]] = []
    for element in ROWS:
        row: dict[str, Any] = {"element": element, "p": None, "gap": None, "equal": []}
        if complete(found, element):
            runs = [{**run, "variant": run["operator"]} for run in found["runs"]]
            bests = [best(runs, element, names) for names in (CLASSICAL, OURS)]
            row["equal"] = [names for names in bests if len(names) > 1]
            theirs, ours = (names[0] for names in bests)
            sign = 1 if upwards(element.name) else -1
            scores = paired(of_task(runs, element), ours, theirs, "score")
            gap = [sign * x for x in scores]
            row |= {"theirs": theirs, "ours": ours, "gap": gap, "p": summarise(gap).p}  # type: ignore[union-attr]
        rows.append(row)
    for row, p in zip(rows, holm([row["p"] for row in rows])):
        row["p"] = p
    return rows


def take(row: dict[str, Any]) -> str:
    """Return the recommendation: the operator that is ahead beyond chance, or both."""
    if row["gap"] is None:
        return MISSING
    theirs, ours = row["theirs"], row["ours"]
    if row["p"] is None or row["p"] >= LEVEL:
        return f"{theirs} or {ours}"
    winner = ours if mean_sd(row["gap"])["mean"] > 0 else theirs
    return f"**{winner}**"


def shown(values: list[float], element: Element, digits: int = 1) -> str:
    """Format scores for the page: accuracies in percent, errors with four decimals."""
    if upwards(element.name):
        return spread(values, digits=digits)
    return spread(values, 1.0, 4)


def decision_table(found: dict[str, Any] | None) -> str:
    """Return the table of the six questions."""
    found = found or {"sizes": [], "runs": []}
    lines = []
    rows = decisions({"sizes": [], "runs": [], **found})
    for row in rows:
        element: Element = row["element"]
        cells = [MISSING] * 4
        if row["gap"] is not None:
            pair = []
            for name in (row["theirs"], row["ours"]):
                scores = [run["score"] for run in of(found["runs"], element, name)]
                pair.append(f"{name} {shown(scores, element)}")
            cells = [*pair, shown(row["gap"], element), f"{row['p']:.3f}"]
        question = f"*{element.name}*, {element.shown}: {element.question}"
        lines.append((question, take(row), *cells))
    heads = "your data", "take", "classical, chosen", "ours, chosen", "ours ahead by", "p"
    return "\n\n".join([table(heads, lines), *_equals(rows)])


def _equals(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each group of operators that validation does not tell apart."""
    sentences = []
    for row in rows:
        for names in row["equal"]:
            sentences.append(
                f"*{row['element'].name}*: {_and(names)} have the same score in validation; the "
                "first is shown."
            )
    return sentences


def element_tables(found: dict[str, Any] | None) -> str:
    """Return one table per task that has runs: score, rate and parameters of every operator."""
    if not found or not found.get("runs"):
        return f"Not measured yet: `python -m evidence run choosing elements` writes {FILE}."
    parts = []
    for element in ELEMENTS.values():
        lines = _element_lines(found, element)
        if not lines:
            continue
        command = f"`python -m evidence run choosing elements --only {element.name}`"
        title = f"**{element.name}**: {element.task.title}. {command}"
        if not element.question:
            title += f" Only {_and(element.operators)} were trained on it, so it has no row in the first table."
        heads = "operator", f"test {element.shown}", "seeds", "rate", "parameters"
        parts.append(f"{title}\n\n{table(heads, lines)}")
    return "\n\n".join(parts)


def _element_lines(found: dict[str, Any], element: Element) -> list[tuple[Any, ...]]:
    """Return a line per operator that refused the task or has runs on it."""
    sizes = {row["operator"]: row for row in of_task(found["sizes"], element)}
    lines: list[tuple[Any, ...]] = []
    for name in element.operators:
        size = sizes.get(name)
        runs = of(found["runs"], element, name)
        if size and "refused" in size:
            lines.append((name, "refuses the task", "", "", ""))
        elif size and runs:
            score = shown([run["score"] for run in runs], element)
            rate = f"{runs[0]['rate']:g}"
            lines.append((name, score, len(runs), rate, f"{size['parameters']:,}"))
    return lines


def of_task(rows: Rows, element: Element) -> Rows:
    """Return the rows of a task."""
    return [row for row in rows if row["task"] == element.name]


def omegas(tasks: Iterable[ComparedTask]) -> str:
    """List CKConv's ω0 of the tasks that set it, for example ``8 on *lost* and *rate*``."""
    by_value: dict[float, list[str]] = {}
    for task in tasks:
        omega = task.operator_options.get("ckconv", {}).get("omega")
        if omega is not None:
            by_value.setdefault(omega, []).append(f"*{task.name}*")
    return "; ".join(f"{omega:g} on {_and(names)}" for omega, names in by_value.items())


def left_out() -> str:
    """Return a sentence per question about the operators that are missing in it."""
    sentences = []
    for row in ROWS:
        if row.without:
            verb = "is" if len(row.without) == 1 else "are"
            sentences.append(f"On *{row.name}* {_and(row.without)} {verb} left out for cost.")
    return " ".join(sentences)


def _and(names: Sequence[str]) -> str:
    """Join names by commas and *and*."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


ABOUT = f"""*Chosen* operators have the best validation scores of the classical layers and of ours; *take* names both. On the test split others may be ahead. A name is bold if it is
ahead with p below {LEVEL}. In a row without a bold name, no operator of ours is shown to be better or worse than a classical layer: compare both. These tasks are small, and the
results say nothing about large models.

How the table was made:

- **Models.** All models of a task have the same backbone of two blocks and the same recipe, and the number of parameters of softmax attention to
  within about 5%.
- **Settings.** Each operator's learning rate is the best of {", ".join(f"{rate:g}" for rate in RATES)} on validation, at the first seed. Only two other settings
  differ between operators: the sizes of ITNet's and CKConv's networks and ITNet's frequencies, which are the same on all tasks (`small` of
  their classes); and CKConv's ω0, which is set for each task ({omegas(element.task for element in ROWS)}).
- **Candidates.** The classical layers are {_and(CLASSICAL)}; ours are {_and(OURS)}. Each row shows the best of either group on
  validation, under the condition of the row. {left_out()} On *lost* a convolution, which refuses timestamps, reads the clock's grid with gaps.
- **Statistics.** Scores are means ± standard deviations over {SEEDS} seeds, on a test split that is read once. *Ours ahead by* is paired over seeds; p
  is Student's, adjusted by Holm's method over the six rows. If the seeds fall into two groups, because some learned the rule of a sequence
  and others did not, brackets list each seed.
- **CKConv on *long*.** Its ω0 is the paper's for 100 numbers. With the paper's value for 200 numbers, 18.19, with more samples and a larger
  network, [CKConv solves the same sum](results/ckconv.md#long-memory).
"""
