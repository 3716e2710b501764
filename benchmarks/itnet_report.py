"""``python -m benchmarks.itnet_report``: docs/results/itnet.md from the committed results of
``python -m benchmarks.itnet_ablations``.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from .itnet_ablations import RESULTS
from .itnet_claims import CLAIMS, Rows, paired
from .itnet_sections import SECTIONS
from .report import machine_line
from .sections import Section, read

HEAD = """# Results: ITNet

<!-- Written by `python -m benchmarks.itnet_report` from docs/results/itnet.json; edit the scripts, not this page. -->

Small models on a processor, not the paper's sizes: what is compared is the order of variants, never the level. Every row is a mean over
seeds ± the sample standard deviation, on the test split; *to the first row* is the mean difference over the seeds that both have, ± its
standard error. A claim counts as reproduced, or as contradicted, where the difference is beyond two standard errors over at least three
seeds; else it is open. That something gains nothing, or little, means at most one point.
"""
PERCENT = {"accuracy"}
NAMES = {"accuracy": "test accuracy (%)", "loss": "test loss", "bits": "bits a token"}


def metric_of(rows: Rows) -> str:
    """What a section is about: bits of a model of tokens, accuracy of classes, else the loss."""
    return next((name for name in ("bits", "accuracy") if all(name in row for row in rows)), "loss")


def spread(values: list[float], metric: str) -> str:
    """Mean ± sample standard deviation."""
    scale, digits = (100.0, 2) if metric in PERCENT else (1.0, 4)
    text = f"{scale * statistics.mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {scale * statistics.stdev(values):.{digits}f}"


def table(section: Section, rows: Rows) -> str:
    """One section, its variants in the order they are listed in."""
    metric = metric_of(rows)
    heads = ["variant", NAMES[metric], *section.further, "seeds", "to the first row", "parameters"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    first = next(name for name in section.variants if any(row["variant"] == name for row in rows))
    for name in section.variants:
        mine = [row for row in rows if row["variant"] == name]
        if not mine:
            continue
        found = None if name == first else paired(rows, name, first, metric)
        apart = ""
        if found is not None:
            scale, digits = (100.0, 2) if metric in PERCENT else (1.0, 4)
            error = "" if found.error is None else f" ± {scale * found.error:.{digits}f}"
            apart = f"{scale * found.difference:+.{digits}f}{error}"
        score = spread([row[metric] for row in mine], metric)
        more = [
            spread([row[label] for row in mine if label in row], metric)
            for label in section.further
        ]
        cells = [name, score, *more, str(len(mine)), apart, f"{mine[0]['parameters']:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def setting(section: Section) -> str:
    """How a section's models are trained, as a command."""
    return f"`fredholm train {' '.join([section.recipe, *section.common])}`"


def claims(found: dict[str, Rows]) -> str:
    """Each claim of the paper, what was found, and the verdict."""
    lines = ["| claim | paper | here | verdict |", "|---|---|---|---|"]
    for claim in CLAIMS:
        here, verdict = claim.judge(found)
        lines.append(f"| {claim.text} | {claim.paper} | {here} | {verdict} |")
    return "\n".join(lines)


