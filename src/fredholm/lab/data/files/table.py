"""Tables of rows, CSV, JSON Lines and Parquet, in pieces: the file is never held as text."""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ....errors import suggest as suggestion
from ....progress import working
from . import jsonl, parquet
from .suffixes import LINES, suffix_of
from .utf8 import opened

HEAD = 2000  # rows by which columns are recognised
PIECE = 20_000  # rows held as text at a time
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-", "#n/a"})
DELIMITERS = ",;\t|"
SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # a first line that says the delimiter
INDEX = re.compile(r"column \d+|Unnamed: \d+|__index_level_\d+__")  # as pandas names it
LARGEST = float(np.finfo(np.float32).max)  # what a model can read
csv.field_size_limit(1 << 26)


@dataclass(frozen=True)
class Head:
    """A table's first rows: what its columns are called, and how it is written.

    Attributes:
        names: of the columns; ``column 1`` … where the file has no header.
        named: whether the file names them.
        rows: the first rows as text.
        delimiter: between cells; "" of Parquet and of objects.
        numbers: of the first rows, as a spreadsheet counts them; of Parquet none, whose rows are
            counted as if the names were the first.
        header: the number of the row of names, where there is one.
        nested: columns of lists and structs, which are not among the names, and their types.
    """

    path: Path
    names: tuple[str, ...]
    named: bool
    rows: list[list[str]]
    delimiter: str
    numbers: Sequence[int] = ()
    header: int = 0
    nested: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The number of the first row that is a sample, as a spreadsheet counts rows."""
        return self.number(0)

    def number(self, row: int) -> int:
        """The number of one of the first rows, as a spreadsheet counts them."""
        return self.numbers[row] if self.numbers else row + 2

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
        """What an error says of a column that is not there."""
        if name in self.nested:
            return f"{self.path}: column {name!r} holds {self.nested[name]}; needs numbers or texts"
        return f"{self.path}: has no column {name!r}{suggestion(name, self.names)}"

    def cells(self, name: str) -> list[str]:
        """The first cells of a column."""
        place = self.names.index(name)
        return [row[place].strip() for row in self.rows]

    def known(self, name: str) -> list[str]:
        """Those that are not missing."""
        return [cell for cell in self.cells(name) if not is_missing(cell)]

    def numeric(self, name: str) -> bool:
        """Whether every first cell that is there is a number."""
        cells = self.known(name)
        return bool(cells) and all(is_number(cell) for cell in cells)

    def counts(self, name: str) -> bool:
        """Whether a column is the index that tables are written with: without a name of its own,
        and another whole number in every row.
        """
        if not self.named or not INDEX.fullmatch(name) or len(self.rows) < 2:
            return False
        cells = self.cells(name)
        return all(cell.isdecimal() for cell in cells) and len(set(cells)) == len(cells)


@dataclass
class Coded:
    """A column of words: the number of each row's word among ``names``, -1 where it is missing."""

    codes: np.ndarray
    names: list[str]


@dataclass
class Table:
    """Columns of a whole file: numbers as float64, NaN where missing; words as :class:`Coded`;
    texts as they are.

    Attributes:
        files: (the file, how many rows it has), in order.
        first: the number of each file's first row, as a spreadsheet counts them.
        blank: of each file the rows before which there is an empty one, as often as there is.
    """

    columns: dict[Any, Any]  # by name; a name that nobody said is None, and not there
    files: list[tuple[Path, int]]
    first: list[int]
    blank: list[list[int]]

    def __len__(self) -> int:
        return sum(count for _, count in self.files)

    def place(self, row: int) -> dict[str, Any]:
        """``{"file": ..., "row": 7}``."""
        for (path, count), first, blank in zip(self.files, self.first, self.blank):
            if row < count:
                return {"file": str(path), "row": _number_of(row, first, blank)}
            row -= count
        raise IndexError(row)

    def where(self, row: int, column: str = "") -> str:
        """``file, row 7, column 'x'``."""
        return in_words(self.place(row)) + (f", column {column!r}" if column else "")

    def file_of(self) -> np.ndarray:
        """The number of each row's file."""
        return np.repeat(np.arange(len(self.files)), [count for _, count in self.files])


def in_words(place: Mapping[str, Any]) -> str:
    """Where a sample is.

    Example:
        >>> in_words({"file": "a.csv", "row": 7})
        'a.csv, row 7'
    """
    return ", ".join([place["file"], *(f"{k} {v}" for k, v in place.items() if k != "file")])


