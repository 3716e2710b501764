"""Sections of a conversion's page about the receipt of a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..report.page import Data, Picture, Section, table, words
from ..report.style import Theme, new_figure, panels, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

# Key, name and unit of a quantity that a panel shows.
Part = tuple[str, str, float]

# Models by their names in a receipt, and on the page.
SIDES = (("teacher", "original"), ("student", "converted"))

# The control, which receipts of earlier versions do not have.
CONTROL = ("window", "window alone")

# Bytes per mebibyte.
MIB = 2**20


def receipt_facts(receipt: Row) -> list[tuple[str, str, str]]:
    """Return the receipt's numbers for the top of the page: recall, memory and speed."""
    facts = []
    if receipt["recall"]:
        last = receipt["recall"][-1]
        ours = _percent(last["student"])
        theirs = _percent(last["teacher"])
        note = f"of digits {last['distance']:,} tokens back (original {theirs})"
        facts.append(("Recall", ours, note))
    if receipt["smaller_from"] is not None:
        facts.append(("Cache is smaller", f"from {receipt['smaller_from']:,}", "tokens on"))
    if receipt["faster_from"] is not None:
        facts.append(("Tokens come faster", f"from {receipt['faster_from']:,}", "tokens on"))
    return facts


def receipt_sections(receipt: Row) -> list[Section]:
    """Return sections about perplexity, recall, generation and examples, as far as measured."""
    sections = [_perplexity(receipt)]
    if _tasks(receipt):
        sections.append(_recall(receipt))
    if receipt["decoding"]:
        sections.append(_decoding(receipt))
    if receipt["continuations"]:
        sections.append(_continuations(receipt))
    return sections


def _perplexity(receipt: Row) -> Section:
    controlled = _has_control(receipt)
    head = ["texts", "tokens", "original", "converted", "ratio", "segments"]
    if controlled:
        head.append(f"ratio, {CONTROL[1]}")
    rows = []
    intervals = False
    for kind, part in receipt["perplexity"].items():
        for row in part:
            rows.append(_perplexity_row(kind, row, controlled))
            # A single segment has no interval.
            if row.get("ratio_interval"):
                intervals = True
    control = _control_name(receipt)
    note = words("perplexity_note", intervals=intervals, control=control)
    kinds = list(receipt["perplexity"])
    picture = Picture(
        "perplexity",
        f"Perplexity ratio by position, one line per kind of text: {', '.join(kinds)}",
        words("perplexity_caption"),
        render(lambda theme: _ratio_lines(theme, receipt)),
        Data(head, rows),
    )
    text = words("perplexity", first=kinds[0])
    after = table(head, rows) + note
    return Section("perplexity", "What it lost", text, [picture], after)


def _perplexity_row(
    kind: str,
    row: Row,
    controlled: bool,
) -> list[str]:
    cells = [
        kind,
        f"{row['from']:,} to {row['to']:,}",
        f"{row['teacher']:.2f}",
        f"{row['student']:.2f}",
        _ratio(row),
        f"{row['segments']:,}",
    ]
    if controlled:
        cells.append(f"{row[f'{CONTROL[0]}_ratio']:.3f}")
    return cells


def _ratio(row: Row) -> str:
    """Return a ratio of perplexities, with its interval if there is one."""
    interval = row.get("ratio_interval")
    if interval is None:
        return f"{row['ratio']:.3f}"
    low, high = interval
    return f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})"


def _tasks(receipt: Row) -> list[tuple[str, Row]]:
    """Return the names and results of everything that had to be recalled."""
    tasks = []
    for row in receipt["recall"]:
        tasks.append((f"needle, {row['distance']:,} tokens back", row))
    for row in receipt.get("lists", []):
        tasks.append((f"list, {row['distance']:,} tokens back", row))
    for row in receipt["copying"]:
        tasks.append((f"copy of {row['length']:,} tokens", row))
    return tasks


