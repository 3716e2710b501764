"""Series from tables with one row per time: rows of the same id, in the order of the file."""

from __future__ import annotations

import numpy as np

from ....errors import DataError
from .casts import Coded
from .collection import Collection, in_order
from .columns import Columns
from .division import parts_of
from .row_samples import present
from .table import Table
from .times import clock_of

FEW = 0.2  # largest share of series with several labels that may be slips


def long(table: Table, columns: Columns) -> Collection:
    """Return one series per id; in several files, one per file and id."""
    reading = columns.reading
    ids = table.columns[reading.id]
    series_id = reading.id or ""
    rows = _rows_of(table, present(table, series_id).astype(np.int64), len(ids.names))
    firsts = np.array([block[0] for block in rows])
    channels = reading.channels or ()
    values = np.stack([table.columns[channel] for channel in channels], 1)
    result = Collection(
        reading,
        [values[block] for block in rows],
        lambda i: table.place(int(firsts[i])),
        rows=rows,
        ids=[ids.names[code] for code in ids.codes[firsts]],
        channels=tuple(channels),
    )
    if reading.time is not None:
        clock = table.columns[reading.time]
        result.times = [_checked_times(table, columns, block, ids) for block in rows]
        result.starts = [clock.text(int(first)) for first in firsts]
        result.order = clock.values[firsts]
        result.dated = {"clock": False, "date": True}.get(columns.roles[reading.time])
    else:
        result.remarks += _apart(table, rows, series_id)
    for number, sample in enumerate(result.samples):
        if np.isnan(sample).all():
            raise DataError(
                f"{result.where(number)}: expected a series of numbers, got none; remove its rows"
            )
    if not columns.labelled:
        return result

    counts = np.bincount(table.file_of()[firsts], minlength=len(table.files))
    result.parts = parts_of([file.path for file in table.files], counts.tolist())
    if reading.group is not None:
        groups = present(table, reading.group)
        _check_one_group(table, reading.group, groups, rows)
        result.groups = groups[firsts]
    _label_series(result, table, rows)
    return result


def _rows_of(
    table: Table,
    codes: np.ndarray,
    ids: int,
) -> list[np.ndarray]:
    """Return the rows of each series, in the order in which series begin."""
    # The same id in another file is another series: files of recordings count from 1 each.
    if len(table.files) > 1:
        codes = codes + ids * table.file_of()
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return sorted(np.split(order, starts[1:]), key=lambda block: int(block[0]))


def _apart(
    table: Table,
    rows: list[np.ndarray],
    series_id: str,
) -> list[str]:
    """Return a remark if rows of a series without times are scattered: they may be two series."""
    for block in rows:
        gap = np.diff(block) > 1
        if gap.any():
            row = int(block[int(gap.argmax()) + 1])
            return [
                f"{table.where(row, series_id)}: the rows of a series are not together, and no "
                "column says when each was measured: they are taken in the order of the file, or "
                "is the id given twice?"
            ]
    return []


def _checked_times(
    table: Table,
    columns: Columns,
    block: np.ndarray,
    ids: Coded,
) -> np.ndarray:
    """Return the times of a series since its first one.

    Raises:
        DataError: a time that is not later than the one before, with the likely reason.
    """
    name = columns.reading.time or ""
    times = table.columns[name][block]
    back = np.flatnonzero(np.diff(times.values) <= 0)
    if not len(back):
        return times.seconds
    number = int(back[0]) + 1
    before = int(block[number - 1])
    row = int(block[number])
    got, earlier = times.text(number), times.text(number - 1)
    word = ids.names[ids.codes[row]]
    needed = f"{table.where(row, name)}: expected a later time of {word!r} than {earlier}"
    # Times go back where a second series with the same id begins.
    if row != before + 1:
        raise DataError(
            f"{needed} in {table.where(before)}, got {got}; two series have the same id: give each "
            "series its own"
        )
    raise DataError(
        f"{needed}, got {got}; sort the rows of each series by time, or average those of one time"
        f"{clock_of(times, number)}"
    )


def _check_one_group(
    table: Table,
    name: str,
    codes: np.ndarray,
    rows: list[np.ndarray],
) -> None:
    """Refuse a series with several groups: it would have to be in several splits."""
    for block in rows:
        odd = block[codes[block] != codes[block[0]]]
        if len(odd):
            raise DataError(
                f"{table.where(int(odd[0]), name)}: expected one group per series, got several; a "
                "series must stay in one split: give each series one group"
            )


def _label_series(
    result: Collection,
    table: Table,
    rows: list[np.ndarray],
) -> None:
    """Set one label per series if all of its rows have the same; else a class at every time."""
    reading = result.reading
    name = result.reading.label or ""
    column = table.columns[name]
    if not isinstance(column, Coded):
        result.labels = np.array([_one_number(table, column, block, name) for block in rows])
        return
    column = in_order(column)
    odd = [block for block in rows if len({*column.codes[block].tolist()} - {-1}) > 1]
    if odd:
        result.reading = reading.settled(task="steps")
    if result.reading.task != "steps":
        # Rows without a label count as those with it: a missing one is -1, the smallest.
        codes = [column.codes[block].max() for block in rows]
        result.labels = Coded(np.array(codes), column.names)
        return
    result.labels = column
    result.steps = [column.codes[block] for block in rows]
    # One slip would change the task of all series: a few look like slips.
    if odd and len(odd) <= FEW * len(rows):
        result.remarks.append(
            f"{table.where(int(odd[0][0]), name)}: the label varies within {len(odd)} of "
            f"{len(rows):,} series, so a class is asked at every time; if a series has one label, "
            "correct them"
        )


def _one_number(
    table: Table,
    column: np.ndarray,
    block: np.ndarray,
    name: str,
) -> float:
    """Return the number in all rows of a series; NaN if no row has one."""
    values = column[block][np.isfinite(column[block])]
    if not len(values):
        return np.nan
    if np.ptp(values) > 0:
        raise DataError(
            f"{table.where(int(block[0]), name)}: the label varies within a series, and a number "
            "at every time cannot be learned from a table; give each series one number, or "
            "classes: task steps"
        )
    return values[0]
