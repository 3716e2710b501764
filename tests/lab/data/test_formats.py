"""Readers of official formats on intact and on damaged files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from PIL import Image

from fredholm.errors import DataError
from fredholm.lab.data.formats import read_cifar_binary, read_idx, read_json_labels, read_png_rows
from tests.lab.data.fixtures import (
    cifar_arrays,
    idx_arrays,
    idx_bytes,
    write_cifar_binary,
    write_cifar_png,
)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_round_trip(tmp_path, zipped):
    images, labels = idx_arrays(5, 0)
    for array in (images, labels):
        content = idx_bytes(array)
        path = tmp_path / "file"
        path.write_bytes(gzip.compress(content) if zipped else content)
        assert np.array_equal(read_idx(path), array)


GOOD = idx_bytes(idx_arrays(5, 0)[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:-1], "expected 196 bytes for 5x6x6, .*, got 195"),
        (GOOD + b"\0", "got 197"),
        (GOOD[:9], "expected 16 bytes"),
        (b"", "got 0x at its start"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], r"expected an idx file of unsigned bytes \(0x000008"),
        (b"\x00\x00\x08\x00", "1 to 4 dimensions"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged gzip"),
        (gzip.compress(GOOD, mtime=0)[:30], "damaged gzip"),
        (b"\x1f\x8bnot gzip at all", "damaged gzip"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "file")


def test_a_changed_byte_in_a_gzip_file_is_detected(tmp_path):
    packed = bytearray(gzip.compress(GOOD, compresslevel=0))
    packed[60] ^= 1
    (tmp_path / "file").write_bytes(packed)
    with pytest.raises(DataError, match="damaged gzip"):
        read_idx(tmp_path / "file")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "none")


def test_cifar_layouts_contain_the_same_images(tmp_path):
    binary = write_cifar_binary(tmp_path / "bin")
    png = write_cifar_png(tmp_path / "png")
    images, labels = read_cifar_binary(binary / "data_batch_2.bin")
    expected, numbers = cifar_arrays("data_batch_2")
    assert np.array_equal(images, expected)
    assert np.array_equal(labels, numbers)
    assert np.array_equal(read_png_rows(png / "data_batch_2.png"), expected)


def test_damaged_cifar_files_are_refused(tmp_path):
    binary = write_cifar_binary(tmp_path / "bin")
    png = write_cifar_png(tmp_path / "png")
    for content in (b"", (binary / "test_batch.bin").read_bytes()[:-1]):
        (binary / "test_batch.bin").write_bytes(content)
        with pytest.raises(DataError, match="positive multiple of 3073"):
            read_cifar_binary(binary / "test_batch.bin")
    picture = png / "test_batch.png"
    picture.write_bytes(picture.read_bytes()[:2000])
    with pytest.raises(DataError, match="not a readable picture"):
        read_png_rows(picture)
    Image.new("RGB", (100, 4)).save(picture)
    with pytest.raises(DataError, match=r"expected RGB of width 1024, .*, got RGB of width 100"):
        read_png_rows(picture)
    Image.new("L", (1024, 4)).save(picture)
    with pytest.raises(DataError, match="L of width 1024"):
        read_png_rows(picture)


@pytest.mark.parametrize(
    "content", ["[1, 2", "{}", "[1, 10]", "[-1]", "[1.0]", "[true]", "[NaN]", '["1"]']
)
def test_invalid_labels_are_refused(tmp_path, content):
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(
        DataError, match=r"labels\.json: (not JSON|expected a list of integers from 0 to 9)"
    ):
        read_json_labels(tmp_path / "labels.json", 10)
