"""The page of a comparison: which operator reaches what at which cost, and how it learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .page import Picture, Section, render_page, table, words
from .style import WIDTH, Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*Xph<>"


def comparison_page(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a comparison: no script, nothing loaded.

    Args:
        results: the content of ``compare.json``.
        rows: one flat row a task and operator, as in ``compare.csv``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(row["operator"] for row in rows))
    sections = []
    for task in results["tasks"]:
        mine = [row for row in rows if row["task"] == task["name"]]
        sections.append(_task_section(task, mine, names))
    setting = results["setting"]
    budget = {
        "params": "equal parameters",
        "flops": "equal FLOPs",
        "time": f"{setting['minutes']} minutes of training",
    }
    seeds = max((row["n"] for row in rows), default=0)
    facts = [
        ("tasks", str(len(results["tasks"])), ", ".join(task["name"] for task in results["tasks"])),
        ("operators", str(len(names)), "and classical layers in their place"),
        ("budget", budget[setting["budget"]], "widths are solved for it"),
        ("seeds", str(seeds), "at most; mean ± sample standard deviation"),
    ]
    lead = "One backbone, the same data, optimizer, schedule and budget; only the operator of its blocks differs."
    foot = "Written by fredholm compare. Scores are of the test sets; the weights kept are those with the best validation."
    return render_page("Operators compared", lead, facts, sections, foot)


# A column of a task's table: what it is called, and the key of a row.
COLUMNS = {
    "seeds": "n",
    "width": "dim",
    "parameters": "parameters",
    "off budget": "off",
    "MFLOPs": "flops",
}


def _task_section(
    task: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Section:
    shown = [row for row in rows if row["mean"] is not None]
    shown = sorted(shown, key=lambda row: row["mean"], reverse=_largest(rows))
    pictures = [_cost_picture(task, shown, names), _learning_picture(task, rows, names)]
    columns = {"operator": "operator", f"test {task['measure']}": "mean", **COLUMNS}
    ordered = [*shown, *(row for row in rows if row["mean"] is None)]
    lines = [[_cell(row, key) for key in columns.values()] for row in ordered]
    refused = words("refused", rows=[row for row in rows if row["refused"]])
    sizes = {"points": task["points"], "samples": f"{task['samples']:,}"}
    return Section(
        task["name"],
        task["name"],
        words("task", title=task["title"], **sizes),
        [picture for picture in pictures if picture is not None],
        after=words("wide", table=table(list(columns), lines)) + refused,
    )


def _largest(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the largest score is the best."""
    return any(row["direction"] == "max" for row in rows)


def _cost_picture(
    task: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Picture | None:
    """Scores against cost; None without scores."""
    if not rows:
        return None
    cost = "MFLOPs a sample, forward"
    alt = f"{task['name']}: test {task['measure']} of {len(rows)} operators against {cost}"
    drawn = render(lambda theme: scatter(theme, rows, names, measure=task["measure"]))
    return Picture(f"cost-{task['name']}", alt, words("cost_caption", cost=cost), drawn)


def _learning_picture(
    task: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Picture | None:
    """Curves of validation; None without any."""
    percent = task["metric"] == "accuracy"
    curves = {row["operator"]: _mean_curve(row["runs"]) for row in task["rows"]}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return None
    metric = f"validation {task['metric']}"
    alt = f"{task['name']}: {metric} against the epoch for {len(curves)} operators"
    options = {"percent": percent, "logarithmic": not _largest(rows), "label": metric}
    drawn = render(lambda theme: learning(theme, curves, names, **options))
    caption = words("learning_caption", metric=metric.capitalize())
    return Picture(f"curves-{task['name']}", alt, caption, drawn)


def _mean_curve(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    curves = [run["curve"] for run in runs if "error" not in run]
    if not curves:
        return []
    return [sum(c[i] for c in curves) / len(curves) for i in range(min(map(len, curves)))]


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    if key == "mean":
        if value is None:
            return "does not serve" if row["refused"] else "failed" if row["failed"] else "not run"
        scale, form = (100, "{:.1f}") if row["metric"] == "accuracy" else (1, "{:.2g}")
        sd = f" ± {form.format(scale * row['sd'])}" if row["sd"] is not None else ""
        return form.format(scale * value) + sd
    if value is None:
        return ""
    forms = {
        "parameters": "{:,}",
        "off": "{:+.1%}",
        "flops": "{:.3g}",
    }
    return forms.get(key, "{}").format(value / 1e6 if key == "flops" else value)


# --- pictures -------------------------------------------------------------------------------------


def _look(theme: Theme, name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and marker of an operator, the same in all pictures."""
    index = list(names).index(name)
    return {
        "color": theme.series[index % len(theme.series)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def scatter(
    theme: Theme,
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    measure: str,
) -> Figure:
    """Score against cost, an operator a mark."""
    figure = new_figure(WIDTH, 3.6)
    axes = figure.subplots()
    for row in rows:
        x = row["flops"] / 1e6
        look = _look(theme, row["operator"], names)
        axes.errorbar(
            x, row["mean"], yerr=row["sd"] or 0.0, fmt=look["marker"], color=look["color"], capsize=2, markersize=7,
            label=row["operator"],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("MFLOPs a sample, forward")
    axes.set_ylabel(f"test {measure}")
    if measure == "accuracy":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    if not _largest(rows):
        axes.set_yscale("log")
    axes.grid(axis="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def learning(
    theme: Theme,
    curves: Mapping[str, Sequence[float]],
    names: Sequence[str],
    *,
    percent: bool,
    logarithmic: bool,
    label: str,
) -> Figure:
    """Validation against the epoch, an operator a line."""
    figure = new_figure(WIDTH, 3.4)
    axes = figure.subplots()
    for name, curve in curves.items():
        look = _look(theme, name, names)
        axes.plot(
            range(1, len(curve) + 1),
            curve,
            label=name,
            markersize=3.5,
            markevery=max(1, len(curve) // 8),
            **look,
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    if logarithmic:
        axes.set_yscale("log")
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
