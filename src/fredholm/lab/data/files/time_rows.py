"""Series from tables of a row per time: rows of the same id, in the order of the file."""

from __future__ import annotations

import numpy as np

from ....errors import DataError
from .casts import Coded
from .collection import Collection, in_order
from .columns import Columns
from .parts import parts_of
from .row_samples import present
from .table import Table
from .times import clock_of

FEW = 0.2  # the share of series with several labels, up to which these may be slips


def long(name: str, table: Table, columns: Columns, labelled: bool) -> Collection:
    """A series per id, and in several files per file and id."""
    reading = columns.reading
    ids, series_id = table.columns[reading.id], reading.id or ""
    rows = _rows_of(table, present(table, series_id).astype(np.int64), len(ids.names))
    firsts = np.array([block[0] for block in rows])
    values = np.stack([table.columns[c] for c in reading.channels or ()], 1)
    samples = [values[block] for block in rows]
    empty = next((i for i, sample in enumerate(samples) if np.isnan(sample).all()), None)
    result = Collection(
        name,
        reading,
        samples,
        labels=None,
        place=lambda i: table.place(int(firsts[i])),
        rows=rows,
        ids=[ids.names[code] for code in ids.codes[firsts]],
        channels=tuple(reading.channels or ()),
    )
    if reading.time is not None:
        clock = table.columns[reading.time]
        result.times = [_checked_times(table, columns, block, ids) for block in rows]
        result.starts = [clock.text(int(first)) for first in firsts]
        result.order = clock.order[firsts]
        result.dated = {"clock": False, "date": True}.get(columns.roles[reading.time])
    else:
        result.remarks += _apart(table, rows, series_id)
    if empty is not None:
        raise DataError(f"{result.where(empty)}: the series holds no number")
    if not labelled:
        return result
    counts = np.bincount(table.file_of()[firsts], minlength=len(table.files))
    result.parts = parts_of([file.path for file in table.files], counts.tolist())
    if reading.group is not None:
        groups = present(table, reading.group)
        _check_one_group(table, reading.group, groups, rows)
        result.groups = groups[firsts]
    _label_series(result, table, rows)
    return result


def _rows_of(table: Table, codes: np.ndarray, ids: int) -> list[np.ndarray]:
    """The rows of each series, in the order in which series begin."""
    if len(table.files) > 1:  # the same id in another file is another series
        codes = codes + ids * table.file_of()
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return sorted(np.split(order, starts[1:]), key=lambda block: int(block[0]))


def _apart(table: Table, rows: list[np.ndarray], series_id: str) -> list[str]:
    """What is said of a series without times whose rows are not together."""
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


def _checked_times(table: Table, columns: Columns, block: np.ndarray, ids: Coded) -> np.ndarray:
    """Return the times of a series since its first, which go forward."""
    name = columns.reading.time or ""
    times = table.columns[name][block]
    back = np.flatnonzero(np.diff(times.values) <= 0)
    if not len(back):
        return times.seconds
    number = int(back[0]) + 1
    before, row = int(block[number - 1]), int(block[number])
    earlier = times.text(number - 1)
    what = (
        f"{table.where(row, name)}: the time {times.text(number)} of {ids.names[ids.codes[row]]!r}"
    )
    if row != before + 1:
        raise DataError(
            f"{what} comes after {earlier} in {table.where(before)}; the id is given twice: give "
            "each series an id of its own"
        )
    twice = times.values[number] == times.values[number - 1]
    again = "comes twice" if twice else f"after {earlier}"
    raise DataError(
        f"{what} {again}; needs times that go forward: sort the rows of each series by time, or "
        f"average those of one time{clock_of(times, number)}"
    )


def _check_one_group(table: Table, name: str, codes: np.ndarray, rows: list[np.ndarray]) -> None:
    """Refuse a series with several groups: it would have to be in several splits."""
    for block in rows:
        odd = codes[block] != codes[block[0]]
        if odd.any():
            raise DataError(
                f"{table.where(int(block[int(odd.argmax())]), name)}: the group varies within a "
                "series, which lies in one split as a whole; needs one group a series"
            )


def _label_series(result: Collection, table: Table, rows: list[np.ndarray]) -> None:
    """One label per series where all of its rows have the same; else a class at every time."""
    reading, name = result.reading, result.reading.label or ""
    column = table.columns[name]
    if not isinstance(column, Coded):
        result.labels = np.array([_one_number(table, column, block, name) for block in rows])
        return
    column = in_order(column)
    odd = [block for block in rows if len({*column.codes[block].tolist()} - {-1}) > 1]
    if odd:
        result.reading = reading.settled(task="steps")
    if result.reading.task != "steps":
        codes = [column.codes[block].max() for block in rows]
        result.labels = Coded(np.array(codes), column.names)
        return
    result.labels, result.steps = column, [column.codes[block] for block in rows]
    if odd and len(odd) <= FEW * len(rows):
        result.remarks.append(
            f"{table.where(int(odd[0][0]), name)}: the label varies within {len(odd)} of "
            f"{len(rows):,} series, so a class is asked at every time; if a series has one label, "
            "correct them"
        )


def _one_number(table: Table, column: np.ndarray, block: np.ndarray, name: str) -> float:
    """The number that all rows of a series have; NaN where none has one."""
    values = column[block][np.isfinite(column[block])]
    if not len(values):
        return np.nan
    if np.ptp(values) > 0:
        raise DataError(
            f"{table.where(int(block[0]), name)}: the label varies within a series, and a number "
            "at every time cannot be learned from a table; needs one number a series, or classes: "
            "task steps"
        )
    return values[0]
