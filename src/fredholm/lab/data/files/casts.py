"""Cells cast by the role of their column: numbers, words, texts, lists of numbers and times.

Each cast takes arrays of Arrow, of text or of Parquet's types, some rows at a time (``add``), and
gives one column in the end (``result``). A cell that does not fit is named by row and column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError, require
from . import jsonl, parquet
from .head import Rows
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
from .writing import MISSING, Writing, is_number

LARGEST = float(np.finfo(np.float32).max)  # what a model can read
Odd = tuple[int, str]  # the place of a cell in an array, and the cell


@dataclass
class Coded:
    """A column of words: the number of each row's word among ``names``, -1 where it is missing."""

    codes: np.ndarray
    names: list[str]


class _Numbers:
    """One array for all rows, which grows in place: a large table is held once."""

    def __init__(self, name: str):
        self.name, self.count = name, 0
        self.values = np.empty(0)

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        values, odd = _as_numbers(array, writing)
        beyond = np.abs(values) > LARGEST
        if beyond.any():
            row = int(beyond.argmax())
            raise DataError(
                f"{rows.at(row, self.name)}: received {str(array[row].as_py())[:40]!r}; needs a "
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
    compute: Any = require("pyarrow.compute", "train", "reading tables")
    import pyarrow

    kind = array.type
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        return array.cast("float64", safe=False).to_numpy(zero_copy_only=False), []
    if not pyarrow.types.is_string(kind):
        array = pyarrow.array(parquet.texts(array), pyarrow.string())
    fast = _cast(array) if writing.null is None else None
    if fast is None or not writing.plain:
        words = sorted(MISSING if writing.null is None else {"", *writing.null})
        array = compute.utf8_trim_whitespace(array)
        missing = compute.is_in(compute.utf8_lower(array), pyarrow.array(words))
        array = compute.if_else(missing, None, array)
        fast = _cast(array) if writing.plain else None
    if fast is not None:
        return fast, []

    # Some cells hold no number, or numbers that Arrow does not know.
    values, odd = np.full(len(array), np.nan), []
    for row, cell in enumerate(array.to_pylist()):
        number = None if cell is None else writing.number(cell)
        if number is not None:
            values[row] = float(number)
        elif cell is not None:
            odd.append((row, cell))
    return values, odd


def _cast(array: Any) -> np.ndarray | None:
    import pyarrow

    try:
        return array.cast("float64").to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        return None


class _Words:
    def __init__(self, name: str):
        self.words: dict[str, int] = {}
        self.parts = [np.zeros(0, np.int32)]

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        coded = array.dictionary_encode()
        codes = []
        for word in map(str.strip, parquet.texts(coded.dictionary)):
            missing = writing.is_missing(word)
            codes.append(-1 if missing else self.words.setdefault(word, len(self.words)))
        table = np.array([*codes, -1], np.int32)
        self.parts.append(table[coded.indices.fill_null(len(codes)).to_numpy()])
        return []

    def result(self) -> Coded:
        return Coded(np.concatenate(self.parts), list(self.words))


class _Texts:
    def __init__(self, name: str):
        self.parts: list[str] = []

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        self.parts += parquet.texts(array)
        return []

    def result(self) -> list[str]:
        return self.parts


class _Lists:
    """Lists of numbers, null where one is missing."""

    def __init__(self, name: str):
        self.name = name
        self.parts: list[np.ndarray] = []

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        for row, cell in enumerate(array if isinstance(array, list) else array.to_pylist()):
            try:
                series = np.array([np.nan if v is None else v for v in cell or ()], np.float64)
            except (TypeError, ValueError):
                series = np.zeros((0, 0))
            if series.ndim != 1 or not len(series):
                raise DataError(
                    f"{rows.at(row, self.name)}: received {jsonl.text_of(cell)!r}; needs a list of "
                    "numbers, as most rows have"
                )
            self.parts.append(series)
        return []

    def result(self) -> list[np.ndarray]:
        return self.parts


class _Part(NamedTuple):
    """Some times: as text or as an array, and what an error needs to name one."""

    cells: Any
    rows: Rows
    before: int
    dates: str | None

    def refused(self, name: str, number: int, why: str) -> DataError:
        row = self.rows.number(self.before + number)
        cell = str(self.cells[number])[:40]
        return DataError(f"{self.rows.path}, row {row}, column {name!r}: received {cell!r}; {why}")


class _Times:
    """Times, held as they are written until all are known: the order of day and month follows from
    all of them. ``needed``: ``number`` or ``date``, where it is known which they are.
    """

    def __init__(self, name: str, needed: str = ""):
        self.name, self.needed = name, needed
        self.order: str | None = None
        self.parts: list[_Part] = []
        self.why = "needs a time: a number, or a date such as 2024-02-29T12:00:00"
        if needed:
            self.why = (
                f"needs a time that is a {needed}, as those of the training files and of the first "
                "rows are"
            )

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        import pyarrow

        kind = array.type
        typed = pyarrow.types.is_temporal(kind) or pyarrow.types.is_primitive(kind)
        if typed and not array.null_count:
            cells = array.to_numpy(zero_copy_only=False)
        else:
            cells = parquet.texts(array)
        self.parts.append(_Part(cells, rows, rows.count, writing.dates))
        return []

    def result(self) -> Ticks:
        if not self.parts:
            return Ticks(np.zeros(0, np.int64), 0, 1, False)
        first = self.parts[0]
        cells = [cell for part in self.parts if isinstance(part.cells, list) for cell in part.cells]
        if first.dates is None and cells and not is_number(cells[0]):
            try:
                self.order = order_of(cells)
            except ValueError as error:
                raise first.refused(self.name, 0, str(error)) from error
        return joined([self._ticks(part, first.dates or self.order) for part in self.parts])

    def _ticks(self, part: _Part, order: str | None) -> Ticks:
        try:
            if not isinstance(part.cells, list):
                found = ticks_of_array(part.cells)
                if self.needed and found.dated is not (self.needed == "date"):
                    raise NotATime(0)
                return found
            if self.needed == "number":
                return ticks_of_numbers(part.cells)
            make = ticks_of_dates if self.needed else ticks_of_words
            return make(part.cells, order)
        except NotATime as error:
            why = f"{error.why}: {self.why}" if error.why else self.why
            raise part.refused(self.name, error.number, why) from error


CASTS: dict[str, Any] = {
    "number": _Numbers,
    "word": _Words,
    "text": _Texts,
    "list": _Lists,
    "time": _Times,
    "clock": partial(_Times, needed="number"),
    "date": partial(_Times, needed="date"),
}
