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
from ..kit.page import PAGES, head, load, save_picture, spread, table
from .claims import CLAIMS
from .equal_time import FILE as EQUAL_TIME
from .equal_time import LENGTH, section
from .evidence import SECTIONS, SMALL
from .kernels import NETWORKS, TARGETS, target
from .series import DATA
from .series import table as series_table

PICTURE = "ckconv-kernels.png"
Rows = list[dict[str, Any]]
ABOUT = "Trained on one thread of a 2-core machine that other work shared. What is not in a table was not run.\n"
NOTE = (
    "That something costs little means: fewer points than any GRU or TCN loses. That more gains nothing "
    "means at most one point."
)
SERIES_TEXT = """
## Lost observations and other rates

Everything the same but the model; the last epoch's test accuracy in percent, mean over
seeds where there are several. *Timestamps*: lost observations are left out and the rest keep their times, evaluated
pair by pair; *gaps*: they stay as points without value on the grid, whose time their neighbours stand for, the same
integral by FFT. The GRU and the TCN read values, presence and the time since the last sample, which at another rate is a number
that they never saw in training; those with *no gaps* read zero in its place. *Rate 1/1 → 1/2*:
trained on all samples, tested on every other.
"""
SERIES_DATA = {
    "japanese-vowels": "JapaneseVowels: 270 series to train on, 370 to test (a standard error of "
    "about 0.9 points by their "
    "number alone), lengths 7 to 29.",
    "plaid": "PLAID, electric current of 11 kinds of appliances: 537 series to train on, 537 to "
    "test (about 2 points), every "
    "eighth sample taken as all of them, up to 168, each series on its own scale.",
    "voice-prompts": "Raw sound: which of five languages a quarter of a second of a telephone "
    "exchange's voice prompts is in, 1,000 samples (every other of 8,000 a second), each window on "
    "its own scale: 21,513 to train on, 6,162 of other phrases to test. One speaker a language, "
    "English and Spanish by the same: voices are told apart as much as languages. No sample is "
    "averaged before others are left out, so that what is above the lower rate's band folds into it.",
}
NOTES = {
    name: "Backbones of about the size of the CKCNN: gru and lstm two blocks; *tcn* six blocks of a causal convolution "
    f"of 7 taps whose dilations double, which see 379 points{more}. Each is read out at the last pixel, and trained "
    "at the rate that did best on validation with the first seed; the CKCNN at the better ω.\n"
    for name, more in (
        ("smnist 14", "; *convolution* two blocks of 7 taps, which see 13"),
        ("pmnist 14", ""),
    )
}
RECIPES_TEXT = """
## The other recipes, cut short

Few epochs, and of most a part of the data, one seed: not what they reach in full, which takes hours.
The figures of `ckcnn-pmnist` (dropout 0.1), `ckcnn-scifar10` (dropout and input dropout 0.1) and `ckcnn-kjv` (batches of 32, no weight decay) were made
before these recipes had the paper's dropout, Adam and plateau schedule, with AdamW and a cosine.

"""
KERNELS_TEXT = """
## Which activation can draw which kernel

A network of two hidden layers of 32 units is fitted to {points} points of functions on [-1, 1] of variance 1
({steps:,} steps of Adam, all points at once); the share of the variance that it could not draw, geometric mean over
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
                score = f"{row['bits']:.3f} bits a token"
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
    heads = "samples", "a layer's step, MB above a short one", "seconds a batch of 32, 98k network"
    about = (
        f"{machine_line(found['machine'])} Forward and backward, medians of alternated runs whose "
        "answers and gradients agree: `python -m evidence time ckconv`."
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
        "\n\nAccuracy is over all T + 20 points; answering zero everywhere gives (T + 10) / (T + "
        "20).\n"
        "For the adding problem a constant answer has the loss 1/6.\n"
    )
    parts.append(f"\n## T = {LENGTH:,} in equal time\n\n{section()}")
    parts.append(SERIES_TEXT)
    for name, series in DATA.items():
        if rows := load(series.file):
            command = f"`python -m evidence run ckconv series --only {name}`"
            parts.append(f"\n{SERIES_DATA[name]} {command}\n\n{series_table(rows)}\n")
    for name in (name for name in SECTIONS if name not in ("copy", "adding", *SMALL)):
        if rows_of(name):
            command = f"`python -m evidence run ckconv sections --only {json.dumps(name)}`"
            about = f"{NOTES[name]}\n" if name in NOTES else ""
            title = SECTIONS[name].title
            parts.append(f"\n## {title}\n\n{about}{command}\n\n{accuracy_table(name)}\n")
    if any(rows_of(recipe) for recipe in SMALL):
        names = " ".join(recipe for recipe in SMALL if rows_of(recipe))
        command = f"`python -m evidence run ckconv sections --only {names}`"
        parts.append(f"{RECIPES_TEXT}{command}\n\n{recipe_table()}\n")
    if rows := load("ckconv-kernels.json"):
        seeds = 1 + max(row["seed"] for row in rows)
        counts = {"points": len(target("step")[1]), "steps": rows[0]["steps"], "seeds": seeds}
        parts.append(KERNELS_TEXT.format(**counts) + kernel_table(rows))
        parts.append(f"\n\n![Functions in grey and what three networks drew of them]({PICTURE})\n")
    if speed := load("ckconv-speed.json"):
        parts.append(speed_section(speed))
    return "".join([*parts, claims_section(CLAIMS, results(), load("ckconv.json"), NOTE)])
