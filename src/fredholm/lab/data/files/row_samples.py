"""Samples of one row each: feature columns, series of columns or lists, texts, paths of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .casts import Coded
from .channels import first_of, word_channel
from .collection import Collection, blocks, in_order
from .columns import Columns
from .folders import contents_of
from .labels import leaks
from .parts import parts_of
from .table import Table


def wide(table: Table, columns: Columns) -> Collection:
    """One row per series: cells missing at its end are padding, elsewhere they are gaps."""
    names = columns.reading.channels or ()
    values = np.stack([table.columns[name] for name in names], 1)
    samples = []
    for row, line in enumerate(values):
        known = np.flatnonzero(~np.isnan(line))
        if not len(known):
            raise _no_number(table, row)
        samples.append(line[: known[-1] + 1, None])
    result = _collection(samples, table, columns)
    result.channels = ("value",)
    return result


def _no_number(table: Table, row: int) -> DataError:
    return DataError(f"{table.where(row)}: expected a series, got no number; remove the row")


def lists(table: Table, columns: Columns) -> Collection:
    """One row per series, one channel per column of lists."""
    names = columns.reading.channels or ()
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
            raise _no_number(table, row)
        samples.append(series)
    return _collection(samples, table, columns)


def texts(table: Table, columns: Columns) -> Collection:
    """One text per row."""
    found = table.columns[columns.reading.text]
    for row, text in enumerate(found):
        if not text.strip():
            raise DataError(
                f"{table.where(row, columns.reading.text or '')}: expected a text, got an empty "
                f"cell; remove the row{columns.otherwise}"
            )
    return _collection(found, table, columns)


def paths(table: Table, columns: Columns) -> Collection:
    """One path of a picture or of a sound per row, without the rows of unreadable files."""
    files = _paths(table, columns)
    contents, unread = contents_of(files, columns.reading, columns.labelled)
    found = contents.pop("found", {})
    result = _collection(files, table, columns)
    if unread:
        # From here on sample i is no longer row i of the table.
        result.rows = [[row] for row in range(len(files))]
        result = result.take(np.setdiff1d(np.arange(len(files)), list(unread)))
    return replace(result, reading=result.reading.settled(**found), **contents)


def rows(table: Table, columns: Columns) -> Collection:
    """Feature columns; each word becomes a column of 0 and 1, by the training's words if known."""
    channels = columns.reading.channels or ()
    words: dict[str, list[str]] = {}
    names = []
    remarks = []
    for column in channels:
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
        names += [word_channel(column, word) for word in ordered.names]

    # Columns leave the table as soon as they are in the matrix: a large table is in memory once.
    samples = np.empty((len(table), len(names)), order="F")
    plain = {}
    place = 0
    for column in channels:
        values = table.columns.pop(column)
        if not isinstance(values, Coded):
            samples[:, place] = values
            plain[column] = samples[:, place]
            place += 1
            continue
        # A missing word is missing in each of its columns, not 0.
        missing = values.codes < 0
        plain[column] = np.where(missing, np.nan, values.codes)
        for code in range(len(values.names)):
            samples[:, place] = np.where(missing, np.nan, values.codes == code)
            place += 1

    _check_filled(table, samples)
    result = _collection(samples, table, columns)
    result.channels = tuple(names)
    result.words = words
    if columns.words is None:
        remarks = leaks(result, plain)
    result.remarks = remarks
    return result


def _check_filled(table: Table, samples: np.ndarray) -> None:
    """Refuse a row without any number, other than one whose cells could not be read.

    An answer to it would be that of the mean sample, whatever the row was meant to be.
    """
    read = np.ones(len(table), bool)
    read[[cell.row for cell in table.unreadable]] = False
    for start, block in blocks(samples):
        empty = np.isnan(block).all(1) & read[start : start + len(block)]
        if empty.any():
            where = table.where(start + int(empty.argmax()))
            raise DataError(f"{where}: every cell is empty; remove the row")


