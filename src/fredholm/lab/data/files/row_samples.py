"""Samples of one row each: feature columns, series of columns or lists, texts, paths of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError
from .casts import Coded
from .channels import first_of, word_channel
from .collection import Collection, blocks, in_order
from .columns import Columns
from .division import parts_of
from .folders import contents_of
from .labels import leaks
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
        end = known[-1] + 1
        samples.append(line[:end, None])
    result = _collection(samples, table, columns)
    result.channels = ("value",)
    return result


def _no_number(table: Table, row: int) -> DataError:
    return DataError(f"{table.where(row)}: expected a series, got no number; remove the row")


def lists(table: Table, columns: Columns) -> Collection:
    """One row per series, one channel per column of lists."""
    names = columns.reading.channels or ()
    channels = [table.columns[name] for name in names]
    samples = []
    for row, parts in enumerate(zip(*channels)):
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
    files = paths_in(table, columns)
    contents, unread = contents_of(files, columns.reading, columns.labelled)
    found = contents.pop("found", {})
    result = _collection(files, table, columns)
    if unread:
        # From here on sample i is no longer row i of the table.
        result.rows = [[row] for row in range(len(files))]
        read = np.setdiff1d(np.arange(len(files)), list(unread))
        result = result.take(read)
    reading = result.reading.settled(**found)
    return replace(result, reading=reading, named=files, **contents)


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

    samples, plain = _matrix(table, channels, len(names))
    _check_filled(table, samples)
    result = _collection(samples, table, columns)
    result.channels = tuple(names)
    result.words = words
    if columns.words is None:
        remarks = leaks(result, plain)
    result.remarks = remarks
    return result


class _Matrix(NamedTuple):
    """A table as numbers.

    Attributes:
        samples: (rows, channels); one channel of 0 and 1 per word of a column of words.
        plain: one number per row of each column; of words their codes.
    """

    samples: np.ndarray
    plain: dict[str, np.ndarray]


def _matrix(table: Table, columns: Sequence[str], width: int) -> _Matrix:
    """Move columns from a table into a matrix of ``width`` channels.

    Columns leave the table as soon as they are in the matrix: a large table is in memory once.
    """
    samples = np.empty((len(table), width), order="F")
    plain = {}
    place = 0
    for column in columns:
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
            holds = values.codes == code
            samples[:, place] = np.where(missing, np.nan, holds)
            place += 1
    return _Matrix(samples, plain)


def _check_filled(table: Table, samples: np.ndarray) -> None:
    """Refuse a row without any number, other than one whose cells could not be read.

    An answer to it would be that of the mean sample, whatever the row was meant to be.
    """
    unreadable = [cell.row for cell in table.unreadable]
    read = np.ones(len(table), bool)
    read[unreadable] = False
    for start, block in blocks(samples):
        stop = start + len(block)
        empty = np.isnan(block).all(1) & read[start:stop]
        if empty.any():
            row = start + int(empty.argmax())
            raise DataError(f"{table.where(row)}: every cell is empty; remove the row")


def _among(values: Coded, words: Sequence[str]) -> Coded:
    """Return cells as words of the training. Unknown words get the number behind the last one, so
    that each column of a word holds 0.
    """
    unknown = len(words)
    place = {word: number for number, word in enumerate(words)}
    codes = [place.get(name, unknown) for name in values.names]
    # The last entry is that of the code -1, a missing word.
    table = np.array([*codes, -1], np.int64)
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
    word = values.names[codes[0]]
    others = len(np.unique(codes)) - 1
    where = table.where(int(odd[0]), column)
    end = _unknown(word, others, len(odd), ordered.names)
    yield f"{where}: the training files have {end}"


def _unknown(
    word: str,
    others: int,
    rows: int,
    known: Sequence[str],
) -> str:
    """Return the end of a remark on words that the training does not have.

    Args:
        word: the first of them; ``others`` counts the further ones.
        rows: number of rows with one of them.
        known: the words of the training.
    """
    count = f"{rows:,} rows are"
    if rows == 1:
        count = "the row is"
    more = ""
    if others:
        more = f", nor {others} others"
    return f"no {word!r} in this column{more}; to the model {count} none of {first_of(known)}"


def with_training_words(collection: Collection, training: np.ndarray) -> Collection:
    """Return rows without the channels of words that no training row has.

    Nothing is learned of such a word. So it is read as an unknown word of a new file is: each
    channel of its column is 0. A column without any word in the training rows is left out.

    Args:
        training: numbers of the training rows.

    Raises:
        DataError: no column is left.
    """
    samples = collection.samples
    columns = []
    kept: list[int] = []
    words = {}
    remarks = []
    place = 0
    for column in collection.reading.channels or ():
        names = collection.words.get(column)
        if names is None:
            columns.append(column)
            kept.append(place)
            place += 1
            continue

        first = place
        place += len(names)
        # (rows, words): whether a row has a word.
        has = samples[:, first:place] == 1
        learned = has[training].any(0)
        if not learned.any():
            remarks.append(f"column {column!r} is left out: no training row has a word there")
            continue
        columns.append(column)
        kept += [first + number for number in np.flatnonzero(learned).tolist()]
        words[column] = [name for name, known in zip(names, learned) if known]
        remarks += _unlearned(collection, column, has & ~learned, words[column])

    if len(kept) == samples.shape[1]:
        return collection
    if not kept:
        raise DataError(f"{collection.name}: no column is left for a model to read: {remarks[0]}")
    # In place: a large table is in memory once.
    for number, old in enumerate(kept):
        samples[:, number] = samples[:, old]
    return replace(
        collection,
        reading=collection.reading.settled(channels=tuple(columns)),
        samples=samples[:, : len(kept)],
        channels=tuple(collection.channels[old] for old in kept),
        words=words,
        taken=collection.taken | {"columns": first_of(columns)},
        remarks=[*collection.remarks, *remarks],
    )


def _unlearned(
    collection: Collection,
    column: str,
    unlearned: np.ndarray,
    known: Sequence[str],
) -> Iterator[str]:
    """Yield a remark on words that no training row has, if any other sample has one.

    A word may also occur only in rows that were left out, such as those without a label.

    Args:
        unlearned: (rows, words of the column), whether a row has a word outside ``known``.
        known: the words of the training rows.
    """
    rows = np.flatnonzero(unlearned.any(1))
    if not len(rows):
        return
    first = collection.words[column][unlearned[rows[0]].argmax()]
    others = int(unlearned.any(0).sum()) - 1
    where = collection.where(int(rows[0]))
    end = _unknown(first, others, len(rows), known)
    yield f"{where}, column {column!r}: the training rows have {end}"


def paths_in(table: Table, columns: Columns) -> list[Path]:
    """Return the paths of a table, relative to its folder.

    In training each may occur once: a picture in two splits would be tested on what was learned.
    """
    column = columns.reading.text or ""
    folders: list[Path] = []
    for file in table.files:
        folders += [file.path.parent] * file.count

    seen: dict[Path, int] = {}
    paths = []
    for row, (folder, cell) in enumerate(zip(folders, table.columns[column])):
        path = folder / cell.strip()
        if not path.is_file():
            where = table.where(row, column)
            raise DataError(f"{where}: no file {str(path)!r}{columns.otherwise}")
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
    of_files = reading.text is not None and reading.kind != "texts"
    if learned and ids is not None and not of_files:
        _refuse_twice(table, reading.id or "", ids)
    label = table.columns[reading.label]
    if isinstance(label, Coded):
        label = in_order(label)
    result.labels = label
    if reading.group is not None:
        result.groups = present(table, reading.group)
    paths = [file.path for file in table.files]
    counts = [file.count for file in table.files]
    result.parts = parts_of(paths, counts)
    return result


def present(table: Table, name: str) -> np.ndarray:
    """Return the codes of a column in which no cell may be missing.

    Raises:
        DataError: naming the first row without a value.
    """
    codes = table.columns[name].codes
    missing = codes < 0
    if missing.any():
        row = int(missing.argmax())
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
    ordered = codes[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        first = int(order[again[0]])
        second = int(order[again[0] + 1])
        raise DataError(
            f"{table.where(second, name)}: the id {ids.names[codes[second]]!r} comes twice, first "
            f"in {table.where(first)}; remove one, or where a row is a time of a series: kind "
            "series"
        )
