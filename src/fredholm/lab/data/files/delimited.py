"""CSV and its relatives: pyarrow splits a file into cells, and infers nothing.

Left alone it would take an open quote for one long cell, not count empty lines, and read a line of
remarks as names: these are checked here.
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
from .writing import PLAIN, Writing, has_decimal_comma, is_number

CELLS = 500_000  # most cells of the first rows: of a very wide table, fewer rows are read
DELIMITERS = ",;\t|"
BLOCK = 1 << 20  # fewest bytes that are split into cells at a time
ROW = 2048  # bytes of a block per column, so that a block of a wide table holds some rows
csv.field_size_limit(opening.LARGEST_CELL)


# --- the first rows -------------------------------------------------------------------------------


class Record(NamedTuple):
    """Cells of a row, the number of lines before it, and whether its quotes are closed."""

    cells: list[str]
    before: int
    closed: bool

    @property
    def is_blank(self) -> bool:
        """Whether it is an empty line, or one of spaces."""
        if len(self.cells) > 1:
            return False
        return not any(cell.strip() for cell in self.cells)


def read_head(path: Path, writing: Writing) -> Head:
    """Return the names and first rows of a delimited file.

    Raises:
        DataError: an empty file, rows of different lengths, a quote that is not closed.
    """
    lines, more = _first_lines(path, writing.encoding)
    # Bytes before each line, by which reading of all rows starts at the first sample.
    starts = [0, *accumulate(len(line.encode()) for line in lines)]
    sign = _declared_sign(lines)
    if sign is not None:
        lines[0] = "\n"
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: expected a header and rows, got an empty file; add them")
    delimiter = writing.separator or sign or _delimiter(lines, suffix_of(path), writing)

    found = list(records(lines, delimiter))
    if more and len(found) > 2:
        # A cell of several lines may go on below the first rows.
        found.pop()
    elif not more and not found[-1].closed:
        raise DataError(_open_quote(path, len(found)))

    rows: list[list[str]] = []
    spots: list[Spot] = []
    for number, record in enumerate(found, 1):
        if record.is_blank:
            continue
        rows.append(record.cells)
        spots.append(Spot(number, starts[record.before]))
    _check_widths(path, rows, spots)

    named = writing.header
    if named is None:
        named = not _is_sample(rows[0], rows[1:])
    header = None
    cells = [""] * len(rows[0])
    if named:
        header = spots[0]
        cells = [cell.strip() for cell in rows[0]]
    names = [name or unnamed(i) for i, name in enumerate(cells)]
    return Head(
        path,
        tuple(names),
        named,
        rows[named:],
        spots[named:],
        delimiter,
        header,
        writing=writing,
    )


def _check_widths(
    path: Path,
    rows: Sequence[Sequence[str]],
    spots: Sequence[Spot],
) -> None:
    """Refuse a row with another number of cells than the first."""
    header = rows[0]
    for spot, row in zip(spots, rows):
        if len(row) == len(header):
            continue
        remark = "; correct the row"
        if header[0].lstrip().startswith(("#", "%", "//")):
            remark = "; if the header is a line of remarks, remove it"
        raise DataError(_odd_row(path, spot.number, len(row), len(header)) + remark)


def records(lines: Iterable[str], delimiter: str) -> Iterator[Record]:
    """Yield the rows of a file, empty lines too.

    An open quote swallows everything below it, also the empty line that is appended here: a last
    row with cells is one whose quote is not closed.
    """
    reader = csv.reader(chain(lines, ["\n"]), delimiter=delimiter)
    row = None
    before = 0
    try:
        for cells in reader:
            if row is not None:
                yield row
            row = Record(cells, before, True)
            before = reader.line_num
    except csv.Error:
        # A cell beyond the limit: most likely an open quote as well.
        if row is not None:
            yield row
        row = Record([""], before, False)
    if row is not None and row.cells:
        yield row._replace(closed=False)


def _first_lines(path: Path, encoding: str | None) -> tuple[list[str], bool]:
    """Return the lines of the first rows, and whether more follow."""
    with opened(path, encoding) as file:
        lines = list(islice(file, 3))
        # The separator is not known yet: it is at most the most frequent sign.
        counts = [line.count(sign) for line in lines for sign in DELIMITERS]
        cells = 1 + max(counts, default=0)
        most = min(HEAD, CELLS // cells)
        count = max(100, most)
        lines += islice(file, count + 1 - len(lines))
        return lines, len(lines) > count


def _declared_sign(lines: Sequence[str]) -> str | None:
    """Return the delimiter that a first line ``sep=;`` names, as Excel writes it."""
    if not lines:
        return None
    bare = lines[0].strip("\r\n").strip('"')
    if len(bare) != 5 or not bare.lower().startswith("sep="):
        return None
    return bare[4]


def _delimiter(
    lines: Sequence[str],
    suffix: str,
    writing: Writing,
) -> str:
    """Return the sign that splits most lines into equally many cells."""
    first = next(line for line in lines if line.strip())
    if suffix == ".tsv" and "\t" in first:
        return "\t"
    signs = DELIMITERS
    if writing.point == ",":
        signs = signs.replace(",", "")

    scores = {}
    for sign in signs:
        found = records(lines[:50], sign)
        rows = [record.cells for record in found if not record.is_blank]
        counts = [len(row) for row in rows]
        width = counts[0]
        scores[sign] = (0.0, 0)
        if width < 2:
            continue
        share = counts.count(width) / len(counts)
        scores[sign] = (share, width)
        # Commas may be more frequent than the separator, where all of them are decimal.
        even = len(set(counts)) == 1
        if sign != "," and even and _decimal_commas(rows):
            return sign
    return max(signs, key=scores.__getitem__)


def _decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether there are commas, all of them within numbers."""
    cells = [cell for row in rows for cell in row if "," in cell]
    if not cells:
        return False
    return all(map(has_decimal_comma, cells))


