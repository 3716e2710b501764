"""The decision table at the head of docs/choosing.md: in each row the best classical layer and the
best of ours, both picked on validation, and what the test split says of them.
"""

from __future__ import annotations

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
    """The runs of an operator on a task."""
    return [row for row in rows if (row["task"], row["operator"]) == (element.name, operator)]


def best(rows: Rows, element: Element, names: tuple[str, ...]) -> str | None:
    """The operator with the best mean validation; None where a run of one of them is missing, or
    has failed: a best of some is no best.
    """
    sign, means = 1 if upwards(element.name) else -1, {}
    for name in names:
        values = [row["val"] for row in of(rows, element, name)]
        if values:
            means[name] = sign * sum(values) / len(values)
    return max(means, key=lambda name: means[name]) if means else None


def complete(found: dict[str, Any], element: Element) -> bool:
    """Whether every operator that takes the task has its seeds."""
    refused = {
        row["operator"]
        for row in found["sizes"]
        if row["task"] == element.name and "refused" in row
    }
    return all(
        len(of(found["runs"], element, name)) >= SEEDS or name in refused
        for name in element.operators
    )


def decisions(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per question: the two picked operators, their scores, the difference seed by seed in
    favour of ours, and p, adjusted over the six by Holm's method.
    """
    rows: list[dict[str, Any]] = []
    for element in ROWS:
        row: dict[str, Any] = {"element": element, "p": None, "gap": None}
        if complete(found, element):
            runs = [{**run, "variant": run["operator"]} for run in found["runs"]]
            theirs, ours = (best(runs, element, names) for names in (CLASSICAL, OURS))
            mine = [run for run in runs if run["task"] == element.name]
            sign = 1 if upwards(element.name) else -1
            gap = [sign * x for x in paired(mine, ours, theirs, "score")]  # type: ignore[arg-type]
            row |= {"theirs": theirs, "ours": ours, "gap": gap, "p": summarise(gap).p}  # type: ignore[union-attr]
        rows.append(row)
    for row, p in zip(rows, holm([row["p"] for row in rows])):
        row["p"] = p
    return rows


def take(row: dict[str, Any]) -> str:
    """What to take: the one that is ahead beyond chance, or either."""
    if row["gap"] is None:
        return MISSING
    if row["p"] is None or row["p"] >= LEVEL:
        return f"{row['theirs']} or {row['ours']}"
    return f"**{row['ours'] if mean_sd(row['gap'])['mean'] > 0 else row['theirs']}**"


def shown(values: list[float], element: Element, digits: int = 1) -> str:
    """Scores as the page prints them: percent, or an error."""
    return spread(values, digits=digits) if upwards(element.name) else spread(values, 1.0, 4)


def decision_table(found: dict[str, Any] | None) -> str:
    """The six rows."""
    found = found or {"sizes": [], "runs": []}
    lines = []
    for row in decisions({"sizes": [], "runs": [], **found}):
        element: Element = row["element"]
        cells = [MISSING] * 4
        if row["gap"] is not None:
            pair = [
                f"{name} {shown([r['score'] for r in of(found['runs'], element, name)], element)}"
                for name in (row["theirs"], row["ours"])
            ]
            cells = [*pair, shown(row["gap"], element), f"{row['p']:.3f}"]
        lines.append((element.question, take(row), *cells))
    heads = "your data", "take", "best classical layer", "best of ours", "ours ahead by", "p"
    return table(heads, lines)


def element_tables(found: dict[str, Any] | None) -> str:
    """Every operator on every task that was begun: its rate, parameters, and test score."""
    if not found or not found.get("runs"):
        return f"Not measured yet: `python -m evidence run choosing elements` writes {FILE}."
    parts = []
    for element in ELEMENTS.values():
        lines = []
        for name in element.operators:
            size = next(
                (r for r in found["sizes"] if (r["task"], r["operator"]) == (element.name, name)),
                None,
            )
            mine = of(found["runs"], element, name)
            if size and "refused" in size:
                lines.append((name, "refuses the task", "", "", ""))
            elif size and mine:
                score = shown([row["score"] for row in mine], element)
                rate, count = f"{mine[0]['rate']:g}", f"{size['parameters']:,}"
                lines.append((name, score, len(mine), rate, count))
        if lines:
            command = f"`python -m evidence run choosing elements --only {element.name}`"
            title = f"**{element.name}**: {element.task.title}. {command}"
            if not element.question:
                title += f" Only {_and(element.operators)} were trained on it, so it has no row in the first table."
            heads = "operator", f"test {element.shown}", "seeds", "rate", "parameters"
            parts.append(f"{title}\n\n{table(heads, lines)}")
    return "\n\n".join(parts)


def omegas(tasks: Iterable[ComparedTask]) -> str:
    """CKConv's ω0 on each task that gives it one, as the page says it: ``8 on *lost* and *rate*``."""
    by_value: dict[float, list[str]] = {}
    for task in tasks:
        omega = task.operator_options.get("ckconv", {}).get("omega")
        if omega is not None:
            by_value.setdefault(omega, []).append(f"*{task.name}*")
    return "; ".join(f"{omega:g} on {_and(names)}" for omega, names in by_value.items())


def left_out() -> str:
    """Which candidates a row of the decision lacks, and why."""
    rows = [(row.name, row.without) for row in ROWS if row.without]
    return " ".join(
        f"On *{name}* {_and(without)} {'is' if len(without) == 1 else 'are'} left out for cost."
        for name, without in rows
    )


def _and(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[:-1] else "") + names[-1]


ABOUT = f"""One row per question. All models of a task have one backbone of two blocks, one recipe, and the parameters of softmax attention
to about 5%; each operator's learning rate is the best of {", ".join(f"{rate:g}" for rate in RATES)} on validation, at the first seed. Two
things besides the rate differ between operators: the sizes of ITNet's and CKConv's networks and ITNet's frequencies, the same on all tasks
(`small` of their classes), and CKConv's ω0, which is set for each task
({omegas(element.task for element in ROWS)}). That of *long* is the paper's for 100 numbers; at its value for
200, 18.19, and with more samples, [CKConv solves the same sum](results/ckconv.md#long-memory).
The candidates are {", ".join(CLASSICAL)} and, of ours, {", ".join(OURS)}; the best of
either group on validation, under the condition that the row asks about, stands in it. {left_out()}
*Take* names the best of both groups on validation; on the test split others may be ahead. The test split of {SEEDS} seeds is read once. *Ahead by* is paired over seeds; p is Student's, adjusted by Holm's method over the six rows. Bold
means ahead with p below {LEVEL}: where no row is bold, no group is ahead beyond chance on any of them; the tasks are small, and say nothing about scale. Where seeds fall into two groups, because some found the rule of a
sequence and others did not, brackets list each of them.
"""
