"""Parquet files as rows of text, in pieces, so that they are recognised as CSV is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ....errors import DataError, require
from .utf8 import check_unchanged


def head(path: Path, count: int) -> tuple[tuple[str, ...], list[list[str]], dict[str, str]]:
    """The names of the columns, the first rows, and the columns that hold lists or structs, which
    are not read, with their types.

    Raises:
        DataError: a damaged file, one without rows, or two columns of one name.
        MissingExtraError: pyarrow is not installed.
    """
    file = _opened(path)
    types = [(field.name, field.type) for field in file.schema_arrow]
    nested = {name: str(kind) for name, kind in types if kind.num_fields}
    names = tuple(name for name, _ in types if name not in nested)
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise DataError(f"{path}: two columns are called {twice!r}; rename one")
    batch = next(file.iter_batches(count, columns=list(names) if nested else None), None)
    if batch is None or not batch.num_rows:
        raise DataError(f"{path}: has no rows; needs samples")
    return names, [list(row) for row in _rows(batch)], nested


def pieces(
    path: Path, count: int, names: Sequence[str] | None = None
) -> Iterator[list[Sequence[str]]]:
    """All rows, ``count`` at a time; of these columns, where not of all.

    Raises:
        DataError: the file changes meanwhile.
    """
    before = path.stat()
    for batch in _opened(path).iter_batches(count, columns=names):
        yield _rows(batch)
    check_unchanged(path, before)


def _opened(path: Path) -> Any:
    arrow = require("pyarrow.parquet", "parquet", f"reading {path.name}")
    try:
        return arrow.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no Parquet file ({error}); it is truncated or corrupt") from error


def _rows(batch: Any) -> list[Sequence[str]]:
    columns = [
        ["" if v is None else _text(v) for v in _coarser(column).to_pylist()]
        for column in batch.columns
    ]
    return list(zip(*columns))


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
