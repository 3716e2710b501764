"""Tables as columns of numbers, words, texts, times and series, cast by the role of each.

pyarrow divides CSV into cells and brings Parquet's columns; it never infers a type. Every cell
arrives as text (in Parquet as what it is) and is cast here, so that a cell that does not fit its
role is named by row and column.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError, require
from ....errors import suggest as suggestion
from ....progress import working
from . import jsonl, parquet
from .head import SEPARATOR, Head, is_blank, open_quote, records
from .opening import LARGEST_CELL, opened, opened_bytes, too_long
from .suffixes import LINES, suffix_of
from .times import (
    NotATime,
    Ticks,
    joined,
    order_of,
    ticks_of_array,
    ticks_of_dates,
    ticks_of_numbers,
    ticks_of_words,
)
from .writing import MISSING, Writing, is_number, no_number

PIECE = 20_000  # rows held as text at a time, of JSON and Parquet
BLOCK = 1 << 20  # bytes of CSV that are divided into cells at a time, at least
ROW = 2048  # bytes of a block for each column
LARGEST = float(np.finfo(np.float32).max)  # what a model can read
SLIPS = 0.1  # the share of a column's cells that may be unreadable


@dataclass
class Coded:
    """A column of words: the number of each row's word among ``names``, -1 where it is missing."""

    codes: np.ndarray
    names: list[str]


class Unreadable(NamedTuple):
    """A cell in a column of numbers that holds none."""

    row: int
    column: str
    cell: str


@dataclass
class Table:
    """Columns of all files: numbers as float64, NaN where missing; words as :class:`Coded`; times
    as :class:`Ticks`; texts and series as lists.

    Attributes:
        files: (the file, how many rows it has), in order.
        first: the number of each file's first row, as a spreadsheet counts them.
        blank: of each file the rows before which there is an empty one, as often as there is.
        unreadable: cells that count as missing, since they hold no number.
        dates: the order of the dates, where it was found in them.
    """

    columns: dict[Any, Any]  # by name; a name that nobody said is None, and not there
    files: list[tuple[Path, int]]
    first: list[int]
    blank: list[list[int]]
    unreadable: list[Unreadable] = field(default_factory=list)
    dates: str | None = None

    def __len__(self) -> int:
        return sum(count for _, count in self.files)

    def place(self, row: int) -> dict[str, Any]:
        """Return ``{"file": ..., "row": 7}``."""
        for (path, count), first, blank in zip(self.files, self.first, self.blank):
            if row < count:
                return {"file": str(path), "row": number_of(row, first, blank)}
            row -= count
        raise IndexError(row)

    def where(self, row: int, column: str = "") -> str:
        """Return ``file, row 7, column 'x'``."""
        return in_words(self.place(row)) + (f", column {column!r}" if column else "")

    def file_of(self) -> np.ndarray:
        """Return the number of each row's file."""
        return np.repeat(np.arange(len(self.files)), [count for _, count in self.files])


def in_words(place: Mapping[str, Any]) -> str:
    """Return where a sample is.

    Example:
        >>> in_words({"file": "a.csv", "row": 7})
        'a.csv, row 7'
    """
    return ", ".join([place["file"], *(f"{k} {v}" for k, v in place.items() if k != "file")])


def number_of(row: int, first: int, blank: Sequence[int]) -> int:
    """Return the number that a spreadsheet shows of a row; ``blank``: see :class:`Table`."""
    return first + row + bisect_right(blank, row)


