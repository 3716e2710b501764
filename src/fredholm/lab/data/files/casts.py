"""Casts of cells by the role of their column: numbers, words, texts, lists of numbers and times.

A cast takes arrays of Arrow, of text or of Parquet's types, some rows at a time (``add``), and
returns one column in the end (``result``). Errors name the cell by row and column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ....errors import DataError, require
from . import jsonl, parquet
from .head import Rows
from .times import (
    NotATime,
    Ticks,
    order_of,
    ticks_of_array,
    ticks_of_dates,
    ticks_of_numbers,
)
from .writing import MISSING, Writing, is_number

LARGEST = float(np.finfo(np.float32).max)  # models compute in float32
# Six decimals or more: a code such as 1E5 is no number in this notation.
EXPONENT = re.compile(r"[+-]?\d\.\d{6,}e[+-]\d{2,3}", re.IGNORECASE)
Odd = tuple[int, str]  # place of a cell in an array, and the cell


@dataclass
class Coded:
    """A column of words: the number of each row's word among ``names``, -1 if it is missing."""

    codes: np.ndarray
    names: list[str]

    def words(self, missing: str = "") -> list[str]:
        """Return the word of each row."""
        # The name behind the last one is that of the code -1.
        names = [*self.names, missing]
        return [names[code] for code in self.codes]


class _Cast:
    """A column that is read in parts, as many as the table has pieces."""

    def __init__(self, name: str):
        self.name = name
        self.parts: list[Any] = []

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        """Cast the next cells, and return those that do not fit."""
        raise NotImplementedError

    def result(self, table: Any) -> Any:
        """Return the column. ``table`` names places in errors."""
        return self.parts


class _Numbers(_Cast):
    """One array for all rows, which grows in place: a large table is in memory once."""

    def __init__(self, name: str):
        super().__init__(name)
        self.count = 0
        self.values = np.empty(0)

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        values, odd = _as_numbers(array, writing)
        beyond = np.abs(values) > LARGEST
        if beyond.any():
            row = int(beyond.argmax())
            raise DataError(
                f"{rows.at(row, self.name)}: expected a finite number, none beyond {LARGEST:.2g}, "
                f"got {str(array[row].as_py())[:40]!r}; correct it"
            )
        needed = self.count + len(values)
        if needed > len(self.values):
            # An eighth more than needed: growing by each block would copy quadratically often.
            self.values.resize(needed + needed // 8, refcheck=False)
        self.values[self.count : needed] = values
        self.count = needed
        return odd

    def result(self, table: Any) -> np.ndarray:
        self.values.resize(self.count, refcheck=False)
        return self.values


def _as_numbers(array: Any, writing: Writing) -> tuple[np.ndarray, list[Odd]]:
    """Return the numbers of an array, NaN if missing, and the cells without a number.

    From fast to slow: numbers of Parquet, all cells at once by Arrow, one cell at a time.
    """
    compute: Any = require("pyarrow.compute", "train", "reading tables")
    import pyarrow

    kind = array.type
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        return array.cast("float64", safe=False).to_numpy(zero_copy_only=False), []
    if not pyarrow.types.is_string(kind):
        array = pyarrow.array(parquet.texts(array), pyarrow.string())

    # Most columns have neither spaces nor words for missing cells, and need no second look. With
    # words of the user's own, a number such as -999 may stand for a missing cell.
    fast = None
    if writing.null is None:
        fast = _cast(array)
    if fast is not None and writing.plain:
        return fast, []

    words = MISSING
    if writing.null is not None:
        words = {"", *writing.null}
    array = compute.utf8_trim_whitespace(array)
    lower = compute.utf8_lower(array)
    missing = compute.is_in(lower, pyarrow.array(sorted(words)))
    array = compute.if_else(missing, None, array)
    if writing.plain:
        fast = _cast(array)
        if fast is not None:
            return fast, []
    return _one_by_one(array.to_pylist(), writing)


def _one_by_one(cells: list[str | None], writing: Writing) -> tuple[np.ndarray, list[Odd]]:
    """Return numbers as :func:`_as_numbers`, where some cells are not numbers, or in a notation
    that Arrow does not know. None is a missing cell.
    """
    values = np.full(len(cells), np.nan)
    odd = []
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        number = writing.number(cell)
        if number is None:
            odd.append((row, cell))
        else:
            values[row] = float(number)
    return values, odd


def _cast(array: Any) -> np.ndarray | None:
    """Return an array of text as numbers; None if a cell is not a number."""
    try:
        return array.cast("float64").to_numpy(zero_copy_only=False)
    except ValueError:
        return None


class _Words(_Cast):
    def __init__(self, name: str):
        super().__init__(name)
        self.words: dict[str, int] = {}

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        # Each array has its own dictionary; only its few words pass through Python.
        coded = array.dictionary_encode()
        codes = []
        for word in map(str.strip, parquet.texts(coded.dictionary)):
            code = -1
            if not writing.is_missing(word):
                code = self.words.setdefault(plain_word(word), len(self.words))
            codes.append(code)

        # Nulls have the code behind the last word, which the table maps to "missing".
        table = np.array([*codes, -1], np.int32)
        indices = coded.indices.fill_null(len(codes))
        self.parts.append(table[indices.to_numpy()])
        return []

    def result(self, table: Any) -> Coded:
        none = np.zeros(0, np.int32)
        codes = np.concatenate([none, *self.parts])
        return Coded(codes, list(self.words))


def plain_word(word: str) -> str:
    """Return a word; a number as numpy.savetxt and C's %e write it is shortened.

    Example:
        >>> plain_word("0.000000000000000000e+00"), plain_word("1.500000e+00"), plain_word("1e5")
        ('0', '1.5', '1e5')
    """
    if not EXPONENT.fullmatch(word):
        return word
    number = float(word)
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


class _Texts(_Cast):
    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        self.parts += parquet.texts(array)
        return []


class _Lists(_Cast):
    """Lists of numbers, null if one is missing."""

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        # JSON gives lists of Python, Parquet arrays of Arrow.
        nulls = _null_numbers(array, writing)
        cells = array
        if not isinstance(array, list):
            cells = array.to_pylist()
        for row, cell in enumerate(cells):
            try:
                # As float64, None becomes NaN.
                series = np.array(cell or (), np.float64)
            except (TypeError, ValueError):
                series = np.zeros(0)
            if len(nulls):
                series[np.isin(series, nulls)] = np.nan
            if series.ndim != 1 or not len(series):
                raise DataError(
                    f"{rows.at(row, self.name)}: expected a list of numbers, as most rows have, "
                    f"got {jsonl.text_of(cell)!r}; correct it"
                )
            self.parts.append(series)
        return []


def _null_numbers(array: Any, writing: Writing) -> np.ndarray:
    """Return the numbers that stand for a missing value, as the lists of an array store them."""
    numbers = np.array(writing.null_numbers, np.float64)
    if isinstance(array, list):
        return numbers
    import pyarrow

    kind = array.type.value_type
    if not pyarrow.types.is_floating(kind):
        return numbers
    # float32 stores another number for -999.9 than float64.
    stored = numbers.astype(kind.to_pandas_dtype())
    return stored.astype(np.float64)


class _Times(_Cast):
    """Times, kept as they are written until the end: all of them together tell the order of day and
    month.

    Args:
        needed: ``number`` or ``date``, if it is known which they are.
    """

    def __init__(self, name: str, needed: str = ""):
        super().__init__(name)
        self.needed = needed
        self.dates: str | None = None

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        import pyarrow

        self.dates = writing.dates
        types = pyarrow.types
        typed = types.is_temporal(array.type) or types.is_primitive(array.type)
        if typed and not array.null_count:
            self.parts.append(array.to_numpy(zero_copy_only=False))
        else:
            self.parts.append(parquet.texts(array))
        return []

    def result(self, table: Any) -> Ticks:
        """Return the times of all rows.

        Args:
            table: names the places of cells in errors. If the order of day and month follows from
                these dates, it is stored there, and later files are read with it.

        Raises:
            DataError: a cell that is not a time, or dates whose order of day and month is unclear.
        """
        cells = self._together()
        try:
            return self._ticks(cells, table)
        except NotATime as error:
            number = error.number
            needed = "a time: a number, or a date such as 2024-02-29T12:00:00"
            if self.needed:
                needed = (
                    f"a time that is a {self.needed}, as those of the training files and of the "
                    "first rows are"
                )
            why = error.why
        except ValueError as error:
            # Both orders of day and month fit, or neither does.
            number = 0
            needed = "dates of one known order"
            why = str(error)
        got = repr(str(cells[number])[:40])
        fix = why or "correct it"
        where = table.where(number, self.name)
        raise DataError(f"{where}: expected {needed}, got {got}; {fix}")

    def _ticks(self, cells: Any, table: Any) -> Ticks:
        if not isinstance(cells, list):
            found = ticks_of_array(cells)
            if self.needed and found.dated is not (self.needed == "date"):
                raise NotATime(0)
            return found
        numbers = self.needed == "number"
        if not self.needed and cells:
            numbers = is_number(cells[0])
        if numbers:
            return ticks_of_numbers(cells)
        if self.dates is None:
            self.dates = table.dates = order_of(cells)
        return ticks_of_dates(cells, self.dates)

    def _together(self) -> Any:
        """Return all cells: an array if all parts are arrays of one kind, else text."""
        kinds = set()
        for part in self.parts:
            dtype = getattr(part, "dtype", None)
            kinds.add(getattr(dtype, "kind", None))
        if len(kinds) == 1 and None not in kinds:
            return np.concatenate(self.parts)
        return [str(cell) for part in self.parts for cell in part]


CASTS: dict[str, Any] = {
    "number": _Numbers,
    "word": _Words,
    "text": _Texts,
    "list": _Lists,
    "time": _Times,
    "clock": partial(_Times, needed="number"),
    "date": partial(_Times, needed="date"),
}
