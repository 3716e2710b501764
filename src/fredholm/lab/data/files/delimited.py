"""CSV and its relatives: pyarrow divides a file into cells, and infers nothing.

Left alone it would take an open quote for one long cell, count rows without the empty lines, and
read a line of remarks as names: these are checked here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError, require
from . import opening
from .head import HEAD, Head, Rows, Spot, unnamed
from .opening import TextBytes, opened, opened_bytes, too_long
from .suffixes import suffix_of
from .writing import Writing, has_decimal_comma, is_missing, is_number

CELLS = 500_000  # cells of the first rows at most: fewer rows of a very wide table
DELIMITERS = ",;\t|"
BLOCK = 1 << 20  # bytes that are divided into cells at a time, at least
ROW = 2048  # bytes of a block for each column
csv.field_size_limit(opening.LARGEST_CELL)


# --- the first rows -------------------------------------------------------------------------------


class Record(NamedTuple):
    """The cells of a row, how many lines lie before it, and whether its quotes are closed."""

    cells: list[str]
    before: int
    closed: bool

    @property
    def is_blank(self) -> bool:
        """Whether it is an empty line, or one of spaces."""
        return not self.cells or (len(self.cells) == 1 and not self.cells[0].strip())


def read_head(path: Path, writing: Writing) -> Head:
    """Return the names and first rows of a delimited file.

    Raises:
        DataError: an empty file, rows of different lengths, a quote that is not closed.
    """
    lines, more = _first_lines(path, writing.encoding)
    starts = [0, *accumulate(len(line.encode()) for line in lines)]
    sign = _declared_sign(lines)
    if sign is not None:
        lines[0] = "\n"
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: is empty; needs a header and rows")
    delimiter = writing.separator or sign or _delimiter(lines, suffix_of(path), writing)
    found = list(records(lines, delimiter))
    if not more and not found[-1].closed:
        raise DataError(_open_quote(path, len(found)))
    if more and len(found) > 2:
        found.pop()  # a cell of several lines may go on behind
    full = [(i + 1, record) for i, record in enumerate(found) if not record.is_blank]
    rows = [record.cells for _, record in full]
    odd = next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if odd is not None:
        marked = rows[0][0].lstrip().startswith(("#", "%", "//"))
        remark = ": a line of remarks is no header, remove it" if marked else ""
        raise DataError(_odd_row(path, full[odd][0], len(rows[odd]), len(rows[0])) + remark)
    spots = [Spot(number, starts[record.before]) for number, record in full]
    named = writing.header
    if named is None:
        named = not _is_sample(rows[0], rows[1:])
    names = tuple((cell.strip() if named else "") or unnamed(i) for i, cell in enumerate(rows[0]))
    header = spots[0] if named else None
    return Head(path, names, named, rows[named:], spots[named:], delimiter, header, writing=writing)


def records(lines: Iterable[str], delimiter: str) -> Iterator[Record]:
    """Yield the rows of a file, empty lines too. One whose quote is not closed swallows all that
    follows, also the empty line that is put behind the last one here.
    """
    reader = csv.reader(chain(lines, ["\n"]), delimiter=delimiter)
    row, before = None, 0
    try:
        for cells in reader:
            if row is not None:
                yield row
            row, before = Record(cells, before, True), reader.line_num
    except csv.Error:  # a cell beyond the limit
        if row is not None:
            yield row
        row = Record([""], before, False)
    if row is not None and row.cells:
        yield row._replace(closed=False)


def _first_lines(path: Path, encoding: str | None) -> tuple[list[str], bool]:
    """Return the lines of the first rows, and whether more follow."""
    with opened(path, encoding) as file:
        lines = list(islice(file, 3))
        widest = max((max(map(line.count, DELIMITERS)) for line in lines), default=0)
        count = max(100, min(HEAD, CELLS // (widest + 1)))
        lines += islice(file, count + 1 - len(lines))
        return lines, len(lines) > count


def _declared_sign(lines: Sequence[str]) -> str | None:
    """The delimiter that a first line ``sep=;`` says."""
    bare = lines[0].strip("\r\n").strip('"') if lines else ""
    return bare[4] if len(bare) == 5 and bare.lower().startswith("sep=") else None


def _delimiter(lines: Sequence[str], suffix: str, writing: Writing) -> str:
    """The sign that divides most lines alike; a tab where a file is called so, and another sign
    than the comma where all commas are those of numbers.
    """
    signs = DELIMITERS.replace(",", "") if writing.point == "," else DELIMITERS
    first = next(line for line in lines if line.strip())
    if suffix == ".tsv" and "\t" in first:
        return "\t"
    scores = {}
    for sign in signs:
        rows = [r.cells for r in records(lines[:50], sign) if not r.is_blank]
        counts = [len(row) for row in rows]
        if counts[0] > 1 and len(set(counts)) == 1 and sign != "," and _decimal_commas(rows):
            return sign
        scores[sign] = (counts[0] > 1) * (counts.count(counts[0]) / len(counts), counts[0])
    return max(signs, key=lambda sign: scores[sign] or (0, 0))


def _decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether there are commas, all of them within numbers."""
    cells = [cell for row in rows for cell in row if "," in cell]
    return bool(cells) and all(map(has_decimal_comma, cells))


