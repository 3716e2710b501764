"""Rows that stay on disk: a ``.npy`` file of any size, of which a batch's rows are read when it is
made, and Parquet files turned into one, a piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, ShapeError, require
from ...files import cache_folder, digest_json, replacing, storing

# What torch does not compute with, as what it does, of either order of bytes.
SIGNED = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
PIECE = 1 << 21  # bytes of a Parquet file's rows that are in memory at once, beside its pages


class StoredRows:
    """The rows (N, …) of a ``.npy`` file; ``rows[indices]`` reads those and no others, real
    numbers in float32, unsigned ones of more than a byte with a sign.

    Stands where a data set takes a tensor: the values of
    :class:`~fredholm.data.SequenceDataset`, the clouds of :class:`~fredholm.data.PointDataset`,
    inputs and answers of :class:`~fredholm.data.FieldDataset`. What is read is checked when it is
    read, since nothing else ever goes through the file. The file is mapped for the length of one
    read, so that memory holds a batch and not what earlier batches have touched.

    Args:
        path: the file; several processes may read it.
        chosen: the rows that count, in their order; None for all.
        window: what is read of each row: a dimension of the file's array, and the places of it;
            None for all.

    Raises:
        DataError: no such file, or one of other than numbers, or of no rows.

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
        self.path, self.chosen, self.window = Path(path), chosen, window
        mapped = self._map()
        if mapped.ndim < 1 or not len(mapped):
            raise DataError(f"{self.path}: holds an array {mapped.shape}; needs rows (N, …)")
        self.size = self.path.stat().st_size
        count = len(mapped) if chosen is None else len(chosen)
        self.shape: tuple[int, ...] = (count, *self._seen(mapped).shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def dim(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: Tensor | Sequence[int]) -> Tensor:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        rows = rows if self.chosen is None else self.chosen[rows]
        mapped = self._seen(self._map())
        if self.path.stat().st_size != self.size:
            raise DataError(f"{self.path}: has changed since it was opened; start again")
        # In the order of the file, which a disk reads faster, and put back.
        order = rows.argsort()
        values = torch.from_numpy(self._native(mapped[rows[order].numpy()]))
        return torch.empty_like(values).index_copy_(0, order, values)

    def select(self, chosen: Tensor) -> StoredRows:
        """Some of the rows; nothing is read."""
        rows = chosen if self.chosen is None else self.chosen[chosen]
        return StoredRows(self.path, rows, self.window)

    def stretch(self, axis: int, start: int, stop: int) -> StoredRows:
        """A part of every row: the places ``start`` to ``stop`` of dimension ``axis`` of the array;
        the rest is never read.
        """
        return StoredRows(self.path, self.chosen, (axis, slice(start, stop)))

    def _seen(self, mapped: Any) -> Any:
        if self.window is None:
            return mapped
        axis, places = self.window
        return mapped[(slice(None),) * axis + (places,)]

    def _native(self, values: np.ndarray) -> np.ndarray:
        """As torch takes them."""
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):  # whoever reads them refuses infinite numbers
                return np.ascontiguousarray(values, np.float32)
        kind = SIGNED.get(values.dtype.name, values.dtype.newbyteorder("="))
        result = np.ascontiguousarray(values, kind)
        if values.dtype.name == "uint64" and (result < 0).any():
            raise DataError(f"{self.path}: holds {values.max()}; needs numbers below 2^63")
        return result

    def _map(self) -> Any:
        try:
            result = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise DataError(f"{self.path}: no such file") from None
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{self.path}: no .npy file of numbers ({error})") from error
        if result.dtype.kind not in "biufc":
            raise DataError(f"{self.path}: no .npy file of numbers (it holds {result.dtype})")
        return result

    def __repr__(self) -> str:
        return f"StoredRows({str(self.path)!r}, {' x '.join(map(str, self.shape))})"


def rows_of_parquet(
    path: str | Path, columns: Sequence[str], shape: Sequence[int] = (), folder: Path | None = None
) -> StoredRows:
    """Columns of a Parquet file as rows ``(N, *shape)``, which are read in any order.

    Parquet is compressed in groups of rows, of which one row cannot be read alone. So the file is
    written once as ``.npy``, a group at a time, into ``folder`` (default: the cache); the next call
    finds it there, as long as the Parquet file is the same.

    Args:
        path: the file.
        columns: of numbers, or of lists of numbers of one length; put side by side.
        shape: of a row; default: as many numbers as it has.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: no Parquet file, a missing column, or rows of another length.
        ShapeError: rows that do not have ``shape``.
    """
    parquet = require("pyarrow.parquet", "parquet", f"reading {Path(path).name}")
    path, place = Path(path), folder or cache_folder() / "rows"
    try:
        facts = path.stat()
        # buffering ahead would read the whole file at once
        source = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no readable Parquet file ({error})") from error
    missing = [name for name in columns if name not in source.schema_arrow.names]
    if missing:
        raise DataError(f"{path}: has no column {missing[0]!r}; {source.schema_arrow.names}")
    named = [str(path.absolute()), facts.st_size, facts.st_mtime_ns, list(columns), list(shape)]
    target = place / f"{path.stem}-{digest_json(named)[:16]}.npy"
    if not target.is_file():
        with storing(place):
            place.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            _write(temporary, path, source, list(columns), tuple(shape))
    return StoredRows(target)


def _write(target: Path, path: Path, source: Any, columns: list[str], shape: tuple[int, ...]):
    """One row group after the other, appended behind the header."""
    row = None
    with target.open("wb") as file:
        for batch in _batches(source, columns):
            values = np.concatenate([_numbers(path, batch[name]) for name in columns], 1)
            if row is None:
                row = shape or values.shape[1:]
                header = {
                    "descr": "<f4",
                    "fortran_order": False,
                    "shape": (source.metadata.num_rows, *row),
                }
                np.lib.format.write_array_header_1_0(file, header)
            if values.shape[1] != int(np.prod(row)):
                raise ShapeError(f"{path}: rows of {values.shape[1]} numbers; needs shape {row}")
            file.write(np.ascontiguousarray(values, dtype="<f4").data)
        if row is None:
            raise DataError(f"{path}: holds no rows")


def _batches(source: Any, columns: list[str]) -> Iterator[Any]:
    """Some rows after others, one group of the file after the other."""
    for number in range(source.num_row_groups):
        group = source.metadata.row_group(number)
        per_row = group.total_byte_size // max(1, group.num_rows)
        size = max(1, min(4096, PIECE // max(1, per_row)))
        yield from source.iter_batches(size, [number], columns, use_threads=False)


def _numbers(path: Path, column: Any) -> np.ndarray:
    """A column's values (B, n)."""
    rows = column.to_pylist() if column.null_count else None
    if rows is not None and any(value is None for value in rows):
        raise DataError(f"{path}: a row without a value; leave such rows out")
    lists = type(column).__name__ in ("ListArray", "LargeListArray", "FixedSizeListArray")
    flat = column.flatten() if lists else column
    try:
        values = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: a column that is no numbers ({error})") from error
    if len(values) % len(column):
        raise DataError(f"{path}: lists of different lengths; needs one length")
    return values.reshape(len(column), -1)
