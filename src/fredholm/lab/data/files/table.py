"""Tables as columns of numbers, words, texts, times and series, cast by the role of each.

pyarrow divides CSV into cells and brings Parquet's columns; it never infers a type. Every cell
arrives as text (in Parquet as what it is) and is cast here, so that a cell that does not fit its
role is named by row and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError
from ....errors import suggest as suggestion
from ....progress import working
from . import delimited, jsonl, parquet
from .casts import CASTS
from .head import SLIPS, Head, Rows
from .suffixes import LINES, suffix_of
from .writing import PLAIN, Writing, no_number


class Unreadable(NamedTuple):
    """A cell in a column of numbers that does not hold a number."""

    row: int
    column: str
    cell: str


@dataclass
class Table:
    """Columns of all files: numbers as float64, NaN if missing; words as :class:`.casts.Coded`;
    times as :class:`Ticks`; texts and series as lists.

    Attributes:
        columns: by name; the name None is never there, so that a role without a column finds none.
        files: in order, with their rows.
        unreadable: cells without a number in columns of numbers; they count as missing.
        dates: order of day and month, if it was recognised from the dates.
    """

    columns: dict[Any, Any] = field(default_factory=dict)
    files: list[Rows] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    dates: str | None = None

    def __len__(self) -> int:
        return sum(file.count for file in self.files)

    def place(self, row: int) -> dict[str, Any]:
        """Return the file and row number of a row: ``{"file": ..., "row": 7}``."""
        # Rows are counted over all files.
        for file in self.files:
            if row < file.count:
                return {"file": str(file.path), "row": file.number(row)}
            row -= file.count
        raise IndexError(row)

    def where(self, row: int, column: str = "") -> str:
        """Return the place of a row, or of one of its cells, in words."""
        place = self.place(row)
        if column:
            place |= {"column": repr(column)}
        return in_words(place)

    def file_of(self) -> np.ndarray:
        """Return the number of each row's file."""
        return np.repeat(np.arange(len(self.files)), [file.count for file in self.files])


def in_words(place: Mapping[str, Any]) -> str:
    """Return the place of a sample in words.

    Example:
        >>> in_words({"file": "a.csv", "row": 7})
        'a.csv, row 7'
    """
    within = [f"{key} {value}" for key, value in place.items() if key != "file"]
    return ", ".join([place["file"], *within])


def read_head(
    path: Path,
    known: Sequence[str] = (),
    writing: Writing = PLAIN,
) -> Head:
    """Return the names and first rows of a table.

    Args:
        known: in files to predict, the columns that the run reads, see :meth:`.head.Head.called`.

    Raises:
        DataError: a missing or empty file, another encoding, a name given twice.
        MissingExtraError: Parquet without pyarrow.
    """
    head = _format_of(path).read_head(path, writing)
    seen: set[str] = set()
    for name in head.names:
        # One of the two would silently win.
        if name in seen:
            raise DataError(_name_twice(head, name))
        seen.add(name)
    head = head.called(known)
    if not head.rows:
        raise DataError(f"{path}: expected rows below the header, got none; add samples")
    return head


def _name_twice(head: Head, name: str) -> str:
    where = str(head.path)
    fix = "rename one"
    if head.delimiter:
        # The first row of a file without header may have been taken for one.
        row = (head.header or head.spots[0]).number
        where += f", row {row}"
        fix += ", or write a header above it"
    return f"{where}: two columns are called {name!r}; {fix}"


def read_table(
    heads: Sequence[Head],
    roles: dict[str, str],
    strict: bool = True,
) -> Table:
    """Read the columns named by ``roles``, from files with the same columns.

    Memory: 8 bytes per number, 4 per word, and the texts.

    Args:
        roles: of each column: ``number``, ``word``, ``text``, ``list`` (of numbers), ``time`` (a
            number or a date), ``clock`` (a number) or ``date``.
        strict: refuse cells without a number; otherwise they count as missing and are listed, if
            they are at most a tenth of their column.

    Raises:
        DataError: a row of another length, or a cell without a number, with file, row and column.
    """
    table = Table()
    casts = {name: CASTS[role](name) for name, role in roles.items()}
    for head in heads:
        _check_columns(head, roles, heads[0])
        rows = Rows(head.path, head.spots[0].number)
        before = len(table)
        with working(f"read {head.path.name}", unit="rows") as show:
            for arrays in _format_of(head.path).arrays(head, list(roles), rows):
                for name, array in zip(roles, arrays):
                    for row, cell in casts[name].add(array, rows, head.writing):
                        if strict:
                            raise DataError(f"{rows.at(row, name)}: {no_number(cell)}")
                        table.unreadable.append(Unreadable(before + rows.count + row, name, cell))
                if arrays:
                    rows.count += len(arrays[0])
                show.at(rows.count)
        table.files.append(rows)

    # A cast needs the whole table in the end: errors of dates name a row of any file.
    for name, cast in casts.items():
        table.columns[name] = cast.result(table)
    _check_slips(table)
    return table


def _format_of(path: Path) -> ModuleType:
    """Return the module that reads a file: each has ``read_head`` and ``arrays``."""
    suffix = suffix_of(path)
    if suffix == ".parquet":
        return parquet
    if suffix in LINES:
        return jsonl
    return delimited


def _check_columns(
    head: Head,
    roles: dict[str, str],
    first: Head,
) -> None:
    # Further columns do no harm: only those of the first file are read.
    there = {*head.names, *head.lists}
    for name in roles:
        if name not in there:
            raise DataError(
                f"{head.path}: has no column {name!r}, which {first.path} has"
                f"{suggestion(name, head.names)}"
            )


def _check_slips(table: Table) -> None:
    """Refuse a column of numbers in which more than a tenth of the cells are not numbers.

    So many are not slips: the column has another notation, or holds words below its first rows.
    """
    for name in dict.fromkeys(cell.column for cell in table.unreadable):
        cells = [cell for cell in table.unreadable if cell.column == name]
        count = len(cells)
        first = cells[0]
        known = count + int(np.isfinite(table.columns[name]).sum())
        if count > max(1, SLIPS * known):
            raise DataError(
                f"{table.where(first.row, name)}: {no_number(first.cell)} ({count:,} of {known:,} "
                "cells are not numbers)"
            )
