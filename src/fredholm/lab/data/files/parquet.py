"""Parquet files: their columns as arrays of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ....errors import DataError, require
from ..formats import check_declared
from .head import HEAD, Head, Rows, Spot
from .opening import check_unchanged
from .writing import Writing

PIECE = 20_000  # rows in memory at a time


def read_head(path: Path, writing: Writing) -> Head:
    """Return the names and first rows of a Parquet file.

    Rows are numbered from 2, as if the names were the first row: a spreadsheet would show them so.

    Raises:
        DataError: a damaged file, one without rows, or one that unfolds beyond the limit.
        MissingExtraError: pyarrow is not installed.
    """
    file = _opened(path)
    import pyarrow as arrow

    nested = {}
    lists = {}
    plain = []
    numeric = (arrow.types.is_integer, arrow.types.is_floating)
    for field in file.schema_arrow:
        kind = field.type
        if not kind.num_fields:
            plain.append(field.name)
        elif arrow.types.is_list(kind) and any(test(kind.value_type) for test in numeric):
            lists[field.name] = str(kind)
        else:
            nested[field.name] = str(kind)
    batch = next(file.iter_batches(HEAD), None)
    if batch is None or not batch.num_rows:
        raise DataError(f"{path}: expected samples, got no rows; add some")

    # By place, not by name: two columns may have the same name, which is refused later.
    chosen = []
    for i, field in enumerate(batch.schema):
        if not field.type.num_fields:
            cells = _without_null_numbers(batch.column(i), writing)
            chosen.append(texts(cells))
    rows = list(zip(*chosen))
    spots = [Spot(i + 2) for i in range(batch.num_rows)]
    return Head(path, tuple(plain), True, rows, spots, nested=nested, lists=lists, writing=writing)


def arrays(
    head: Head,
    names: Sequence[str],
    rows: Rows,
) -> Iterator[list[Any]]:
    """Yield the columns ``names``, some rows at a time.

    Raises:
        DataError: a damaged file, or one that changes meanwhile.
    """
    path = head.path
    before = path.stat()
    try:
        for batch in _opened(path).iter_batches(PIECE, columns=list(names), use_threads=False):
            yield [_without_null_numbers(batch.column(name), head.writing) for name in names]
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    check_unchanged(path, before)


def _without_null_numbers(column: Any, writing: Writing) -> Any:
    """Return a column with nulls in place of numbers that stand for a missing cell.

    Columns of text are left as they are: their words are compared where they are cast.
    """
    import pyarrow as arrow

    types = arrow.types
    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        return column
    for number in writing.null_numbers:
        try:
            # In the type of the column: float32 stores another number for -999.9 than float64.
            null = arrow.scalar(number).cast(kind)
        except arrow.ArrowInvalid:
            # No cell of an integer column equals 0.5, and none of uint8 equals -999.
            continue
        compute: Any = require("pyarrow.compute", "train", "reading tables")
        column = compute.if_else(compute.equal(column, null), None, column)
    return column


def texts(column: Any) -> list[str]:
    """Return the cells of an array as text, "" for null."""
    import pyarrow as arrow

    kind = column.type
    # Python's times hold microseconds; Arrow refuses to convert nanoseconds that would be cut.
    if getattr(kind, "unit", None) == "ns":
        micro = arrow.duration("us")
        if arrow.types.is_timestamp(kind):
            micro = arrow.timestamp("us", kind.tz)
        elif arrow.types.is_time64(kind):
            micro = arrow.time64("us")
        column = column.cast(micro, safe=False)
    return list(map(_text, column.to_pylist()))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _opened(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "train", f"reading {path.name}")
    try:
        file = parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    # Eight bytes per cell, which a column of one repeated value unfolds to.
    check_declared(path, 8 * file.metadata.num_rows * file.metadata.num_columns)
    return file


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: expected a Parquet file, got an error ({error}); it may be truncated or corrupt"
    )