def read_table(heads: Sequence[Head], roles: dict[str, str], strict: bool = True) -> Table:
    """Read the columns named by ``roles``: ``number``, ``word``, ``text``, ``list`` (of numbers),
    or ``time`` (a number, or a date), ``clock`` (a number) and ``date``.

    The files must have the same columns. Memory: 8 bytes a number, 4 a word, and the texts. Unless
    ``strict``, cells that hold no number count as missing and are listed, where they are no more
    than a tenth of their column.

    Raises:
        DataError: a row of another length, a cell that is no number, with file, row and column.
    """
    table = Table({}, [], [], [])
    casts = {name: _CASTS[role](name) for name, role in roles.items()}
    for head in heads:
        _check_columns(head, roles, heads[0])
        blank: list[int] = []
        before = len(table)
        count = 0
        with working(f"read {head.path.name}", unit="rows") as show:
            for arrays in _arrays(head, list(roles), blank):
                place = _Place(head, count, blank)
                for cast, array in zip(casts.values(), arrays):
                    for row, cell in cast.add(array, place):
                        found = Unreadable(before + count + row, cast.name, cell)
                        table.unreadable.append(found)
                        if strict:
                            raise DataError(f"{place.at(row, cast.name)}: {no_number(cell)}")
                count += len(arrays[0]) if arrays else 0
                show.at(count)
        table.files.append((head.path, count))
        table.first.append(head.first)
        table.blank.append(blank)
    for name, cast in casts.items():
        table.columns[name] = cast.result()
        table.dates = table.dates or getattr(cast, "order", None)
    _check_slips(table)
    return table


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
    counts: dict[str, int] = {}
    for cell in table.unreadable:
        counts[cell.column] = counts.get(cell.column, 0) + 1
    for name, count in counts.items():
        known = count + int(np.isfinite(table.columns[name]).sum())
        if count > max(1, SLIPS * known):
            first = next(cell for cell in table.unreadable if cell.column == name)
            raise DataError(
                f"{table.where(first.row, name)}: {no_number(first.cell)} (so are {count:,} of "
                f"{known:,} cells)"
            )


@dataclass(frozen=True)
class _Place:
    """Where an array of a column begins."""

    head: Head
    row: int
    blank: list[int]

    def at(self, offset: int, column: str) -> str:
        number = number_of(self.row + offset, self.head.first, self.blank)
        return f"{self.head.path}, row {number}, column {column!r}"


# --- cells ----------------------------------------------------------------------------------------


def _arrays(head: Head, names: list[str], blank: list[int]) -> Iterator[list[Any]]:
    """Yield the columns ``names`` as arrays of Arrow, some rows at a time; into ``blank`` the
    number of rows before each empty one.
    """
    if suffix_of(head.path) in LINES:
        yield from _json_arrays(head, names, blank)
    elif not head.delimiter:
        yield from parquet.batches(head.path, names, PIECE)
    else:
        yield from _csv_arrays(head, names, blank)


def _json_arrays(head: Head, names: list[str], blank: list[int]) -> Iterator[list[Any]]:
    arrow = require("pyarrow", "train", f"reading {head.path.name}")
    known = [*head.names, *head.nested, *head.lists]
    done = 0
    for piece in jsonl.pieces(head.path, names, known, PIECE, head.writing.encoding):
        place = _Place(head, done, blank)
        for line in piece.lines:
            blank.extend([done] * (line - head.first - done - len(blank)))
            done += 1
        arrays = []
        for name, values in zip(names, piece.columns):
            if name in head.lists:
                arrays.append(values)
                continue
            deep = next((i for i, v in enumerate(values) if isinstance(v, (list, dict))), None)
            if deep is not None:
                raise DataError(
                    f"{place.at(deep, name)}: received {jsonl.text_of(values[deep])!r}; needs a "
                    "number or a text"
                )
            cells = [None if value is None else str(value) for value in values]
            arrays.append(arrow.array(cells, arrow.string()))
        yield arrays


# --- CSV ------------------------------------------------------------------------------------------


def _csv_arrays(head: Head, names: list[str], blank: list[int]) -> Iterator[list[Any]]:
    """Divide a file into cells, a few thousand rows at a time.

    The names and all that lies above them are read as rows and dropped by their number, so that
    rows are counted from the beginning of the file. The last row is ours and has a cell too many,
    as :class:`_OddRows` expects: where it is missing, a quote is open. A row that is longer than
    two blocks needs larger blocks: reading starts again and passes over what was given out.
    """
    empty, spaces = _blank_rows(head)
    blank += _rows_before([*empty, *spaces], head.first)
    above = head.first - 1 - bisect_left(spaces, head.first)
    dropped = [row - 1 - bisect_left(spaces, row) for row in empty if row >= head.first]
    odd = _OddRows(head, spaces)
    block = max(BLOCK, ROW * len(head.names))
    done = above
    while True:
        try:
            seen = 0
            for batch in _batches(head, names, block, odd):
                skipped = max(0, done - seen)
                start, seen = seen, seen + batch.num_rows
                if skipped < batch.num_rows:
                    done = seen
                    yield _without(batch, start, skipped, dropped)
            odd.check(seen)
            return
        except _TooLong:
            if block > LARGEST_CELL:
                raise DataError(too_long(head.path, done + len(odd.rows) + 1)) from None
            block *= 8
            odd.rows.clear()


