"""JSON Lines: an object per line.

Read by the standard library: pyarrow's reader counts rows without the empty lines, and refuses a
column in which one object has a number and another a text.
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

PIECE = 20_000  # objects at a time
SHOWN = 60


def read_head(path: Path, writing: Writing) -> Head:
    """Return the keys of the first objects, in the order in which they come, and their values as
    text ("" where an object lacks one). Columns that hold lists or objects in most rows are told
    apart.

    Raises:
        DataError: a line that is no object, or none at all.
    """
    first = list(islice(_objects(path, writing.encoding), HEAD))
    if not first:
        raise DataError(f"{path}: is empty; needs an object a line")
    every = dict.fromkeys(name for _, found in first for name in found)
    nested, lists = {}, {}
    for name in every:
        values = [found[name] for _, found in first if found.get(name) is not None]
        deep = [value for value in values if isinstance(value, (list, dict))]
        if 2 * len(deep) <= len(values):
            continue
        if all(map(_is_series, deep)):
            lists[name] = "lists of numbers"
        else:
            nested[name] = "objects" if isinstance(deep[0], dict) else "lists"
    names = tuple(name for name in every if name not in nested and name not in lists)
    rows = [[text_of(found.get(name)) for name in names] for _, found in first]
    spots = [Spot(line) for line, _ in first]
    return Head(path, names, True, rows, spots, nested=nested, lists=lists, writing=writing)


def arrays(head: Head, names: Sequence[str], rows: Rows) -> Iterator[list[Any]]:
    """Yield the columns ``names``, some objects at a time: text, and of columns of lists the lists.

    Raises:
        DataError: a key that the first objects have not, a list or an object in a cell, or the file
            changes meanwhile.
    """
    arrow = require("pyarrow", "train", f"reading {head.path.name}")
    known = [*head.names, *head.nested, *head.lists]
    expected = frozenset(known)
    rows.numbers = numbers = []
    objects = _objects(head.path, head.writing.encoding)
    while some := list(islice(objects, PIECE)):
        for line, found in some:
            strange = next((name for name in found if name not in expected), None)
            if strange is not None:
                raise DataError(
                    f"{head.path}, row {line}: has {strange!r}, which the first rows have not"
                    f"{suggest(strange, known)}"
                )
        numbers += [line for line, _ in some]
        result = []
        for name in names:
            values = [found.get(name) for _, found in some]
            if name in head.lists:
                result.append(values)
                continue
            deep = next((i for i, v in enumerate(values) if isinstance(v, (list, dict))), None)
            if deep is not None:
                raise DataError(
                    f"{rows.at(deep, name)}: received {text_of(values[deep])!r}; needs a number or "
                    "a text"
                )
            cells = [None if value is None else str(value) for value in values]
            result.append(arrow.array(cells, arrow.string()))
        yield result


def text_of(value: Any) -> str:
    """Return a value as a cell of text."""
    if isinstance(value, (list, dict)):
        return json.dumps(value)[:SHOWN]
    return "" if value is None else str(value)


def _is_series(value: Any) -> bool:
    """Whether a value is a list of numbers, null where none was measured."""
    if not isinstance(value, list) or not value:
        return False
    numbers = (int, float)
    return all(v is None or (isinstance(v, numbers) and not isinstance(v, bool)) for v in value)


def _objects(path: Path, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line and its object."""
    with opened(path, encoding) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, object_pairs_hook=_once)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, row {number}: no JSON object ({error})") from error
            if not isinstance(found, dict):
                raise DataError(
                    f"{path}, row {number}: received {line.strip()[:SHOWN]!r}; needs an object, "
                    '{"name": value, ...}'
                )
            yield number, found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a ValueError where a key comes twice, of which JSON would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} comes twice")
    return found