def speed(found: dict[str, Any]) -> str:
    """Time and memory of the evaluation modes, and where the low-rank one loses to softmax
    attention.
    """
    lines = [
        "| mode | direction | N | ms | peak MB | exponent in time | in memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for curve in found["curves"]:
        slopes = [
            "" if curve["exponent"][what] is None else f"{curve['exponent'][what]:.2f}"
            for what in ("milliseconds", "megabytes")
        ]
        for row in curve["rows"]:
            cells = [
                curve["mode"],
                curve["direction"],
                f"{row['n']:,}",
                f"{row['milliseconds']:.1f}",
                f"{row['megabytes']:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} | {' | '.join(slopes)} |")
            slopes = ["", ""]
        if curve["left_out"]:
            missing = ", ".join(f"{n:,}" for n in curve["left_out"])
            lines.append(
                f"| {curve['mode']} | {curve['direction']} | {missing} | left out: beyond the "
                "limit or below S | | | |"
            )
    sizes = found["setting"]
    about = (
        f"One block of width {sizes['dim']}, {sizes['heads']} heads, kernel width "
        f"{sizes['width']}, batch 1, float32, "
        f"{sizes['threads']} threads; a step of more than {sizes['limit']:g} s is left out. "
        f"{machine_line(found['machine'])}"
    )
    picture = "![Time and memory against N](itnet-modes.png)"
    return (
        f"## Speed and memory\n\n{about}\n\n{picture}\n\n"
        + "\n".join(lines)
        + "\n\n"
        + crossover(found["curves"])
        + "\n"
    )


def crossover(curves: list[dict[str, Any]]) -> str:
    """From which N on each mode is faster than softmax attention in the same block."""
    lines = []
    for direction in dict.fromkeys(curve["direction"] for curve in curves):
        times = {
            c["mode"]: {r["n"]: r["milliseconds"] for r in c["rows"]}
            for c in curves
            if c["direction"] == direction
        }
        base = times.get("SDPA", {})
        for mode, mine in times.items():
            shared = [n for n in mine if n in base]
            if mode == "SDPA" or not shared:
                continue
            slower = [n for n in shared if mine[n] > base[n]]
            faster = [n for n in shared if n > max(slower, default=0)]
            where = (
                f"faster from N = {faster[0]:,} on"
                if faster
                else f"slower at every N up to {max(shared):,}"
            )
            lines.append(f"- {mode}, {direction}: {where}, against softmax attention.")
    return "\n".join(lines)


def current(found: dict[str, Rows]) -> dict[str, Rows]:
    """The rows that were run with a section's present settings; others are of older ones and are
    not compared with them.
    """
    kept = {}
    for name, section in SECTIONS.items():
        wanted = {
            variant: [*section.common, *overrides]
            for variant, overrides in section.variants.items()
        }
        kept[name] = [
            row for row in found.get(name, []) if row["overrides"] == wanted.get(row["variant"])
        ]
    return kept


def minutes(found: dict[str, Any]) -> str:
    """How long each recipe takes on the machine that was measured."""
    lines = [
        "| recipe | parameters | samples | epochs | steps | seconds a step | minutes in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        counts = (row["samples"], row["epochs"], row["steps"])
        cells = [f"`{row['recipe']}`", f"{row['parameters']:,}", *(f"{n:,}" for n in counts)]
        lines.append(
            f"| {' | '.join(cells)} | {row['seconds_per_step']:.3f} | {row['minutes']:.1f} |"
        )
    about = "The recipes as they stand, not those of the tables above: the median step's time, times all steps, and the validations."
    command = "`python -m benchmarks.itnet_recipes`"
    return (
        f"## Minutes of the recipes\n\n{about} {command}. {machine_line(found['machine'])}\n\n"
        + "\n".join(lines)
        + "\n"
    )


def page(
    found: dict[str, Rows],
    modes: dict[str, Any] | None = None,
    recipes: dict[str, Any] | None = None,
) -> str:
    """The whole page."""
    found = current(found)
    parts = [HEAD, "## Claims\n\n" + claims(found) + "\n"]
    for name, section in SECTIONS.items():
        rows = found[name]
        if not rows:
            continue
        command = f"`python -m benchmarks.itnet_ablations {name}`"
        parts.append(
            f"## {section.title}\n\n{setting(section)}; the table by "
            f"{command}.\n\n{table(section, rows)}\n"
        )
    if recipes is not None:
        parts.append(minutes(recipes))
    if modes is not None:
        parts.append(speed(modes))
    return "\n".join(parts)


def beside(name: str, path: Path = RESULTS) -> dict[str, Any] | None:
    """What another command measured (``itnet-modes``, ``itnet-recipes``), where it has been run."""
    place = path.with_name(f"{name}.json")
    return json.loads(place.read_text(encoding="utf-8")) if place.is_file() else None


def main(path: Path = RESULTS) -> None:
    found: dict[str, list[dict[str, Any]]] = read(path)
    text = page(found, beside("itnet-modes", path), beside("itnet-recipes", path))
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"written to {path.with_suffix('.md')}")


if __name__ == "__main__":
    main()
