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
    """A cell in a column of numbers that holds none."""

    row: int
    column: str
    cell: str


@dataclass
class Table:
    """Columns of all files: numbers as float64, NaN where missing; words as
    :class:`.casts.Coded`; times
    as :class:`Ticks`; texts and series as lists.

    Attributes:
        columns: by name; None is the name of none.
        files: in order, with their rows.
        unreadable: cells that count as missing, since they hold no number.
        dates: the order of the dates, where it was found in them.
    """

    columns: dict[Any, Any] = field(default_factory=dict)
    files: list[Rows] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    dates: str | None = None

    def __len__(self) -> int:
        return sum(file.count for file in self.files)

    def place(self, row: int) -> dict[str, Any]:
        """Return ``{"file": ..., "row": 7}``."""
        for file in self.files:
            if row < file.count:
                return {"file": str(file.path), "row": file.number(row)}
            row -= file.count
        raise IndexError(row)

    def where(self, row: int, column: str = "") -> str:
        """Return the same in words."""
        return in_words(self.place(row)) + (f", column {column!r}" if column else "")

    def file_of(self) -> np.ndarray:
        """Return the number of each row's file."""
        return np.repeat(np.arange(len(self.files)), [file.count for file in self.files])


def in_words(place: Mapping[str, Any]) -> str:
    """Return where a sample is.

    Example:
        >>> in_words({"file": "a.csv", "row": 7})
        'a.csv, row 7'
    """
    return ", ".join([place["file"], *(f"{k} {v}" for k, v in place.items() if k != "file")])


def read_head(path: Path, known: Sequence[str] = (), writing: Writing = PLAIN) -> Head:
    """Return the names and first rows of a table; ``known``: the columns that a run reads, of files
    it is asked about, see :meth:`.head.Head.called`.

    Raises:
        DataError: a missing or empty file, another encoding, a name given twice.
        MissingExtraError: Parquet without pyarrow.
    """
    head = _format_of(path).read_head(path, writing)
    seen: set[str] = set()
    twice = next((name for name in head.names if name in seen or seen.add(name)), None)
    if twice is not None:
        where, more = str(path), ""
        if head.delimiter:
            row = (head.header or head.spots[0]).number
            where, more = f"{path}, row {row}", ", or write a header above it"
        raise DataError(f"{where}: two columns are called {twice!r}; rename one{more}")
    head = head.called(known)
    if not head.rows:
        raise DataError(f"{path}: has a header and no rows; needs samples")
    return head


def read_table(heads: Sequence[Head], roles: dict[str, str], strict: bool = True) -> Table:
    """Read the columns named by ``roles``: ``number``, ``word``, ``text``, ``list`` (of numbers),
    or ``time`` (a number, or a date), ``clock`` (a number) and ``date``.

    The files must have the same columns. Memory: 8 bytes a number, 4 a word, and the texts. Unless
    ``strict``, cells that hold no number count as missing and are listed, where they are no more
    than a tenth of their column.

    Raises:
        DataError: a row of another length, a cell that is no number, with file, row and column.
    """
    table = Table()
    casts = {name: CASTS[role](name) for name, role in roles.items()}
    for head in heads:
        _check_columns(head, roles, heads[0])
        rows, before = Rows(head.path, head.spots[0].number), len(table)
        with working(f"read {head.path.name}", unit="rows") as show:
            for arrays in _format_of(head.path).arrays(head, list(roles), rows):
                for name, array in zip(roles, arrays):
                    for row, cell in casts[name].add(array, rows, head.writing):
                        if strict:
                            raise DataError(f"{rows.at(row, name)}: {no_number(cell)}")
                        table.unreadable.append(Unreadable(before + rows.count + row, name, cell))
                rows.count += len(arrays[0]) if arrays else 0
                show.at(rows.count)
        table.files.append(rows)
    for name, cast in casts.items():
        table.columns[name] = cast.result()
        table.dates = table.dates or getattr(cast, "order", None)
    _check_slips(table)
    return table


def _format_of(path: Path) -> ModuleType:
    """The module that reads a file: each has ``read_head`` and ``arrays``."""
    suffix = suffix_of(path)
    if suffix == ".parquet":
        return parquet
    return jsonl if suffix in LINES else delimited


def _check_columns(head: Head, roles: dict[str, str], first: Head) -> None:
    there = {*head.names, *head.lists}
    missing = next((name for name in roles if name not in there), None)
    if missing is not None:
        raise DataError(
            f"{head.path}: has no column {missing!r}, which {first.path} has"
            f"{suggestion(missing, head.names)}"
        )


def _check_slips(table: Table) -> None:
    """Refuse a column of numbers in which more than a tenth of the cells are none."""
    for name in dict.fromkeys(cell.column for cell in table.unreadable):
        cells = [cell for cell in table.unreadable if cell.column == name]
        count, first = len(cells), cells[0]
        known = count + int(np.isfinite(table.columns[name]).sum())
        if count > max(1, SLIPS * known):
            raise DataError(
                f"{table.where(first.row, name)}: {no_number(first.cell)} (so are {count:,} of "
                f"{known:,} cells)"
            )
