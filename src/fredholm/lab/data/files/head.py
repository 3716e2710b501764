"""A table's first rows: what its columns are called, and how it is written."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from ....errors import DataError
from ....errors import suggest as suggestion
from . import jsonl, parquet
from .opening import LARGEST_CELL, opened
from .suffixes import LINES, suffix_of
from .writing import PLAIN, Writing, has_decimal_comma, is_missing, is_number

HEAD = 2000  # rows by which columns are recognised
CELLS = 500_000  # cells of them at most: fewer rows of a very wide table
DELIMITERS = ",;\t|"
SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # a first line that says the delimiter
INDEX = re.compile(r"column \d+|Unnamed: \d+|__index_level_\d+__")  # as pandas names it
csv.field_size_limit(LARGEST_CELL)


@dataclass(frozen=True)
class Head:
    """The first rows of a table.

    Attributes:
        names: of the columns; ``column 1`` … where the file has no header.
        named: whether the file names them.
        rows: the first rows as text.
        delimiter: between cells; "" of Parquet and of objects.
        numbers: of the first rows, as a spreadsheet counts them; of Parquet none, whose rows are
            counted as if the names were the first.
        header: the number of the row of names, where there is one.
        nested: columns of structs or of lists that are no numbers, which are not among the names,
            and their types.
        lists: columns of lists of numbers, likewise.
        writing: how cells are written.
    """

    path: Path
    names: tuple[str, ...]
    named: bool
    rows: Sequence[Sequence[str]]
    delimiter: str
    numbers: Sequence[int] = ()
    header: int = 0
    nested: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    writing: Writing = PLAIN

    @property
    def first(self) -> int:
        """The number of the first row that is a sample, as a spreadsheet counts rows."""
        return self.number(0)

    def number(self, row: int) -> int:
        """Return the number of one of the first rows, as a spreadsheet counts them."""
        return self.numbers[row] if self.numbers else row + 2

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        columns = zip(*self.rows) if self.rows else ((),) * len(self.names)
        return {name: [c.strip() for c in cells] for name, cells in zip(self.names, columns)}

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        return {}

    @cached_property
    def _numeric(self) -> dict[str, bool]:
        return {}

    def cells(self, name: str) -> list[str]:
        """Return the first cells of a column."""
        return self._columns[name]

    def known(self, name: str) -> list[str]:
        """Return those that are not missing."""
        if name not in self._known:
            missing = self.writing.is_missing
            self._known[name] = [cell for cell in self.cells(name) if not missing(cell)]
        return self._known[name]

    def is_number(self, cell: str) -> bool:
        """Return whether a cell is a number as this table writes them."""
        return is_number(cell) if self.writing.plain else self.writing.number(cell) is not None

    def numeric(self, name: str) -> bool:
        """Return whether every first cell that is there is a number."""
        if name not in self._numeric:
            cells = self.known(name)
            self._numeric[name] = bool(cells) and all(map(self.is_number, cells))
        return self._numeric[name]

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
            rows, numbers = self.rows[1:], self.numbers[1:]
            return replace(self, names=tuple(first), named=True, rows=rows, numbers=numbers)
        alike = not self.named and len(self.names) == len(names)
        return replace(self, names=tuple(names)) if alike else self

    def _without_header(self) -> Head:
        numbers = [self.header, *self.numbers] if self.header else ()
        names = tuple(_unnamed(i) for i in range(len(self.names)))
        rows = [list(self.names), *self.rows]
        return replace(self, names=names, named=False, rows=rows, numbers=numbers)

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
        cells = self.cells(name)
        return all(cell.isdecimal() for cell in cells) and len(set(cells)) == len(cells)


def read_head(path: Path, known: Sequence[str] = (), writing: Writing = PLAIN) -> Head:
    """Return the names and first rows of a table; ``known``: the columns that a run reads, of files
    it is asked about, see :meth:`Head.called`.

    Raises:
        DataError: a missing or empty file, another encoding, a name given twice.
        MissingExtraError: Parquet without pyarrow.
    """
    if suffix_of(path) == ".parquet":
        found = parquet.first_rows(path, HEAD)
        check_names(str(path), found.names)
        head = Head(path, found.names, True, found.rows, "", nested=found.nested, lists=found.lists)
    elif suffix_of(path) in LINES:
        names, rows, lines, nested, lists = jsonl.first_objects(path, HEAD, writing.encoding)
        head = Head(path, names, True, rows, "", lines, nested=nested, lists=lists)
    else:
        head = _delimited(path, writing)
    head = replace(head, writing=writing).called(known)
    if not head.rows:
        raise DataError(f"{path}: has a header and no rows; needs samples")
    return head


def _delimited(path: Path, writing: Writing) -> Head:
    lines, more = _first_lines(path, writing.encoding)
    told = SEPARATOR.fullmatch(lines[0].strip("\r\n")) if lines else None
    if told is not None:
        lines[0] = "\n"
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: is empty; needs a header and rows")
    delimiter = writing.separator
    if delimiter is None:
        signs = DELIMITERS.replace(",", "") if writing.point == "," else DELIMITERS
        delimiter = told[1] if told is not None else _delimiter(lines, suffix_of(path), signs)
    found = list(records(lines, delimiter))
    read = [row for row, _ in found]
    if more and len(read) > 2:
        read.pop()  # a cell of several lines may go on behind
    if not more and not found[-1][1]:
        raise DataError(open_quote(path, len(read)))
    rows = [row for row in read if not is_blank(row)]
    blank, width = read.index(rows[0]), len(rows[0])
    odd = next((i for i, row in enumerate(read) if len(row) != width and not is_blank(row)), None)
    if odd is not None:
        marked = ": a line of remarks is no header, remove it" if _is_remark(rows[0]) else ""
        raise DataError(
            f"{path}, row {odd + 1}: has {len(read[odd])} cells; the header has {width}{marked}"
        )
    named = writing.header
    if named is None:
        named = not _is_sample(rows[0], rows[1:])
    names = [cell.strip() if named else "" for cell in rows[0]]
    names = [name or _unnamed(i) for i, name in enumerate(names)]
    check_names(f"{path}, row {blank + 1}", names, ", or write a header above it")
    numbers = [i + 1 for i, row in enumerate(read) if not is_blank(row)]
    header = blank + 1 if named else 0
    return Head(path, tuple(names), named, rows[named:], delimiter, numbers[named:], header)


def check_names(where: str, names: Sequence[str], more: str = "") -> None:
    """Refuse two columns of one name.

    Raises:
        DataError: naming it.
    """
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    twice = next(name for name in names if name in seen or seen.add(name))
    raise DataError(f"{where}: two columns are called {twice!r}; rename one{more}")


def records(lines: Iterable[str], delimiter: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the rows, and whether each ends: one whose quote is not closed swallows all that
    follows, also the empty line that is put behind the last one here.
    """
    row: list[str] | None = None
    try:
        for following in csv.reader(chain(lines, ["\n"]), delimiter=delimiter):
            if row is not None:
                yield row, True
            row = following
    except csv.Error:  # a cell beyond the limit
        if row is not None:
            yield row, True
        row = [""]
    if row:
        yield row, False


