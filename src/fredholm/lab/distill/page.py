"""Page of a conversion: what was replaced, what it costs and saves, layer by layer.

Its texts are in ``lab/report/templates/conversion.html``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import write_text
from ...linearization import ConversionReport
from ..numbers import duration, plural
from ..report.page import Data, Picture, Section, folded, render_page, table, words
from ..report.style import Theme, new_figure, render
from .receipt_page import MIB, lines_by_length, receipt_facts, receipt_sections

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fact = tuple[str, str, str]
"""A name, a number, and a note on it."""

# Scores of a report in the order of the stages, with their names on the page.
STAGES = {
    "teacher": "the original model",
    "before": "attention replaced, maps as they start",
    "distilled": "maps distilled",
    "matched": "trained to give the original's answers",
    "lengthened": "the same on longer windows",
    "tuned": "tuned on the task",
}


# Quantities of a forward pass in its figure.
PASSES = (("ms", "ms", 1.0), ("bytes", "MiB", MIB))


def write_page(report: ConversionReport, path: str | Path) -> Path:
    """Write the report as one self-contained HTML file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    sections = [_replaced(report)]
    if report.receipt is not None:
        sections += receipt_sections(report.receipt)
    if len(report.scores) > 1:
        sections.append(_stages(report))
    if report.speed:
        sections.append(_speed(report))
    sections.append(_layers(report))
    if report.refused:
        sections.append(_refused(report))

    title = f"{report.source} with {report.to} attention"
    layers = plural(len(report.layers), "attention layer")
    lead = f"{layers} of {report.source} made linear, and how it compares with the original."
    foot = "Written by fredholm linearize; conversion.json beside this page has all numbers."
    page = render_page(title, lead, _facts(report), sections, foot)
    return write_text(Path(path), page)


def _facts(report: ConversionReport) -> list[Fact]:
    """Return the numbers at the top of the page: what was lost and saved, how much is new."""
    facts = []
    if report.ratio is not None:
        metric = f"{report.metric}".capitalize()
        facts.append((metric, f"{report.ratio:.3f}×", "the original's"))
    if report.recovered is not None:
        note = f"of the original's {report.metric}"
        facts.append(("Recovered", f"{report.recovered:.1f}%", note))
    if report.receipt is not None:
        facts += receipt_facts(report.receipt)
    share = report.new_parameters / report.parameters
    note = f"{report.new_parameters:,} of {report.parameters:,} parameters"
    return [*facts, ("New", f"{share:.1%}", note)]


def _replaced(report: ConversionReport) -> Section:
    """Return the section about the layers that were replaced, and the softmax that they keep."""
    layers = plural(len(report.layers), "attention layer")
    rows = [
        ("Replaced", f"softmax attention in {layers} of {report.source}"),
        ("Feature map", _map(report)),
    ]
    if report.window is not None:
        tokens = f"on the last {report.window} tokens"
        if report.sinks:
            tokens += f" and on the first {report.sinks}"
        rows.append(("Softmax stays", tokens))
    if report.keep:
        count = 0
        places = []
        for name, numbers in report.keep.items():
            count += len(numbers)
            places.append(f"{name}: {', '.join(map(str, numbers))}")
        groups = plural(count, "group")
        kept = f"{groups} of heads, on all tokens ({'; '.join(places)})"
        rows.append(("Kept as they were", kept))
    if report.refused:
        left = plural(len(report.refused), "module")
        rows.append(("Not converted", f"{left}; the reasons are below"))
    if report.data:
        rows.append(("Trained on", report.data))
    if report.minutes:
        rows.append(("Training took", duration(60 * sum(report.minutes.values()))))
    text = words("replaced", rows=rows)
    return Section("replaced", "What was replaced", text)


def _map(report: ConversionReport) -> str:
    """Return the feature map with its options."""
    shared = "queries and keys have one each"
    if report.tied:
        shared = "queries and keys share one"
    options = ", ".join(f"{key}={value}" for key, value in report.options.items())
    if not options:
        return f"{report.to}; {shared}"
    return f"{report.to} ({options}); {shared}"


def _stages(report: ConversionReport) -> Section:
    # Stages that were left out have no score.
    rows = []
    for key, stage in STAGES.items():
        if key in report.scores:
            rows.append([stage, f"{report.scores[key]:.4f}"])
    text = words("stages_text", metric=report.metric, smaller=report.smaller)
    after = table(["", f"{report.metric}"], rows)
    return Section("stages", "From stage to stage", text, after=after)


def _layers(report: ConversionReport) -> Section:
    pictures = []
    if any(layer.before is not None for layer in report.layers):
        rows = []
        for layer in report.layers:
            rows.append([layer.name, layer.before, layer.after])
        picture = Picture(
            "divergence",
            f"Bars of the divergence of {len(report.layers)} layers, before and after",
            words("divergence_caption"),
            render(lambda theme: _bars(theme, report)),
            Data(["layer", "before", "after"], rows),
        )
        pictures.append(picture)

    names = words("names", layers=report.layers)
    after = table(*report.table())
    after += folded("Names of the kept and new parameters", names)
    return Section("layers", "Layer by layer", words("layers"), pictures, after)


def _refused(report: ConversionReport) -> Section:
    rows = [[name, why] for name, why in report.refused.items()]
    after = table(["module", "why"], rows)
    return Section("refused", "Not converted", words("left"), after=after)


def _speed(report: ConversionReport) -> Section:
    head = [
        "tokens",
        "original, ms",
        "converted, ms",
        "original, MiB",
        "converted, MiB",
    ]
    rows = [_speed_row(row) for row in report.speed]
    crossover = None
    if report.crossover is not None:
        crossover = f"{report.crossover:,}"
    picture = Picture(
        "speed",
        f"Time and memory of both models at {plural(len(rows), 'length')}",
        words("passes_caption"),
        render(lambda theme: lines_by_length(theme, report.speed, PASSES, "tokens")),
        Data(head, rows),
    )
    text = words("passes", crossover=crossover)
    after = table(head, rows)
    return Section("speed", "Speed and memory of one pass", text, [picture], after)


def _speed_row(row: Mapping[str, float]) -> list[str]:
    return [
        f"{row['length']:,.0f}",
        f"{row['teacher_ms']:.1f}",
        f"{row['student_ms']:.1f}",
        f"{row['teacher_bytes'] / MIB:.1f}",
        f"{row['student_bytes'] / MIB:.1f}",
    ]


# --- pictures -------------------------------------------------------------------------------------


def _bars(theme: Theme, report: ConversionReport) -> Figure:
    figure = new_figure(theme.width, 2.6)
    axes = figure.subplots()
    places = range(len(report.layers))
    before = [layer.before or 0.0 for layer in report.layers]
    axes.bar(
        [p - 0.2 for p in places],
        before,
        0.38,
        color=theme.series[1],
        label="before",
    )
    if any(layer.after is not None for layer in report.layers):
        after = [layer.after or 0.0 for layer in report.layers]
        axes.bar(
            [p + 0.2 for p in places],
            after,
            0.38,
            color=theme.series[0],
            label="after",
        )

    # Labels of thirty layers run into one another on a phone.
    most = 30
    if theme.narrow:
        most = 10
    step = 1 + len(report.layers) // most
    shown = places[::step]
    labels = [str(place + 1) for place in shown]
    axes.set_xticks(shown, labels)
    axes.set_xlabel("layer")
    axes.set_ylabel("KL, nats")
    # Inside the panel the legend would hide bars.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure
