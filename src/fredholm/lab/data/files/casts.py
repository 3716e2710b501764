"""Cells cast by the role of their column: numbers, words, texts, lists of numbers and times.

Each cast takes arrays of Arrow, of text or of Parquet's types, some rows at a time (``add``), and
gives one column in the end (``result``). A cell that does not fit is named by row and column.
"""

from __future__ import annotations

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

    def result(self, table: Any) -> np.ndarray:
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

    def result(self, table: Any) -> Coded:
        return Coded(np.concatenate(self.parts), list(self.words))


class _Texts:
    def __init__(self, name: str):
        self.parts: list[str] = []

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        self.parts += parquet.texts(array)
        return []

    def result(self, table: Any) -> list[str]:
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

    def result(self, table: Any) -> list[np.ndarray]:
        return self.parts


class _Times:
    """Times, held as they are written until all are known: the order of day and month follows from
    all of them. ``needed``: ``number`` or ``date``, where it is known which they are.
    """

    def __init__(self, name: str, needed: str = ""):
        self.name, self.needed = name, needed
        self.dates: str | None = None
        self.parts: list[Any] = []

    def add(self, array: Any, rows: Rows, writing: Writing) -> list[Odd]:
        import pyarrow

        self.dates = writing.dates
        typed = pyarrow.types.is_temporal(array.type) or pyarrow.types.is_primitive(array.type)
        if typed and not array.null_count:
            self.parts.append(array.to_numpy(zero_copy_only=False))
        else:
            self.parts.append(parquet.texts(array))
        return []

    def result(self, table: Any) -> Ticks:
        """Return the times; ``table`` says where they are, and is told the order of dates."""
        cells = self._together()
        try:
            if not isinstance(cells, list):
                found = ticks_of_array(cells)
                if self.needed and found.dated is not (self.needed == "date"):
                    raise NotATime(0)
                return found
            if self.needed == "number" or (cells and not self.needed and is_number(cells[0])):
                return ticks_of_numbers(cells)
            if self.dates is None:
                self.dates = table.dates = order_of(cells)
            return ticks_of_dates(cells, self.dates)
        except NotATime as error:
            number, why = error.number, f"{error.why}: " if error.why else ""
            needs = "a time: a number, or a date such as 2024-02-29T12:00:00"
            if self.needed:
                needs = (
                    f"a time that is a {self.needed}, as those of the training files and of the "
                    "first rows are"
                )
            why = f"{why}needs {needs}"
        except ValueError as error:  # both orders of day and month fit, or neither
            number, why = 0, str(error)
        cell = str(cells[number])[:40]
        raise DataError(f"{table.where(number, self.name)}: received {cell!r}; {why}")

    def _together(self) -> Any:
        """All cells: an array where all parts are arrays of one kind, else text."""
        kinds = {getattr(getattr(part, "dtype", None), "kind", None) for part in self.parts}
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
