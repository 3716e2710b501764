"""Tables of trained runs: a recipe, what all its runs change, the variants compared, and the runner
that fills a file of results.

Each run is trained, evaluated on the test split and added to the file at once; rows that are there
are not run again, an unfinished run is resumed, and several processes may share the work.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fredholm.files import write_json
from fredholm.models.migrate import migrate_override
from fredholm.training import evaluate, load_recipe, train
from fredholm.training.folder import RunFolder

SHOWN = (
    "accuracy",
    "loss",
    "n",
    "bits",
    "pearson",
    "spearman",
    "absolute_error",
    "variance",
    "f1",
    "matthews",
)


@dataclass(frozen=True)
class Section:
    """A table: ``variants`` name the rows, each with its overrides of ``recipe`` beyond those that
    are ``common``.
    """

    title: str
    recipe: str
    common: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    seeds: int = 3
    further: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # a column: how every trained run is evaluated once more


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every section so far, their overrides by today's keys."""
    if not path.is_file():
        return {}
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return {name: [_today(row) for row in rows] for name, rows in sections.items()}


def _today(row: dict[str, Any]) -> dict[str, Any]:
    if "overrides" not in row:
        return row
    return row | {"overrides": [migrate_override(text) for text in row["overrides"]]}


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


def label_of(name: str, row: dict[str, Any]) -> str:
    """The name of a run, and of its folder."""
    label = f"{name}-{row['variant']}-{row['seed']}".replace(" ", "-")
    return "".join(c for c in label if c.isalnum() or c in "._=+-")


@contextmanager
def claimed(lock: Path, wait: bool = False) -> Iterator[bool]:
    """Whether this process holds the lock: several may share the work."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def run(
    name: str, row: dict[str, Any], runs: Path, further: dict[str, tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """Train and evaluate one run; the row with its numbers, and those of ``further`` evaluations by
    their names.
    """
    label = label_of(name, row)
    recipe = load_recipe(row["recipe"], [*row["overrides"], f"seed={row['seed']}", f"name={label}"])
    place = RunFolder(runs / label)
    resume = place.finished or any(place.checkpoints.glob("step-*.ckpt"))
    done = train(
        recipe,
        place.root,
        resume,
        overwrite=place.started and not resume,
        report=lambda x: print(x, flush=True),
    )
    found = evaluate(place.root)
    scores = {name: found[name] for name in SHOWN if name in found}
    for label, overrides in (further or {}).items():
        other = evaluate(place.root, overrides=overrides)
        scores[label] = other.get("accuracy", other["loss"])
    facts = {"parameters": done.parameters, "epochs": done.epochs, "minutes": done.minutes}
    return {**row, **scores, **facts, "threads": torch.get_num_threads()}


def main(sections: dict[str, Section], results: Path, prog: str, text: str | None) -> None:
    """The command line over some sections and the file of their results."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{prog}", description=text)
    parser.add_argument("sections", nargs="+", choices=sorted(sections))
    parser.add_argument("--runs", type=Path, default=Path("runs") / results.stem)
    parser.add_argument("--seeds", type=int, help="of every section (default: its own)")
    parser.add_argument("--out", type=Path, default=results)
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no run after so many minutes"
    )
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    for name in options.sections:
        section = sections[name]
        for row in plan(section, options.seeds or section.seeds):
            if key(row) in {key(old) for old in read(options.out).get(name, [])}:
                continue
            if time.monotonic() > end:
                return
            with claimed(options.runs / f"{label_of(name, row)}.lock") as mine:
                if not mine:  # another process is at it
                    continue
                found = run(name, row, options.runs, section.further)
                add(options.out, name, found)
            score = found.get("accuracy", found["loss"])
            print(f"{name}: {row['variant']} seed {row['seed']}: {score:.4f}", flush=True)