class _TooLong(Exception):
    """A row does not fit into two blocks."""


def _batches(head: Head, names: list[str], block: int, odd: _OddRows) -> Iterator[Any]:
    """Yield the columns ``names`` of all rows, of the header as well."""
    csv = require("pyarrow.csv", "train", f"reading {head.path.name}")
    import pyarrow

    places = {name: str(i) for i, name in enumerate(head.names)}
    columns = [places[name] for name in names] or ["0"]
    read = csv.ReadOptions(
        use_threads=False,
        block_size=block,
        column_names=[str(i) for i in range(len(head.names))],
    )
    parse = csv.ParseOptions(
        delimiter=head.delimiter,
        newlines_in_values=True,
        ignore_empty_lines=False,
        invalid_row_handler=odd,
    )
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pyarrow.string()),
        include_columns=columns,
        strings_can_be_null=True,
        null_values=[""],
    )
    with opened_bytes(head.path, head.writing.encoding, odd.end.encode()) as file:
        try:
            source = pyarrow.PythonFile(file, mode="r")
            yield from csv.open_csv(source, read, parse, convert)
        except pyarrow.ArrowInvalid as error:
            if "straddling" in str(error):
                raise _TooLong from None
            raise DataError(f"{head.path}: cannot be divided into cells ({error})") from error


class _OddRows:
    """The rows with another number of cells than the header; the reader leaves them out.

    Attributes:
        end: a line of our own behind the last one.
        rows: the odd ones, without those of ``spaces``.
    """

    def __init__(self, head: Head, spaces: Sequence[int]):
        self.head, self.spaces = head, frozenset(spaces)
        self.end = head.delimiter.join(["\x00end", *[""] * len(head.names)])
        self.rows: list[Any] = []
        self.closed = False

    def __call__(self, row: Any) -> str:
        if row.text == self.end:
            self.closed = True
        elif row.number not in self.spaces:
            self.rows.append(row)
        return "skip"

    def check(self, count: int) -> None:
        """Refuse rows of another length, where ``count`` others were read.

        Raises:
            DataError: such a row, or a quote that is open at the end of the file.
        """
        path = self.head.path
        last = count + len(self.rows) + len(self.spaces)
        if not self.closed and (not self.rows or self.rows[0].number == last):
            raise DataError(open_quote(path, last))
        if self.rows:
            row = self.rows[0]
            raise DataError(
                f"{path}, row {row.number}: has {row.actual_columns} cells; the header has "
                f"{len(self.head.names)}"
            )


def _without(batch: Any, start: int, skipped: int, dropped: Sequence[int]) -> list[Any]:
    """Return the columns of a batch without its first rows, and without empty lines, which are
    numbered from the beginning of the file.
    """
    batch = batch.slice(skipped)
    start += skipped
    first, last = bisect_left(dropped, start), bisect_left(dropped, start + batch.num_rows)
    if first == last:
        return batch.columns
    chosen = np.delete(np.arange(batch.num_rows), np.array(dropped[first:last]) - start)
    return batch.take(chosen).columns


