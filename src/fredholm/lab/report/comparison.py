"""The pages of comparisons: which method is recommended and how sure that is, and which operator
reaches what at which cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from .page import Data, Fact, Picture, Section, render_page, table, words
from .panels import percent, plain_decades, whole_numbers, within_percent
from .style import Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Marks of operators; with eight colours, 24 operators look different.
MARKERS = "osD^vP*Xph<>"

# Names of a legend that stand side by side on a phone.
LEGEND_COLUMNS = 2

BUDGETS = {"params": "equal parameters", "flops": "equal FLOPs"}
COST = "MFLOPs per sample, forward"
Table = tuple[list[str], list[list[str]]]
Row = dict[str, Any]
"""A row of results: metric, direction, mean and standard deviation over seeds, and why it failed."""

State = Mapping[str, Any]


def choice_page(
    state: State,
    facts: str,
    recommendation: Sequence[tuple[str, str]],
    finals: Table,
    rungs: Table,
    left_out: Mapping[str, str],
) -> str:
    """Return the HTML of a search: no script, nothing loaded.

    Args:
        state: the content of ``choice.json``.
        facts: what was compared on what, in a line.
        recommendation: names and texts, the most important first.
        finals, rungs: head and rows of the finalists, and of all contenders.
        left_out: of each contender that was not tried, why.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    verdict = state["verdict"]
    named = dict(recommendation)
    note = _after_name(named["recommended"])
    cards = [Fact("Recommended", verdict["pick"], note)]
    # A search that stopped early may have a single finalist.
    if "runner_up" in verdict:
        note = _after_name(named["runner-up"])
        cards.append(Fact("Runner-up", verdict["runner_up"], note))
        sure = "not told apart"
        if verdict["sure"]:
            sure = "sure"
        cards.append(Fact("How sure", sure, "recommended against runner-up"))

    text = words("choice", rows=recommendation)
    sections = [
        Section("recommendation", "Recommendation", text),
        _finalists(state, finals),
    ]
    if state["task"] == "classification":
        sections.append(_class_section(state))

    refused = []
    for label, why in left_out.items():
        refused.append({"operator": label, "refused": why})
    text = words("choice_rungs")
    after = table(*rungs) + words("refused", rows=refused)
    sections.append(Section("all", "All contenders", text, after=after))

    title = f"{state['name']}: which operator?"
    foot = (
        "Written by fredholm compare. The pick was made on validation samples; the test samples "
        "were read once, for the finalists."
    )
    return render_page(title, facts, cards, sections, foot)


def _after_name(text: str) -> str:
    """Return the text after the name in a line of the recommendation."""
    return text.partition(": ")[2]


def _finished(state: State, method: str | None = None) -> list[Row]:
    """Return the runs of the finalists, or of one of them, that ended without an error."""
    rows = []
    for row in state["finals"]["rows"]:
        if "error" in row:
            continue
        if method in (None, row["operator"]):
            rows.append(row)
    return rows


def _seeds(state: State) -> int:
    """Return the largest number of seeds with which a finalist was trained."""
    return max(line["seeds"] for line in state["verdict"]["table"])


def _finalists(state: State, finals: Table) -> Section:
    measure = state["measure"]
    lines = state["verdict"]["table"]
    seeds = _seeds(state)
    rows = []
    for row in _finished(state):
        reached = row["test"]["score"]
        rows.append([row["operator"], row["seed"], reached])
    picture = Picture(
        "finalists",
        f"Test {measure} of {len(lines)} finalists, one dot per seed",
        words("choice_caption", measure=measure, seeds=seeds),
        render(draw_finalists, state),
        Data(["method", "seed", f"test {measure}"], rows),
    )
    lost = any("stress" in line for line in lines)
    text = words("choice_finals", lost=lost, seeds=seeds)
    after = table(*finals)
    return Section("finalists", "Finalists", text, [picture], after)


def _class_section(state: State) -> Section:
    """Return the accuracy of the pick and the runner-up by class, means over seeds."""
    verdict = state["verdict"]
    names = []
    for key in ("pick", "runner_up"):
        if verdict.get(key) is not None:
            names.append(verdict[key])
    lines = []
    for label in state["classes"]:
        shares = [_class_share(state, name, label) for name in names]
        lines.append([label, *shares])
    text = words("choice_classes", names=names, seeds=_seeds(state))
    after = table(["class", *names], lines)
    return Section("classes", "Classes", text, after=after)