def _among(values: Coded, words: Sequence[str]) -> Coded:
    """Return cells as words of the training. Unknown words get the number behind the last one, so
    that each column of a word holds 0.
    """
    place = {word: number for number, word in enumerate(words)}
    table = np.array([*(place.get(name, len(words)) for name in values.names), -1], np.int64)
    return Coded(table[values.codes], list(words))


def _strangers(
    table: Table,
    column: str,
    values: Coded,
    ordered: Coded,
) -> Iterator[str]:
    """Yield a remark on words that the training did not have."""
    odd = np.flatnonzero(ordered.codes == len(ordered.names))
    if not len(odd):
        return
    codes = values.codes[odd]
    word = repr(values.names[codes[0]])
    count = f"{len(odd):,} rows are"
    if len(odd) == 1:
        count = "the row is"
    others = len(np.unique(codes)) - 1
    more = ""
    if others:
        more = f", nor {others} others"
    yield (
        f"{table.where(int(odd[0]), column)}: the training files have no {word} in this column"
        f"{more}; to the model {count} none of {first_of(ordered.names)}"
    )


def _paths(table: Table, columns: Columns) -> list[Path]:
    """Return the paths of a table, relative to its folder.

    In training each may occur once: a picture in two splits would be tested on what was learned.
    """
    column = columns.reading.text or ""
    folders = [file.path.parent for file in table.files for _ in range(file.count)]
    seen: dict[Path, int] = {}
    paths = []
    for row, (folder, cell) in enumerate(zip(folders, table.columns[column])):
        path = folder / cell.strip()
        if not path.is_file():
            raise DataError(f"{table.where(row, column)}: no file {str(path)!r}{columns.otherwise}")
        first = seen.setdefault(path, row)
        if columns.labelled and first != row:
            raise DataError(
                f"{table.where(row, column)}: {path.name!r} comes twice, first in "
                f"{table.where(first)}; keep one row{columns.otherwise}"
            )
        paths.append(path)
    return paths


# --- labels, groups and ids -----------------------------------------------------------------------


def _collection(samples: Any, table: Table, columns: Columns) -> Collection:
    """Return samples with the ids, labels, groups and splits of a table of one row per sample."""
    reading = columns.reading
    result = Collection(reading, samples, table.place)
    result.channels = tuple(reading.channels or ())
    ids = table.columns.get(reading.id)
    if ids is not None:
        result.ids = ids.words()
    if reading.time in table.columns:
        result.order = table.columns[reading.time].values
    if not columns.labelled:
        return result

    # Samples to evaluate may repeat, and so may the ids of the files that hold them.
    learned = columns.words is None
    if learned and ids is not None and (reading.text is None or reading.kind == "texts"):
        _refuse_twice(table, reading.id or "", ids)
    label = table.columns[reading.label]
    if isinstance(label, Coded):
        label = in_order(label)
    result.labels = label
    if reading.group is not None:
        result.groups = present(table, reading.group)
    result.parts = parts_of([f.path for f in table.files], [f.count for f in table.files])
    return result


def present(table: Table, name: str) -> np.ndarray:
    """Return the codes of a column in which no cell may be missing.

    Raises:
        DataError: naming the first row without a value.
    """
    codes = table.columns[name].codes
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise DataError(
            f"{table.where(row, name)}: expected a value in every row, got an empty cell; fill it, "
            "or remove the row"
        )
    return codes


def _refuse_twice(
    table: Table,
    name: str,
    ids: Coded,
) -> None:
    """Refuse an id that comes twice in a table of one row per sample: it would be in two splits."""
    codes = present(table, name)
    order = np.argsort(codes, kind="stable")
    again = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    if len(again):
        first = int(order[again[0]])
        second = int(order[again[0] + 1])
        raise DataError(
            f"{table.where(second, name)}: the id {ids.names[codes[second]]!r} comes twice, first "
            f"in {table.where(first)}; remove one, or where a row is a time of a series: kind "
            "series"
        )