def _blank_rows(head: Head) -> tuple[list[int], list[int]]:
    """Return the numbers of the empty lines, and of lines with spaces alone (or with the separator,
    as the first may be). The file is divided a second time only where there may be any.
    """
    with opened_bytes(head.path, head.writing.encoding) as file:
        last, blank, first = b"\n", False, b""
        while chunk := file.read(BLOCK):
            first = first or chunk
            blank = blank or _may_hold_blank(last + chunk)
            last = chunk[-1:]
    separator = SEPARATOR.fullmatch(re.split("[\r\n]", first[:16].decode(errors="replace"))[0])
    width = len(head.names)
    spaces = [1] if separator is not None and width != 2 else []
    if not blank:
        return [], spaces
    empty = []
    with opened(head.path, head.writing.encoding) as lines:
        for number, (row, _) in enumerate(records(lines, head.delimiter), 1):
            if not row:
                empty.append(number)
            elif len(row) != width and is_blank(row):
                spaces.append(number)
    return empty, spaces


def _may_hold_blank(content: bytes) -> bool:
    """Whether a line ends and the next one begins with a space or ends as well."""
    signs = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero((signs[:-1] == ord("\n")) | (signs[:-1] == ord("\r")))
    here, following = signs[ends], signs[ends + 1]
    windows = (here == ord("\r")) & (following == ord("\n"))
    return bool((np.isin(following, np.frombuffer(b"\n\r \t", np.uint8)) & ~windows).any())


def _rows_before(blank: list[int], first: int) -> list[int]:
    """Return how many samples lie before each blank line, from the numbers of the lines."""
    below = sorted(row for row in blank if row >= first)
    return [row - first - before for before, row in enumerate(below)]


# --- casts ----------------------------------------------------------------------------------------

Odd = tuple[int, str]  # the place of a cell in an array, and the cell


