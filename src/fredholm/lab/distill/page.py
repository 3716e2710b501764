"""The page of a conversion: scores, layers, what was refused, speed and memory."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ...files import write_text
from ...linearization import ConversionReport
from ..report.page import Data, Picture, Section, folded, render_page, table
from ..report.style import Theme, new_figure, render
from .receipt_page import receipt_sections

NAMES = {
    "teacher": "teacher",
    "before": "maps as they start",
    "distilled": "maps distilled",
    "matched": "teacher's logits matched",
    "lengthened": "the same on longer windows",
    "tuned": "tuned on the task",
}


def write_page(report: ConversionReport, path: str | Path) -> Path:
    """Write the report as one self-contained HTML file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    path = Path(path)
    facts = [
        (label, f"{report.scores[key]:.4f}", report.metric or "")
        for key, label in NAMES.items()
        if key in report.scores
    ]
    if report.recovered is not None:
        facts.append(("recovered", f"{report.recovered:.1f}%", "of the teacher's score"))
    facts.append(("new parameters", f"{report.new_parameters:,}", f"of {report.parameters:,}"))
    if report.ratio is not None:
        facts.append((f"{report.metric} ratio", f"{report.ratio:.3f}", "over the teacher's"))
    receipt = report.receipt
    sections = [
        *([] if receipt is None else receipt_sections(receipt)),
        _layers(report),
        *([_refused(report)] if report.refused else []),
        *([_speed(report)] if report.speed else []),
    ]
    lead = (
        f"{len(report.layers)} attention layers of {report.source} compute {report.to} linear "
        "attention."
    )
    if receipt is not None:
        lead += f" {receipt['sentence']}."
    shared = "share" if report.tied else "do not share"
    options = report.options or "defaults"
    foot = f"Options of the map: {options}; keys {shared} the queries' map."
    title = f"{report.source} → {report.to}"
    return write_text(path, render_page(title, lead, facts, sections, foot))


def _layers(report: ConversionReport) -> Section:
    text = (
        "<p>Divergence is the exact KL(teacher ‖ student) in nats, the mean over queries and heads "
        "of the validation texts or images, each layer given what the teacher gives it. Rows are "
        "infinite where the student gives nothing to a key that the teacher weighs; they are "
        "counted, and not in the mean.</p>"
    )
    pictures = []
    if any(x.before is not None for x in report.layers):
        caption = (
            "<b>Divergence of each layer's attention</b> from its teacher's, before the maps learn "
            "and after they are distilled."
        )
        pictures = [
            Picture(
                "divergence",
                "Bars of the divergence by layer",
                caption,
                render(lambda t: _bars(t, report)),
                Data(
                    ["layer", "before", "after"],
                    [[x.name, x.before, x.after] for x in report.layers],
                ),
            )
        ]
    names = "".join(
        f"<p><b>{escape(x.name)}</b><br>kept: {escape(', '.join(x.kept))}<br>new: "
        f"{escape(', '.join(x.new)) or 'none'}</p>"
        for x in report.layers
    )
    after = table(*report.table()) + folded("Parameters kept and new, by name", names)
    return Section("layers", "Layers", text, pictures, after)


def _refused(report: ConversionReport) -> Section:
    rows = [[name, why] for name, why in report.refused.items()]
    return Section("refused", "Kept as they were", "", [], table(["layer", "why"], rows))


def _speed(report: ConversionReport) -> Section:
    rows = [
        [f"{x['length']:,.0f}", *(f"{x[k]:.1f}" for k in ("teacher_ms", "student_ms")),
         *(f"{x[k] / 2**20:.1f}" for k in ("teacher_bytes", "student_bytes"))]
        for x in report.speed
    ]  # fmt: skip
    where = "no measured length" if report.crossover is None else f"{report.crossover:,} tokens"
    text = (
        "<p>One forward pass of batch 1 on this machine. The converted model is faster from: "
        f"{where}.</p>"
    )
    head = ["tokens", "teacher, ms", "converted, ms", "teacher, MiB", "converted, MiB"]
    caption = "<b>Time and peak memory against the length</b>, logarithmic."
    drawn = render(lambda theme: _curves(theme, report))
    data = Data(head, rows)
    picture = Picture("speed", "Time and memory against length", caption, drawn, data)
    return Section("speed", "Speed and memory", text, [picture], table(head, rows))


def _bars(theme: Theme, report: ConversionReport):
    figure = new_figure(7.0, 2.6)
    axes = figure.subplots()
    place = range(len(report.layers))
    axes.bar(
        [p - 0.2 for p in place],
        [x.before or 0.0 for x in report.layers],
        0.38,
        color=theme.bad,
        label="before",
    )
    axes.bar(
        [p + 0.2 for p in place],
        [x.after or 0.0 for x in report.layers],
        0.38,
        color=theme.good,
        label="after",
    )
    axes.set_xticks(list(place), [str(p + 1) for p in place])
    axes.set_xlabel("layer")
    axes.set_ylabel("KL, nats")
    axes.legend()
    return figure


def _curves(theme: Theme, report: ConversionReport):
    figure = new_figure(7.0, 2.8)
    lengths = [x["length"] for x in report.speed]
    for axes, key, label, unit in zip(
        figure.subplots(1, 2), ("ms", "bytes"), ("ms", "MiB"), (1.0, 2.0**20)
    ):
        for side, colour in (("teacher", theme.bad), ("student", theme.good)):
            values = [max(x[f"{side}_{key}"], 1e-9) / unit for x in report.speed]
            axes.loglog(lengths, values, marker="o", markersize=3, color=colour, label=side)
        axes.set_xlabel("tokens")
        axes.set_ylabel(label)
        axes.legend()
    return figure