def open_quote(path: Path, row: int) -> str:
    """Return the error of a row whose quote is not closed."""
    return (
        f"{path}, row {row}: a cell begins with a quote that is not closed, so that all rows below "
        "belong to it; close it, or write the quote twice within quotes"
    )


def is_blank(row: Sequence[str]) -> bool:
    """Return whether a row is an empty line, or one of spaces."""
    return not row or (len(row) == 1 and not row[0].strip())


def _is_sample(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a file has no header: its first row holds numbers alone, but no count of the columns
    as pandas writes it, or it is as the others are: numbers where they have numbers, and words that
    come again below.
    """
    if _counts_columns(first):
        return False
    words = [i for i, cell in enumerate(first) if not (is_number(cell) or is_missing(cell))]
    if not words or not rows:
        return not words
    numbers = [i for i, cell in enumerate(first) if is_number(cell)]
    return (
        bool(numbers)
        and all(first[i].strip() in {row[i].strip() for row in rows} for i in words)
        and all(is_number(row[i]) or is_missing(row[i]) for row in rows for i in numbers)
    )


def _counts_columns(first: Sequence[str]) -> bool:
    """Whether cells are 0, 1, 2, … after an empty one, or three or more of them alone."""
    index = first[0].strip() == ""
    cells = [cell.strip() for cell in (first[1:] if index else first)]
    return len(cells) >= (1 if index else 3) and cells == [str(i) for i in range(len(cells))]


def _unnamed(place: int) -> str:
    """What a column without a name is called."""
    return f"column {place + 1}"


def _place_of(name: str) -> int | None:
    """Where a column lies that is called so; None of another name."""
    found = re.fullmatch(r"column ([1-9]\d*)", name)
    return int(found[1]) - 1 if found else None


def _is_remark(row: Sequence[str]) -> bool:
    return row[0].lstrip().startswith(("#", "%", "//"))


def _first_lines(path: Path, encoding: str | None) -> tuple[list[str], bool]:
    """Return the lines of the first rows, and whether more follow."""
    with opened(path, encoding) as file:
        lines = list(islice(file, 3))
        widest = max((max(map(line.count, DELIMITERS)) for line in lines), default=0)
        count = max(100, min(HEAD, CELLS // (widest + 1)))
        lines += islice(file, count + 1 - len(lines))
        return lines, len(lines) > count


def _delimiter(lines: Sequence[str], suffix: str, signs: str) -> str:
    """The sign that divides most lines alike; a tab where a file is called so, and another sign
    than the comma where all commas are those of numbers.
    """
    first = next(line for line in lines if line.strip())
    if suffix == ".tsv" and "\t" in first:
        return "\t"
    scores = {}
    for sign in signs:
        rows = [r for r in csv.reader(lines[:50], delimiter=sign) if not is_blank(r)]
        counts = [len(row) for row in rows]
        if counts[0] > 1 and len(set(counts)) == 1 and sign != "," and _decimal_commas(rows):
            return sign
        scores[sign] = (counts[0] > 1) * (counts.count(counts[0]) / len(counts), counts[0])
    best = max(signs, key=lambda sign: scores[sign] or (0, 0))
    return best if scores[best] else signs[0]


def _decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether there are commas, all of them within numbers."""
    cells = [cell for row in rows for cell in row if "," in cell]
    return bool(cells) and all(map(has_decimal_comma, cells))