class _Numbers:
    """One array for all rows, which grows in place: a large table is held once."""

    def __init__(self, name: str):
        self.name, self.count = name, 0
        self.values = np.empty(0)

    def add(self, array: Any, place: _Place) -> list[Odd]:
        values, odd = _as_numbers(array, place.head.writing)
        beyond = np.abs(values) > LARGEST
        if beyond.any():
            row = int(beyond.argmax())
            raise DataError(
                f"{place.at(row, self.name)}: received {str(array[row].as_py())[:40]!r}; needs a "
                f"finite number, none beyond {LARGEST:.2g}"
            )
        needed = self.count + len(values)
        if needed > len(self.values):
            self.values.resize(needed + needed // 8, refcheck=False)
        self.values[self.count : needed] = values
        self.count = needed
        return odd

    def result(self) -> np.ndarray:
        self.values.resize(self.count, refcheck=False)
        return self.values


def _as_numbers(array: Any, writing: Writing) -> tuple[np.ndarray, list[Odd]]:
    """Return the numbers of an array, NaN where one is missing, and the cells that are none."""
    import pyarrow

    compute: Any = require("pyarrow.compute", "train", "reading tables")
    kind = array.type
    if not pyarrow.types.is_string(kind):
        if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
            return array.cast("float64", safe=False).to_numpy(zero_copy_only=False), []
        array = pyarrow.array(parquet.texts(array), pyarrow.string())
    try:
        if writing.plain and writing.null is None:
            return array.cast("float64").to_numpy(zero_copy_only=False), []
    except pyarrow.ArrowInvalid:
        pass
    bare = compute.utf8_trim_whitespace(array)
    words = sorted(MISSING if writing.null is None else {"", *writing.null})
    missing = compute.is_in(compute.utf8_lower(bare), pyarrow.array(words))
    bare = compute.if_else(missing, None, bare)
    try:
        if writing.plain:
            return bare.cast("float64").to_numpy(zero_copy_only=False), []
    except pyarrow.ArrowInvalid:
        pass
    values, odd = np.full(len(bare), np.nan), []
    for row, cell in enumerate(bare.to_pylist()):
        number = None if cell is None else writing.number(cell)
        if number is not None:
            values[row] = float(number)
        elif cell is not None:
            odd.append((row, cell))
    return values, odd


class _Words:
    def __init__(self, name: str):
        self.name, self.parts = name, []
        self.words: dict[str, int] = {}

    def add(self, array: Any, place: _Place) -> list[Odd]:
        coded = array.dictionary_encode()
        codes = []
        for word in map(str.strip, parquet.texts(coded.dictionary)):
            missing = place.head.writing.is_missing(word)
            codes.append(-1 if missing else self.words.setdefault(word, len(self.words)))
        table = np.array([*codes, -1], np.int32)
        self.parts.append(table[coded.indices.fill_null(len(codes)).to_numpy()])
        return []

    def result(self) -> Coded:
        whole = np.concatenate(self.parts) if self.parts else np.zeros(0, np.int32)
        return Coded(whole, list(self.words))


class _Texts:
    def __init__(self, name: str):
        self.name, self.parts = name, []

    def add(self, array: Any, place: _Place) -> list[Odd]:
        self.parts += parquet.texts(array)
        return []

    def result(self) -> list[str]:
        return self.parts


class _Lists:
    """Lists of numbers, null where one is missing."""

    def __init__(self, name: str):
        self.name, self.parts = name, []

    def add(self, array: Any, place: _Place) -> list[Odd]:
        for row, cell in enumerate(array if isinstance(array, list) else array.to_pylist()):
            try:
                series = np.array([np.nan if v is None else v for v in cell or ()], np.float64)
            except (TypeError, ValueError):
                series = np.zeros((0, 0))
            if series.ndim != 1 or not len(series):
                raise DataError(
                    f"{place.at(row, self.name)}: received {jsonl.text_of(cell)!r}; needs a list "
                    "of numbers, as most rows have"
                )
            self.parts.append(series)
        return []

    def result(self) -> list[np.ndarray]:
        return self.parts


class _Times:
    """Times, held as they are written until all are known: the order of day and month follows from
    all of them.
    """

    needed = ""

    def __init__(self, name: str):
        self.name = name
        self.order: str | None = None
        self.parts: list[tuple[_Place, Any]] = []

    def add(self, array: Any, place: _Place) -> list[Odd]:
        import pyarrow

        if pyarrow.types.is_string(array.type):
            self.parts.append((place, parquet.texts(array)))
        elif array.null_count:
            row = array.is_null().to_pylist().index(True)
            raise DataError(f"{place.at(row, self.name)}: received ''; {_NEEDS_TIME}")
        elif pyarrow.types.is_temporal(array.type) or pyarrow.types.is_primitive(array.type):
            self.parts.append((place, array.to_numpy(zero_copy_only=False)))
        else:
            self.parts.append((place, parquet.texts(array)))
        return []

    def result(self) -> Ticks:
        cells = [cell for _, part in self.parts if isinstance(part, list) for cell in part]
        if not self.parts:
            return Ticks(np.zeros(0, np.int64), 0, 1, False)
        place = self.parts[0][0]
        order = place.head.writing.dates
        if order is None and cells and not is_number(cells[0]):
            try:
                self.order = order = order_of(cells)
            except ValueError as error:
                raise DataError(
                    f"{place.at(0, self.name)}: received {cells[0][:40]!r}; {error}"
                ) from error
        return joined([self._ticks(place, part, order) for place, part in self.parts])

    def _ticks(self, place: _Place, part: Any, order: str | None) -> Ticks:
        try:
            if not isinstance(part, list):
                found = ticks_of_array(part)
                if self.needed and found.dated is not (self.needed == "date"):
                    raise NotATime(0)
                return found
            if self.needed == "number":
                return ticks_of_numbers(part)
            return ticks_of_dates(part, order) if self.needed else ticks_of_words(part, order)
        except NotATime as error:
            cell = str(part[error.number])[:40]
            why = f"{error.why}: " if error.why else ""
            needs = _NEEDS_TIME
            if self.needed:
                needs = (
                    f"needs a time that is a {self.needed}, as those of the training files and of "
                    "the first rows are"
                )
            raise DataError(
                f"{place.at(error.number, self.name)}: received {cell!r}; {why}{needs}"
            ) from error


class _Clock(_Times):
    needed = "number"


class _Dates(_Times):
    needed = "date"


_NEEDS_TIME = "needs a time: a number, or a date such as 2024-02-29T12:00:00"
_CASTS: dict[str, Callable[[str], Any]] = {
    "number": _Numbers,
    "word": _Words,
    "text": _Texts,
    "list": _Lists,
    "time": _Times,
    "clock": _Clock,
    "date": _Dates,
}
