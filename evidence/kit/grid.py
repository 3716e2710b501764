"""Trained evidence: sections of variants, and files of results that grow row by row.

A row of a committed file is not computed again. What is missing is a cell of
:class:`fredholm.lab.training.grid.Grid`: resumed where it stopped, shared between processes, and added
to the file as soon as it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from fredholm.files import digest_json
from fredholm.lab.training.grid import Cell, Grid, Report, recipe_cell, scores_of, trained
from fredholm.training import evaluate, load_recipe

from .answers import answers_of
from .page import load, save
from .subject import Options

Row = dict[str, Any]
SHOWN = (
    "accuracy", "loss", "n", "bits", "pearson", "spearman", "absolute_error", "variance", "f1", "matthews",
)  # fmt: skip


# --- a file of results ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of one file of results.

    Attributes:
        file: its name in the folder of results.
        identity: fields that make two rows the same one.
        part: where the rows lie in the file: keys from its root; none: the file is the list.
    """

    file: str
    identity: tuple[str, ...]
    part: tuple[str, ...] = ("runs",)

    def rows(self, folder: Path) -> list[Row]:
        """The rows so far, their overrides by today's keys."""
        found: Any = load(self.file, folder) or ({} if self.part else [])
        for key in self.part:
            found = found.get(key, {} if key != self.part[-1] else [])
        return found

    def has(self, row: Row, folder: Path) -> bool:
        return any(self._same(row, old) for old in self.rows(folder))

    def add(self, new: Iterable[Row], folder: Path, **about: Any) -> None:
        """Put rows into the file, in the place of older ones that are the same, and what is said
        ``about`` all; another process may be adding to it as well.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{self.file}.lock"):
            rows = self.rows(folder)
            for row in new:
                rows = [old for old in rows if not self._same(row, old)] + [row]
            whole: Any = load(self.file, folder) or {}
            if self.part:
                place = whole
                for key in self.part[:-1]:
                    place = place.setdefault(key, {})
                place[self.part[-1]] = rows
                whole |= about
            save(whole if self.part else rows, self.file, folder)

    def _same(self, one: Row, other: Row) -> bool:
        return all(one[key] == other[key] for key in self.identity)


def fill(
    table: Table,
    rows: Iterable[Row],
    work: Callable[[Cell, Report], Row],
    cell: Callable[[Row], Cell],
    options: Options,
    **about: Any,
) -> None:
    """Compute what a table lacks: ``cell(row)`` of each of these ``rows``, by ``work``.

    Several processes may do so at once: none waits for the others until all that is left is at work
    in them. The work returns what is added to the row, or ``{"rows": [...]}`` with what is added to each of
    several. Rows that cannot be computed are named at the end.

    Raises:
        SystemExit: some failed; the same command tries them again.
    """
    grid, end, failed = Grid(work, say), time.monotonic() + 60 * options.minutes, []
    if load(table.file, options.results) is None:  # claims are named before the first run
        about["primary"] = list(options.primary)
    missing = [(cell(row), row) for row in rows if not table.has(row, options.results)]
    row_of = {id(one): row for one, row in missing}
    for one, found in grid.share([one for one, _ in missing]):
        row = row_of[id(one)]
        label = ", ".join(str(row[key]) for key in table.identity if not isinstance(row[key], list))
        if "error" in found:
            say(f"{label}: {found['error']}")
            failed.append(label)
        elif not table.has(row, options.results):
            parts = found.get("rows", [found])
            table.add([row | part for part in parts], options.results, **about)
            say(label)
        if time.monotonic() > end:
            return
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}; the same command tries them again")


def say(line: str) -> None:
    print(line, flush=True)


# --- sections of trained runs ---------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A table: ``variants`` name the rows, each with its overrides of ``recipe`` beyond those that
    are ``common``; ``further``: a column, and how every trained run is evaluated once more for it.
    ``seeds`` is how many seeds each variant has, from ``first`` on: a section whose seeds are fresh
    begins above those of an earlier look.

    ``choices``: further overrides of a variant, such as learning rates, of which it has the one
    that does best on validation with the first seed; ``brief``: how what is trained to choose is
    cut short.
    """

    title: str
    recipe: str
    common: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    seeds: int = 3
    further: dict[str, tuple[str, ...]] = field(default_factory=dict)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    brief: tuple[str, ...] = ()
    first: int = 0

    def plan(self, seeds: int, chosen: dict[str, str] | None = None) -> Iterator[Row]:
        """The runs, seed by seed, so that a part of them compares all variants."""
        for seed in range(self.first, self.first + seeds):
            for variant in self.variants:
                own = (chosen or {}).get(variant)
                yield self.row(variant, own) | {"seed": seed}

    def tries(self) -> Iterator[Row]:
        """What is trained to choose."""
        for variant, choices in self.choices.items():
            yield from (self.trial(variant, choice) | {"seed": 0} for choice in choices)

    def trial(self, variant: str, choice: str) -> Row:
        """One of them: the variant with the choice, cut short."""
        row = self.row(variant, choice)
        return row | {"overrides": [*row["overrides"], *self.brief]}

    def row(self, variant: str, choice: str | None = None) -> Row:
        overrides = [*self.common, *self.variants[variant], *([choice] if choice else [])]
        return {"variant": variant, "recipe": self.recipe, "overrides": overrides}

    def has(self, row: Row) -> bool:
        """Whether a row was run with the present settings, whatever was chosen."""
        variant = row["variant"]
        if variant not in self.variants:
            return False
        choices = self.choices.get(variant, (None,))
        return any(row["overrides"] == self.row(variant, one)["overrides"] for one in choices)

    def complete(self, found: Iterable[Row]) -> bool:
        """Return whether every variant was run with all of the section's seeds."""
        rows = self.by_variant(found)
        seeds = set(range(self.first, self.first + self.seeds))
        return all(seeds <= {row["seed"] for row in rows.get(name, [])} for name in self.variants)

    def by_variant(self, found: Iterable[Row]) -> dict[str, list[Row]]:
        """The rows with the present settings of each variant that has any, in the section's order."""
        mine = [row for row in found if self.has(row)]
        rows = {name: [row for row in mine if row["variant"] == name] for name in self.variants}
        return {name: own for name, own in rows.items() if own}