def is_missing(cell: str) -> bool:
    """Whether a cell says that nothing is there."""
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Whether a cell is a number, as files write it: Python's ``1_2`` is none."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


# --- the head -------------------------------------------------------------------------------------


def read_head(path: Path, known: Sequence[str] = ()) -> Head:
    """The names and first rows of a table; ``known``: of what a run reads that is asked about it,
    see :meth:`Head.called`.

    Raises:
        DataError: a missing or empty file, no UTF-8, a name given twice, one column only.
        MissingExtraError: Parquet without pyarrow.
    """
    head = _first_rows(path).called(known)
    if not head.rows:
        raise DataError(f"{path}: has a header and no rows; needs samples")
    return head


def _first_rows(path: Path) -> Head:
    """The head as the file has it, of CSV perhaps without a row."""
    if suffix_of(path) == ".parquet":
        names, rows, nested = parquet.head(path, HEAD)
        return Head(path, names, True, rows, "", nested=nested)
    if suffix_of(path) in LINES:
        names, rows, numbers = jsonl.head(path, HEAD)
        return Head(path, names, True, rows, "", numbers)
    lines = _first_lines(path)
    told = SEPARATOR.fullmatch(lines[0].strip("\r\n")) if lines else None
    if told is not None:
        lines[0] = "\n"
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: is empty; needs a header and rows")
    delimiter = _delimiter(lines, suffix_of(path)) if told is None else told[1]
    found = list(_records(lines, delimiter))
    read, cut = [row for row, _ in found], len(lines) > HEAD
    if cut and len(read) > 2:
        read.pop()  # a cell of several lines may go on behind
    if not cut and not found[-1][1]:
        raise DataError(_open_quote(path, len(read)))
    rows = [row for row in read if not _is_blank(row)]
    blank, width = read.index(rows[0]), len(rows[0])
    odd = next((i for i, row in enumerate(read) if len(row) != width and not _is_blank(row)), None)
    if odd is not None:
        marked = ": a line of remarks is no header, remove it" if _is_remark(rows[0]) else ""
        raise DataError(
            f"{path}, row {odd + 1}: has {len(read[odd])} cells; the header has {width}{marked}"
        )
    named = not _is_sample(rows[0], rows[1:])
    names = [cell.strip() if named else "" for cell in rows[0]]
    names = [name or _unnamed(i) for i, name in enumerate(names)]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise DataError(
            f"{path}, row {blank + 1}: two columns are called {twice!r}; rename one, or write a "
            "header above it"
        )
    numbers = [i + 1 for i, row in enumerate(read) if not _is_blank(row)]
    header = blank + 1 if named else 0
    return Head(path, tuple(names), named, rows[named:], delimiter, numbers[named:], header)


def _records(lines: Iterable[str], delimiter: str) -> Iterator[tuple[list[str], bool]]:
    """The rows, and whether each ends: one whose quote is not closed swallows all that follows,
    also the empty line that is put behind the last one here.
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


def _open_quote(path: Path, row: int) -> str:
    return (
        f"{path}, row {row}: a cell begins with a quote that is not closed, so that all rows below "
        "belong to it; close it, or write the quote twice within quotes"
    )


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


def _number_of(row: int, first: int, blank: Sequence[int]) -> int:
    """The number that a spreadsheet shows of a row; ``blank``: see :class:`Table`."""
    return first + row + bisect_right(blank, row)


def _is_blank(row: Sequence[str]) -> bool:
    """Whether a row is an empty line, or one of spaces."""
    return not row or (len(row) == 1 and not row[0].strip())


def _first_lines(path: Path) -> list[str]:
    with opened(path) as file:
        return [line for line, _ in zip(file, range(HEAD + 1))]


def _delimiter(lines: Sequence[str], suffix: str) -> str:
    """The sign that divides most lines alike; a tab where a file is called so, and another sign
    than the comma where all commas are those of numbers.
    """
    first = next(line for line in lines if line.strip())
    if suffix == ".tsv" and "\t" in first:
        return "\t"
    scores = {}
    for sign in DELIMITERS:
        rows = [r for r in csv.reader(lines[:50], delimiter=sign) if not _is_blank(r)]
        counts = [len(row) for row in rows]
        if counts[0] > 1 and len(set(counts)) == 1 and sign != "," and _decimal_commas(rows):
            return sign
        scores[sign] = (counts[0] > 1) * (counts.count(counts[0]) / len(counts), counts[0])
    best = max(DELIMITERS, key=lambda sign: scores[sign] or (0, 0))
    return best if scores[best] else ","


def _decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether there are commas, all of them within numbers."""
    cells = [cell for row in rows for cell in row if "," in cell]
    return bool(cells) and all(map(has_decimal_comma, cells))


