"""The page of a search for an operator: what is recommended and how sure that is come first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .page import Picture, Section, render_page, table, words
from .style import Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    cards = [("use", verdict["pick"], named["recommended"])]
    if "runner_up" in verdict:
        sure = "sure" if verdict["sure"] else "not told apart"
        cards.append(("runner-up", verdict["runner_up"], named["runner-up"]))
        cards.append(("how sure", sure, named["how sure"]))
    measure = state["measure"]
    alt = f"Test {measure} of {len(verdict['table'])} finalists, a dot a seed"
    drawn = render(lambda theme: dots(theme, state))
    picture = Picture("finalists", alt, words("choice_caption", measure=measure), drawn)
    sections = [
        Section("recommendation", "Recommendation", words("choice", rows=recommendation)),
        Section("finalists", "Finalists", words("choice_finals"), [picture], _wide(finals)),
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


def dots(theme: Theme, state: Mapping[str, Any]) -> Figure:
    """The test score of every seed, a finalist a row."""
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
    axes.grid(axis="x")
    return figure
