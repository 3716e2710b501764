"""Page docs/results/ckconv.md and its picture."""

from __future__ import annotations

import json
import statistics
from typing import Any

from fredholm.lab.report.style import WIDTH, new_figure

from ..kit.claims import claims_section
from ..kit.grid import sections
from ..kit.machine import machine_line
from ..kit.memory import show_megabytes
from ..kit.page import PAGES, head, listed, load, save_picture, spread, table
from .claims import CLAIMS
from .equal_time import FILE as EQUAL_TIME
from .equal_time import LENGTH, section
from .evidence import SECTIONS, SMALL
from .kernels import NETWORKS, TARGETS, target
from .series import DATA, FIELD
from .series import table as series_table

PICTURE = "ckconv-kernels.png"
Rows = list[dict[str, Any]]
ABOUT = "All models were trained on one thread of a 2-core machine that was shared with other work. Experiments that are not listed were not run.\n"
NOTE = (
    "The points that *GRUs and TCNs lose* are the fewest that one of them loses with the same seed. A claim that "
    "more of something *gains nothing* allows a gain of at most one point."
)
SERIES_TEXT = """
## Lost observations and other rates

The rows of a table have the same data and training. A CKCNN's ω is set for each data set ({omegas}), without a record of how; the others have no such setting. The TCN reads
{field} samples, fewer than most series of PLAID and voice-prompts have: a handicap in these tables. Numbers are test accuracies after the last epoch, in percent, and means
over seeds where there are several. A CKCNN receives lost observations in one of two ways:

- *timestamps*: they are left out, and the rest keep their times; the kernel is evaluated pair by pair;
- *gaps*: they remain on the grid as points without a value, and their time is assigned to their neighbours. This is the same
  integral, computed by FFT.

The GRU and the TCN read the values, a mask of observed values, and the time since the last sample. At another sampling rate that time has values
that did not occur in training; models with *no gaps* read zero instead. *Rate 1/1 → 1/2*:
trained on all samples, tested on every other one.
"""
SERIES_DATA = {
    "japanese-vowels": "JapaneseVowels: 270 series for training and 370 for testing, of length 7 to 29. The number of test "
    "series alone gives a standard error of about 0.9 points.",
    "plaid": "PLAID, the electric current of 11 kinds of appliances: 537 series for training and 537 for testing "
    "(standard error about 2 points). Only every eighth sample is used, so a series has at most 168; each "
    "series is scaled separately.",
    "voice-prompts": "Raw sound: classify the language, one of five, of a quarter of a second of a telephone "
    "exchange's voice prompts: 1,000 samples (every other one of 8,000 per second), each window scaled "
    "separately; 21,513 windows for training and 6,162, of other phrases, for testing. There is one speaker "
    "per language, and the same one for English and Spanish, so a model may recognise voices instead of "
    "languages. Subsampling is done without a low-pass filter, so higher frequencies alias.",
}
IRREGULAR = """
## Irregular times

[A page of its own](irregular.md) compares a CKCNN with GRU-D, a neural CDE, a TCN and MiniROCKET on JapaneseVowels and PLAID, observed in bursts with long gaps, and on
the question what was observed a certain time ago.
"""
NOTES = {
    name: "The backbones have about as many parameters as the CKCNN: *gru* and *lstm* have two blocks; *tcn* has six blocks of a "
    f"causal convolution of 7 taps with doubling dilations and a receptive field of 379 points{more}. The head reads the "
    "last pixel. The learning rate (for the CKCNN, ω) is the one with the best validation score for the first seed.\n"
    for name, more in (
        ("smnist 14", "; *convolution* has two blocks of 7 taps and a receptive field of 13"),
        ("pmnist 14", ""),
    )
}
RECIPES_TEXT = """
## The other recipes, cut short

These runs had few epochs, one seed and, in most cases, part of the data. Complete runs take hours and reach higher scores.
`ckcnn-pmnist` (dropout 0.1), `ckcnn-scifar10` (dropout and input dropout 0.1) and `ckcnn-kjv` (batches of 32, no weight decay) were run with AdamW and a cosine
schedule, before these recipes adopted the paper's dropout, Adam and plateau schedule.

"""
KERNELS_TEXT = """
## Which activation can represent which kernel

A network of two hidden layers of 32 units is fitted to {points} points of functions on [-1, 1] of variance 1
({steps:,} steps of Adam, all points in every batch). The table gives the share of the variance that remains unexplained, a geometric mean over
{seeds} seeds. `python -m evidence run ckconv kernels`

"""