def _recall(receipt: Row) -> Section:
    sides = list(SIDES)
    if _has_control(receipt):
        sides.append(CONTROL)
    rows = []
    for label, row in _tasks(receipt):
        recalled = [_share(row, side) for side, _ in sides]
        rows.append([label, *recalled])
        if "student_whole" in row:
            complete = [_share(row, f"{side}_whole") for side, _ in sides]
            rows.append(["— whole numbers", *complete])
            # The teacher is the measure of the shares, and has none.
            shares = [_share(row, f"{side}_share") for side, _ in sides[1:]]
            rows.append(["— of the original's digits", "", *shares])

    labels = [label for _, label in sides]
    head = ["test", *labels]
    picture = Picture(
        "recall",
        "Share of needles recalled by distance, and of copied tokens by length",
        words("recall_caption"),
        render(lambda theme: _recall_lines(theme, receipt)),
        Data(head, rows),
    )
    note = words("recall_note", control=_control_name(receipt))
    after = table(head, rows) + note
    return Section("recall", "What it remembers", words("recall"), [picture], after)


def _has_control(receipt: Row) -> bool:
    """Return whether the original model with only a window and sinks was measured too."""
    control, _ = CONTROL
    rows = chain.from_iterable(receipt["perplexity"].values())
    return any(control in row for row in rows)


def _control_name(receipt: Row) -> str:
    if not _has_control(receipt):
        return ""
    return CONTROL[1].capitalize()


def _share(row: Row, name: str) -> str:
    """Return a share, with its interval if it has one."""
    if row[name] is None:
        return "–"
    interval = row.get(f"{name}_interval")
    if interval is None:
        return _percent(row[name])
    low, high = interval
    return f"{_percent(row[name])} ({100 * low:.0f} to {100 * high:.0f}%)"


def _decoding(receipt: Row) -> Section:
    """Return the section on the cost of decoding: its figure, and a table of one row per length.

    Columns go by quantity and then by model, so that the two numbers to compare are neighbours. The
    text names the lengths from which on the converted model has the smaller cache and is faster, or
    says that there is none.
    """
    head = ["tokens before"]
    for column in ("cache, MiB", "tokens per second", "prompt, ms"):
        head += [f"{column}: {label}" for _, label in SIDES]
    rows = [_decoding_row(row) for row in receipt["decoding"]]
    picture = Picture(
        "decoding",
        "Tokens per second and memory of the cache by length",
        words("decoding_caption"),
        render(lambda theme: _decoding_lines(theme, receipt["decoding"])),
        Data(head, rows),
    )
    text = words(
        "decoding",
        smaller=_length(receipt["smaller_from"]),
        faster=_length(receipt["faster_from"]),
    )
    after = table(head, rows)
    return Section("decoding", "What it saves", text, [picture], after)


def _decoding_row(row: Row) -> list[str]:
    sides = [side for side, _ in SIDES]
    sizes = [f"{row[f'{side}_bytes'] / MIB:,.2f}" for side in sides]
    speeds = [f"{row[f'{side}_tokens_a_second']:.1f}" for side in sides]
    prompts = [f"{row[f'{side}_prompt_ms']:,.0f}" for side in sides]
    return [f"{row['length']:,.0f}", *sizes, *speeds, *prompts]


def _continuations(receipt: Row) -> Section:
    text = words("continuations", rows=receipt["continuations"])
    return Section("continuations", "The same prompts side by side", text)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _length(value: int | None) -> str:
    if value is None:
        return ""
    return f"{value:,} tokens"


# --- pictures -------------------------------------------------------------------------------------


def label_lengths(
    axes: Axes,
    theme: Theme,
    lengths: Sequence[float],
) -> None:
    """Label a logarithmic axis with the measured lengths; on a phone with every second one."""
    step = 1
    if theme.narrow and len(lengths) > 4:
        step = 2
    shown = sorted(set(lengths))[::step]
    axes.set_xticks(shown, [f"{length:,.0f}" for length in shown])
    axes.minorticks_off()


