"""First rows of a table: names of its columns, and what their cells look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import suggest as suggestion
from .times import is_date
from .writing import PLAIN, Writing, is_foreign, is_number

HEAD = 2000  # rows by which columns are recognised
SLIPS = 0.1  # largest share of a column's cells that may be unreadable

# Most different words of a column that is read unasked: each becomes a column of its own.
WORDS = 20
SENTENCE = 3  # fewest words per cell of a column of texts, on average
INDEX = re.compile(r"column \d+|Unnamed: \d+|__index_level_\d+__")  # names that pandas gives
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")  # day, month and year in any order


class Column:
    """The first cells of a column, without spaces around them."""

    def __init__(self, name: str, cells: Sequence[str], writing: Writing):
        self.name = name
        self.writing = writing
        self.cells = [cell.strip() for cell in cells]

    @cached_property
    def known(self) -> list[str]:
        """Cells that are not missing."""
        return [cell for cell in self.cells if not self.writing.is_missing(cell)]

    @cached_property
    def kinds(self) -> int:
        """Number of different known cells."""
        return len(set(self.known))

    @cached_property
    def odd(self) -> list[tuple[int, str]]:
        """Known cells that are not numbers in the notation of this table, with rows from 0."""
        writing = self.writing
        odd = []
        for row, cell in enumerate(self.cells):
            if writing.number(cell) is None and not writing.is_missing(cell):
                odd.append((row, cell))
        return odd

    @cached_property
    def foreign(self) -> int:
        """Number of odd cells that are numbers with another decimal sign."""
        return sum(is_foreign(cell) for _, cell in self.odd)

    @property
    def numeric(self) -> bool:
        """Whether every known cell is a number."""
        return bool(self.known) and not self.odd

    @cached_property
    def dated(self) -> bool:
        """Whether every known cell is a date, and not a number."""
        # The first cell alone excludes most columns: parsing thousands of dates is slow.
        if not self.known or not is_date(self.known[0]):
            return False
        return all(map(is_date, self.known))

    @cached_property
    def days(self) -> bool:
        """Whether cells look like dates, in any notation."""
        return self.dated or any(DATE.match(cell) for cell in self.known)

    @property
    def words(self) -> float:
        """Mean number of words per known cell."""
        words = sum(len(cell.split()) for cell in self.known)
        return words / max(1, len(self.known))

    @property
    def is_text(self) -> bool:
        """Whether cells are texts: several words each, and most of them different."""
        if not self.known or self.numeric or self.words < SENTENCE:
            return False
        return self.kinds > len(self.known) / 2

    @property
    def slips(self) -> bool:
        """Whether cells are numbers but for a few slips.

        A column with few different cells may be a column of words, some of which are numerals.
        """
        known = len(self.known)
        if not 0 < len(self.odd) <= SLIPS * known:
            return False
        return 2 * self.foreign <= known and self.kinds > WORDS


class Spot(NamedTuple):
    """Place of a row in a file.

    Attributes:
        number: row number of a spreadsheet: from 1, empty lines included.
        start: bytes before the row, in UTF-8.
    """

    number: int
    start: int = 0


@dataclass(frozen=True)
class Head:
    """The first rows of a table.

    Attributes:
        names: names of the columns; ``column 1`` … if the file has no header.
        named: whether the file has a header.
        rows: cells of the first rows as text; ``spots`` are their places.
        delimiter: sign between cells; "" for Parquet and objects.
        header: place of the header, if there is one.
        nested: types of the columns of structs and of lists of anything but numbers, by name. They
            are not among the names.
        lists: types of the columns of lists of numbers, likewise.
        writing: notation of the cells.
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
        """First cells of each column, by its name."""
        cells = zip(*self.rows)
        if not self.rows:
            cells = repeat(())
        columns = {}
        for name, column in zip(self.names, cells):
            columns[name] = Column(name, column, self.writing)
        return columns

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def called(self, names: Sequence[str]) -> Head:
        """Return the head of a file to predict, with the column names of the training files.

        The two may disagree on whether there is a header. A first row that holds all of the names
        is a header, although it looks like a sample. Where the training files had no header, a
        first row with a number in one of their columns is a sample, although it looks like a
        header. A file without header gets the names if it has as many columns.
        """
        if self.named:
            if self._header_is_sample(names):
                return self._without_header()
            return self

        first = [cell.strip() for cell in self.rows[0]]
        if names and set(names) <= set(first) and len(self.rows) > 1:
            return replace(
                self,
                names=tuple(first),
                named=True,
                rows=self.rows[1:],
                spots=self.spots[1:],
            )
        if len(self.names) == len(names):
            return replace(self, names=tuple(names))
        return self

    def _header_is_sample(self, names: Sequence[str]) -> bool:
        """Return whether the header has a number in a column of training files without header."""
        if set(names) & set(self.names):
            return False
        cells = []
        for name in names:
            place = _place_of(name)
            if place is None:
                return False
            if place < len(self.names):
                cells.append(self.names[place])
        return any(map(is_number, cells))

    def _without_header(self) -> Head:
        spots = self.spots
        if self.header is not None:
            spots = [self.header, *spots]
        names = tuple(unnamed(i) for i in range(len(self.names)))
        first = list(self.names)
        return replace(
            self,
            names=names,
            named=False,
            rows=[first, *self.rows],
            spots=spots,
        )

    def absent(self, name: str) -> str:
        """Return the error of a column that the table does not have, or cannot be read from."""
        # The user can see the column, so that "has no column" would be no help.
        deep = {**self.nested, **self.lists}
        if name in deep:
            return (
                f"{self.path}: expected numbers or texts in column {name!r}, got {deep[name]}; "
                "name another column"
            )
        return f"{self.path}: has no column {name!r}{suggestion(name, self.names)}"

    def counts(self, name: str) -> bool:
        """Return whether a column is an index that was saved with the table.

        It has no name of its own, and another whole number in every row: read as a feature, it
        would number the samples.
        """
        if not self.named or not INDEX.fullmatch(name) or len(self.rows) < 2:
            return False
        # The number of a person may repeat, and is no index.
        cells = self[name].cells
        if not all(cell.isdecimal() for cell in cells):
            return False
        return len(set(cells)) == len(cells)


@dataclass
class Rows:
    """Row numbers of one file, while it is read and later.

    Attributes:
        first: the spreadsheet's number of the first row.
        count: rows read so far.
        numbers: of each row, if they are not consecutive.
        recount: reads the file once more to find these, if there are empty lines between rows.
    """

    path: Path
    first: int
    count: int = 0
    numbers: Any = None
    recount: Callable[[], Any] = lambda: None

    def number(self, row: int) -> int:
        """Return the number that a spreadsheet shows for a row; ``row`` counts the samples from 0.

        The two differ by the header, and by the empty lines above the row.
        """
        # An error may need the number of a row before the whole file has been counted.
        if self.numbers is None:
            self.numbers = self.recount()
        # There are no empty lines: rows follow one another.
        if self.numbers is None:
            return self.first + row
        return int(self.numbers[row])

    def at(self, offset: int, column: str) -> str:
        """Return the place of a cell in words, ``offset`` rows behind those read so far."""
        return f"{self.path}, row {self.number(self.count + offset)}, column {column!r}"


def unnamed(place: int) -> str:
    """Return the name of a column without one.

    Example:
        >>> unnamed(0)
        'column 1'
    """
    return f"column {place + 1}"


def _place_of(name: str) -> int | None:
    """Return the place of a column that :func:`unnamed` named; None for another name."""
    found = re.fullmatch(r"column ([1-9]\d*)", name)
    if found is None:
        return None
    return int(found[1]) - 1
