"""Parquet files: their columns, and the first rows as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import DataError, require
from ..formats import check_declared
from .opening import check_unchanged


class Columns(NamedTuple):
    """The columns of a file, and its first rows as text."""

    names: tuple[str, ...]
    rows: list[tuple[str, ...]]
    nested: dict[str, str]
    lists: dict[str, str]


def first_rows(path: Path, count: int) -> Columns:
    """Return the names of plain columns, the first rows, and the columns of lists and structs with
    their types.

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
    batch = next(file.iter_batches(count), None)
    if batch is None or not batch.num_rows:
        raise DataError(f"{path}: has no rows; needs samples")
    chosen = [batch.column(i) for i, f in enumerate(batch.schema) if not f.type.num_fields]
    return Columns(tuple(plain), list(zip(*map(texts, chosen))), nested, lists)


def batches(path: Path, names: Sequence[str], count: int) -> Iterator[list[Any]]:
    """Yield columns as arrays of Arrow, ``count`` rows at a time.

    Raises:
        DataError: the file changes meanwhile.
    """
    before = path.stat()
    try:
        for batch in _opened(path).iter_batches(count, columns=list(names), use_threads=False):
            yield [batch.column(name) for name in names]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no Parquet file ({error}); it is truncated or corrupt") from error
    check_unchanged(path, before)


def texts(column: Any) -> list[str]:
    """Return the cells of an array as text, "" where there is none."""
    return ["" if value is None else _text(value) for value in _coarser(column).to_pylist()]


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


def _coarser(column: Any) -> Any:
    """Times in microseconds where they are in nanoseconds, which Python's do not hold."""
    import pyarrow as arrow

    kind = column.type
    if getattr(kind, "unit", None) != "ns":
        return column
    if arrow.types.is_timestamp(kind):
        return column.cast(arrow.timestamp("us", kind.tz), safe=False)
    other = arrow.time64("us") if arrow.types.is_time64(kind) else arrow.duration("us")
    return column.cast(other, safe=False)


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
