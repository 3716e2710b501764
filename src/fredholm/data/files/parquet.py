"""Parquet files as rows of text, in pieces, so that they are recognised as CSV is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError, require
from .utf8 import check_unchanged


def head(path: Path, count: int) -> tuple[tuple[str, ...], list[list[str]]]:
    """The names of the columns, and the first rows.

    Raises:
        DataError: a damaged file, or one without rows.
        MissingExtraError: pyarrow is not installed.
    """
    file = _opened(path)
    batch = next(file.iter_batches(count), None)
    if batch is None or not batch.num_rows:
        raise DataError(f"{path}: has no rows; needs samples")
    return tuple(file.schema_arrow.names), [list(row) for row in _rows(batch)]


def pieces(path: Path, count: int) -> Iterator[list[Sequence[str]]]:
    """All rows, ``count`` at a time.

    Raises:
        DataError: the file changes meanwhile.
    """
    before = path.stat()
    for batch in _opened(path).iter_batches(count):
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
        ["" if v is None else str(v) for v in column.to_pylist()] for column in batch.columns
    ]
    return list(zip(*columns))
