"""Samples from tables: one or several files of the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ....errors import DataError
from .casts import Coded
from .channels import SHOWN, first_of
from .collection import LISTED, Collection, looks_continuous
from .columns import Columns, Trained, settle
from .guesses import grow_from_row_to_row
from .head import HEAD, WORDS, Head
from .opening import check_unchanged
from .parts import named_parts
from .reading import Reading
from .row_samples import lists, pictures, rows, sounds, texts, wide
from .table import Table, read_head, read_table
from .time_rows import long
from .writing import Writing

_MAKERS = {"long": long, "lists": lists, "wide": wide}  # of series, by how they lie in a table
_OF_KINDS = {"series": sounds, "rows": rows, "texts": texts, "images": pictures}


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
    writing = reading.writing if trained is not None else _with_decimals(heads[0], reading)
    heads = [replace(head, writing=writing) for head in heads]
    columns = settle(heads[0], reading.settled(read=writing), labelled, trained)
    table = read_table(heads, columns.roles, reading.strict)
    for file, stat in zip(files, before):
        check_unchanged(file, stat)
    if table.dates is not None:
        columns = columns.settled(read=replace(writing, dates=table.dates))
    if labelled:
        columns = _resettled(table, columns, reading)
    make = _MAKERS[columns.layout] if columns.layout else _OF_KINDS[columns.reading.kind or "rows"]
    result = make(name, table, columns, labelled)
    result.taken, result.layout = columns.taken, columns.layout
    result.remarks = [*columns.remarks, *result.remarks]
    if heads[0].delimiter:
        header = "yes" if heads[0].named else "no"
        result.written = {"separator": heads[0].delimiter, "header": header}
    if table.unreadable:
        result = _without_unreadable(result, table, labelled)
    if trained is None and columns.reading.kind == "rows":
        result.remarks += _of_many_files(files, heads, reading)
    return result


def _with_decimals(head: Head, reading: Reading) -> Writing:
    """How numbers are written: with decimal commas, where the user names channels whose numbers
    have them all. What is named to be read is not read as words.
    """
    writing = reading.writing
    if reading.channels is None or not writing.plain:
        return writing
    commas = replace(writing, decimal=",")
    named = [head[name] for name in reading.channels if name in head.names]
    cells = [column.known for column in named if not column.numeric]
    found = any("," in cell for known in cells for cell in known)
    if not found or any(commas.number(cell) is None for known in cells for cell in known):
        return writing
    return commas


# --- what the whole table tells -------------------------------------------------------------------


def _resettled(table: Table, columns: Columns, asked: Reading) -> Columns:
    """Settle anew what looks otherwise in the whole table than in its first rows, where nobody said
    what it is.
    """
    found = columns.reading
    if asked.id is None and found.id is not None and not columns.long:
        missing = table.columns[found.id].codes < 0
        if missing.any():
            where = table.where(int(missing.argmax()), found.id)
            columns = columns.settled(f"{where}: is empty, so it is read as no id", id=None)
    if asked.channels is None and (columns.long or found.kind == "rows"):
        columns = _without_unread(table, columns)
    if asked.task is None and not columns.long:
        columns = _with_numbers(table, columns)
    return columns


def _without_unread(table: Table, columns: Columns) -> Columns:
    """Leave out columns of numbers that have none in any row, and those of words that are of few
    kinds in the first rows only.

    Raises:
        DataError: words alone are left, of too many kinds.
    """
    names, remarks = columns.reading.channels or (), {}
    for name in names:
        values = table.columns[name]
        if isinstance(values, Coded) and len(values.names) > WORDS:
            why = f"its cells are words of {len(values.names):,} kinds"
        elif not isinstance(values, Coded) and np.isnan(values).all():
            why = "it is empty in every row"
        else:
            continue
        remarks[name] = f"column {name!r} is left out: {why}"
    kept = tuple(name for name in names if name not in remarks)
    if kept:
        return columns.settled(*remarks.values(), channels=kept)
    if any(isinstance(table.columns[name], Coded) for name in names):
        first = next(iter(remarks.values()))
        raise DataError(f"{table.files[0].path}: no column is left for a model to read: {first}")
    return columns


def _with_numbers(table: Table, columns: Columns) -> Columns:
    """Read a label as numbers, in the table as well, that looks like classes in the first rows
    only, where a row is a sample: as many rows of the whole table tell.
    """
    name, label = columns.reading.label, table.columns[columns.reading.label]
    if not isinstance(label, Coded):
        return columns
    numbers = [columns.reading.writing.number(word) for word in label.names]
    codes = label.codes[label.codes >= 0]
    some = codes[:: -(-len(codes) // HEAD) or 1]
    if None in numbers or not looks_continuous([str(numbers[code]) for code in some]):
        return columns
    table.columns[name] = np.array([*map(float, filter(None, numbers)), np.nan])[label.codes]
    return columns.settled(
        f"column {name!r} is read as numbers: there are {len(numbers):,} different ones, of which "
        f"the first rows have {len(np.unique(codes[:HEAD])):,}; where they name classes: --predict "
        "classification",
        task="regression",
    )


# --- what is said of all of it --------------------------------------------------------------------


def _without_unreadable(collection: Collection, table: Table, labelled: bool) -> Collection:
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
    bad = {cell.row for cell in found}
    blocks = collection.rows or [[row] for row in range(len(table))]
    kept = [i for i, block in enumerate(blocks) if bad.isdisjoint(block)]
    if not kept:
        raise DataError(f"{table.files[0].path}: no sample is left: {'; '.join(cells)}")
    return collection.take(np.array(kept))


def _of_many_files(files: Sequence[Path], heads: Sequence[Head], reading: Reading) -> Iterator[str]:
    """Say of rows of several files that a file may be a recording, and a folder a class."""
    if len(files) < 2 or any(part is not None for part in named_parts(files)):
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
