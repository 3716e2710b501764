"""Rows of a data frame as numbers: each word of a column of words becomes a column of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import OptionError, ShapeError
from .files.casts import Coded
from .files.channels import first_of, word_channel
from .files.collection import in_order
from .files.writing import is_number
from .frames import cells_of, column_types, is_dated

# A column with more words is probably a name or an identifier.
MANY = 20
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
        # Strings may be numbers that were read from a file without types.
        elif not kind.startswith(_NUMBERS):
            cells = [cell for cell in cells_of(frame, number) if not _is_missing(cell)]
            if any(isinstance(cell, str) and not is_number(cell) for cell in cells):
                result.append(name)
    return result


def rows_of(
    frame: Any,
    words: Mapping[str, Sequence[str]] | None,
    kept: np.ndarray | None,
) -> Rows:
    """Return the rows of a frame as numbers.

    Args:
        words: the words of training, by column; None if these samples are trained on.
        kept: numbers of the training rows, from which words are taken, so that held-out rows
            add no columns; None for all.

    Raises:
        OptionError: a cell that is neither a number nor a word.

    Warns:
        UserWarning: a column of more than 20 words; words that training did not have.
    """
    parts: list[np.ndarray] = []
    channels: list[str] = []
    found: dict[str, list[str]] = {}
    if words is None:
        asked = set(word_columns(frame))
    else:
        asked = set(words)

    for number, (name, _) in enumerate(column_types(frame)):
        cells = cells_of(frame, number)
        if name not in asked:
            parts.append(_numbers(name, cells))
            channels.append(name)
            continue

        written = _written(name, cells)
        if words is None:
            training = written
            if kept is not None:
                training = [written[row] for row in kept]
            known = _words_of(name, training)
        else:
            known = list(words[name])
            _warn_of_strangers(name, written, known)

        # One channel per word: 1, 0, or NaN of an empty cell. A word that training did not have is
        # 0 in all of them.
        unknown = len(known)
        place: dict[str | None, int] = {None: -1}
        for code, word in enumerate(known):
            place[word] = code
        codes = np.array([place.get(word, unknown) for word in written])
        empty = codes < 0
        for code, word in enumerate(known):
            holds = codes == code
            parts.append(np.where(empty, np.nan, holds))
            channels.append(word_channel(name, word))
        found[name] = known
    return Rows(np.stack(parts, 1), tuple(channels), found)


def _written(name: str, cells: Sequence[Any]) -> list[str | None]:
    """Return the words of a column, None of empty cells."""
    result: list[str | None] = []
    for row, cell in enumerate(cells):
        if _is_missing(cell):
            result.append(None)
        elif isinstance(cell, str | int | float | np.generic):
            result.append(str(cell))
        else:
            raise OptionError(
                f"X, column {name!r}, row {row}: expected a word or a number, got "
                f"{type(cell).__name__}; leave the column out"
            )
    return result


def _words_of(name: str, training: Sequence[str | None]) -> list[str]:
    """Return the words of the training rows, in an order that their rows do not change."""
    distinct = list(dict.fromkeys(word for word in training if word is not None))
    codes = np.arange(len(distinct))
    words = in_order(Coded(codes, distinct)).names
    if len(words) > MANY:
        warnings.warn(
            f"X: column {name!r} has {len(words):,} words, and each becomes a column of its own; "
            "leave the column out if it is a name or an identifier",
            stacklevel=6,
        )
    return list(words)


def _warn_of_strangers(
    name: str,
    written: Sequence[str | None],
    known: Sequence[str],
) -> None:
    strange = []
    for row, word in enumerate(written):
        if word is not None and word not in known:
            strange.append(row)
    if strange:
        first = strange[0]
        warnings.warn(
            f"X, column {name!r}, row {first}: the estimator was not fitted on "
            f"{written[first]!r}; to the model {len(strange):,} of {len(written):,} rows are "
            f"none of {first_of(list(known))}",
            stacklevel=6,
        )


def _numbers(name: str, cells: Sequence[Any]) -> np.ndarray:
    result = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if _is_missing(cell):
            continue
        try:
            result[row] = float(cell)
        except (TypeError, ValueError):
            raise OptionError(
                f"X, column {name!r}, row {row}: expected a number, got {cell!r}; correct the "
                "cell, or leave the column out"
            ) from None
    return result


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is empty: None, NaN, pandas' NA, or a word of blanks."""
    if isinstance(cell, str):
        return not cell.strip()
    # NaN alone differs from itself. pandas' NA does not compare, so its type is asked first.
    if cell is None or type(cell).__name__ == "NAType":
        return True
    return bool(cell != cell)