def rows_of(name: str) -> dict[str, Rows]:
    """Return the runs of a section by variant, in the section's order."""
    return SECTIONS[name].by_variant(sections("ckconv.json").get(name, []))


def memory_tables() -> str:
    """Return the table of copy memory and the adding problem."""
    heads = (
        "task",
        "overrides of the recipe",
        "on the test split",
        "seeds",
        "parameters",
        "epochs",
        "minutes",
        "the paper",
    )
    lines = []
    for name, paper in (("copy", "100%"), ("adding", "≤ 1e-4")):
        for variant, rows in rows_of(name).items():
            first = rows[0]
            if name == "copy":
                score = f"{spread((row['accuracy'] for row in rows), digits=3)}% of the points"
            else:
                score = f"loss {statistics.mean(row['loss'] for row in rows):.2e}"
            cells = (
                f"{SECTIONS[name].title}, {variant}",
                f"`{' '.join(first['overrides'])}`",
                score,
                len(rows),
                f"{first['parameters']:,}",
                first["epochs"],
                f"{statistics.mean(row['minutes'] for row in rows):.1f}",
                paper,
            )
            lines.append(cells)
    return table(heads, lines)


def accuracy_table(name: str) -> str:
    """Return the table of a section of accuracies."""
    heads = ["variant", "test accuracy (%)", "seeds", "parameters", "epochs"]
    chosen = SECTIONS[name].choices
    if chosen:
        heads.append("chosen on validation")

    lines = []
    for variant, rows in rows_of(name).items():
        first = rows[0]
        score = spread(row["accuracy"] for row in rows)
        cells = [variant, score, len(rows), f"{first['parameters']:,}", first["epochs"]]
        # The choice is the last override.
        if chosen:
            cells.append(f"`{first['overrides'][-1]}`")
        lines.append(cells)
    return table(heads, lines)


def recipe_table() -> str:
    """Return the table of the recipes that were trained for a few epochs."""
    lines = []
    for recipe in SMALL:
        for row in rows_of(recipe).get("small", []):
            command = f"`fredholm train {' '.join([recipe, *row['overrides']])}`"
            if "bits" in row:
                score = f"{row['bits']:.3f} bits per token"
            else:
                score = f"{100 * row['accuracy']:.1f}%"
            lines.append((command, score, f"{row['parameters']:,}", f"{row['minutes']:.1f}"))
    return table(("command", "on the test split", "parameters", "minutes"), lines)