def _is_sample(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a file has no header: its first row holds numbers alone, but no count of the columns
    as pandas writes it, or it is as the others are: numbers where they have numbers, and words that
    come again below.
    """
    index = first[0].strip() == ""
    cells = [cell.strip() for cell in (first[1:] if index else first)]
    if len(cells) >= (1 if index else 3) and cells == [str(i) for i in range(len(cells))]:
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


def _odd_row(path: Path, number: int, cells: int, expected: int) -> str:
    return f"{path}, row {number}: has {cells} cells; the header has {expected}"


def _open_quote(path: Path, row: int) -> str:
    return (
        f"{path}, row {row}: a cell begins with a quote that is not closed, so that all rows below "
        "belong to it; close it, or write the quote twice within quotes"
    )


# --- all rows -------------------------------------------------------------------------------------


def arrays(head: Head, names: Sequence[str], rows: Rows) -> Iterator[list[Any]]:
    """Yield the columns ``names`` as text, a few thousand rows at a time.

    A row that is longer than two blocks needs larger blocks: reading starts again and passes over
    what was given out.

    Raises:
        DataError: a row of another length, an open quote, or a cell beyond the limit.
    """
    block, done = max(BLOCK, ROW * len(head.names)), 0
    while True:
        seen, checks = 0, _Checks(head)
        rows.recount = checks.sample_numbers
        try:
            for batch in _batches(head, names, block, checks):
                new = batch.slice(max(0, done - seen))
                seen += batch.num_rows
                if new.num_rows:
                    done = seen
                    yield new.columns
            checks.finish(seen)
            rows.numbers = checks.sample_numbers()
            return
        except _TooLong:
            if block > opening.LARGEST_CELL:
                number = checks.number(seen + checks.left_out + 1)
                raise DataError(too_long(head.path, number)) from None
            block *= 8


class _TooLong(Exception):
    """A row does not fit into two blocks."""


def _batches(head: Head, names: Sequence[str], block: int, checks: _Checks) -> Iterator[Any]:
    """Yield the columns ``names`` of all samples."""
    arrow_csv = require("pyarrow.csv", "train", f"reading {head.path.name}")
    import pyarrow

    places = [str(head.names.index(name)) for name in names] or ["0"]
    read = arrow_csv.ReadOptions(
        use_threads=False,
        block_size=block,
        column_names=[str(i) for i in range(len(head.names))],
    )
    parse = arrow_csv.ParseOptions(
        delimiter=head.delimiter, newlines_in_values=True, invalid_row_handler=checks
    )
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(places, pyarrow.string()),
        include_columns=places,
        strings_can_be_null=True,
        null_values=[""],
    )
    skip, end = head.spots[0].start, checks.end.encode()
    with opened_bytes(head.path, head.writing.encoding, skip, end) as file:
        checks.file = file
        source = pyarrow.PythonFile(io.BufferedReader(file), mode="r")
        try:
            yield from arrow_csv.open_csv(source, read, parse, convert)
        except pyarrow.ArrowInvalid as error:
            if "straddling" in str(error):
                raise _TooLong from None
            raise DataError(f"{head.path}: cannot be divided into cells ({error})") from error


class _Checks:
    """Rows with another number of cells than the header, which the reader leaves out and gives to
    this object.

    A line of our own behind the last one has a cell too many. Where it is missing, a quote is open.
    Rows are counted here as the reader does, from 1 and without empty lines.
    """

    def __init__(self, head: Head):
        self.head = head
        self.file: TextBytes | None = None
        self.end = head.delimiter.join(["\x00end", *[""] * len(head.names)])
        self.closed = False
        self.spaces: list[int] = []  # lines of spaces
        self.odd: list[tuple[int, int]] = []  # rows and their numbers of cells

    def __call__(self, row: Any) -> str:
        if row.text == self.end:
            self.closed = True
        elif row.actual_columns == 1 and not row.text.strip():
            self.spaces.append(row.number)
        else:
            self.odd.append((row.number, row.actual_columns))
        return "skip"

    @property
    def left_out(self) -> int:
        return len(self.odd) + len(self.spaces)

    def finish(self, samples: int) -> None:
        """Refuse rows of another length, where ``samples`` others were read.

        Raises:
            DataError: such a row, or a quote that is open at the end of the file.
        """
        path, last = self.head.path, samples + self.left_out
        if not self.closed and (not self.odd or self.odd[0][0] == last):
            raise DataError(_open_quote(path, self.number(last)))
        if self.odd:
            row, cells = self.odd[0]
            raise DataError(_odd_row(path, self.number(row), cells, len(self.head.names)))

    def number(self, row: int) -> int:
        """Return the number that a spreadsheet shows of a row."""
        if not self._may_have_gaps:
            return self.head.spots[0].number + row - 1
        return int(self._numbers()[row - 1])

    def sample_numbers(self) -> np.ndarray | None:
        """Return the numbers of all samples; None where they follow one another."""
        if not self._may_have_gaps:
            return None
        return np.delete(self._numbers(), np.array(self.spaces, int) - 1)

    @property
    def _may_have_gaps(self) -> bool:
        return bool(self.spaces) or (self.file is not None and self.file.gaps)

    def _numbers(self) -> np.ndarray:
        first, head = self.head.spots[0].number, self.head
        with opened(head.path, head.writing.encoding) as lines:
            every = enumerate(records(lines, head.delimiter), 1)
            return np.array([number for number, row in every if row.cells and number >= first])
