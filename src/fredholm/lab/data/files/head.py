"""A table's first rows: what its columns are called, and what their cells look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import suggest as suggestion
from .times import is_date
from .writing import PLAIN, Writing, is_foreign, is_number

HEAD = 2000  # rows by which columns are recognised
SLIPS = 0.1  # the share of a column's cells that may be unreadable
WORDS = 20  # of a column, that become a column each
INDEX = re.compile(r"column \d+|Unnamed: \d+|__index_level_\d+__")  # as pandas names it
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")  # in whatever order


class Column:
    """The first cells of a column, without spaces around them."""

    def __init__(self, name: str, cells: Sequence[str], writing: Writing):
        self.name, self.writing = name, writing
        self.cells = [cell.strip() for cell in cells]

    @cached_property
    def known(self) -> list[str]:
        """Those that are not missing."""
        return [cell for cell in self.cells if not self.writing.is_missing(cell)]

    @cached_property
    def kinds(self) -> int:
        """How many different ones there are."""
        return len(set(self.known))

    @cached_property
    def odd(self) -> list[tuple[int, str]]:
        """Those that are no numbers as this table writes them, and their rows from 0."""
        known = self.writing.is_missing
        return [
            (row, cell)
            for row, cell in enumerate(self.cells)
            if self.writing.number(cell) is None and not known(cell)
        ]

    @cached_property
    def foreign(self) -> int:
        """How many of these would be numbers with another decimal sign."""
        return sum(is_foreign(cell) for _, cell in self.odd)

    @property
    def numeric(self) -> bool:
        """Whether every cell that is there is a number."""
        return bool(self.known) and not self.odd

    @cached_property
    def dated(self) -> bool:
        """Whether every cell that is there is a date, and not a number."""
        return bool(self.known) and is_date(self.known[0]) and all(map(is_date, self.known))

    @cached_property
    def days(self) -> bool:
        """Whether cells are dates, in whatever way they are written."""
        return self.dated or any(DATE.match(cell) for cell in self.known)

    @property
    def words(self) -> float:
        """How many words a cell has on average."""
        return sum(len(cell.split()) for cell in self.known) / max(1, len(self.known))

    @property
    def is_text(self) -> bool:
        many = bool(self.known) and not self.numeric and self.words >= 3
        return many and self.kinds > len(self.known) / 2

    @property
    def slips(self) -> bool:
        """Whether there are numbers but for a few cells, and more different ones than words that
        would become a column each.
        """
        few = 0 < len(self.odd) <= SLIPS * len(self.known)
        return few and 2 * self.foreign <= len(self.known) and self.kinds > WORDS


class Spot(NamedTuple):
    """Where a row is.

    Attributes:
        number: as a spreadsheet counts rows.
        start: bytes of the file, as UTF-8, before it.
    """

    number: int
    start: int = 0


@dataclass(frozen=True)
class Head:
    """The first rows of a table.

    Attributes:
        names: of the columns; ``column 1`` … where the file has no header.
        named: whether the file names them.
        rows: the first rows as text, and ``spots``, where they are.
        delimiter: between cells; "" of Parquet and of objects.
        header: where the row of names is, if there is one.
        nested: columns of structs or of lists that are no numbers, which are not among the names,
            and their types.
        lists: columns of lists of numbers, likewise.
        writing: how cells are written.
    """

    path: Path
    names: tuple[str, ...]
    named: bool
    rows: Sequence[Sequence[str]]
    spots: Sequence[Spot]
    delimiter: str = ""
    header: Spot | None = None
    nested: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    writing: Writing = PLAIN

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The first cells of each column, by its name."""
        columns = zip(*self.rows) if self.rows else ((),) * len(self.names)
        return {n: Column(n, cells, self.writing) for n, cells in zip(self.names, columns)}

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def called(self, names: Sequence[str]) -> Head:
        """With names in the place of numbers, where there are as many columns; a first row that
        holds all of the names is a header of numbers. Of names as files without a header have them
        the first row is a sample, where it has a number in one of these columns.
        """
        places = [_place_of(name) for name in names]
        if self.named and not set(names) & set(self.names) and None not in places:
            cells = [self.names[i] for i in places if i is not None and i < len(self.names)]
            if any(map(is_number, cells)):
                return self._without_header()
        first = [] if self.named else [cell.strip() for cell in self.rows[0]]
        if names and set(names) <= set(first) and len(self.rows) > 1:
            rows, spots = self.rows[1:], self.spots[1:]
            return replace(self, names=tuple(first), named=True, rows=rows, spots=spots)
        alike = not self.named and len(self.names) == len(names)
        return replace(self, names=tuple(names)) if alike else self

    def _without_header(self) -> Head:
        spots = self.spots if self.header is None else [self.header, *self.spots]
        names = tuple(unnamed(i) for i in range(len(self.names)))
        rows = [list(self.names), *self.rows]
        return replace(self, names=names, named=False, rows=rows, spots=spots)

    def absent(self, name: str) -> str:
        """Return what an error says of a column that is not there."""
        deep = {**self.nested, **self.lists}
        if name in deep:
            return f"{self.path}: column {name!r} holds {deep[name]}; needs numbers or texts"
        return f"{self.path}: has no column {name!r}{suggestion(name, self.names)}"

    def counts(self, name: str) -> bool:
        """Return whether a column is the index that tables are written with: without a name of its
        own, and another whole number in every row.
        """
        if not self.named or not INDEX.fullmatch(name) or len(self.rows) < 2:
            return False
        cells = self[name].cells
        return all(cell.isdecimal() for cell in cells) and len(set(cells)) == len(cells)


@dataclass
class Rows:
    """The rows of one file, while it is read and later.

    Attributes:
        first: the number of the first, as a spreadsheet counts rows.
        count: how many have been read.
        numbers: of each row, where they do not follow one another.
        recount: finds these by reading the file once more, where empty lines lie between rows.
    """

    path: Path
    first: int
    count: int = 0
    numbers: Any = None
    recount: Callable[[], Any] = lambda: None

    def number(self, row: int) -> int:
        """Return the number that a spreadsheet shows of a row."""
        if self.numbers is None:
            self.numbers = self.recount()
        return self.first + row if self.numbers is None else int(self.numbers[row])

    def at(self, offset: int, column: str) -> str:
        """Return in words where a cell is, ``offset`` rows behind those that have been read."""
        return f"{self.path}, row {self.number(self.count + offset)}, column {column!r}"


def unnamed(place: int) -> str:
    """Return what a column without a name is called.

    Example:
        >>> unnamed(0)
        'column 1'
    """
    return f"column {place + 1}"


def _place_of(name: str) -> int | None:
    """Where a column lies that is called so; None of another name."""
    found = re.fullmatch(r"column ([1-9]\d*)", name)
    return int(found[1]) - 1 if found else None