def has_decimal_comma(cell: str) -> bool:
    """Whether a cell would be a number with a point for its comma."""
    return is_number(cell.replace(",", "."))


# --- the rows -------------------------------------------------------------------------------------


def read_table(heads: Sequence[Head], roles: dict[str, str]) -> Table:
    """The columns named by ``roles``: ``number``, ``word``, ``text``, or ``time`` (a number, or a
    date in seconds), ``clock`` (of both a number) and ``date``.

    The files must have the same columns. Memory: 8 bytes a number, 4 a word, and the texts.

    Raises:
        DataError: a row of another length, a cell that is no number, with file, row and column.
    """
    first, parts, files, blanks = heads[0], {name: [] for name in roles}, [], []
    words: dict[str, dict[str, int]] = {name: {} for name, role in roles.items() if role == "word"}
    for head in heads:
        missing = [name for name in roles if name not in head.names]
        if missing:
            raise DataError(
                f"{head.path}: has no column {missing[0]!r}, which {first.path} has"
                f"{suggestion(missing[0], head.names)}"
            )
        count, blank = 0, []
        for rows in _shown(head, blank):
            columns = list(zip(*rows))
            for name, role in roles.items():
                cells = columns[head.names.index(name)]
                cell = _Place(head, count, blank, name)
                parts[name].append(_READERS[role](cells, cell, words.get(name, {})))
            count += len(rows)
        files.append((head.path, count))
        blanks.append(blank)
    result = {name: _joined(parts[name], roles[name], words.get(name)) for name in roles}
    return Table(result, files, [head.first for head in heads], blanks)


def _shown(head: Head, blank: list[int]) -> Iterator[list[Sequence[str]]]:
    """Pieces of a table, and how many of its rows are read; see :func:`_pieces`."""
    count = 0
    with working(f"read {head.path.name}", unit="rows") as show:
        for rows in _pieces(head, blank):
            yield rows
            count += len(rows)
            show.at(count)


def _pieces(head: Head, blank: list[int]) -> Iterator[list[Sequence[str]]]:
    """The rows, some at a time; into ``blank`` the number of rows before each empty one."""
    if suffix_of(head.path) in LINES:
        yield from jsonl.pieces(head.path, head.names, PIECE, blank)
        return
    if not head.delimiter:
        names = list(head.names) if head.nested else None
        yield from parquet.pieces(head.path, PIECE, names)
        return
    width = len(head.names)
    with opened(head.path) as file:
        records = _records(file, head.delimiter)
        for _ in range(head.first - 1):
            next(records)
        rows: list[Sequence[str]] = []
        count = 0
        for row, closed in records:
            if not closed:
                raise DataError(_open_quote(head.path, _number_of(count, head.first, blank)))
            if len(row) != width:
                if _is_blank(row):
                    blank.append(count)
                    continue
                number = _number_of(count, head.first, blank)
                raise DataError(
                    f"{head.path}, row {number}: has {len(row)} cells; the header has {width}"
                )
            rows.append(row)
            count += 1
            if len(rows) == PIECE:
                yield rows
                rows = []
        if rows:
            yield rows


@dataclass(frozen=True)
class _Place:
    head: Head
    row: int
    blank: list[int]
    column: str

    def at(self, offset: int) -> str:
        number = _number_of(self.row + offset, self.head.first, self.blank)
        return f"{self.head.path}, row {number}, column {self.column!r}"


def _numbers(cells: Sequence[str], place: _Place, words: dict[str, int]) -> np.ndarray:
    try:
        values = _at_once(cells)
    except ValueError:
        values = np.array([_number(cell, place, i) for i, cell in enumerate(cells)], np.float64)
    beyond = np.abs(values) > LARGEST
    if beyond.any():
        row = int(beyond.argmax())
        raise DataError(
            f"{place.at(row)}: received {cells[row][:40]!r}; needs a finite number, none beyond "
            f"{LARGEST:.2g}"
        )
    return values


