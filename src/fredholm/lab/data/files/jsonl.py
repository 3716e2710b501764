"""JSON Lines, an object a line, as rows of text in pieces: they are recognised as CSV is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ....errors import DataError, suggest
from .utf8 import opened

SHOWN = 60


def head(path: Path, count: int) -> tuple[tuple[str, ...], list[list[str]], list[int]]:
    """The keys of the first objects, in the order in which they come; their values, "" where an
    object lacks one; and the number of each line.

    Raises:
        DataError: a line that is no object, or without any.
    """
    first = list(islice(_objects(path), count))
    if not first:
        raise DataError(f"{path}: is empty; needs an object a line")
    names = tuple(dict.fromkeys(name for _, found in first for name in found))
    rows = [_row(found, names, path, line) for line, found in first]
    return names, rows, [line for line, _ in first]


def pieces(
    path: Path, names: Sequence[str], count: int, blank: list[int]
) -> Iterator[list[Sequence[str]]]:
    """All rows, ``count`` at a time; into ``blank`` the number of rows before each empty line
    behind the first row.

    Raises:
        DataError: a key that is not among ``names``, or the file changes meanwhile.
    """
    rows: list[Sequence[str]] = []
    before = None
    for done, (line, found) in enumerate(_objects(path)):
        before = line - 1 if before is None else before
        blank.extend([done] * (line - 1 - before - done - len(blank)))
        rows.append(_row(found, names, path, line))
        if len(rows) == count:
            yield rows
            rows = []
    if rows:
        yield rows


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line, object)."""
    with opened(path) as file:
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


def _row(found: dict[str, Any], names: Sequence[str], path: Path, line: int) -> list[str]:
    strange = next((name for name in found if name not in names), None)
    if strange is not None:
        raise DataError(
            f"{path}, row {line}: has {strange!r}, which the first rows have not"
            f"{suggest(strange, names)}"
        )
    return [_cell(found.get(name), f"{path}, row {line}, column {name!r}") for name in names]


def _cell(value: Any, where: str) -> str:
    if isinstance(value, (list, dict)):
        raise DataError(
            f"{where}: received {json.dumps(value)[:SHOWN]!r}; needs a number or a text (series "
            "are rows of times, or arrays in npz)"
        )
    return "" if value is None else str(value)
