"""Trained evidence: sections of variants, and files of results that grow row by row.

A row of a committed file is not computed again. A missing one is a cell of
:class:`fredholm.lab.training.grid.Grid`: several processes share the cells, an interrupted one
continues, and a finished one is added to the file at once.
"""

from __future__ import annotations

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
from .page import at_an_end, load, save
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
        part: keys from the file's root to the list of rows; empty if the file is that list.
    """

    file: str
    identity: tuple[str, ...]
    part: tuple[str, ...] = ("runs",)

    def rows(self, folder: Path) -> list[Row]:
        """Return the rows so far."""
        found: Any = load(self.file, folder)
        if not self.part:
            return found or []

        found = found or {}
        for key in self.part[:-1]:
            found = found.get(key, {})
        return found.get(self.part[-1], [])

    def has(self, row: Row, folder: Path) -> bool:
        return any(self._same(row, old) for old in self.rows(folder))

    def add(self, new: Iterable[Row], folder: Path, **about: Any) -> None:
        """Add rows to the file, replacing older ones with the same identity.

        ``about`` are further fields at the file's root. Other processes may add rows at the same
        time.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{self.file}.lock"):
            rows = self.rows(folder)
            for row in new:
                rows = [old for old in rows if not self._same(row, old)] + [row]
            if not self.part:
                save(rows, self.file, folder)
                return

            root: Any = load(self.file, folder) or {}
            parent = root
            for key in self.part[:-1]:
                parent = parent.setdefault(key, {})
            parent[self.part[-1]] = rows
            save(root | about, self.file, folder)

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
    """Compute the rows that a table lacks and add each to its file as soon as it is done.

    Several processes may do so at once. One waits for the others only when they are computing all
    remaining cells.

    Args:
        table: the rows so far, and their file.
        rows: all rows that the table should have, with their identity.
        work: computes a cell. It returns the fields to add to the row, or ``{"rows": [...]}`` with
            the fields of several rows that replace it.
        cell: maps a row to its cell.
        options: of the command line.
        about: further fields at the file's root.

    Raises:
        SystemExit: some rows failed; the same command tries them again.
    """
    if options.is_over:
        return
    grid = Grid(work, say)
    failed: list[str] = []

    # A new file gets the names of the primary claims, which are thereby named before any run.
    if load(table.file, options.results) is None:
        about["primary"] = list(options.primary)

    cells: list[Cell] = []
    row_of: dict[int, Row] = {}
    for row in rows:
        if not table.has(row, options.results):
            cells.append(cell(row))
            row_of[id(cells[-1])] = row

    for one, found in grid.share(cells):
        row = row_of[id(one)]
        # Lists, such as overrides, are too long for a label.
        identity = [row[key] for key in table.identity]
        label = ", ".join(str(value) for value in identity if not isinstance(value, list))
        if "error" in found:
            say(f"{label}: {found['error']}")
            failed.append(label)
        elif not table.has(row, options.results):
            parts = found.get("rows", [found])
            table.add([row | part for part in parts], options.results, **about)
            say(label)
        if options.is_over:
            return
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}; the same command tries them again")


def say(line: str) -> None:
    print(line, flush=True)


# --- sections of trained runs ---------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """Variants of a recipe, each trained with several seeds.

    Attributes:
        title: of the section in the page.
        recipe: name or file.
        common: overrides of all variants.
        variants: a variant's name to its further overrides.
        seeds: number of seeds per variant.
        further: a column's name to the overrides with which every trained run is evaluated again.
        choices: a variant to alternatives of one override, such as learning rates. The one that is
            best on validation with seed 0 is used.
        brief: overrides that shorten the runs for choosing.
        first: the first seed. Fresh seeds begin above those of an earlier look.
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
        """Yield the runs seed by seed, so that an interrupted grid still compares all variants.

        ``chosen`` maps a variant to the override from its ``choices``.
        """
        for seed in range(self.first, self.first + seeds):
            for variant in self.variants:
                choice = (chosen or {}).get(variant)
                yield self.row(variant, choice) | {"seed": seed}

    def tries(self) -> Iterator[Row]:
        """Yield the runs for choosing."""
        for variant, choices in self.choices.items():
            for choice in choices:
                yield self.trial(variant, choice) | {"seed": 0}

    def trial(self, variant: str, choice: str) -> Row:
        """Return a shortened run for choosing, without its seed."""
        row = self.row(variant, choice)
        return row | {"overrides": [*row["overrides"], *self.brief]}

    def row(self, variant: str, choice: str | None = None) -> Row:
        """Return a run without its seed."""
        overrides = [*self.common, *self.variants[variant]]
        if choice:
            overrides.append(choice)
        return {"variant": variant, "recipe": self.recipe, "overrides": overrides}

    def has(self, row: Row) -> bool:
        """Return whether a row was run with the present settings and any of the choices."""
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
        """Group the rows with the present settings by variant, in the section's order.

        Variants without rows are left out.
        """
        current = [row for row in found if self.has(row)]
        groups: dict[str, list[Row]] = {}
        for name in self.variants:
            rows = [row for row in current if row["variant"] == name]
            if rows:
                groups[name] = rows
        return groups

    def at_an_end(self, found: Iterable[Row]) -> str:
        """Say which variants chose the first or the last of their choices; may be empty."""
        groups = self.by_variant(found).items()
        # The choice is the last override.
        chosen = {name: rows[0]["overrides"][-1] for name, rows in groups if name in self.choices}
        return at_an_end(chosen, self.choices)


