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
        facts.append((f"{report.metric}".capitalize(), f"{report.ratio:.3f}×", "the original's"))
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
        groups = plural(sum(map(len, report.keep.values())), "group")
        where = "; ".join(f"{name}: {', '.join(map(str, x))}" for name, x in report.keep.items())
        rows.append(("Kept as they were", f"{groups} of heads, on all tokens ({where})"))
    if report.refused:
        left = plural(len(report.refused), "module")
        rows.append(("Not converted", f"{left}; the reasons are below"))
    if report.data:
        rows.append(("Trained on", report.data))
    if report.minutes:
        rows.append(("Training took", duration(60 * sum(report.minutes.values()))))
    return Section("replaced", "What was replaced", words("replaced", rows=rows))


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
    done = [key for key in STAGES if key in report.scores]
    rows = [[STAGES[key], f"{report.scores[key]:.4f}"] for key in done]
    text = words("stages_text", metric=report.metric, smaller=report.smaller)
    return Section(
        "stages",
        "From stage to stage",
        text,
        [],
        table(["", f"{report.metric}"], rows),
    )


def _layers(report: ConversionReport) -> Section:
    pictures = []
    if any(layer.before is not None for layer in report.layers):
        rows = [[layer.name, layer.before, layer.after] for layer in report.layers]
        pictures = [
            Picture(
                "divergence",
                f"Bars of the divergence of {len(report.layers)} layers, before and after",
                words("divergence_caption"),
                render(lambda theme: _bars(theme, report)),
                Data(["layer", "before", "after"], rows),
            )
        ]
    names = folded("Names of the kept and new parameters", words("names", layers=report.layers))
    return Section(
        "layers",
        "Layer by layer",
        words("layers"),
        pictures,
        table(*report.table()) + names,
    )


def _refused(report: ConversionReport) -> Section:
    rows = [[name, why] for name, why in report.refused.items()]
    return Section(
        "refused",
        "Not converted",
        words("left"),
        [],
        table(["module", "why"], rows),
    )


def _speed(report: ConversionReport) -> Section:
    head = ["tokens", "original, ms", "converted, ms", "original, MiB", "converted, MiB"]
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
    return Section(
        "speed",
        "Speed and memory of one pass",
        text,
        [picture],
        table(head, rows),
    )


def _speed_row(row: Mapping[str, float]) -> list[str]:
    times = [f"{row[key]:.1f}" for key in ("teacher_ms", "student_ms")]
    sizes = [f"{row[key] / MIB:.1f}" for key in ("teacher_bytes", "student_bytes")]
    return [f"{row['length']:,.0f}", *times, *sizes]


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
    axes.set_xticks(list(places)[::step], [str(p + 1) for p in places][::step])
    axes.set_xlabel("layer")
    axes.set_ylabel("KL, nats")
    # Inside the panel the legend would hide bars.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure
