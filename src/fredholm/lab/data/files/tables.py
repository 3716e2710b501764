"""Samples from tables: one row per time, one row per series, feature columns, texts, or paths of
pictures and of sounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .collection import LISTED, PART_NAMES, Collection, blocks, in_order, leaks, looks_continuous
from .columns import (
    SHOWN,
    WORDS,
    Columns,
    Trained,
    first_of,
    grow_from_row_to_row,
    settle,
    taken_of,
    with_decimals,
)
from .folders import contents_of
from .head import HEAD, Head, read_head
from .opening import check_unchanged
from .reading import Reading
from .suffixes import stem_of
from .table import Coded, Table, read_table
from .times import clock_of


def collect_tables(
    files: Sequence[Path],
    name: str,
    reading: Reading,
    labelled: bool = True,
    trained: Trained | None = None,
) -> Collection:
    """The samples of one or several tables of the same columns; files called ``train``, ``val``
    and ``test`` (or ending so) are those splits. Files that a run is asked about (``trained``) may
    come without names and without the label's column.

    Raises:
        DataError: what the files hold cannot be read, or contradicts the reading.
    """
    known = () if trained is None else reading.channels or ()
    before = [file.stat() for file in files]
    heads = [read_head(file, known, reading.writing) for file in files]
    writing = reading.writing if trained is not None else with_decimals(heads[0], reading).writing
    heads = [replace(head, writing=writing) for head in heads]
    columns = settle(heads[0], reading.settled(read=writing), labelled, trained)
    table = read_table(heads, columns.roles, reading.strict)
    for file, stat in zip(files, before):
        check_unchanged(file, stat)
    if table.dates is not None:
        writing = replace(writing, dates=table.dates)
    columns = replace(columns, reading=columns.reading.settled(read=writing))
    if labelled and reading.id is None and not columns.long:
        columns = _without_gaps(table, columns)
    if labelled and reading.channels is None and (columns.long or columns.reading.kind == "rows"):
        columns = _without_unread(table, columns)
    if labelled and reading.task is None and not columns.long:
        columns = _with_numbers(table, columns)
    make = {
        "series": {"long": _long, "lists": _lists, "wide": _wide, None: _sounds}[columns.layout],
        "rows": _rows,
        "texts": _texts,
        "images": _pictures,
    }[columns.reading.kind or "rows"]
    result = make(name, table, columns, labelled)
    result.taken, result.layout = columns.taken, columns.layout
    result.remarks = [*columns.remarks, *result.remarks]
    result.written = _written(heads[0])
    if table.unreadable:
        result = _read_on(result, table, labelled)
    if trained is None and columns.reading.kind == "rows":
        result.remarks += _of_many_files(files, heads, reading)
    return result


def _written(head: Head) -> dict[str, str]:
    """Return how the first file is written, as ``--read`` says it."""
    if not head.delimiter:
        return {}
    sign = {"\t": "tab", " ": "space"}.get(head.delimiter, head.delimiter)
    return {"separator": sign, "header": "yes" if head.named else "no"}


def _read_on(collection: Collection, table: Table, labelled: bool) -> Collection:
    """Go on where some cells hold no number. In series for training they count as not measured; all
    other samples that have one are left out.
    """
    found = table.unreadable
    cells = [f"{table.where(c.row, c.column)}: {c.cell[:SHOWN]!r}" for c in found[:LISTED]]
    if len(found) > LISTED:
        cells.append(f"and {len(found) - LISTED:,} more")
    gaps = labelled and collection.kind == "series"
    what = "count as not measured" if gaps else "their samples are left out"
    collection.remarks.append(
        f"{len(found):,} of the cells of numbers hold none, and {what} (--strict refuses them): "
        f"{'; '.join(cells)}"
    )
    if gaps:
        return collection
    rows = {cell.row for cell in found}
    rows_of = collection.rows or [[row] for row in range(len(table))]
    kept = [i for i, block in enumerate(rows_of) if rows.isdisjoint(block)]
    if not kept:
        raise DataError(f"{table.files[0][0]}: no sample is left: {'; '.join(cells)}")
    return collection.take(np.array(kept))


def _of_many_files(files: Sequence[Path], heads: Sequence[Head], reading: Reading) -> Iterator[str]:
    """What is said of rows of several files that may be recordings, one a file, or a class a
    folder.
    """
    several = len(files) > 1 and all(part is None for part in named_parts(files))
    if not several:
        return
    if all(grow_from_row_to_row(head, reading.time) for head in heads):
        yield (
            "rows are read one by one, and those of a file may be in several splits; where each of "
            f"the {len(files):,} files is a series, give its rows a column that tells which: --id"
        )
    folders = sorted({file.parent.name for file in files})
    if len(folders) > 1:
        yield (
            f"the names of folders ({first_of(folders, 4)}) are no labels of tables; where they "
            "are classes, write them into a column of each: --label"
        )


def _without_unread(table: Table, columns: Columns) -> Columns:
    """Without the columns of numbers that have none in any row, and those of words that are of few
    kinds in the first rows only.

    Raises:
        DataError: words alone are left, of too many kinds.
    """
    names, remarks = columns.reading.channels or (), {}
    for name in names:
        values = table.columns[name]
        if isinstance(values, Coded) and len(values.names) > WORDS:
            remarks[name] = f"its cells are words of {len(values.names):,} kinds"
        elif not isinstance(values, Coded) and np.isnan(values).all():
            remarks[name] = "it is empty in every row"
    if not remarks:
        return columns
    said = [f"column {name!r} is left out: {why}" for name, why in remarks.items()]
    kept = tuple(name for name in names if name not in remarks)
    if not kept and any(isinstance(table.columns[name], Coded) for name in names):
        raise DataError(f"{table.files[0][0]}: no column is left for a model to read: {said[0]}")
    if not kept:
        return columns
    reading = columns.reading.settled(channels=kept)
    taken, said = taken_of(reading, columns.long), [*columns.remarks, *said]
    return replace(columns, reading=reading, taken=taken, remarks=said)


def _with_numbers(table: Table, columns: Columns) -> Columns:
    """With a label as numbers, in the table as well, that looks like classes in the first rows
    only, where a row is a sample: as many rows of the whole table tell.
    """
    reading = columns.reading
    label = table.columns[reading.label]
    if not isinstance(label, Coded):
        return columns
    found = [reading.writing.number(name) for name in label.names]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(found):
        return columns
    codes = label.codes[label.codes >= 0]
    if not looks_continuous([numbers[c] for c in codes[:: -(-len(codes) // HEAD) or 1]]):
        return columns
    first = len(np.unique(codes[:HEAD]))
    remark = (
        f"column {reading.label!r} is read as numbers: there are {len(label.names):,} different "
        f"ones, of which the first rows have {first:,}; where they name classes: --predict "
        "classification"
    )
    table.columns[reading.label] = np.array([*map(float, numbers), np.nan])[label.codes]
    return replace(
        columns, reading=reading.settled(task="regression"), remarks=[*columns.remarks, remark]
    )


def _without_gaps(table: Table, columns: Columns) -> Columns:
    """Without a guessed id that a row does not have, where a row is a sample: it needs none."""
    name = columns.reading.id
    missing = np.zeros(0) if name is None else table.columns[name].codes < 0
    if not missing.any():
        return columns
    reading = columns.reading.settled(id=None)
    remark = f"{table.where(int(missing.argmax()), name or '')}: is empty, so it is read as no id"
    remarks = [*columns.remarks, remark]
    return replace(columns, reading=reading, taken=taken_of(reading, False), remarks=remarks)


def part_of(path: Path) -> int | None:
    """The split that a file's or folder's name says.

    Example:
        >>> part_of(Path("GunPoint_TEST.ts")), part_of(Path("train.csv")), part_of(Path("a.csv"))
        (2, 0, None)
    """
    words = stem_of(path).lower().replace("-", "_").split("_")
    return PART_NAMES.get(words[-1])


def named_parts(files: Sequence[Path]) -> list[int | None]:
    """The split of each file by its name, or by a folder's below the one that all of them lie in.

    Example:
        >>> named_parts([Path("a/train/1.csv"), Path("a/test/more/2.csv"), Path("a/val.csv")])
        [0, 2, 1]
        >>> named_parts([Path("a/train/1.csv"), Path("a/train/2.csv")])
        [None, None]
    """
    root = os.path.commonpath([file.parent for file in files])
    parts = []
    for file in files:
        folders = [part.lower() for part in file.parent.relative_to(root).parts]
        above = next((name for name in reversed(folders) if name in PART_NAMES), None)
        own = part_of(file)
        parts.append(own if own is not None or above is None else PART_NAMES[above])
    return parts


def parts_of(files: Sequence[Path], counts: Sequence[int]) -> np.ndarray | None:
    """The split of each sample by the names of files and folders; None where they say none, as a
    file by itself does not, whatever it is called.

    Raises:
        DataError: some files say one and others do not.
    """
    parts = named_parts(files)
    if len(files) == 1 or all(part is None for part in parts):
        return None
    if None in parts:
        odd = files[parts.index(None)]
        raise DataError(
            f"{odd}: lies beside files (or folders of files) called train, val or test and is none "
            "of them; rename it or take it away"
        )
    return np.repeat(np.array(parts, np.int8), counts)


# --- one row per sample ---------------------------------------------------------------------------


def _common(table: Table, columns: Columns, labelled: bool) -> dict[str, Any]:
    """What all tables of one row per sample have in common."""
    reading = columns.reading
    label = table.columns.get(reading.label) if labelled else None
    group = table.columns.get(reading.group) if labelled else None
    return {
        "labels": in_order(label) if isinstance(label, Coded) else label,
        "place": table.place,
        "groups": None if group is None else _present(table, reading.group, group),
        "order": None if reading.time not in table.columns else table.columns[reading.time].order,
        "parts": parts_of(*zip(*table.files)) if labelled else None,
        "ids": _names(table, reading.id),
        "channels": tuple(reading.channels or ()),
    }


def _names(table: Table, name: str | None) -> list[str] | None:
    """The words of a column."""
    column = table.columns.get(name)
    if column is None:
        return None
    return [column.names[code] if code >= 0 else "" for code in column.codes]


def _present(table: Table, name: str | None, column: Coded) -> np.ndarray:
    """The codes of a column in which none may be missing."""
    if (column.codes < 0).any():
        raise DataError(
            f"{table.where(int((column.codes < 0).argmax()), name or '')}: is empty; needs a value "
            "in every row"
        )
    return column.codes


def _one_group(table: Table, name: str, codes: np.ndarray, rows: list[np.ndarray]) -> None:
    """DataError where a series has several groups: it would have to be in several splits."""
    for block in rows:
        odd = codes[block] != codes[block[0]]
        if odd.any():
            raise DataError(
                f"{table.where(int(block[int(odd.argmax())]), name)}: the group varies within a "
                "series, which lies in one split as a whole; needs one group a series"
            )


def _wide(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """A row a series: what is missing at its end is no part of it, elsewhere it is a gap."""
    values = np.stack([table.columns[c] for c in columns.reading.channels or ()], 1)
    if labelled:
        _no_duplicates(table, columns.reading.id)
    samples = []
    for row, line in enumerate(values):
        known = np.flatnonzero(~np.isnan(line))
        if not len(known):
            raise DataError(f"{table.where(row)}: holds no number; needs a series")
        samples.append(line[: known[-1] + 1, None])
    result = Collection(name, columns.reading, samples, **_common(table, columns, labelled))
    result.channels = ("value",)
    return result


def _lists(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """A row per series, a channel per column of lists."""
    if labelled:
        _no_duplicates(table, columns.reading.id)
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
    return Collection(name, columns.reading, samples, **_common(table, columns, labelled))


def _rows(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """Feature columns; words become a column each, those of training where a run knows them."""
    if labelled:
        _no_duplicates(table, columns.reading.id)
    common = _common(table, columns, labelled)
    words, names, remarks = {}, [], []
    for column in columns.reading.channels or ():
        values = table.columns[column]
        if not isinstance(values, Coded):
            names.append(column)
            continue
        if columns.words is None:
            ordered = in_order(values)
        else:
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
    read = np.ones(len(table), bool)
    read[[cell.row for cell in table.unreadable]] = False
    for row, line in blocks(samples):
        empty = np.isnan(line).all(1) & read[row : row + len(line)]
        if empty.any():
            where = table.where(row + int(empty.argmax()))
            raise DataError(f"{where}: every cell is empty; remove the row")
    result = Collection(name, columns.reading, samples, **common)
    result.channels, result.words = tuple(names), words
    result.remarks = leaks(result, plain) if labelled else remarks
    return result


def _among(values: Coded, words: Sequence[str]) -> Coded:
    """The same cells by the words of training; one that is none of them has a number of its own,
    which no column stands for.
    """
    place = {word: number for number, word in enumerate(words)}
    table = np.array([*(place.get(name, len(words)) for name in values.names), -1], np.int64)
    return Coded(table[values.codes], list(words))


def _strangers(table: Table, column: str, values: Coded, ordered: Coded) -> list[str]:
    """What is said of words that training did not have."""
    rows = np.flatnonzero(ordered.codes == len(ordered.names))
    if not len(rows):
        return []
    word = values.names[values.codes[rows[0]]]
    others = len(set(values.codes[rows].tolist())) - 1
    more = f", nor {others} others" if others else ""
    known = first_of(ordered.names)
    count = "the row is" if len(rows) == 1 else f"{len(rows):,} rows are"
    return [
        f"{table.where(int(rows[0]), column)}: the training files have no {word!r} in this column"
        f"{more}; to the model {count} none of {known}"
    ]


def _texts(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    if labelled:
        _no_duplicates(table, columns.reading.id)
    texts = table.columns[columns.reading.text]
    empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise DataError(f"{table.where(empty, columns.reading.text or '')}: holds no text")
    return Collection(name, columns.reading, texts, **_common(table, columns, labelled))


def _pictures(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    return _of_paths("images", name, table, columns, labelled)


def _sounds(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    return _of_paths("series", name, table, columns, labelled)


def _of_paths(kind: str, name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """Return the files that a table names, without the rows of those that cannot be read."""
    files = _paths(table, columns, labelled)
    contents, unread = contents_of(kind, files, columns.reading, labelled)
    reading = columns.reading.settled(**contents.pop("found", {}))
    whole = Collection(name, reading, files, **_common(table, columns, labelled))
    kept = np.array([row for row in range(len(files)) if row not in unread], np.int64)
    return replace(whole.take(kept) if unread else whole, **contents)


def _paths(table: Table, columns: Columns, labelled: bool) -> list[Path]:
    """Relative to the table, each once where it is learned from."""
    samples, column = [], columns.reading.text or ""
    files = [file for file, count in table.files for _ in range(count)]
    for row, (file, cell) in enumerate(zip(files, table.columns[column])):
        path = file.parent / cell.strip()
        if not path.is_file():
            raise DataError(f"{table.where(row, column)}: no file {str(path)!r}")
        samples.append(path)
    seen: dict[Path, int] = {}
    for row, path in enumerate(samples if labelled else ()):
        if seen.setdefault(path, row) != row:
            raise DataError(
                f"{table.where(row, column)}: {path.name!r} comes twice, first in "
                f"{table.where(seen[path])}; keep one row"
            )
    return samples


def _no_duplicates(table: Table, name: str | None) -> None:
    """Refuse an id that comes twice where a row is a sample."""
    if name is None:
        return
    codes = _present(table, name, table.columns[name])
    order = np.argsort(codes, kind="stable")
    again = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    if len(again):
        first, second = int(order[again[0]]), int(order[again[0] + 1])
        raise DataError(
            f"{table.where(second, name)}: the id {table.columns[name].names[codes[second]]!r} "
            f"comes twice, first in {table.where(first)}; remove one, or where a row is a time of "
            "a series: kind series"
        )


# --- one row per time ----------------------------------------------------------------------------


def _long(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """Rows of the same id are a series, in the order of the file."""
    reading = columns.reading
    ids = table.columns[reading.id]
    codes = _present(table, reading.id, ids).astype(np.int64)
    if len(table.files) > 1:  # the same id in another file is another series
        codes = codes + len(ids.names) * table.file_of()
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    rows = np.split(order, starts[1:])
    rows.sort(key=lambda block: int(block[0]))  # series as they come in the file
    times, starts = None, None
    if reading.time is not None:
        clock = table.columns[reading.time]
        times = [_checked_times(table, columns, block, ids) for block in rows]
        starts = [clock.text(int(block[0])) for block in rows]
    values = np.stack([table.columns[c] for c in reading.channels or ()], 1)
    samples = [values[block] for block in rows]
    for block, sample in zip(rows, samples):
        if np.isnan(sample).all():
            raise DataError(f"{table.where(int(block[0]))}: the series holds no number")
    firsts = [int(block[0]) for block in rows]
    file_of = table.file_of()
    result = Collection(
        name,
        reading,
        samples,
        labels=None,
        place=lambda i: table.place(firsts[i]),
        times=times,
        starts=starts,
        rows=rows,
        dated={"clock": False, "date": True}.get(columns.roles.get(reading.time or "", "")),
        parts=parts_of(
            [file for file, _ in table.files],
            np.bincount(file_of[firsts], minlength=len(table.files)).tolist(),
        )
        if labelled
        else None,
        order=None if reading.time is None else table.columns[reading.time].order[firsts],
        ids=[ids.names[table.columns[reading.id].codes[first]] for first in firsts],
        channels=tuple(reading.channels or ()),
    )
    if reading.group is not None and labelled:
        groups = _present(table, reading.group, table.columns[reading.group])
        _one_group(table, reading.group, groups, rows)
        result.groups = groups[firsts]
    apart = next((block for block in rows if (np.diff(block) > 1).any()), None)
    if times is None and apart is not None:
        row = int(apart[int((np.diff(apart) > 1).argmax()) + 1])
        result.remarks.append(
            f"{table.where(row, reading.id or '')}: the rows of a series are not together, and no "
            "column says when each was measured: they are taken in the order of the file, or is "
            "the id given twice?"
        )
    if labelled:
        _label_series(result, table, rows)
    return result


def _checked_times(table: Table, columns: Columns, block: np.ndarray, ids: Coded) -> np.ndarray:
    """Return the times of a series since its first, which go forward."""
    name = columns.reading.time or ""
    times = table.columns[name][block]
    back = np.flatnonzero(np.diff(times.values) <= 0)
    if not len(back):
        return times.seconds
    number = int(back[0]) + 1
    before, row = int(block[number - 1]), int(block[number])
    series = ids.names[ids.codes[row]]
    what = f"the time {times.text(number)} of {series!r}"
    if row != before + 1:
        raise DataError(
            f"{table.where(row, name)}: {what} comes after {times.text(number - 1)} in "
            f"{table.where(before)}; the id is given twice: give each series an id of its own"
        )
    twice = times.values[number] == times.values[number - 1]
    again = "comes twice" if twice else f"after {times.text(number - 1)}"
    raise DataError(
        f"{table.where(row, name)}: {what} {again}; needs times that go forward: sort the rows of "
        f"each series by time, or average those of one time{clock_of(times, number)}"
    )


def _varying(table: Table, rows: list[np.ndarray], same: list[bool], label: str) -> list[str]:
    """What is said where few series have more than one label, as after a slip."""
    odd = [block for block, alike in zip(rows, same) if not alike]
    if not odd or len(odd) > 0.2 * len(rows):
        return []
    where, count = table.where(int(odd[0][0]), label), f"{len(odd)} of {len(rows):,}"
    return [
        f"{where}: the label varies within {count} series, so a class is asked at every time; if a "
        "series has one label, correct them"
    ]


def _label_series(result: Collection, table: Table, rows: list[np.ndarray]) -> None:
    """One label a series where all of its rows have the same; else a class at every time."""
    reading = result.reading
    column = table.columns[reading.label]
    if isinstance(column, Coded):
        column = in_order(column)
        same = [len({*column.codes[block].tolist()} - {-1}) <= 1 for block in rows]
        if not all(same):
            result.reading = reading.settled(task="steps")
        if result.reading.task == "steps":
            result.labels, result.steps = column, [column.codes[block] for block in rows]
            result.remarks += _varying(table, rows, same, reading.label or "")
            return
        result.labels = Coded(np.array([column.codes[b].max() for b in rows]), column.names)
        return
    values = [column[block][np.isfinite(column[block])] for block in rows]
    odd = next((i for i, v in enumerate(values) if len(v) and np.ptp(v) > 0), None)
    if odd is not None:
        raise DataError(
            f"{table.where(int(rows[odd][0]), reading.label or '')}: the label varies within a "
            "series, and a number at every time cannot be learned from a table; needs one number a "
            "series, or classes: task steps"
        )
    result.labels = np.array([v[0] if len(v) else np.nan for v in values])
