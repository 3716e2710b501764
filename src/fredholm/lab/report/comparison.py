"""The pages of comparisons: which method is recommended and how sure that is, and which operator
reaches what at which cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from .page import Data, Picture, Section, render_page, table, words
from .style import WIDTH, Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*Xph<>"
Table = tuple[list[str], list[list[str]]]


def choice_page(
    state: Mapping[str, Any],
    facts: str,
    recommendation: Sequence[tuple[str, str]],
    finals: Table,
    rungs: Table,
    left_out: Mapping[str, str],
) -> str:
    """The HTML of a search: no script, nothing loaded.

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
    cards = [("Recommended", verdict["pick"], _after_name(named["recommended"]))]
    if "runner_up" in verdict:
        sure = "sure" if verdict["sure"] else "not told apart"
        cards.append(("Runner-up", verdict["runner_up"], _after_name(named["runner-up"])))
        cards.append(("How sure", sure, "of the recommended over the runner-up"))
    measure = state["measure"]
    alt = f"Test {measure} of {len(verdict['table'])} finalists, one dot per seed"
    drawn = render(lambda theme: dots(theme, state))
    rows = [
        [row["operator"], row["seed"], row["test"]["score"]]
        for row in state["finals"]["rows"]
        if "error" not in row
    ]
    data = Data(["method", "seed", f"test {measure}"], rows)
    picture = Picture("finalists", alt, words("choice_caption", measure=measure), drawn, data)
    sections = [
        Section("recommendation", "Recommendation", words("choice", rows=recommendation)),
        Section(
            "finalists",
            "Finalists",
            words("choice_finals", lost=any("stress" in line for line in verdict["table"])),
            [picture],
            _wide(finals),
        ),
        Section(
            "all", "All contenders", words("choice_rungs"), [], _wide(rungs) + _refused(left_out)
        ),
    ]
    classes = _classes(state)
    if classes is not None:
        head, rows = classes
        text = words("choice_classes", pick=verdict["pick"])
        sections.insert(2, Section("classes", "Classes", text, [], _wide((head, rows))))
    foot = "Written by fredholm compare. The pick was made on validation samples; the test samples were read once, for the finalists."
    return render_page(f"{state['name']}: which operator?", facts, cards, sections, foot)


def _after_name(text: str) -> str:
    """Return the text after the name in a line of the recommendation."""
    return text.partition(": ")[2]


def _wide(found: Table) -> str:
    return words("wide", table=table(*found))


def _refused(left_out: Mapping[str, str]) -> str:
    rows = [{"operator": label, "refused": why} for label, why in left_out.items()]
    return words("refused", rows=rows)


def _classes(state: Mapping[str, Any]) -> Table | None:
    """Accuracy of the pick and the runner-up by class, means over seeds."""
    names = [state["verdict"]["pick"], state["verdict"].get("runner_up")]
    names = [name for name in names if name is not None]
    rows = [row for row in state["finals"]["rows"] if "error" not in row]
    if state["task"] != "classification":
        return None
    lines = []
    for label in state["classes"]:
        cells = []
        for name in names:
            found = [r["test"]["per_class"].get(label) for r in rows if r["operator"] == name]
            known = [value for value in found if value is not None]
            cells.append(f"{100 * sum(known) / len(known):.1f}%" if known else "none")
        lines.append([label, *cells])
    return ["class", *names], lines


# --- tables of tasks ------------------------------------------------------------------------------


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
    cells = [[row[key] for key in ("operator", "flops", "mean", "sd")] for row in rows]
    data = Data(["operator", "FLOPs per sample", f"test {task['measure']}", "sd"], cells)
    return Picture(f"cost-{task['name']}", alt, words("cost_caption", cost=cost), drawn, data)


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
    lines = enumerate(zip_longest(*curves.values()), 1)
    data = Data(["epoch", *curves], [[epoch, *values] for epoch, values in lines])
    return Picture(f"curves-{task['name']}", alt, caption, drawn, data)


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


def dots(theme: Theme, state: Mapping[str, Any]) -> Figure:
    """The test score of every seed, a row per finalist."""
    lines = state["verdict"]["table"][::-1]
    figure = new_figure(theme.width, 0.8 + 0.4 * len(lines))
    axes = figure.subplots()
    for place, line in enumerate(lines):
        rows = [r for r in state["finals"]["rows"] if r["operator"] == line["operator"]]
        scores = [row["test"]["score"] for row in rows if "error" not in row]
        axes.plot(scores, [place] * len(scores), "o", color=theme.series[0], alpha=0.6)
        axes.plot([line["test"]], [place], "|", color=theme.series[1], markersize=16)
    axes.set_yticks(range(len(lines)), [line["operator"] for line in lines])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_xlabel(f"test {state['measure']}")
    if state["percent"]:
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -0.02), min(high, 1.02))
    axes.grid(axis="x")
    return figure


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
    """Score against cost, one mark per operator."""
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
    """Validation against the epoch, one line per operator."""
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
