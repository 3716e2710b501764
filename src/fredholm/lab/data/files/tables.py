"""Samples from tables: one or several files of the same columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ....errors import DataError
from .casts import Coded
from .channels import SHOWN, channels_flag, first_of, group_remark
from .collection import Collection, listed, looks_continuous
from .columns import Columns, Trained
from .division import named_parts
from .guesses import IDS, called, grow_from_row_to_row
from .head import HEAD, WORDS, Head
from .opening import check_unchanged
from .reading import Reading
from .row_samples import lists, paths, paths_in, rows, texts, wide
from .settling import settle
from .table import Table, read_head, read_table
from .time_rows import long
from .writing import Writing

# Makers of collections, by the layout of series, else by the kind.
_MAKERS = {"long": long, "lists": lists, "wide": wide}
_OF_KINDS = {
    "series": paths,
    "rows": rows,
    "texts": texts,
    "images": paths,
}


def collect_tables(
    files: Sequence[Path],
    reading: Reading,
    labelled: bool,
    trained: Trained | None,
) -> Collection:
    """Return the samples of one or several tables with the same columns.

    Files called ``train``, ``val`` and ``test`` (or ending so) are those splits. Files for a run
    (``trained``) may come without names and without the column of the label.

    Raises:
        DataError: files that cannot be read, or that contradict the reading.
    """
    # A file may change between the reading of its head and of its rows.
    before = [file.stat() for file in files]
    known: Sequence[str] = ()
    if trained is not None:
        known = reading.channels or ()
    heads = [read_head(file, known, reading.writing) for file in files]
    writing = reading.writing
    if trained is None:
        writing = _with_decimals(heads[0], reading)
    heads = [replace(head, writing=writing) for head in heads]
    first = heads[0]
    columns = settle(first, reading.settled(read=writing), labelled, trained)
    table = read_table(heads, columns.roles, reading.strict)
    for file, stat in zip(files, before):
        check_unchanged(file, stat)

    if table.dates is not None:
        dated = replace(writing, dates=table.dates)
        columns = columns.settled(read=dated)
    if labelled:
        columns = _resettled(table, columns, reading)
    if columns.layout is not None:
        make = _MAKERS[columns.layout]
    else:
        make = _OF_KINDS[columns.reading.kind or "rows"]

    result = make(table, columns)
    result.taken = columns.taken
    result.layout = columns.layout
    result.remarks = [*columns.remarks, *result.remarks]
    if first.delimiter:
        header = "no"
        if first.named:
            header = "yes"
        result.written = {"separator": first.delimiter, "header": header}
    if table.unreadable:
        result = _without_unreadable(result, table)
    if trained is None and columns.reading.kind == "rows":
        result.remarks += _of_many_files(files, heads, reading)
    return result


def named_files(files: Sequence[Path], reading: Reading) -> list[Path]:
    """Return the pictures or sounds that tables for training name; none if they name no files.

    Only the column of paths is read.

    Raises:
        DataError: tables that cannot be read, or a path without a file.
    """
    if reading.kind not in (None, "images", "series"):
        return []
    first = read_head(files[0], writing=reading.writing)
    columns = settle(first, reading)
    column = columns.reading.text
    if column is None or _OF_KINDS.get(columns.reading.kind or "rows") is not paths:
        return []
    others = [read_head(file, writing=reading.writing) for file in files[1:]]
    table = read_table([first, *others], {column: columns.roles[column]}, strict=False)
    return paths_in(table, columns)


def _with_decimals(head: Head, reading: Reading) -> Writing:
    """Return the notation of a table, with decimal commas if all declared channels need them.

    A column that is named to be read is not meant to become words. Without such a name, 1,5 may be
    anything, and is refused.
    """
    writing = reading.writing
    if reading.channels is None or not writing.plain:
        return writing
    commas = replace(writing, decimal=",")
    cells: list[str] = []
    for name in reading.channels:
        if name in head.names and not head[name].numeric:
            cells += head[name].known
    if not any("," in cell for cell in cells):
        return writing
    if any(commas.number(cell) is None for cell in cells):
        return writing
    return commas


# --- what the whole table tells -------------------------------------------------------------------


def _resettled(
    table: Table,
    columns: Columns,
    asked: Reading,
) -> Columns:
    """Correct guesses from the first rows by the whole table; declarations stay."""
    found = columns.reading
    if asked.id is None and found.id is not None and not columns.long:
        missing = table.columns[found.id].codes < 0
        if missing.any():
            row = int(missing.argmax())
            where = table.where(row, found.id)
            columns = columns.settled(f"{where}: is empty, so it is read as no id", id=None)
        elif _repeats_later(table, found.id):
            # The first rows differ, as of a table sorted by it.
            columns = columns.settled(group_remark(found.id), id=None)
    if asked.channels is None and (columns.long or found.kind == "rows"):
        columns = _without_unread(table, columns)
    if asked.task is None and not columns.long:
        columns = _with_numbers(table, columns)
    return columns


def _repeats_later(table: Table, name: str) -> bool:
    """Whether a column that is only called like an id holds a value twice.

    A column with a usual name, such as "id", is one: there, a value that comes twice is a slip,
    which is refused.
    """
    if called([name], IDS) is not None:
        return False
    found = table.columns[name]
    return len(found.names) < len(found.codes)


def _without_unread(table: Table, columns: Columns) -> Columns:
    """Leave out columns that were guessed to be inputs and are of no use in the whole table.

    These are columns of numbers that are empty in every row, and columns of words with more than
    :data:`WORDS` different ones. The first rows alone may have few of these words, but each word
    would become an input of its own. Each column left out gets a remark.

    Raises:
        DataError: no column is left, and some had words.
    """
    found = columns.reading
    names = found.channels or ()
    remarks = {}
    for name in names:
        values = table.columns[name]
        why = ""
        if isinstance(values, Coded):
            if len(values.names) > WORDS:
                why = f"its cells are words of {len(values.names):,} kinds"
                if found.kind == "rows":
                    why += f"; to read each of them as a column of its own: {channels_flag(names)}"
        elif np.isnan(values).all():
            why = "it is empty in every row"
        if why:
            remarks[name] = f"column {name!r} is left out: {why}"
    kept = tuple(name for name in names if name not in remarks)
    if kept:
        return columns.settled(*remarks.values(), channels=kept)
    # If all columns are empty, the maker of the samples refuses the first such row by its number.
    if any(isinstance(table.columns[name], Coded) for name in names):
        first = next(iter(remarks.values()))
        raise DataError(f"{table.files[0].path}: no column is left for a model to read: {first}")
    return columns


def _with_numbers(table: Table, columns: Columns) -> Columns:
    """Read a label as numbers that looks like classes in the first rows only, as of a sorted file.

    As many rows of the whole table as the head has decide. The table's column becomes numbers.
    """
    name = columns.reading.label
    label = table.columns[columns.reading.label]
    if not isinstance(label, Coded):
        return columns
    writing = columns.reading.writing
    numbers = []
    for word in label.names:
        number = writing.number(word)
        if number is None:
            return columns
        numbers.append(number)
    codes = label.codes[label.codes >= 0]
    step = max(1, math.ceil(len(codes) / HEAD))
    shown = [str(numbers[code]) for code in codes[::step]]
    if not looks_continuous(shown):
        return columns

    # The last entry is that of the code -1, a missing label.
    values = np.array([*map(float, numbers), np.nan])
    table.columns[name] = values[label.codes]
    return columns.settled(
        f"column {name!r} is read as numbers: there are {len(numbers):,} different ones, of which "
        f"the first rows have {len(np.unique(codes[:HEAD])):,}; where they name classes: --predict "
        "classification",
        task="regression",
    )


# --- what is said of all of it --------------------------------------------------------------------


def _without_unreadable(collection: Collection, table: Table) -> Collection:
    """List the unreadable cells in a remark, and leave out the samples that have one.

    An unreadable cell has text where its column has numbers; the table holds NaN in its place.
    Labelled series stay: one value of many is missing there. Without labels, when a run predicts,
    a series with such a cell gets no prediction, like any other sample.

    Args:
        collection: the samples, one per row of the table unless ``rows`` lists the rows of each.
        table: has one unreadable cell or more.

    Raises:
        DataError: every sample has an unreadable cell.
    """
    found = table.unreadable
    lines = []
    for cell in found:
        where = table.where(cell.row, cell.column)
        lines.append(f"{where}: {cell.cell[:SHOWN]!r}")
    cells = listed(lines)
    what = "their samples are left out"
    gaps = collection.labels is not None and collection.kind == "series"
    if gaps:
        what = "count as not measured"
    collection.remarks.append(
        f"{len(found):,} of the cells of numbers hold none, and {what} (--strict refuses them): "
        f"{cells}"
    )
    if gaps:
        return collection
    bad = {cell.row for cell in found}
    # The table's rows of each sample: several for series with one row per time, else one.
    blocks = collection.rows or [[row] for row in range(len(table))]
    kept = [i for i, block in enumerate(blocks) if bad.isdisjoint(block)]
    if not kept:
        raise DataError(f"{table.files[0].path}: no sample is left: {cells}")
    return collection.take(np.array(kept))


def _of_many_files(
    files: Sequence[Path],
    heads: Sequence[Head],
    reading: Reading,
) -> Iterator[str]:
    """Yield remarks on rows of several files: a file may be a recording, and a folder a class."""
    if len(files) < 2 or set(named_parts(files)) != {None}:
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
