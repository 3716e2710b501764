"""Rows that stay on disk: a ``.npy`` file of any size, of which only a batch's rows are read, and
Parquet files converted to one, a piece at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, ShapeError, require
from ...files import cache_folder, digest_json, replacing, storing
from .numpy_files import read_npy

# torch has few operations on unsigned integers, so they are read as the next larger signed ones.
SIGNED = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
# Bytes of a Parquet file's rows that are in memory at once, beside its pages.
PIECE = 1 << 21


class StoredRows:
    """The rows (N, …) of a ``.npy`` file; ``rows[indices]`` reads only those: real numbers as
    float32, unsigned ones of more than a byte as signed.

    A data set takes it in place of a tensor: as the values of
    :class:`~fredholm.data.SequenceDataset`, the clouds of :class:`~fredholm.data.PointDataset`,
    inputs and answers of :class:`~fredholm.data.FieldDataset`. Rows are checked when they are
    read, since nothing else ever reads the complete file. The file is mapped for the length of one
    read, so that memory holds a batch and not the pages that earlier batches have touched.

    Args:
        path: the file; several processes may read it.
        chosen: the numbers of the rows that count, in their order; None for all.
        window: a dimension of the file's array and the part of it that is read; None for all.

    Raises:
        DataError: no such file, one of something else than numbers, or one without rows.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "walks.npy"
        >>> np.save(path, np.arange(12.0).reshape(4, 3, 1))
        >>> rows = StoredRows(path)
        >>> rows.shape, rows[[3, 0]][:, 0, 0].tolist()
        ((4, 3, 1), [9.0, 0.0])
        >>> len(rows.select(torch.tensor([1, 2])))
        2
    """

    def __init__(
        self,
        path: str | Path,
        chosen: Tensor | None = None,
        window: tuple[int, slice] | None = None,
    ):
        self.path = Path(path)
        self.chosen = chosen
        self.window = window
        mapped = self._map()
        if mapped.ndim < 1 or not len(mapped):
            raise DataError(
                f"{self.path}: expected rows (N, …), got an array {mapped.shape}; save one row per "
                "sample"
            )
        self.size = self.path.stat().st_size
        count = len(mapped)
        if chosen is not None:
            count = len(chosen)
        row = self._windowed(mapped).shape[1:]
        self.shape: tuple[int, ...] = (count, *row)

    def __len__(self) -> int:
        return self.shape[0]

    def dim(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: Tensor | Sequence[int]) -> Tensor:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        rows = self._numbers(indices)
        mapped = self._windowed(self._map())
        if self.path.stat().st_size != self.size:
            raise DataError(
                f"{self.path}: expected the file that was opened, of {self.size:,} bytes, got "
                "another; start again"
            )
        # Read in the order of the file, in which a disk is faster, and put back into theirs.
        order = rows.argsort()
        ordered = rows[order].numpy()
        values = self._native(mapped[ordered])
        values = torch.from_numpy(values)
        return torch.empty_like(values).index_copy_(0, order, values)

    def __call__(self, indices: Tensor) -> Tensor:
        """Return ``self[indices]``, as the functions do that data sets take in place of rows."""
        return self[indices]

    def select(self, chosen: Tensor) -> StoredRows:
        """Return some of the rows; nothing is read."""
        rows = self._numbers(chosen)
        return StoredRows(self.path, rows, self.window)

    def _numbers(self, indices: Tensor) -> Tensor:
        """Return the rows of the file at these places among the chosen ones."""
        if self.chosen is None:
            return indices
        return self.chosen[indices]

    def stretch(self, axis: int, start: int, stop: int) -> StoredRows:
        """Return a part of every row, ``start`` to ``stop`` of dimension ``axis`` of the array; the
        rest is never read.
        """
        window = (axis, slice(start, stop))
        return StoredRows(self.path, self.chosen, window)

    def _windowed(self, mapped: Any) -> Any:
        if self.window is None:
            return mapped
        axis, part = self.window
        before = [slice(None)] * axis
        return mapped[(*before, part)]

    def _native(self, values: np.ndarray) -> np.ndarray:
        """Return the values in a type of torch, in this machine's order of bytes."""
        if values.dtype.kind == "f":
            # Float64 beyond float32 becomes infinite here, which the data set refuses.
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(values, np.float32)
        name = values.dtype.name
        kind = SIGNED.get(name, values.dtype.newbyteorder("="))
        result = np.ascontiguousarray(values, kind)
        if name == "uint64" and (result < 0).any():
            raise DataError(
                f"{self.path}: expected numbers below 2^63, got {values.max()}; save floats"
            )
        return result

    def _map(self) -> Any:
        result = read_npy(self.path, "r")
        if result.dtype.kind not in "biufc":
            raise DataError(
                f"{self.path}: expected numbers, got {result.dtype}; save them with np.save"
            )
        return result

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"StoredRows({str(self.path)!r}, {shape})"


