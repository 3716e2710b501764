"""The page of a comparison: which operator reaches what at which cost, how it learns, and how its
cost grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .page import Picture, Section, render_page, table, words
from .style import WIDTH, Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*Xph<>"


def comparison_page(
    results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], speed: Mapping[str, Any] | None
) -> str:
    """The HTML of a comparison: no script, nothing loaded.

    Args:
        results: the content of ``compare.json``.
        rows: one flat row a task and operator, as in ``compare.csv``.
        speed: the content of ``speed.json``, or None where nothing was timed.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(row["operator"] for row in rows))
    sections = []
    for task in results["tasks"]:
        mine = [row for row in rows if row["task"] == task["name"]]
        sections.append(_task_section(task, mine, names))
    if speed and speed.get("scaling"):
        sections.append(_scaling_section(speed, names))
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
    if speed:
        foot += f" Times: {speed['machine']['processor']}, {speed['machine']['threads']} threads, torch {speed['machine']['torch']}."
    return render_page("Operators compared", lead, facts, sections, foot)


# A column of a task's table: what it is called, and the key of a row.
COLUMNS = {
    "seeds": "n",
    "width": "dim",
    "parameters": "parameters",
    "off budget": "off",
    "MFLOPs": "flops",
    "ms a step": "step_milliseconds",
    "peak MB": "step_megabytes",
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
    timed = any(row["step_milliseconds"] for row in rows)
    cost = "milliseconds of a training step" if timed else "MFLOPs a sample, forward"
    alt = f"{task['name']}: test {task['measure']} of {len(rows)} operators against {cost}"
    drawn = render(lambda theme: scatter(theme, rows, names, measure=task["measure"], timed=timed))
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


def _scaling_section(speed: Mapping[str, Any], names: Sequence[str]) -> Section:
    pictures = []
    for direction, title in (("forward", "Forward"), ("step", "Forward and backward")):
        found = [c for c in speed["scaling"] if c["direction"] == direction and c["lengths"]]
        if not found:
            continue
        alt = f"{title}: milliseconds against the number of points for {len(found)} operators, both logarithmic"
        caption = words("scaling_caption", title=title)
        drawn = render(lambda theme, found=found: scaling(theme, found, names))
        pictures.append(Picture(f"scaling-{direction}", alt, caption, drawn))
    reference = speed["reference"]
    lines = [
        [
            c["operator"],
            c["direction"],
            f"{c['exponent']:.2f}" if c["exponent"] is not None else "",
            _crossover(c, reference),
            _rates(c),
        ]
        for c in speed["scaling"]
    ]
    head = [
        "operator",
        "direction",
        "exponent",
        f"faster than {reference} from",
        "thousand points a second",
    ]
    text = words("scaling", width=speed["dim"])
    return Section(
        "scaling", "Scaling", text, pictures, after=words("wide", table=table(head, lines))
    )


def _crossover(curve: Mapping[str, Any], reference: str) -> str:
    if curve["operator"] == reference:
        return "itself"
    if curve["crossover"] is None:
        return "not up to the longest"
    return "the shortest on" if curve["crossover"] == 0 else f"N ≈ {curve['crossover']:,.0f}"


def _rates(curve: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{n}: {n / ms:,.0f}" for n, ms in zip(curve["lengths"], curve["milliseconds"])
    )


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
    if key == "step_megabytes" and not value:
        return "–"  # a step smaller than the memory that the process held already: not measured
    forms = {
        "parameters": "{:,}",
        "off": "{:+.1%}",
        "flops": "{:.3g}",
        "step_milliseconds": "{:.1f}",
        "step_megabytes": "{:.0f}",
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
    timed: bool,
) -> Figure:
    """Score against cost, an operator a mark."""
    figure = new_figure(WIDTH, 3.6)
    axes = figure.subplots()
    for row in rows:
        x = row["step_milliseconds"] if timed else row["flops"] / 1e6
        if x is None:
            continue
        look = _look(theme, row["operator"], names)
        axes.errorbar(
            x, row["mean"], yerr=row["sd"] or 0.0, fmt=look["marker"], color=look["color"], capsize=2, markersize=7,
            label=row["operator"],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds of a training step" if timed else "MFLOPs a sample, forward")
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


def scaling(theme: Theme, found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure:
    """Milliseconds against N, an operator a line, its exponent in the legend."""
    figure = new_figure(WIDTH, 3.8)
    axes = figure.subplots()
    for curve in found:
        power = "" if curve["exponent"] is None else f"  $N^{{{curve['exponent']:.2f}}}$"
        look: dict[str, Any] = {"color": theme.faint}
        if curve["operator"] in names:
            look = _look(theme, curve["operator"], names)
        axes.plot(
            curve["lengths"],
            curve["milliseconds"],
            label=curve["operator"] + power,
            markersize=4,
            **look,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("points N")
    axes.set_ylabel("milliseconds")
    axes.grid(axis="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