def _ratio_lines(theme: Theme, receipt: Row) -> Figure:
    figure = new_figure(theme.width, 2.6)
    axes = figure.subplots()
    lengths = []
    for (kind, rows), colour in zip(receipt["perplexity"].items(), theme.series):
        ends = [row["to"] for row in rows]
        ratios = [row["ratio"] for row in rows]
        lengths += ends
        axes.semilogx(
            ends,
            ratios,
            marker="o",
            markersize=4,
            color=colour,
            label=kind,
        )
        # The band of the 95% interval.
        known = [row for row in rows if row.get("ratio_interval")]
        axes.fill_between(
            [row["to"] for row in known],
            [row["ratio_interval"][0] for row in known],
            [row["ratio_interval"][1] for row in known],
            color=colour,
            alpha=0.2,
        )
    label_lengths(axes, theme, lengths)
    axes.axhline(
        1.0,
        linewidth=0.8,
        color=theme.ink,
        alpha=0.5,
    )
    axes.set_xlabel("position in the text, tokens")
    axes.set_ylabel("perplexity ratio")
    axes.legend()
    return figure


def _recall_lines(theme: Theme, receipt: Row) -> Figure:
    # Lists are in the table; they are drawn only if there is nothing else.
    parts = []
    if receipt["recall"]:
        parts.append(("recall", "distance", "needle: tokens back"))
    if receipt["copying"]:
        parts.append(("copying", "length", "copy: tokens of the passage"))
    if not parts:
        parts.append(("lists", "distance", "list: tokens back"))
    figure, grid = panels(theme, len(parts), 2.7, sharey=True)
    controlled = _has_control(receipt)
    for axes, (key, place, label) in zip(grid, parts):
        rows = receipt[key]
        _recall_panel(axes, theme, rows, place, controlled)
        label_lengths(axes, theme, [row[place] for row in rows])
        axes.set_xlabel(label)
        axes.set_ylim(-5, 105)
        axes.set_ylabel("right, %")
    grid[0].legend()
    return figure


def _recall_panel(
    axes: Axes,
    theme: Theme,
    rows: Sequence[Row],
    place: str,
    controlled: bool,
) -> None:
    """Draw one line per model with its interval; the control is dashed."""
    places = [row[place] for row in rows]
    first, second = theme.series[:2]
    teacher, student = SIDES
    lines = [
        (*teacher, second, "-"),
        (*student, first, "-"),
    ]
    if controlled:
        lines.append((*CONTROL, theme.faint, "--"))
    for side, name, colour, style in lines:
        values = [100 * row[side] for row in rows]
        axes.semilogx(
            places,
            values,
            style,
            marker="o",
            markersize=4,
            color=colour,
            label=name,
        )
        if all(f"{side}_interval" in row for row in rows):
            intervals = [row[f"{side}_interval"] for row in rows]
            axes.fill_between(
                places,
                [100 * low for low, _ in intervals],
                [100 * high for _, high in intervals],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )


def _decoding_lines(theme: Theme, rows: Sequence[Row]) -> Figure:
    parts = (
        ("tokens_a_second", "tokens per second", 1.0),
        ("bytes", "cache, MiB", MIB),
    )
    return lines_by_length(theme, rows, parts, "tokens before")


def lines_by_length(
    theme: Theme,
    rows: Sequence[Mapping[str, Any]],
    parts: Sequence[Part],
    label: str,
) -> Figure:
    """Draw quantities against a number of tokens, one panel each and one line per model.

    Both axes are logarithmic.

    Args:
        rows: one per length, the shortest first, with ``length`` and the quantities as
            ``MODEL_KEY``.
        parts: key, name and unit of each quantity.
        label: of the lengths.
    """
    figure, grid = panels(theme, len(parts), 2.8)
    lengths = [row["length"] for row in rows]
    # The converted model has the first colour, as in the other figures of both.
    first, second = theme.series[:2]
    colours = (second, first)
    for axes, (key, quantity, unit) in zip(grid, parts):
        for (side, name), colour in zip(SIDES, colours):
            # A logarithmic axis has no place for zero.
            values = [max(row[f"{side}_{key}"], 1e-9) / unit for row in rows]
            axes.loglog(
                lengths,
                values,
                marker="o",
                markersize=4,
                color=colour,
                label=name,
            )
        label_lengths(axes, theme, lengths)
        axes.set_xlabel(label)
        axes.set_ylabel(quantity)
    grid[0].legend()
    return figure