def rows_of_parquet(
    path: str | Path,
    columns: Sequence[str],
    shape: Sequence[int] = (),
    folder: Path | None = None,
) -> StoredRows:
    """Return columns of a Parquet file as rows ``(N, *shape)``, which can be read in any order.

    Parquet is compressed in groups of rows, of which one row cannot be read alone. So the file is
    written once as ``.npy``, a group at a time, into ``folder`` (default: the cache); the next call
    finds it there, as long as the Parquet file is the same.

    Args:
        path: the file.
        columns: of numbers, or of lists of numbers of one length; put side by side.
        shape: of a row; default: one axis of all its numbers.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: not a Parquet file, a missing column, or rows of another length.
        ShapeError: rows that do not have ``shape``.
    """
    parquet = require("pyarrow.parquet", "train", f"reading {Path(path).name}")
    path = Path(path)
    place = folder or cache_folder() / "rows"
    try:
        facts = path.stat()
        # Buffering ahead would read the complete file at once.
        source = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no readable Parquet file ({error}); copy it again") from error
    for name in columns:
        if name not in source.schema_arrow.names:
            raise DataError(
                f"{path}: expected columns among {source.schema_arrow.names}, got {name!r}"
            )

    # Another size or time of the file, or other columns, give the copy another name.
    key = [
        str(path.absolute()),
        facts.st_size,
        facts.st_mtime_ns,
        list(columns),
        list(shape),
    ]
    digest = digest_json(key)[:16]
    target = place / f"{path.stem}-{digest}.npy"
    if not target.is_file():
        with storing(place):
            place.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            _write(temporary, path, source, list(columns), tuple(shape))
    return StoredRows(target)


def _write(
    target: Path,
    path: Path,
    source: Any,
    columns: list[str],
    shape: tuple[int, ...],
):
    """Write one row group after the other behind a header."""
    count = source.metadata.num_rows
    if not count:
        raise DataError(f"{path}: expected at least one row, got none; write some")
    header_written = False
    widths: dict[str, int] = {}
    with target.open("wb") as file:
        for batch in _batches(source, columns):
            parts = []
            for name in columns:
                part = _values_of(path, name, batch[name])
                # Columns of other widths may have as many numbers together.
                width = widths.setdefault(name, part.shape[1])
                if part.shape[1] != width:
                    raise _other_length(path, name, width, part.shape[1])
                parts.append(part)
            values = np.concatenate(parts, 1)
            # The first rows tell how many numbers a row has.
            shape = shape or values.shape[1:]
            if values.shape[1] != math.prod(shape):
                raise ShapeError(
                    f"{path}: expected rows of shape {shape}, got {values.shape[1]} numbers; give "
                    "another shape, or other columns"
                )
            if not header_written:
                header = {
                    "descr": "<f4",
                    "fortran_order": False,
                    "shape": (count, *shape),
                }
                np.lib.format.write_array_header_1_0(file, header)
                header_written = True
            rows = np.ascontiguousarray(values, dtype="<f4")
            file.write(rows.data)


def _batches(source: Any, columns: list[str]) -> Iterator[Any]:
    """Yield rows in batches of up to :data:`PIECE` bytes, one group of the file after another."""
    for number in range(source.num_row_groups):
        group = source.metadata.row_group(number)
        per_row = group.total_byte_size // max(1, group.num_rows)
        fitting = PIECE // max(1, per_row)
        size = max(1, min(4096, fitting))
        yield from source.iter_batches(size, [number], columns, use_threads=False)


def _other_length(
    path: Path,
    name: str,
    expected: int,
    length: int,
) -> DataError:
    return DataError(
        f"{path}, column {name!r}: expected lists of one length, got lists of {expected} and "
        f"{length} numbers; pad them"
    )


def _values_of(
    path: Path,
    name: str,
    column: Any,
) -> np.ndarray:
    """Return a column's values (B, n)."""
    # A missing list has no numbers and would shift all rows behind it; a missing number in a list
    # is NaN, which the data set refuses.
    if column.null_count and None in column.to_pylist():
        raise DataError(f"{path}: expected a value in every row, got an empty one; leave it out")
    if type(column).__name__ in ("ListArray", "LargeListArray", "FixedSizeListArray"):
        # Lists of other lengths may divide into as many rows, with numbers of their neighbours.
        compute: Any = require("pyarrow.compute", "train", f"reading {path.name}")
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        odd = np.flatnonzero(lengths != lengths[0])
        if len(odd):
            raise _other_length(path, name, int(lengths[0]), int(lengths[odd[0]]))
        numbers = column.flatten()
    else:
        numbers = column
    try:
        values = numbers.to_numpy(zero_copy_only=False)
        values = values.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{path}: expected columns of numbers, got others ({error}); choose other columns"
        ) from error
    return values.reshape(len(column), -1)
