"""Evidence on ITNet: ``python -m benchmarks.itnet_ablations SECTION ... [--runs runs/itnet] [--seeds N]``.

Trains a recipe with each variant's overrides and each seed, evaluates it on the test split and adds a row to docs/results/itnet.json
after every run; rows that are there are not run again, and an unfinished run is resumed. Sections are listed in
``benchmarks/itnet_sections.py``; ``python -m benchmarks.itnet_report`` writes the page from the file.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fredholm.training import evaluate, load_recipe, train
from fredholm.training.callbacks import write_json
from fredholm.training.folder import RunFolder

from .itnet_sections import SECTIONS, Section

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "itnet.json"
SHOWN = ("accuracy", "loss", "n", "bits", "pearson", "spearman", "absolute_error", "variance", "f1", "matthews")


def read(path: Path = RESULTS) -> dict[str, list[dict[str, Any]]]:
    """The rows of every section so far."""
    return json.loads(path.read_text(encoding="utf-8"))["sections"] if path.is_file() else {}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two runs the same run."""
    return row["variant"], row["seed"], row["recipe"], tuple(row["overrides"])


def add(path: Path, section: str, row: dict[str, Any]) -> None:
    """Put one row into the file, which another process may be writing to as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read(path)
        rows = [old for old in found.get(section, []) if key(old) != key(row)]
        write_json(path, {"sections": found | {section: [*rows, row]}})
    finally:
        os.close(lock)  # and with it the lock


def plan(section: Section, seeds: int) -> Iterator[dict[str, Any]]:
    """The runs of a section, seed by seed, so that a part of them compares all variants."""
    for seed in range(seeds):
        for variant, overrides in section.variants.items():
            chosen = [*section.common, *overrides]
            yield {"variant": variant, "seed": seed, "recipe": section.recipe, "overrides": chosen}


def run(
    name: str, row: dict[str, Any], runs: Path, further: dict[str, tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """Train and evaluate one run; the row with its numbers, and those of ``further`` evaluations by their names."""
    label = f"{name}-{row['variant']}-{row['seed']}".replace(" ", "-")
    label = "".join(c for c in label if c.isalnum() or c in "._=+-")
    recipe = load_recipe(row["recipe"], [*row["overrides"], f"seed={row['seed']}", f"name={label}"])
    place = RunFolder(runs / label)
    resume = place.finished or any(place.checkpoints.glob("step-*.ckpt"))
    done = train(
        recipe, place.root, resume, overwrite=place.started and not resume, report=lambda x: print(x, flush=True)
    )
    found = evaluate(place.root)
    scores = {name: found[name] for name in SHOWN if name in found}
    for label, overrides in (further or {}).items():
        other = evaluate(place.root, overrides=overrides)
        scores[label] = other.get("accuracy", other["loss"])
    return {**row, **scores, "parameters": done.parameters, "epochs": done.epochs, "threads": torch.get_num_threads()}


def main(
    sections: dict[str, Section] = SECTIONS,
    results: Path = RESULTS,
    prog: str = "itnet_ablations",
    text: str | None = __doc__,
) -> None:
    """The command line over some sections and the file of their results."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{prog}", description=text)
    parser.add_argument("sections", nargs="+", choices=sorted(sections))
    parser.add_argument("--runs", type=Path, default=Path("runs") / results.stem)
    parser.add_argument("--seeds", type=int, help="of every section (default: its own)")
    parser.add_argument("--out", type=Path, default=results)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many minutes")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    for name in options.sections:
        section = sections[name]
        for row in plan(section, options.seeds or section.seeds):
            if key(row) in {key(old) for old in read(options.out).get(name, [])}:
                continue
            if time.monotonic() > end:
                return
            found = run(name, row, options.runs, section.further)
            add(options.out, name, found)
            print(
                f"{name}: {row['variant']} seed {row['seed']}: {found.get('accuracy', found['loss']):.4f}", flush=True
            )


if __name__ == "__main__":
    main()
