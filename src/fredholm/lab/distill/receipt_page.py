"""The receipt of a converted decoder as sections of its page."""

from __future__ import annotations

from html import escape
from typing import Any

from ..report.page import Data, Picture, Section, table
from ..report.style import Theme, new_figure, render

Row = dict[str, Any]
SIDES = (("teacher", "teacher"), ("student", "converted"))
CONTROL = ("window", "window and sinks alone")  # untrained; absent from earlier receipts


def receipt_sections(receipt: Row) -> list[Section]:
    """What a receipt holds: perplexity, recall and copying, decoding, continuations."""
    return [_perplexity(receipt), _memory(receipt), _decoding(receipt), _continuations(receipt)]


def _perplexity(receipt: Row) -> Section:
    text = (
        "<p>Held-out documents, each predicted from its first token on; the first kind is that of "
        "the training texts. A stretch of positions is given all before it.</p>"
    )
    caption = (
        "<b>Perplexity over the teacher's</b> by position: 1 is no loss. Lengths beyond the "
        "windows of training show whether the state goes on."
    )
    head = ["texts", "positions", "teacher", "converted", "ratio", "segments"]
    controlled = _has_control(receipt)
    if controlled:
        head.append(f"ratio, {CONTROL[1]}")
    rows = []
    for kind, part in receipt["perplexity"].items():
        for row in part:
            span = f"{row['from']:,} to {row['to']:,}"
            numbers = [f"{row['teacher']:.2f}", f"{row['student']:.2f}", f"{row['ratio']:.3f}"]
            cells = [kind, span, *numbers, f"{row['segments']:,}"]
            if controlled:
                cells.append(f"{row[f'{CONTROL[0]}_ratio']:.3f}")
            rows.append(cells)
    picture = Picture(
        "perplexity",
        "Perplexity over the teacher's by position, a line for each kind of text",
        caption,
        render(lambda theme: _ratio_lines(theme, receipt)),
        Data(head, rows),
    )
    return Section("perplexity", "What it lost", text, [picture], table(head, rows))


def _memory(receipt: Row) -> Section:
    text = (
        "<p>A needle is a number that the text holds once, at a random depth, and that is asked "
        "for after so many tokens. A list has eight words with a number each, one of which is "
        "asked for. Digits are those that are the likeliest, given those before them; a whole "
        "number is one that greedy generation gives. A copy is a passage of tokens in random "
        "order, twice: the share of the second round that is right. Brackets are Wilson's "
        "intervals of 95%, with the digits of a number as one observation.</p>"
    )
    sides = [*SIDES, *([CONTROL] if _has_control(receipt) else [])]
    tasks = [(f"needle, {x['distance']:,} tokens back", x) for x in receipt["recall"]]
    tasks += [(f"list, {x['distance']:,} tokens back", x) for x in receipt.get("lists", [])]
    tasks += [(f"copy of {x['length']:,} tokens", x) for x in receipt["copying"]]
    rows = []
    for label, row in tasks:
        rows.append([label, *(_share(row, side) for side, _ in sides)])
        if "student_whole" in row:
            whole = [_share(row, f"{side}_whole") for side, _ in sides]
            rows.append([f"{label}: whole numbers", *whole])
            shares = ["", *(_share(row, f"{side}_share") for side, _ in sides[1:])]
            rows.append([f"{label}: of the teacher's digits", *shares])
    head = ["task", *(label for _, label in sides)]
    picture = Picture(
        "recall",
        "Needles found by distance, and copies by length",
        "<b>What the cache keeps</b>: needles by distance, copies by length.",
        render(lambda theme: _recall_lines(theme, receipt)),
        Data(head, rows),
    )
    return Section("recall", "Recall and copying", text, [picture], table(head, rows))


def _has_control(receipt: Row) -> bool:
    """Whether a receipt measured the window and the sinks alone."""
    return any(CONTROL[0] in row for rows in receipt["perplexity"].values() for row in rows)


def _share(row: Row, name: str) -> str:
    """A share with its interval, where it has one."""
    if row[name] is None:
        return "–"
    interval = row.get(f"{name}_interval")
    if interval is None:
        return _percent(row[name])
    low, high = interval
    return f"{_percent(row[name])} ({100 * low:.0f} to {100 * high:.0f}%)"


