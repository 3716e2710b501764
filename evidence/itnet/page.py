"""Page docs/results/itnet.md."""

from __future__ import annotations

import json
from typing import Any

from ..kit.claims import claims_section
from ..kit.grid import Section, sections
from ..kit.machine import machine_line
from ..kit.memory import show_megabytes
from ..kit.page import head, load, spread
from ..kit.page import table as as_table
from ..kit.statistics import Rows, paired, stays_below
from . import spectrum, start
from .claims import CLAIMS
from .sections import SECTIONS

ABOUT = """These models are small and were trained on a CPU. The tables compare variants with each other; the scores themselves cannot be
compared with the paper's. Every row is a mean over seeds, on the test split; *to the first row* is the mean difference over the seeds that both
rows have. A claim that something *gains nothing*, or little, allows a gain of at most one point.
"""
NAMES = {"accuracy": "test accuracy (%)", "loss": "test loss", "bits": "bits per token"}


def metric_of(rows: Rows) -> str:
    """Return the metric of a section: bits (tokens), accuracy (classes), or else the loss."""
    for name in ("bits", "accuracy"):
        if all(name in row for row in rows):
            return name
    return "loss"


def table(section: Section, rows: Rows) -> str:
    """Return the table of a section, with its variants in their listed order."""
    metric = metric_of(rows)
    scale, digits = (100.0, 2) if metric == "accuracy" else (1.0, 4)
    heads = ["variant", NAMES[metric], *section.further, "seeds", "to the first row", "parameters"]
    by_variant: dict[str, Rows] = {}
    for name in section.variants:
        of_variant = [row for row in rows if row["variant"] == name]
        if of_variant:
            by_variant[name] = of_variant

    lines = []
    first = next(iter(by_variant))
    for name, runs in by_variant.items():
        scores = [spread((run[metric] for run in runs), scale, digits)]
        for label in section.further:
            scores.append(spread((run[label] for run in runs if label in run), scale, digits))

        gap = ""
        if name != first:
            differences = paired(rows, name, first, metric)
            gap = spread(differences, scale, digits) if differences else ""
        if gap and not gap.startswith("-"):
            gap = f"+{gap}"
        lines.append((name, *scores, len(runs), gap, f"{runs[0]['parameters']:,}"))
    return as_table(heads, lines)


def setting(section: Section) -> str:
    """Return the command that trains a section's models."""
    return f"`fredholm train {' '.join([section.recipe, *section.common])}`"


def speed(found: dict[str, Any]) -> str:
    """Return the section on time and memory of the evaluation modes."""
    heads = "mode", "direction", "N", "ms", "peak MB", "exponent in time", "in memory"
    lines = []
    for curve in found["curves"]:
        name = curve["mode"], curve["direction"]
        powers = [curve["exponent"][what] for what in ("milliseconds", "megabytes")]
        slopes = ["" if power is None else f"{power:.2f}" for power in powers]
        for row in curve["rows"]:
            time, size = f"{row['milliseconds']:.1f}", show_megabytes(row["megabytes"])
            lines.append((*name, f"{row['n']:,}", time, size, *slopes))
            # Only the first line of a curve has its exponents.
            slopes = ["", ""]
        if curve["left_out"]:
            missing = ", ".join(f"{n:,}" for n in curve["left_out"])
            lines.append(
                (
                    *name,
                    missing,
                    "omitted: over the limit, or fewer points than samples",
                    "",
                    "",
                    "",
                )
            )
    sizes = found["setting"]
    about = (
        f"One block of width {sizes['dim']}, {sizes['heads']} heads, kernel width "
        f"{sizes['width']}, batch 1, float32, "
        f"{sizes['threads']} threads. Steps of more than {sizes['limit']:g} s are omitted. "
        f"{machine_line(found['machine'])}"
    )
    picture = "![Time and memory against N](itnet-modes.png)"
    parts = (
        "## Speed and memory",
        about,
        picture,
        as_table(heads, lines),
        crossover(found["curves"]),
    )
    return "\n\n".join(parts) + "\n"


def crossover(curves: list[dict[str, Any]]) -> str:
    """List for each mode the N from which it is faster than softmax attention in the same block."""
    by_direction: dict[str, dict[str, dict[int, float]]] = {}
    for curve in curves:
        times = {row["n"]: row["milliseconds"] for row in curve["rows"]}
        by_direction.setdefault(curve["direction"], {})[curve["mode"]] = times

    lines = []
    for direction, modes in by_direction.items():
        softmax = modes.pop("SDPA", {})
        for mode, times in modes.items():
            shared = [n for n in times if n in softmax]
            if not shared:
                continue
            where = f"slower than softmax attention at every N up to {max(shared):,}"
            first = stays_below(times, softmax)
            if first is not None:
                where = f"faster than softmax attention from N = {first:,} on"
            lines.append(f"- {mode}, {direction}: {where}.")
    return "\n".join(lines)


def current(found: dict[str, Rows]) -> dict[str, Rows]:
    """Return the rows with a section's present settings, which alone are comparable."""
    rows = {}
    for name, section in SECTIONS.items():
        rows[name] = [row for row in found.get(name, []) if section.has(row)]
    return rows


def minutes(found: dict[str, Any]) -> str:
    """Return the section on the duration of each recipe on the machine that was measured."""
    heads = (
        "recipe",
        "parameters",
        "samples",
        "epochs",
        "steps",
        "seconds per step",
        "total minutes",
    )
    lines = []
    for row in found["rows"]:
        counts = [row[key] for key in ("parameters", "samples", "epochs", "steps")]
        times = f"{row['seconds_per_step']:.3f}", f"{row['minutes']:.1f}"
        lines.append((f"`{row['recipe']}`", *(f"{n:,}" for n in counts), *times))
    about = (
        "These are the recipes without the changes of the tables above. The estimate is the median time of a step times "
        "the number of steps, plus validation. `python -m evidence time itnet recipes`. "
    )
    title = f"## Minutes of the recipes\n\n{about}{machine_line(found['machine'])}"
    return f"{title}\n\n{as_table(heads, lines)}\n"


def results() -> dict[str, Rows]:
    """Return all results that the claims are judged by."""
    return current(sections("itnet.json")) | {"spectrum": spectrum.found()}


def page() -> str:
    """Return the text of the page."""
    found = results()
    parts = [head("Results: ITNet", "itnet", "itnet.json") + ABOUT]
    parts.append(claims_section(CLAIMS, found, load("itnet.json")))
    for name, section in SECTIONS.items():
        if found[name]:
            quoted = json.dumps(name) if " " in name else name
            command = f"`python -m evidence run itnet sections --only {quoted}`"
            text = f"One run: {setting(section)}. The table: {command}."
            body = [text, table(section, found[name]), section.at_an_end(found[name])]
            parts.append("\n\n".join([f"## {section.title}", *filter(None, body)]) + "\n")
    about = "Share of the squared Frobenius norm of K, over all pairs of points, that a matrix of each rank can represent, in percent."
    title = "## Singular values of trained kernels"
    parts.append(f"{title}\n\n{about} {spectrum.section_text()}\n")
    parts.append(f"## A fresh stack\n\n{start.section_text()}\n")
    recipes, modes = load("itnet-recipes.json"), load("itnet-modes.json")
    if recipes:
        parts.append(minutes(recipes))
    if modes:
        parts.append(speed(modes))
    return "\n".join(parts)