def _class_share(state: State, name: str, label: str) -> str:
    """Return the test accuracy of one method on one class, in percent: the mean over its seeds, or
    "none" where the class is missing.

    Args:
        name: of the method.
        label: of the class.
    """
    known = []
    for row in _finished(state, name):
        share = row["test"]["per_class"].get(label)
        # Accuracy on a class without test samples is None, not 0.
        if share is not None:
            known.append(share)
    if not known:
        return "none"
    return f"{100 * sum(known) / len(known):.1f}%"


# --- tables of tasks ------------------------------------------------------------------------------


def comparison_page(results: Row, rows: Sequence[Row]) -> str:
    """Return the HTML of a comparison: no script, nothing loaded.

    Args:
        results: the content of ``compare.json``.
        rows: one flat row per task and operator, as in ``compare.csv``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    # An operator keeps its colour and its mark on all tasks.
    names = list(dict.fromkeys(row["operator"] for row in rows))
    tasks = results["tasks"]
    setting = results["setting"]
    sections = []
    for task in tasks:
        own = [row for row in rows if row["task"] == task["name"]]
        sections.append(_task_section(task, own, names))

    titles = ", ".join(task["name"] for task in tasks)
    seeds = max((row["n"] for row in rows), default=0)
    budget = BUDGETS.get(setting["budget"]) or f"{setting['minutes']} minutes of training"
    facts = [
        Fact("tasks", str(len(tasks)), titles),
        Fact("operators", str(len(names)), "and classical layers in their place"),
        Fact("budget", budget, "widths are solved for it"),
        Fact("seeds", str(seeds), "at most; mean ± sample standard deviation"),
    ]
    lead = (
        "One backbone, the same data, optimizer, schedule and budget; only the operator of its "
        "blocks differs."
    )
    foot = (
        "Written by fredholm compare. Scores are of the test sets; the weights kept are those "
        "with the best validation."
    )
    return render_page("Operators compared", lead, facts, sections, foot)


def _task_section(
    task: Row,
    rows: Sequence[Row],
    names: Sequence[str],
) -> Section:
    """Return the section of one task.

    Args:
        rows: of the task, one per operator.
        names: of the operators of all tasks, which keep their colours.
    """
    ordered = best_first(list(rows))
    name = task["name"]
    measure = task["measure"]
    scored = [row for row in ordered if row["mean"] is not None]
    pictures = []
    # Operators without a score cannot be drawn.
    if scored:
        keys = ("operator", "flops", "mean", "sd")
        cells = [[row[key] for key in keys] for row in scored]
        picture = Picture(
            f"cost-{name}",
            f"{name}: test {measure} of {len(scored)} operators against {COST}",
            words("cost_caption", cost=COST),
            render(draw_costs, scored, names, measure),
            Data(["operator", "FLOPs per sample", f"test {measure}", "sd"], cells),
        )
        pictures.append(picture)

    curves = _curves(task)
    metric = f"validation {task['metric']}"
    if curves:
        logarithmic = all(row["direction"] == "min" for row in rows)
        lines = []
        for epoch, values in enumerate(zip_longest(*curves.values()), 1):
            lines.append([epoch, *values])
        picture = Picture(
            f"curves-{name}",
            f"{name}: {metric} against the epoch for {len(curves)} operators",
            words("learning_caption", metric=metric.capitalize()),
            render(draw_learning, curves, names, metric, logarithmic),
            Data(["epoch", *curves], lines),
        )
        pictures.append(picture)

    shown = [{**row, "score": score(row)} for row in ordered]
    after = words("task_table", measure=measure, rows=shown)
    after += words("refused", rows=ordered)
    text = words(
        "task",
        title=task["title"],
        points=task["points"],
        samples=f"{task['samples']:,}",
    )
    return Section(name, name, text, pictures, after)


def _curves(task: Row) -> dict[str, list[float]]:
    """Return the mean of each operator's curves over the epochs that all its runs have."""
    result = {}
    for row in task["rows"]:
        curves = [run["curve"] for run in row["runs"] if "error" not in run]
        mean = [sum(values) / len(values) for values in zip(*curves)]
        if mean:
            result[row["operator"]] = mean
    return result


# --- pictures -------------------------------------------------------------------------------------


def draw_finalists(theme: Theme, state: State) -> Figure:
    """Plot the test score of every seed, a row per finalist."""
    lines = state["verdict"]["table"][::-1]
    figure = new_figure(theme.width, 0.8 + 0.4 * len(lines))
    axes = figure.subplots()
    for place, line in enumerate(lines):
        rows = _finished(state, line["operator"])
        scores = [row["test"]["score"] for row in rows]
        places = [place] * len(scores)
        axes.plot(
            scores,
            places,
            "o",
            color=theme.series[0],
            alpha=0.6,
            markersize=6,
        )
        axes.plot(
            line["test"],
            place,
            "|",
            color=theme.series[1],
            markersize=16,
        )
    names = [line["operator"] for line in lines]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(f"test {state['measure']}")
    if state["percent"]:
        percent(axes.xaxis)
        axes.set_xlim(within_percent(axes.get_xlim()))
    axes.grid(axis="x")
    return figure