def _at_once(cells: Sequence[str]) -> np.ndarray:
    """ValueError where one is no number."""
    if any("_" in cell for cell in cells):  # Python's 1_2 is 12
        raise ValueError("_")
    return np.array(cells, np.float64)


def _number(cell: str, place: _Place, offset: int) -> float:
    if is_number(cell):
        return float(cell)
    if is_missing(cell):
        return np.nan
    raise DataError(f"{place.at(offset)}: {no_number(cell)}")


def no_number(cell: str) -> str:
    """What an error says of a cell that should be a number.

    Example:
        >>> no_number("kg")
        "received 'kg'; needs a number, or an empty cell where none was measured"
    """
    comma = ""
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", cell):
        comma = " (commas between thousands are left out, decimal ones written as points)"
    elif is_number(cell.replace(",", ".")):
        comma = " (decimal commas are written as points)"
    return (
        f"received {cell[:40]!r}; needs a number{comma}, or an empty cell where none was measured"
    )


def _times(cells: Sequence[str], place: _Place, words: dict[str, int]) -> np.ndarray:
    try:
        return _at_once(cells)
    except ValueError:
        pass
    result = np.empty(len(cells))
    for i, cell in enumerate(cells):
        try:
            result[i] = seconds(cell)
        except ValueError as error:
            raise DataError(
                f"{place.at(i)}: received {cell[:40]!r}; needs a time: a number, or a date such as "
                "2024-02-29T12:00:00"
            ) from error
    return result


def _clock(cells: Sequence[str], place: _Place, words: dict[str, int]) -> np.ndarray:
    try:
        return _at_once(cells)
    except ValueError:
        _refuse_times(cells, place, "number", lambda cell: not is_number(cell))
        raise


def _dates(cells: Sequence[str], place: _Place, words: dict[str, int]) -> np.ndarray:
    _refuse_times(cells, place, "date", is_number)
    return _times(cells, place, words)


def _refuse_times(
    cells: Sequence[str], place: _Place, needed: str, odd: Callable[[str], bool]
) -> None:
    """DataError of a time that is not written as those before it: a number is no second of 1970."""
    row = next((i for i, cell in enumerate(cells) if odd(cell)), None)
    if row is not None:
        raise DataError(
            f"{place.at(row)}: received {cells[row][:40]!r}; needs a time that is a {needed}, as "
            "those of the training files and of the first rows are"
        )


def seconds(cell: str) -> float:
    """A number as it is, a date in seconds since 1970: in UTC, where it names no zone of its own.

    Example:
        >>> seconds("1.5"), seconds("1970-01-02 00:00"), seconds("1970-01-02T01:00:00+01:00")
        (1.5, 86400.0, 86400.0)
    """
    if is_number(cell):
        return float(cell)
    try:
        zoned = datetime.fromisoformat(cell.strip())
        zoned = zoned if zoned.tzinfo else zoned.replace(tzinfo=UTC)
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except ValueError:  # what numpy knows besides: months, parts of a microsecond
        if not cell.strip()[:1].isdigit():  # "now" is no time of a file
            raise
        stamp = np.datetime64(cell.strip().removesuffix("Z"), "us")
    return float(stamp.astype(np.int64)) / 1e6


def _words(cells: Sequence[str], place: _Place, words: dict[str, int]) -> np.ndarray:
    result = np.empty(len(cells), np.int32)
    for i, cell in enumerate(cells):
        word = cell.strip()
        result[i] = -1 if is_missing(word) else words.setdefault(word, len(words))
    return result


def _texts(cells: Sequence[str], place: _Place, words: dict[str, int]) -> list[str]:
    return [str(cell) for cell in cells]


_READERS: dict[str, Callable[[Sequence[str], _Place, dict[str, int]], Any]] = {
    "number": _numbers,
    "time": _times,
    "clock": _clock,
    "date": _dates,
    "word": _words,
    "text": _texts,
}


def _joined(parts: list[Any], role: str, words: dict[str, int] | None) -> Any:
    if role == "text":
        return [text for part in parts for text in part]
    whole = np.concatenate(parts) if parts else np.zeros(0)
    return Coded(whole, list(words or {})) if role == "word" else whole
