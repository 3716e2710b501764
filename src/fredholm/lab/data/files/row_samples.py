"""Samples of a row each: feature columns, series of columns or lists, texts, paths of pictures and
of sounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .casts import Coded
from .channels import first_of
from .collection import Collection, blocks, in_order
from .columns import Columns
from .folders import contents_of
from .labels import leaks
from .parts import parts_of
from .table import Table


def wide(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """A row per series: what is missing at its end is no part of it, elsewhere it is a gap."""
    values = np.stack([table.columns[c] for c in columns.reading.channels or ()], 1)
    samples = []
    for row, line in enumerate(values):
        known = np.flatnonzero(~np.isnan(line))
        if not len(known):
            raise DataError(f"{table.where(row)}: holds no number; needs a series")
        samples.append(line[: known[-1] + 1, None])
    result = _collection(name, samples, table, columns, labelled)
    result.channels = ("value",)
    return result


def lists(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """A row per series, a channel per column of lists."""
    names = tuple(columns.reading.channels or ())
    samples = []
    for row, parts in enumerate(zip(*(table.columns[name] for name in names))):
        lengths = [len(part) for part in parts]
        if len(set(lengths)) > 1:
            raise DataError(
                f"{table.where(row)}: expected lists of one length, got {lengths} in "
                f"{', '.join(names)}; bring them to one, or name one column: --channels"
            )
        series = np.stack(parts, 1)
        if np.isnan(series).all():
            raise DataError(f"{table.where(row)}: holds no number; needs a series")
        samples.append(series)
    return _collection(name, samples, table, columns, labelled)


def texts(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """A text per row."""
    found = table.columns[columns.reading.text]
    empty = next((i for i, text in enumerate(found) if not text.strip()), None)
    if empty is not None:
        raise DataError(f"{table.where(empty, columns.reading.text or '')}: holds no text")
    return _collection(name, found, table, columns, labelled)


def pictures(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """The path of a picture per row."""
    return _of_paths("images", name, table, columns, labelled)


def sounds(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """The path of a sound per row."""
    return _of_paths("series", name, table, columns, labelled)


def _of_paths(kind: str, name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """Return the files that a table names, without the rows of those that cannot be read."""
    files = _paths(table, columns, labelled)
    contents, unread = contents_of(kind, files, columns.reading, labelled)
    found = contents.pop("found", {})
    result = _collection(name, files, table, columns, labelled)
    if unread:
        result = result.take(np.array([row for row in range(len(files)) if row not in unread]))
    return replace(result, reading=result.reading.settled(**found), **contents)


def rows(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """Feature columns; words become a column each, those of training where a run knows them."""
    words, names, remarks = {}, [], []
    for column in columns.reading.channels or ():
        values = table.columns[column]
        if not isinstance(values, Coded):
            names.append(column)
            continue
        ordered = in_order(values)
        if columns.words is not None:
            ordered = _among(values, columns.words[column])
            remarks += _strangers(table, column, values, ordered)
        table.columns[column] = ordered
        words[column] = ordered.names
        names += [f"{column}={word}" for word in ordered.names]

    # Each column is given up as soon as it lies in the matrix: a large table is held once.
    samples = np.empty((len(table), len(names)), order="F")
    plain, place = {}, 0
    for column in columns.reading.channels or ():
        values = table.columns.pop(column)
        if not isinstance(values, Coded):
            samples[:, place] = values
            plain[column] = samples[:, place]
            place += 1
            continue
        missing = values.codes < 0
        plain[column] = np.where(missing, np.nan, values.codes)
        for number in range(len(values.names)):
            samples[:, place] = np.where(missing, np.nan, values.codes == number)
            place += 1
    _check_filled(table, samples)
    result = _collection(name, samples, table, columns, labelled)
    result.channels, result.words = tuple(names), words
    result.remarks = remarks if columns.words is not None else leaks(result, plain)
    return result


def _check_filled(table: Table, samples: np.ndarray) -> None:
    """Refuse a row without any number, other than one whose cells could not be read."""
    read = np.ones(len(table), bool)
    read[[cell.row for cell in table.unreadable]] = False
    for start, block in blocks(samples):
        empty = np.isnan(block).all(1) & read[start : start + len(block)]
        if empty.any():
            where = table.where(start + int(empty.argmax()))
            raise DataError(f"{where}: every cell is empty; remove the row")


def _among(values: Coded, words: Sequence[str]) -> Coded:
    """The same cells by the words of training; one that is none of them has a number of its own,
    which no column stands for.
    """
    place = {word: number for number, word in enumerate(words)}
    table = np.array([*(place.get(name, len(words)) for name in values.names), -1], np.int64)
    return Coded(table[values.codes], list(words))


def _strangers(table: Table, column: str, values: Coded, ordered: Coded) -> Iterator[str]:
    """Say which words training did not have."""
    odd = np.flatnonzero(ordered.codes == len(ordered.names))
    if not len(odd):
        return
    codes = values.codes[odd]
    others = len(np.unique(codes)) - 1
    more = f", nor {others} others" if others else ""
    count = "the row is" if len(odd) == 1 else f"{len(odd):,} rows are"
    yield (
        f"{table.where(int(odd[0]), column)}: the training files have no "
        f"{values.names[codes[0]]!r} in this column{more}; to the model {count} none of "
        f"{first_of(ordered.names)}"
    )


def _paths(table: Table, columns: Columns, labelled: bool) -> list[Path]:
    """Relative to the table, each once where it is learned from."""
    column = columns.reading.text or ""
    folders = [file.path.parent for file in table.files for _ in range(file.count)]
    seen: dict[Path, int] = {}
    for row, (folder, cell) in enumerate(zip(folders, table.columns[column])):
        path = folder / cell.strip()
        if not path.is_file():
            raise DataError(f"{table.where(row, column)}: no file {str(path)!r}")
        first = seen.setdefault(path, row)
        if labelled and first != row:
            raise DataError(
                f"{table.where(row, column)}: {path.name!r} comes twice, first in "
                f"{table.where(first)}; keep one row"
            )
    return [folder / cell.strip() for folder, cell in zip(folders, table.columns[column])]


# --- labels, groups and ids -----------------------------------------------------------------------


def _collection(
    name: str, samples: Any, table: Table, columns: Columns, labelled: bool
) -> Collection:
    """Samples with what all tables of one row per sample have in common."""
    reading = columns.reading
    result = Collection(name, reading, samples, None, table.place)
    result.channels = tuple(reading.channels or ())
    ids = table.columns.get(reading.id)
    if ids is not None:
        result.ids = [ids.names[code] if code >= 0 else "" for code in ids.codes]
    if reading.time in table.columns:
        result.order = table.columns[reading.time].order
    if not labelled:
        return result
    learned = columns.words is None  # what is judged may hold a sample twice
    if learned and ids is not None and (reading.text is None or reading.kind == "texts"):
        _refuse_twice(table, reading.id or "", ids)
    label = table.columns[reading.label]
    result.labels = in_order(label) if isinstance(label, Coded) else label
    if reading.group is not None:
        result.groups = present(table, reading.group)
    result.parts = parts_of([f.path for f in table.files], [f.count for f in table.files])
    return result


def present(table: Table, name: str) -> np.ndarray:
    """Return the codes of a column in which none may be missing.

    Raises:
        DataError: naming the first row without a value.
    """
    codes = table.columns[name].codes
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise DataError(f"{table.where(row, name)}: is empty; needs a value in every row")
    return codes


def _refuse_twice(table: Table, name: str, ids: Coded) -> None:
    """Refuse an id that comes twice where a row is a sample."""
    codes = present(table, name)
    order = np.argsort(codes, kind="stable")
    again = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    if len(again):
        first, second = int(order[again[0]]), int(order[again[0] + 1])
        raise DataError(
            f"{table.where(second, name)}: the id {ids.names[codes[second]]!r} comes twice, first "
            f"in {table.where(first)}; remove one, or where a row is a time of a series: kind "
            "series"
        )