def section_table(file: str, name: str, part: str = "sections") -> Table:
    """Return the table of one section, or with part ``tuning`` that of its runs for choosing."""
    return Table(file, ("variant", "seed", "recipe", "overrides"), (part, name))


def sections(file: str, folder: Path | None = None) -> dict[str, list[Row]]:
    """Return the rows of every section of a file."""
    found = load(file, folder) if folder else load(file)
    return (found or {}).get("sections", {})


def label_of(name: str, row: Row) -> str:
    """Return the name of a run, which is also that of its folder."""
    label = f"{name}-{row['variant']}-{row['seed']}".replace(" ", "-")
    return "".join(c for c in label if c.isalnum() or c in "._=+-")


def run_sections(
    known: dict[str, Section],
    file: str,
    options: Options,
    also: Callable[[Cell], Row] | None = None,
) -> None:
    """Train the missing runs of the selected sections and add them to a file of results.

    Args:
        known: all sections by name.
        file: name of the file of results.
        options: of the command line; ``only`` selects sections.
        also: measures a trained run and returns further fields of its row.
    """
    for name in options.chosen(known):
        section = known[name]
        cell = partial(section_cell, name, section, options)
        work = partial(section_work, section, also)

        tried = section_table(file, name, "tuning")
        fill(tried, section.tries(), validated, partial(cell, stage="validation"), options)
        chosen = best_choices(section, tried.rows(options.results))
        rows = section.plan(options.seeds or section.seeds, chosen)
        fill(section_table(file, name), rows, work, cell, options)


def section_cell(name: str, section: Section, options: Options, row: Row, stage: str = "") -> Cell:
    """Return the cell that trains a row of a section."""
    label = label_of(name, row)
    # Runs of one variant with different choices need different folders.
    if section.choices.get(row["variant"]):
        label += f"-{digest_json(row['overrides'])[:6]}"
    overrides = [*row["overrides"], *options.trial, f"seed={row['seed']}", f"name={label}"]
    cell = recipe_cell(load_recipe(row["recipe"], overrides), options.runs / label)
    if stage:
        cell = replace(cell, settings=cell.settings | {"stage": stage})
    return cell


def section_work(
    section: Section, also: Callable[[Cell], Row] | None, cell: Cell, report: Report
) -> Row:
    """Train a cell, evaluate it on the test split and return the fields of its row."""
    facts, scores = scores_of(cell, report, each=True)
    found = facts | {key: scores[key] for key in SHOWN if key in scores}
    answers = answers_of(scores)

    for label, overrides in section.further.items():
        other = evaluate(cell.place, overrides=list(overrides), each=True)
        found[label] = other.get("accuracy", other["loss"])
        answers |= answers_of(other, label)
    found["answers"] = answers

    if also:
        more = also(cell)
        found["answers"] |= more.pop("answers", {})
        found |= more
    return found | {"threads": torch.get_num_threads()}


def validated(cell: Cell, report: Report) -> Row:
    """Train a cell and evaluate it on validation only, since its score decides a choice."""
    facts = trained(cell, report)
    found = evaluate(cell.place, "val")
    return facts | {key: found[key] for key in ("accuracy", "loss") if key in found}


def best_choices(section: Section, tried: list[Row]) -> dict[str, str]:
    """Return the choice of each variant with the best validation.

    The best is that with the highest accuracy, if the task has one, then with the smallest loss.

    Raises:
        SystemExit: a variant's choices were not all tried.
    """
    chosen: dict[str, str] = {}
    for variant, choices in section.choices.items():
        found: dict[str, tuple[float, float]] = {}
        for choice in choices:
            for row in tried:
                if row["overrides"] == section.trial(variant, choice)["overrides"]:
                    found[choice] = row.get("accuracy", 0.0), -row["loss"]
        if set(found) != set(choices):
            raise SystemExit(
                f"{variant}: expected runs of {len(choices)} choices, got {len(found)}; run the "
                f"same command again"
            )
        chosen[variant] = max(found, key=lambda choice: found[choice])
    return chosen
