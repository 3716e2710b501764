"""``python -m benchmarks.itnet_report``: docs/results/itnet.md from the committed results of ``python -m benchmarks.itnet_ablations``."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .itnet_ablations import RESULTS, read
from .itnet_claims import CLAIMS, Rows, paired
from .itnet_sections import SECTIONS, Section

HEAD = """# Results: ITNet

<!-- Written by `python -m benchmarks.itnet_report` from docs/results/itnet.json; edit the scripts, not this page. -->

Small models on a processor, not the paper's sizes: what is compared is the order of variants, never the level. Every row is a mean over
seeds ± the sample standard deviation, on the test split; *to the first row* is the mean difference over the seeds that both have, ± its
standard error. A claim counts as reproduced, or as contradicted, where the difference is beyond two standard errors over at least three
seeds; else it is open.
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
    lines = [f"| variant | {NAMES[metric]} | seeds | to the first row | parameters |", "|---|---|---|---|---|"]
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
        lines.append(f"| {name} | {score} | {len(mine)} | {apart} | {mine[0]['parameters']:,} |")
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


def page(found: dict[str, Rows]) -> str:
    """The whole page."""
    parts = [HEAD, "## Claims\n\n" + claims(found) + "\n"]
    for name, section in SECTIONS.items():
        rows = [row for row in found.get(name, []) if row["variant"] in section.variants]
        if not rows:
            continue
        command = f"`python -m benchmarks.itnet_ablations {name}`"
        parts.append(f"## {section.title}\n\n{setting(section)}; the table by {command}.\n\n{table(section, rows)}\n")
    return "\n".join(parts)


def main(path: Path = RESULTS) -> None:
    found: dict[str, list[dict[str, Any]]] = read(path)
    path.with_suffix(".md").write_text(page(found), encoding="utf-8")
    print(f"written to {path.with_suffix('.md')}")


if __name__ == "__main__":
    main()