def draw_costs(
    theme: Theme,
    rows: Sequence[Row],
    names: Sequence[str],
    measure: str,
) -> Figure:
    """Plot score against cost, one mark per operator."""
    figure, axes = _figure(theme, 3.6, len(rows))
    for row in rows:
        axes.errorbar(
            row["flops"] / 1e6,
            row["mean"],
            yerr=row["sd"] or 0.0,
            linestyle="none",
            capsize=2,
            markersize=7,
            label=row["operator"],
            **_look(theme, row["operator"], names),
        )
    axes.set_xscale("log")
    plain_decades(axes.xaxis)
    axes.set_xlabel(COST)
    axes.set_ylabel(f"test {measure}")
    if measure == "accuracy":
        percent(axes.yaxis)
    if rows[0]["direction"] == "min":
        axes.set_yscale("log")
        plain_decades(axes.yaxis)
    axes.grid(axis="both")
    _legend(theme, figure)
    return figure


def draw_learning(
    theme: Theme,
    curves: Mapping[str, Sequence[float]],
    names: Sequence[str],
    metric: str,
    logarithmic: bool,
) -> Figure:
    """Plot validation against the epoch, one line per operator."""
    figure, axes = _figure(theme, 3.4, len(curves))
    for name, curve in curves.items():
        epochs = np.arange(len(curve)) + 1
        every = max(1, len(curve) // 8)
        axes.plot(
            epochs,
            curve,
            label=name,
            markevery=every,
            **_look(theme, name, names),
        )
    whole_numbers(axes.xaxis)
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric)
    if metric == "validation accuracy":
        percent(axes.yaxis)
    if logarithmic:
        axes.set_yscale("log")
        plain_decades(axes.yaxis)
    axes.grid(axis="y")
    _legend(theme, figure)
    return figure


def _figure(theme: Theme, height: float, names: int) -> tuple[Figure, Any]:
    """Return a figure of one panel, ``height`` inches high, and its axes; on a phone with room for a
    legend of ``names`` entries below.
    """
    if theme.narrow:
        lines = -(-names // LEGEND_COLUMNS)
        height = 0.75 * height + 0.19 * lines
    figure = new_figure(theme.width, height)
    return figure, figure.subplots()


def _legend(theme: Theme, figure: Figure) -> None:
    """Draw the legend beside the panel, whose marks it would hide; on a phone below it."""
    if theme.narrow:
        figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS)
    else:
        figure.legend(loc="outside right center")


def _look(
    theme: Theme,
    name: str,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return colour and marker of an operator, the same in all pictures."""
    index = list(names).index(name)
    return {
        "color": theme.series[index % len(theme.series)],
        "marker": MARKERS[index % len(MARKERS)],
    }


# --- scores ---------------------------------------------------------------------------------------


def score(row: Row) -> str:
    """Format the score of a row: accuracy in percent, other metrics as they are; mean ± standard
    deviation over the seeds.

    Example:
        >>> score({"metric": "accuracy", "mean": 0.91, "sd": 0.012, "n": 3})
        '91.0 ± 1.2'
    """
    if row["mean"] is None:
        if row.get("refused"):
            return "does not serve"
        if row.get("failed"):
            return "failed"
        return "not run"

    # Losses span orders of magnitude: they get two digits, whatever their size.
    factor = 1
    style = ".2g"
    if row.get("direction") == "max":
        style = ".3f"
    if row["metric"] == "accuracy":
        factor = 100
        style = ".1f"
    text = f"{factor * row['mean']:{style}}"
    if row["sd"] is not None:
        text += f" ± {factor * row['sd']:{style}}"
    return text


def best_first(rows: list[Row]) -> list[Row]:
    """Sort the rows of one task, the best score first; those without a score come last.

    All rows of a task have the same metric, so the direction of the first one is that of all.
    """
    scored = [row for row in rows if row["mean"] is not None]
    others = [row for row in rows if row["mean"] is None]
    higher_first = bool(rows) and rows[0]["direction"] == "max"
    scored.sort(key=lambda row: row["mean"], reverse=higher_first)
    return [*scored, *others]
