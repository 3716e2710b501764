"""JSON Lines: one object per line.

The standard library reads them: pyarrow's reader does not count empty lines, and refuses a column
in which one object has a number and another a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ....errors import DataError, require, suggest
from .head import HEAD, Head, Rows, Spot
from .opening import opened
from .writing import Writing

PIECE = 20_000  # objects in memory at a time
SHOWN = 60  # characters of a cell or line in an error


def read_head(path: Path, writing: Writing) -> Head:
    """Return the keys of the first objects, in order of appearance, and their values as text.

    A value is "" where an object lacks the key. Columns of lists and objects are told apart.

    Raises:
        DataError: a line that is not an object, or a file without any.
    """
    first = list(islice(_objects(path, writing.encoding), HEAD))
    if not first:
        raise DataError(f"{path}: expected one object per line, got an empty file; add them")
    every = dict.fromkeys(name for _, found in first for name in found)
    nested = {}
    lists = {}
    for name in every:
        values = [found[name] for _, found in first if found.get(name) is not None]
        deep = [value for value in values if isinstance(value, (list, dict))]
        # Most values decide: a single list among numbers is an error in the file.
        if 2 * len(deep) <= len(values):
            continue
        if all(map(_is_series, deep)):
            lists[name] = "lists of numbers"
        elif isinstance(deep[0], dict):
            nested[name] = "objects"
        else:
            nested[name] = "lists"

    names = tuple(name for name in every if name not in nested and name not in lists)
    rows = []
    for _, found in first:
        values = [_known(found.get(name), writing) for name in names]
        rows.append(list(map(text_of, values)))
    spots = [Spot(line) for line, _ in first]
    return Head(path, names, True, rows, spots, nested=nested, lists=lists, writing=writing)


def arrays(
    head: Head,
    names: Sequence[str],
    rows: Rows,
) -> Iterator[list[Any]]:
    """Yield the columns ``names``, some objects at a time: arrays of text, or lists of lists.

    Raises:
        DataError: a key that the first objects do not have, a list or an object in a cell, or a
            file that changes meanwhile.
    """
    known = [*head.names, *head.nested, *head.lists]
    expected = frozenset(known)
    rows.numbers = numbers = []
    objects = _objects(head.path, head.writing.encoding)
    while some := list(islice(objects, PIECE)):
        for line, found in some:
            for name in found:
                if name not in expected:
                    # Most likely a slip such as "lable", whose values would be lost.
                    raise DataError(
                        f"{head.path}, row {line}: has {name!r}, which the first rows do not have"
                        f"{suggest(name, known)}"
                    )
        numbers += [line for line, _ in some]
        columns = []
        for name in names:
            values = [found.get(name) for _, found in some]
            if name not in head.lists:
                values = [_known(value, head.writing) for value in values]
                values = _as_text(values, rows, name)
            columns.append(values)
        yield columns


def _as_text(
    values: list[Any],
    rows: Rows,
    name: str,
) -> Any:
    """Return cells as an array of text."""
    arrow = require("pyarrow", "train", f"reading {rows.path.name}")
    cells: list[str | None] = []
    for offset, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise DataError(
                f"{rows.at(offset, name)}: expected a number or a text, got {text_of(value)!r}; "
                "correct it"
            )
        if value is not None:
            value = str(value)
        cells.append(value)
    return arrow.array(cells, arrow.string())


def _known(value: Any, writing: Writing) -> Any:
    """Return a value; None for a number that stands for a missing cell."""
    # In Python, true equals 1.
    if type(value) in (int, float) and value in writing.null_numbers:
        return None
    return value


def text_of(value: Any) -> str:
    """Return a value as a cell of text."""
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return json.dumps(value)[:SHOWN]
    return str(value)


def _is_series(value: Any) -> bool:
    """Whether a value is a list of numbers, null where none was measured."""
    if not isinstance(value, list) or not value:
        return False
    # In Python, true is an integer.
    return all(v is None or type(v) in (int, float) for v in value)


def _objects(path: Path, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line and its object."""
    with opened(path, encoding) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, object_pairs_hook=_once)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, row {number}: expected a JSON object, got an error ({error}); "
                    "correct the line"
                ) from error
            if not isinstance(found, dict):
                raise DataError(
                    f'{path}, row {number}: expected an object, {{"name": value, ...}}, got '
                    f"{line.strip()[:SHOWN]!r}; correct the line"
                )
            yield number, found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object.

    Raises:
        ValueError: a key comes twice. JSON would silently keep the last value.
    """
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} comes twice")
        found[name] = value
    return found