def _decoding(receipt: Row) -> Section:
    smaller, faster = receipt["smaller_from"], receipt["faster_from"]
    text = (
        "<p>Batch 1 on the machine that measured; bytes are exact, those of every tensor in the "
        f"cache. Smaller from {_length(smaller)}, a token faster from {_length(faster)}.</p>"
    )
    rows = [
        [
            f"{row['length']:,.0f}",
            *(f"{row[f'{side}_bytes']:,.0f}" for side, _ in SIDES),
            *(f"{row[f'{side}_tokens_a_second']:.1f}" for side, _ in SIDES),
            *(f"{row[f'{side}_prompt_ms']:,.0f}" for side, _ in SIDES),
        ]
        for row in receipt["decoding"]
    ]
    head = ["tokens before"]
    for what in ("bytes", "tokens a second", "prompt, ms"):
        head += [f"{what}: {label}" for _, label in SIDES]
    picture = Picture(
        "decoding",
        "Tokens a second and bytes of the cache by length",
        "<b>Decoding after a prompt</b>: tokens a second, and the bytes of the cache.",
        render(lambda theme: _decoding_lines(theme, receipt)),
        Data(head, rows),
    )
    return Section("decoding", "What it saves", text, [picture], table(head, rows))


def _continuations(receipt: Row) -> Section:
    blocks = "".join(
        f"<h3>{escape(x['prompt'])}</h3><p><b>teacher</b> {escape(x['teacher'])}</p>"
        f"<p><b>converted</b> {escape(x['student'])}</p>"
        for x in receipt["continuations"]
    )
    text = "<p>The likeliest token each time.</p>"
    return Section("continuations", "Continuations side by side", text, [], blocks)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _length(value: int | None) -> str:
    return "no length" if value is None else f"{value:,} tokens"


def _ratio_lines(theme: Theme, receipt: Row):
    figure = new_figure(7.0, 2.6)
    axes = figure.subplots()
    for (kind, rows), colour in zip(receipt["perplexity"].items(), (theme.good, theme.bad)):
        ends = [row["to"] for row in rows]
        axes.semilogx(
            ends, [row["ratio"] for row in rows], marker="o", markersize=4, color=colour, label=kind
        )
    axes.axhline(1.0, linewidth=0.8, color=theme.ink, alpha=0.5)
    axes.set_xlabel("position")
    axes.set_ylabel("perplexity ratio")
    axes.legend()
    return figure


def _recall_lines(theme: Theme, receipt: Row):
    figure = new_figure(7.0, 2.6)
    parts = (("recall", "distance", "tokens back"), ("copying", "length", "tokens of a passage"))
    for axes, (key, place, label) in zip(figure.subplots(1, 2, sharey=True), parts):
        rows = receipt[key]
        for (side, name), colour in zip(SIDES, (theme.bad, theme.good)):
            values = [100 * row[side] for row in rows]
            places = [row[place] for row in rows]
            axes.semilogx(places, values, marker="o", markersize=4, color=colour, label=name)
        if _has_control(receipt):
            places = [row[place] for row in rows]
            values = [100 * row[CONTROL[0]] for row in rows]
            axes.semilogx(places, values, "--", color=theme.ink, alpha=0.5, label=CONTROL[1])
        axes.set_xlabel(label)
        axes.set_ylim(-5, 105)
    figure.axes[0].set_ylabel("right, %")
    figure.axes[0].legend()
    return figure


def _decoding_lines(theme: Theme, receipt: Row):
    figure = new_figure(7.0, 2.8)
    rows = receipt["decoding"]
    lengths = [row["length"] for row in rows]
    parts = (("tokens_a_second", "tokens a second", 1.0), ("bytes", "MiB", 2.0**20))
    for axes, (key, label, unit) in zip(figure.subplots(1, 2), parts):
        for (side, name), colour in zip(SIDES, (theme.bad, theme.good)):
            values = [row[f"{side}_{key}"] / unit for row in rows]
            axes.loglog(lengths, values, marker="o", markersize=4, color=colour, label=name)
        axes.set_xlabel("tokens before")
        axes.set_ylabel(label)
    figure.axes[0].legend()
    return figure
