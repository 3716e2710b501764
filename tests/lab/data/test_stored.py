"""Data on disk give the same batches as data in memory, and need the memory of one batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fredholm.data import (
    FieldDataset,
    PointDataset,
    SequenceDataset,
    StoredRows,
    limit_samples,
    make_loader,
    rows_of_parquet,
)
from fredholm.errors import DataError, ShapeError
from fredholm.lab.training.machine import peak_megabytes


def stored(folder, name, values):
    np.save(folder / name, np.asarray(values))
    return StoredRows(folder / f"{name}.npy")


def test_rows_equal_those_of_the_file(tmp_path):
    values = torch.randn(7, 3, 2)
    rows = stored(tmp_path, "values", values.double())
    assert (rows.shape, len(rows), rows.dim()) == ((7, 3, 2), 7, 3)
    assert torch.equal(rows[torch.tensor([5, 0, 5])], values[[5, 0, 5]])
    chosen = rows.select(torch.tensor([6, 2, 4])).select(torch.tensor([2, 0]))
    assert torch.equal(chosen[[0, 1]], values[[4, 6]])
    assert stored(tmp_path, "tokens", [[1, 2], [3, 4]])[[1]].tolist() == [[3, 4]]
    np.save(rows.path, np.zeros((9, 3, 2)))
    with pytest.raises(DataError, match="expected the file that was opened"):
        rows[[0]]


@pytest.mark.parametrize("kind", ["<u2", ">u2", ">u4", "<u8", ">i4", ">f4", ">f8", "<f2", "?"])
def test_numbers_of_every_type_are_read(tmp_path, kind):
    values = np.array([[0, 1], [7, 60_000], [2, 3]], kind)
    read = stored(tmp_path, "values", values)[[1, 0]]
    np.testing.assert_array_equal(read, values[[1, 0]])
    floats = values.dtype.kind == "f"
    assert read.dtype == torch.float32 if floats else not read.is_floating_point()


def test_invalid_files_of_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        StoredRows(tmp_path / "none.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    (tmp_path / "text.npy").write_text("no array")
    for name in ("objects", "text"):
        with pytest.raises(DataError, match=r"not a valid .npy file|expected numbers"):
            StoredRows(tmp_path / f"{name}.npy")
    with pytest.raises(DataError, match=r"expected rows \(N, …\), got an array \(\)"):
        stored(tmp_path, "number", 3.0)
    with pytest.raises(DataError, match="expected numbers, got <U4"):
        stored(tmp_path, "words", ["some", "text"])
    with pytest.raises(DataError, match=r"expected numbers below 2\^63, got 9223372036854775808"):
        stored(tmp_path, "large", np.array([1, 2**63], np.uint64))[[1]]


KINDS = {
    "fields": lambda x: FieldDataset("f", "train", x, x, ("u", "v")),
    "clouds": lambda x: PointDataset("c", "train", x, torch.arange(9) % 2, ("a", "b"), points=3),
    "series": lambda x: SequenceDataset(
        "s", "train", torch.arange(9) % 2, ("a", "b"), x.__getitem__, shape=(5, 3)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_those_of_data_in_memory(tmp_path, kind):
    values = torch.randn(9, 2, 4, 4) if kind == "fields" else torch.randn(9, 5, 3)
    rows = stored(tmp_path, "rows", values)
    inside, outside = KINDS[kind](values), KINDS[kind](rows)
    if kind == "series":
        outside = SequenceDataset("s", "train", inside.labels, ("a", "b"), rows, shape=(5, 3))
    for one, other in ((inside, outside), (limit_samples(inside, 6), limit_samples(outside, 6))):
        loaders = [make_loader(data, 4, seed=1, shuffle=True) for data in (one, other)]
        for (x, y), (x2, y2) in zip(*loaders, strict=True):
            assert torch.equal(x, x2)
            assert torch.equal(y, y2)


@pytest.mark.parametrize("kind", ["fields", "clouds"])
def test_a_wrong_sample_is_refused_on_reading(tmp_path, kind):
    values = torch.randn(9, 2, 4, 4) if kind == "fields" else torch.randn(9, 5, 3)
    values[6] = torch.inf
    data = KINDS[kind](stored(tmp_path, "rows", values))
    data.batch([0, 1])
    with pytest.raises(DataError, match=r"sample 6|cloud 6"):
        data.batch([5, 6])


def test_parquet_is_converted_to_rows_once(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = np.arange(60, dtype=np.float32).reshape(10, 6)
    columns = {"a": np.arange(10), "x": list(lists), "word": ["w"] * 10}
    file = tmp_path / "some.parquet"
    parquet.write_table(arrow.table(columns), file, row_group_size=3)
    rows = rows_of_parquet(file, ["x"], (3, 2), tmp_path / "rows")
    assert torch.equal(rows[[9, 0]], torch.from_numpy(lists[[9, 0]]).reshape(2, 3, 2))
    written = rows.path.stat().st_mtime_ns
    assert rows_of_parquet(file, ["x"], (3, 2), tmp_path / "rows").path == rows.path
    assert rows.path.stat().st_mtime_ns == written
    both = rows_of_parquet(file, ["a", "x"], folder=tmp_path / "rows")
    assert both[[4]].tolist() == [[4.0, *lists[4].tolist()]]
    with pytest.raises(DataError, match=r"expected columns among .*, got 'y'"):
        rows_of_parquet(file, ["y"])
    with pytest.raises(DataError, match="expected columns of numbers"):
        rows_of_parquet(file, ["word"], folder=tmp_path)
    with pytest.raises(ShapeError, match=r"rows of shape \(4,\), got 6 numbers"):
        rows_of_parquet(file, ["x"], (4,), tmp_path)
    parquet.write_table(arrow.table({"x": [[1.0], [2.0, 3.0]]}), file)
    with pytest.raises(DataError, match="expected lists of one length"):
        rows_of_parquet(file, ["x"], folder=tmp_path)


@pytest.mark.parametrize("group", [1, 2])
def test_parquet_lists_of_different_lengths_are_refused(tmp_path, group):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "some.parquet"
    # Six numbers would divide into two rows of three, and so would those of both columns together.
    x = [[1.0, 2.0], [3.0, 4.0, 5.0, 6.0]]
    y = [[0.0] * 4, [0.0] * 2]
    parquet.write_table(arrow.table({"x": x, "y": y}), file, row_group_size=group)
    match = r"column 'x': expected lists of one length, got lists of 2 and 4 numbers; pad them"
    for columns in (["x"], ["x", "y"]):
        with pytest.raises(DataError, match=match):
            rows_of_parquet(file, columns, folder=tmp_path)


def test_memory_stays_flat_over_ten_times_the_limit(tmp_path):
    limit = 16  # MB
    path, shape = tmp_path / "large.npy", (10 * limit * 64, 64, 64)  # rows of 16 kB
    with path.open("wb") as file:  # a sparse file, which needs no disk space
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * int(np.prod(shape)))
    rows = StoredRows(path)
    data = SequenceDataset(
        "s", "train", torch.zeros(len(rows)).long(), ("a",), rows, shape=shape[1:]
    )

    def epoch() -> None:
        seen = 0
        for x, _ in make_loader(data, 64, seed=1, shuffle=True):
            seen += len(x)
        assert seen == shape[0]

    grown = peak_megabytes(epoch)
    assert grown is None or grown < limit


def test_memory_stays_flat_over_a_parquet_file_of_ten_times_the_limit(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    limit, width, groups = 16, 1024, 40  # MB; groups of 1024 rows are 4 MB each
    piece = arrow.array(np.arange(1024 * width, dtype=np.float32))
    table = arrow.table({"x": arrow.FixedSizeListArray.from_arrays(piece, width)})
    options = {"compression": "none", "use_dictionary": False}
    small, file = tmp_path / "small.parquet", tmp_path / "large.parquet"
    for path, count in ((small, 1), (file, groups)):
        with parquet.ParquetWriter(path, table.schema, **options) as writer:
            for _ in range(count):
                writer.write_table(table)
    assert file.stat().st_size >= 10 * limit * 10**6
    rows_of_parquet(small, ["x"], folder=tmp_path / "rows")  # loads what a first call loads
    found: list[StoredRows] = []
    grown = peak_megabytes(
        lambda: found.append(rows_of_parquet(file, ["x"], folder=tmp_path / "rows"))
    )
    assert found[0].shape == (groups * 1024, width)
    assert found[0][[1025]][0, :2].tolist() == [1024.0, 1025.0]
    assert grown is None or grown < limit