def section_table(file: str, name: str, part: str = "sections") -> Table:
    """The rows of one section, or of what it tried (``tuning``)."""
    return Table(file, ("variant", "seed", "recipe", "overrides"), (part, name))


def sections(file: str, folder: Path | None = None) -> dict[str, list[Row]]:
    """The rows of every section of a file, their overrides by today's keys."""
    found = load(file, folder) if folder else load(file)
    return (found or {}).get("sections", {})


def label_of(name: str, row: Row) -> str:
    """The name of a run, and of its folder."""
    label = f"{name}-{row['variant']}-{row['seed']}".replace(" ", "-")
    return "".join(c for c in label if c.isalnum() or c in "._=+-")


def run_sections(
    known: dict[str, Section],
    file: str,
    options: Options,
    also: Callable[[Cell], Row] | None = None,
) -> None:
    """Train what is missing of the sections in ``options.only`` (all, where none is named);
    ``also``: what else is measured of every trained run.
    """
    for name in options.chosen(known):
        section = known[name]

        def cell(row: Row, name: str = name, section: Section = section, stage: str = "") -> Cell:
            label = label_of(name, row)
            if section.choices.get(row["variant"]):
                label += f"-{digest_json(row['overrides'])[:6]}"
            own = [*row["overrides"], *options.trial, f"seed={row['seed']}", f"name={label}"]
            cell = recipe_cell(load_recipe(row["recipe"], own), options.runs / label)
            return replace(cell, settings=cell.settings | {"stage": stage}) if stage else cell

        def work(cell: Cell, report: Report, section: Section = section) -> Row:
            facts, scores = scores_of(cell, report, each=True)
            found = facts | {key: scores[key] for key in SHOWN if key in scores}
            answers = answers_of(scores)
            for label, overrides in section.further.items():
                other = evaluate(cell.place, overrides=list(overrides), each=True)
                found[label] = other.get("accuracy", other["loss"])
                answers |= answers_of(other, label)
            found["answers"] = answers
            more = also(cell) if also else {}
            found["answers"] |= more.pop("answers", {})
            return found | more | {"threads": torch.get_num_threads()}

        tried = section_table(file, name, "tuning")
        fill(tried, section.tries(), validated, partial(cell, stage="validation"), options)
        chosen = best_choices(section, tried.rows(options.results))
        rows = section.plan(options.seeds or section.seeds, chosen)
        fill(section_table(file, name), rows, work, cell, options)


def validated(cell: Cell, report: Report) -> Row:
    """Train, and look at validation alone; the test split is read when the choice is made."""
    facts, found = trained(cell, report), evaluate(cell.place, "val")
    return facts | {key: found[key] for key in ("accuracy", "loss") if key in found}


def best_choices(section: Section, tried: list[Row]) -> dict[str, str]:
    """The choice of each variant with the best validation: by accuracy, where there is one; of
    equal ones, the one with the smaller loss.

    Raises:
        SystemExit: a variant's choices were not all tried.
    """
    chosen = {}
    for variant, choices in section.choices.items():
        found: dict[str, tuple[float, float]] = {}
        for choice in choices:
            for row in tried:
                if row["overrides"] == section.trial(variant, choice)["overrides"]:
                    found[choice] = row.get("accuracy", 0.0), -row["loss"]
        if set(found) != set(choices):
            raise SystemExit(f"{variant}: not all choices were tried; the same command goes on")
        chosen[variant] = max(found, key=lambda choice: found[choice])
    return chosen
