"""docs/results/itnet.md."""

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

ABOUT = """Small models on a processor, not the paper's sizes: what is compared is the order of variants, never the
level. Every row is a mean over seeds, on the test split; *to the first row* is the difference over the seeds that both
have. That something gains nothing, or little, means at most one point.
"""
NAMES = {"accuracy": "test accuracy (%)", "loss": "test loss", "bits": "bits a token"}


def metric_of(rows: Rows) -> str:
    """What a section is about: bits of a model of tokens, accuracy of classes, else the loss."""
    return next((name for name in ("bits", "accuracy") if all(name in row for row in rows)), "loss")


def table(section: Section, rows: Rows) -> str:
    """One section, its variants in the order they are listed in."""
    metric = metric_of(rows)
    scale, digits = (100.0, 2) if metric == "accuracy" else (1.0, 4)
    heads = ["variant", NAMES[metric], *section.further, "seeds", "to the first row", "parameters"]
    found = {name: [row for row in rows if row["variant"] == name] for name in section.variants}
    found = {name: mine for name, mine in found.items() if mine}
    lines, first = [], next(iter(found))
    for name, mine in found.items():
        apart = paired(rows, name, first, metric) if name != first else []
        gap = spread(apart, scale, digits) if apart else ""
        shown = [[row[label] for row in mine if label in row] for label in section.further]
        scores = [spread(values, scale, digits) for values in ([r[metric] for r in mine], *shown)]
        sign = "+" if gap and not gap.startswith("-") else ""
        lines.append((name, *scores, len(mine), sign + gap, f"{mine[0]['parameters']:,}"))
    return as_table(heads, lines)


def setting(section: Section) -> str:
    """How a section's models are trained, as a command."""
    return f"`fredholm train {' '.join([section.recipe, *section.common])}`"


def speed(found: dict[str, Any]) -> str:
    """Time and memory of the evaluation modes, and where the low-rank one loses to softmax
    attention.
    """
    heads = "mode", "direction", "N", "ms", "peak MB", "exponent in time", "in memory"
    lines = []
    for curve in found["curves"]:
        name = curve["mode"], curve["direction"]
        powers = [curve["exponent"][what] for what in ("milliseconds", "megabytes")]
        slopes = ["" if power is None else f"{power:.2f}" for power in powers]
        for row in curve["rows"]:
            time, size = f"{row['milliseconds']:.1f}", show_megabytes(row["megabytes"])
            lines.append((*name, f"{row['n']:,}", time, size, *slopes))
            slopes = ["", ""]
        if curve["left_out"]:
            missing = ", ".join(f"{n:,}" for n in curve["left_out"])
            lines.append((*name, missing, "left out: beyond the limit or below S", "", "", ""))
    sizes = found["setting"]
    about = (
        f"One block of width {sizes['dim']}, {sizes['heads']} heads, kernel width "
        f"{sizes['width']}, batch 1, float32, "
        f"{sizes['threads']} threads; a step of more than {sizes['limit']:g} s is left out. "
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
    """From which N on each mode is faster than softmax attention in the same block."""
    lines = []
    for direction in dict.fromkeys(curve["direction"] for curve in curves):
        times = {
            c["mode"]: {r["n"]: r["milliseconds"] for r in c["rows"]}
            for c in curves
            if c["direction"] == direction
        }
        base = times.pop("SDPA", {})
        for mode, mine in times.items():
            shared = [n for n in mine if n in base]
            if not shared:
                continue
            first = stays_below(mine, base)
            slower = f"slower at every N up to {max(shared):,}"
            where = slower if first is None else f"faster from N = {first:,} on"
            lines.append(f"- {mode}, {direction}: {where}, against softmax attention.")
    return "\n".join(lines)


def current(found: dict[str, Rows]) -> dict[str, Rows]:
    """The rows that were run with a section's present settings; others are of older ones and are
    not compared with them.
    """
    kept = {}
    for name, section in SECTIONS.items():
        kept[name] = [row for row in found.get(name, []) if section.has(row)]
    return kept


def minutes(found: dict[str, Any]) -> str:
    """How long each recipe takes on the machine that was measured."""
    heads = "recipe", "parameters", "samples", "epochs", "steps", "seconds a step", "minutes in all"
    lines = []
    for row in found["rows"]:
        counts = [row[key] for key in ("parameters", "samples", "epochs", "steps")]
        times = f"{row['seconds_per_step']:.3f}", f"{row['minutes']:.1f}"
        lines.append((f"`{row['recipe']}`", *(f"{n:,}" for n in counts), *times))
    about = (
        "The recipes as they stand, not those of the tables above: the median step's time, times all "
        "steps, and the validations. `python -m evidence time itnet recipes`. "
    )
    title = f"## Minutes of the recipes\n\n{about}{machine_line(found['machine'])}"
    return f"{title}\n\n{as_table(heads, lines)}\n"


def results() -> dict[str, Rows]:
    """All that the claims are judged by."""
    return current(sections("itnet.json")) | {"spectrum": spectrum.found()}


def page() -> str:
    """The whole page."""
    found = results()
    parts = [head("Results: ITNet", "itnet", "itnet.json") + ABOUT]
    parts.append(claims_section(CLAIMS, found, load("itnet.json")))
    for name, section in SECTIONS.items():
        if found[name]:
            quoted = json.dumps(name) if " " in name else name
            command = f"`python -m evidence run itnet sections --only {quoted}`"
            text = f"{setting(section)}; the table by {command}."
            parts.append(f"## {section.title}\n\n{text}\n\n{table(section, found[name])}\n")
    about = "Share of the squared Frobenius norm of K on all pairs of points, percent, by rank."
    title = "## Singular values of trained kernels"
    parts.append(f"{title}\n\n{about} {spectrum.section_text()}\n")
    parts.append(f"## A fresh stack\n\n{start.section_text()}\n")
    recipes, modes = load("itnet-recipes.json"), load("itnet-modes.json")
    parts += [minutes(recipes)] if recipes else []
    parts += [speed(modes)] if modes else []
    return "\n".join(parts)
