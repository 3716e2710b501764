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

PIECE = 20_000  # rows at a time


def read_head(path: Path, writing: Writing) -> Head:
    """Return the names and first rows of a Parquet file. Rows are counted as if the names were the
    first.

    Raises:
        DataError: a damaged file, one without rows, or one that unfolds beyond the limit.
        MissingExtraError: pyarrow is not installed.
    """
    file = _opened(path)
    import pyarrow as arrow

    nested, lists, plain = {}, {}, []
    for field in file.schema_arrow:
        kind = field.type
        if not kind.num_fields:
            plain.append(field.name)
        elif arrow.types.is_list(kind) and _is_numeric(kind.value_type):
            lists[field.name] = str(kind)
        else:
            nested[field.name] = str(kind)
    batch = next(file.iter_batches(HEAD), None)
    if batch is None or not batch.num_rows:
        raise DataError(f"{path}: has no rows; needs samples")
    chosen = [batch.column(i) for i, f in enumerate(batch.schema) if not f.type.num_fields]
    rows = list(zip(*map(texts, chosen)))
    spots = [Spot(i + 2) for i in range(batch.num_rows)]
    return Head(path, tuple(plain), True, rows, spots, nested=nested, lists=lists, writing=writing)


def arrays(head: Head, names: Sequence[str], rows: Rows) -> Iterator[list[Any]]:
    """Yield the columns ``names``, some rows at a time.

    Raises:
        DataError: the file changes meanwhile.
    """
    path = head.path
    before = path.stat()
    try:
        for batch in _opened(path).iter_batches(PIECE, columns=list(names), use_threads=False):
            yield [batch.column(name) for name in names]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no Parquet file ({error}); it is truncated or corrupt") from error
    check_unchanged(path, before)


def texts(column: Any) -> list[str]:
    """Return the cells of an array as text, "" where there is none."""
    import pyarrow as arrow

    kind = column.type
    # Python's times hold microseconds.
    if getattr(kind, "unit", None) == "ns":
        if arrow.types.is_timestamp(kind):
            kind = arrow.timestamp("us", kind.tz)
        else:
            kind = arrow.time64("us") if arrow.types.is_time64(kind) else arrow.duration("us")
        column = column.cast(kind, safe=False)
    return ["" if value is None else _text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _opened(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "train", f"reading {path.name}")
    try:
        file = parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no Parquet file ({error}); it is truncated or corrupt") from error
    check_declared(path, 8 * file.metadata.num_rows * file.metadata.num_columns)
    return file


def _is_numeric(kind: Any) -> bool:
    import pyarrow as arrow

    return arrow.types.is_integer(kind) or arrow.types.is_floating(kind)
