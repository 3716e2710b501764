"""Rows of a data frame as numbers: each word of a column of words becomes a column of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import OptionError, ShapeError
from .files.casts import Coded
from .files.channels import first_of
from .files.collection import in_order
from .files.writing import is_number
from .frames import cells_of, column_types, is_dated

MANY = 20  # words of a column, beyond which somebody should look at it
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal")
_CATEGORIES = ("category", "dictionary", "categorical", "enum")


class Rows(NamedTuple):
    """Rows as numbers.

    Attributes:
        values: (N, channels), NaN where a cell is empty.
        channels: names of the columns of ``values``, ``column=word`` of words.
        words: of each column of words, those that have a channel.
    """

    values: np.ndarray
    channels: tuple[str, ...]
    words: dict[str, list[str]]


def word_columns(frame: Any) -> list[str]:
    """Return the names of a frame's columns of words: of categories, or of strings that are not all
    numbers.

    Raises:
        ShapeError: a column of dates.
    """
    result = []
    for number, (name, kind) in enumerate(column_types(frame)):
        if is_dated(kind):
            raise ShapeError(
                f"X, column {name!r}: expected numbers or words, got {kind}; give what matters of "
                "a date as numbers (its hour, its weekday), or leave it out"
            )
        if kind.startswith(_CATEGORIES):
            result.append(name)
        elif not kind.startswith(_NUMBERS):
            cells = [cell for cell in cells_of(frame, number) if not _is_missing(cell)]
            if any(isinstance(cell, str) and not is_number(cell) for cell in cells):
                result.append(name)
    return result


def rows_of(frame: Any, words: Mapping[str, Sequence[str]] | None, kept: np.ndarray | None) -> Rows:
    """Return the rows of a frame as numbers.

    Args:
        words: those that training had, by column; None: these samples are trained on.
        kept: the rows that are trained on, which the words are taken from.

    Raises:
        OptionError: a cell that is neither a number nor a word.

    Warns:
        UserWarning: a column of more than 20 words; words that training did not have.
    """
    asked = word_columns(frame) if words is None else list(words)
    parts: list[np.ndarray] = []
    channels: list[str] = []
    found: dict[str, list[str]] = {}
    for number, (name, _) in enumerate(column_types(frame)):
        cells = cells_of(frame, number)
        if name not in asked:
            parts.append(_numbers(name, cells))
            channels.append(name)
            continue
        column = _coded(name, cells, None if words is None else words[name], kept)
        missing = column.codes < 0
        for code, word in enumerate(column.names):
            parts.append(np.where(missing, np.nan, column.codes == code))
            channels.append(f"{name}={word}")
        found[name] = list(column.names)
    return Rows(np.stack(parts, 1), tuple(channels), found)


def _coded(
    name: str, cells: Sequence[Any], known: Sequence[str] | None, kept: np.ndarray | None
) -> Coded:
    """Return the cells by the words of training; -1 is an empty one, and a word that training did
    not have is beyond them.
    """
    for row, cell in enumerate(cells):
        if not (_is_missing(cell) or isinstance(cell, str | int | float | np.generic)):
            raise OptionError(
                f"X, column {name!r}, row {row}: expected a word or a number, got "
                f"{type(cell).__name__}; leave the column out"
            )
    written = [None if _is_missing(cell) else str(cell) for cell in cells]
    if known is None:
        read = written if kept is None else [written[row] for row in kept]
        distinct = list(dict.fromkeys(word for word in read if word is not None))
        known = in_order(Coded(np.arange(len(distinct)), distinct)).names
        if len(known) > MANY:
            warnings.warn(
                f"X: column {name!r} has {len(known):,} words, and each becomes a column of its "
                "own; leave the column out if it is a name or an identifier",
                stacklevel=6,
            )
    else:
        _warn_of_strangers(name, written, known)
    place = {word: code for code, word in enumerate(known)}
    codes = [-1 if word is None else place.get(word, len(known)) for word in written]
    return Coded(np.array(codes, np.int64), list(known))


def _warn_of_strangers(name: str, written: Sequence[str | None], known: Sequence[str]) -> None:
    strange = [row for row, word in enumerate(written) if word is not None and word not in known]
    if strange:
        warnings.warn(
            f"X, column {name!r}, row {strange[0]}: the estimator was not fitted on "
            f"{written[strange[0]]!r}; to the model {len(strange):,} of {len(written):,} rows are "
            f"none of {first_of(list(known))}",
            stacklevel=7,
        )


def _numbers(name: str, cells: Sequence[Any]) -> np.ndarray:
    result = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            result[row] = np.nan if _is_missing(cell) else float(cell)
        except (TypeError, ValueError):
            raise OptionError(
                f"X, column {name!r}, row {row}: expected a number, got {cell!r}"
            ) from None
    return result


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is empty: None, NaN, pandas' NA, or a word of blanks."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or type(cell).__name__ == "NAType" or bool(cell != cell)