def _is_sample(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a file has no header, so that its first row is a sample.

    The first row is a sample if it holds only numbers, but not the numbers 0, 1, 2, … that pandas
    writes for columns without names. It is also one if it looks like the rows below: numbers where
    they have numbers, and words that occur below.
    """
    cells = [cell.strip() for cell in first]
    fewest = 3
    if cells[0] == "":
        # The index of pandas has no name. Beside it, even one column may be numbered.
        cells = cells[1:]
        fewest = 1
    counted = [str(i) for i in range(len(cells))]
    if len(cells) >= fewest and cells == counted:
        return False

    numbers: list[int] = []
    words: list[int] = []
    for i, cell in enumerate(first):
        if is_number(cell):
            numbers.append(i)
        elif not PLAIN.is_missing(cell):
            words.append(i)
    if not words or not rows:
        return not words
    if not numbers:
        return False

    for i in words:
        below = {row[i].strip() for row in rows}
        if first[i].strip() not in below:
            return False
    for row in rows:
        for i in numbers:
            if not is_number(row[i]) and not PLAIN.is_missing(row[i]):
                return False
    return True


def _odd_row(
    path: Path,
    number: int,
    cells: int,
    expected: int,
) -> str:
    return f"{path}, row {number}: expected {expected} cells, as the header has, got {cells}"


def _open_quote(path: Path, row: int) -> str:
    return (
        f"{path}, row {row}: a cell begins with a quote that is not closed, so that all rows below "
        "belong to it; close it, or write the quote twice within quotes"
    )


# --- all rows -------------------------------------------------------------------------------------


def arrays(
    head: Head,
    names: Sequence[str],
    rows: Rows,
) -> Iterator[list[Any]]:
    """Yield the columns ``names`` as text, a few thousand rows at a time.

    A row that is longer than two blocks needs larger blocks: reading starts again, and skips the
    rows that have been yielded.

    Raises:
        DataError: a row of another length, an open quote, or a cell beyond the limit.
    """
    block = max(BLOCK, ROW * len(head.names))
    done = 0
    while True:
        seen = 0
        checks = _Checks(head)
        rows.recount = checks.sample_numbers
        try:
            for batch in _batches(head, names, block, checks):
                yielded = max(0, done - seen)
                new = batch.slice(yielded)
                seen += batch.num_rows
                if new.num_rows:
                    done = seen
                    yield new.columns
        except _TooLong:
            if block > opening.LARGEST_CELL:
                number = checks.number(seen + checks.left_out + 1)
                raise DataError(too_long(head.path, number)) from None
            block *= 8
            continue
        checks.finish(seen)
        rows.numbers = checks.sample_numbers()
        return


class _TooLong(Exception):
    """A row does not fit into two blocks."""


def _batches(
    head: Head,
    names: Sequence[str],
    block: int,
    checks: _Checks,
) -> Iterator[Any]:
    """Yield the columns ``names`` of all samples."""
    arrow_csv = require("pyarrow.csv", "train", f"reading {head.path.name}")
    import pyarrow

    # Columns are called by their places, since two may have one name. Without any column to read,
    # rows are counted by the first.
    places = [str(head.names.index(name)) for name in names] or ["0"]
    all_places = [str(i) for i in range(len(head.names))]
    read = arrow_csv.ReadOptions(
        use_threads=False,
        block_size=block,
        column_names=all_places,
    )
    parse = arrow_csv.ParseOptions(
        delimiter=head.delimiter,
        newlines_in_values=True,
        invalid_row_handler=checks,
    )
    # Everything is text: Arrow would infer types by the first block, and drop zeros of codes.
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(places, pyarrow.string()),
        include_columns=places,
        strings_can_be_null=True,
        null_values=[""],
    )
    skip = head.spots[0].start
    end = checks.end.encode()
    with opened_bytes(head.path, head.writing.encoding, skip, end) as file:
        checks.file = file
        buffered = io.BufferedReader(file)
        source = pyarrow.PythonFile(buffered, mode="r")
        try:
            yield from arrow_csv.open_csv(source, read, parse, convert)
        except pyarrow.ArrowInvalid as error:
            if "straddling" in str(error):
                raise _TooLong from None
            raise DataError(
                f"{head.path}: expected rows of cells, got an error ({error}); correct the file"
            ) from error


class _Checks:
    """Rows with another number of cells than the header.

    The reader skips them and passes them to this object. An appended line has one cell too many; if
    it does not arrive, an open quote has swallowed it. Rows are counted as the reader does: from 1,
    without empty lines.
    """

    def __init__(self, head: Head):
        self.head = head
        self.file: TextBytes | None = None
        empty = [""] * len(head.names)
        self.end = head.delimiter.join(["\x00end", *empty])
        self.closed = False
        self.spaces: list[int] = []  # rows of spaces
        self.odd: list[tuple[int, int]] = []  # other rows, and their numbers of cells

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
        """Refuse rows of another length, after ``samples`` other rows were read.

        Raises:
            DataError: such a row, or a quote that is open at the end of the file.
        """
        path = self.head.path
        last = samples + self.left_out
        # With an open quote, the last row holds all that follows; it often has too few cells.
        if not self.odd:
            if not self.closed:
                raise DataError(_open_quote(path, self.number(last)))
            return

        row, cells = self.odd[0]
        number = self.number(row)
        if not self.closed and row == last:
            raise DataError(_open_quote(path, number))
        error = _odd_row(path, number, cells, len(self.head.names))
        raise DataError(f"{error}; correct the row")

    def number(self, row: int) -> int:
        """Return the number that a spreadsheet shows for a row."""
        if not self._may_have_gaps:
            return self.head.spots[0].number + row - 1
        return int(self._numbers()[row - 1])

    def sample_numbers(self) -> np.ndarray | None:
        """Return the numbers of all samples; None if they are consecutive."""
        if not self._may_have_gaps:
            return None
        blank = np.array(self.spaces, int) - 1
        return np.delete(self._numbers(), blank)

    @property
    def _may_have_gaps(self) -> bool:
        if self.spaces:
            return True
        return self.file is not None and self.file.gaps

    def _numbers(self) -> np.ndarray:
        # Only Python's reader counts lines: the file is read once more, which few files need.
        first = self.head.spots[0].number
        head = self.head
        with opened(head.path, head.writing.encoding) as lines:
            numbers = []
            for number, row in enumerate(records(lines, head.delimiter), 1):
                if row.cells and number >= first:
                    numbers.append(number)
        return np.array(numbers)