def kernel_table(rows: Rows) -> str:
    """Return the table of each network's error on each function, the geometric mean over seeds."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        errors.setdefault((row["network"], row["target"]), []).append(row["error"])

    lines = []
    for network in NETWORKS:
        cells = []
        for name in TARGETS:
            cell = ""
            if (network, name) in errors:
                cell = f"{statistics.geometric_mean(errors[network, name]):.1e}"
            cells.append(cell)
        if any(cells):
            lines.append((network, *cells))
    return table(("network", *TARGETS), lines)


def draw() -> None:
    """Draw docs/results/ckconv-kernels.png."""
    rows = load("ckconv-kernels.json")
    save_picture(lambda theme: kernel_picture(theme, rows), PAGES / PICTURE, dpi=110)


def kernel_picture(theme: Any, rows: Rows) -> Any:
    """Draw every function and the fits of a sine, a rectified and a smooth network."""
    shown = ("sine, omega 30", "relu, knots uniform", "silu, knots uniform")
    figure = new_figure(WIDTH, 1.3 * len(TARGETS))
    panels = figure.subplots(len(TARGETS), len(shown), sharex=True, squeeze=False)
    for line, name in zip(panels, TARGETS):
        z, y = target(name)
        for axes, network in zip(line, shown):
            axes.plot(z[:, 0], y[:, 0], color=theme.faint, linewidth=2.0)
            for row in rows:
                if (row["target"], row["network"]) == (name, network) and "drawn" in row:
                    axes.plot(z[:, 0], row["drawn"], color=theme.series[0], linewidth=0.9)
            axes.set_yticks([])
            if name == next(iter(TARGETS)):
                axes.set_title(network)
        line[0].set_ylabel(name)
    return figure


def speed_section(found: dict[str, Any]) -> str:
    """Return the tables of times against other ways, and of memory."""
    cases: dict[str, Rows] = {}
    for row in found["cases"]:
        cases.setdefault(row["case"], []).append(row)
    lines = []
    for first, other in cases.values():
        mine, theirs = first["milliseconds"], other["milliseconds"]
        lines.append(
            (first["note"], f"{mine:.1f}", other["way"], f"{theirs:.1f}", f"{theirs / mine:.2f}")
        )
    sizes = [
        (f"{row['n']:,}", show_megabytes(row["megabytes"]), f"{row['seconds']:.1f}")
        for row in found["memory"]
    ]
    heads = (
        "samples",
        "step of one layer, MB above that of a short signal",
        "seconds per batch of 32, network of 98k parameters",
    )
    about = (
        f"{machine_line(found['machine'])} Forward and backward: medians of alternating runs, after a "
        "check that answers and gradients agree. `python -m evidence time ckconv`"
    )
    return "\n\n".join(
        [
            "\n## Speed and memory",
            about,
            table(("case", "hidden units first, ms", "other way", "ms", "ratio"), lines),
            table(heads, sizes),
            f"Memory grows as N to the power {found['exponent']:.2f}.\n\n",
        ]
    )


def results() -> dict[str, Any]:
    """Return all results that the claims are judged by."""
    found, equal = sections("ckconv.json"), sections(EQUAL_TIME)
    # The longest length so far was trained in equal time, in a section of its own.
    for name in ("copy", "adding"):
        rows = [row for row in equal.get(f"{name} {LENGTH}", []) if row["variant"] == "ckcnn"]
        found[name] = found.get(name, []) + [row | {"variant": f"T = {LENGTH}"} for row in rows]
    series = {name: load(data.file) or [] for name, data in DATA.items()}
    return found | {"kernels": load("ckconv-kernels.json") or [], **series}


def page() -> str:
    """Return the text of the page."""
    title = head("Results: continuous kernel convolution", "ckconv", "ckconv*.json")
    command = "`python -m evidence run ckconv sections --only copy adding`"
    parts = [f"{title}{ABOUT}\n## Long memory\n\n{command}\n\n{memory_tables()}"]
    parts.append(
        "\n\nIn copy memory, accuracy is over all T + 20 points; a model that always answers zero reaches (T + 10) / (T + "
        "20).\n"
        "In the adding problem, a constant answer has a loss of 1/6.\n\n"
        "The ω0 at T = 100 and 200 are the paper's. At T = 1,000 they are not: with the paper's 68.69, copy memory was still at the loss of a guess after 14 of 40 epochs, and with "
        "its 2.03 the adding problem was at chance after one epoch; the paper trains for longer. Those runs were stopped. At T = 3,000, ω0 grows with T.\n"
    )
    parts.append(f"\n## T = {LENGTH:,} in equal time\n\n{section()}")
    omegas = listed(f"{series.omega:g}" for series in DATA.values())
    parts.append(SERIES_TEXT.format(omegas=omegas, field=FIELD))
    for name, series in DATA.items():
        if rows := load(series.file):
            command = f"`python -m evidence run ckconv series --only {name}`"
            parts.append(f"\n{SERIES_DATA[name]} {command}\n\n{series_table(rows)}\n")
    parts.append(IRREGULAR)
    for name in (name for name in SECTIONS if name not in ("copy", "adding", *SMALL)):
        if rows_of(name):
            command = f"`python -m evidence run ckconv sections --only {json.dumps(name)}`"
            about = f"{NOTES[name]}\n" if name in NOTES else ""
            title = SECTIONS[name].title
            parts.append(f"\n## {title}\n\n{about}{command}\n\n{accuracy_table(name)}\n")
            if ends := SECTIONS[name].at_an_end(results().get(name, [])):
                parts.append(f"\n{ends}\n")
    if any(rows_of(recipe) for recipe in SMALL):
        names = " ".join(recipe for recipe in SMALL if rows_of(recipe))
        command = f"`python -m evidence run ckconv sections --only {names}`"
        parts.append(f"{RECIPES_TEXT}{command}\n\n{recipe_table()}\n")
    if rows := load("ckconv-kernels.json"):
        seeds = 1 + max(row["seed"] for row in rows)
        counts = {"points": len(target("step")[1]), "steps": rows[0]["steps"], "seeds": seeds}
        parts.append(KERNELS_TEXT.format(**counts) + kernel_table(rows))
        parts.append(
            f"\n\n![The target functions in grey, and the fits of three networks]({PICTURE})\n"
        )
    if speed := load("ckconv-speed.json"):
        parts.append(speed_section(speed))
    return "".join([*parts, claims_section(CLAIMS, results(), load("ckconv.json"), NOTE)])
