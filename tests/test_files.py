"""Files are written completely or not at all, and checksums detect any flipped bit."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fredholm import tensor_files
from fredholm.errors import CheckpointError, FredholmError, StorageError
from fredholm.files import read_json, replacing, sealed, storing, unsealed, write_json
from fredholm.tensor_files import digest_tensors, read_tensors, write_tensors

TENSORS = {
    "weight": torch.arange(6.0).view(2, 3),
    "count": torch.tensor(3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "none": torch.zeros(0, 2),
}


def flips(content: bytes):
    """Yield the content with one bit of each byte flipped."""
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        yield bytes(damaged)


def same(left, right) -> bool:
    return left.keys() == right.keys() and all(
        left[key].dtype == right[key].dtype and torch.equal(left[key], right[key]) for key in left
    )


def test_any_flipped_bit_of_the_weights_is_refused_or_harmless(tmp_path):
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS)
    refused = 0
    for damaged in flips(path.read_bytes()):
        path.write_bytes(damaged)
        try:
            tensors = read_tensors(path, "train again")
        except CheckpointError:
            refused += 1
        else:  # a bit of the word "sha256" itself, or of a space
            assert same(tensors, TENSORS)
    assert refused > 6 * 4 + 64  # those of the weights and of the checksum at the least


def test_damaged_weights_are_named_with_a_fix(tmp_path):
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match=r"model.safetensors is corrupt .*; train again"):
        read_tensors(path, "train again")


def test_equal_weights_give_equal_files_that_other_libraries_read(tmp_path):
    path = tmp_path / "w.safetensors"
    contents = set()
    for _ in range(16):  # the order of metadata is drawn at random by the library
        write_tensors(path, TENSORS)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    assert same(load_file(path), TENSORS)


def test_weights_without_a_checksum_load(tmp_path):
    save_file(TENSORS, tmp_path / "old.safetensors", metadata={"format": "pt"})
    assert same(read_tensors(tmp_path / "old.safetensors", ""), TENSORS)


def test_the_checksum_covers_names_shapes_and_types():
    digests = {
        digest_tensors(tensors)
        for tensors in (
            {"a": torch.zeros(4)},
            {"b": torch.zeros(4)},
            {"a": torch.zeros(2, 2)},
            {"a": torch.zeros(4, dtype=torch.int32)},
            {"a": torch.zeros(2), "b": torch.zeros(2)},
        )
    }
    assert len(digests) == 5


def test_a_failed_write_keeps_only_the_old_file(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("old")

    def write():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"note.txt: No space left on device; free some space"):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_while_saving_weights_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS)
    before = path.read_bytes()

    def full(tensors, filename, metadata):
        filename.write_bytes(b"half")
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(StorageError, match=r"model.safetensors: No space left on device"):
        write_tensors(path, {"other": torch.ones(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_that_share_memory_are_refused(tmp_path):
    shared = torch.zeros(4)
    with pytest.raises(FredholmError, match=r"w.safetensors: .*share"):
        write_tensors(tmp_path / "w.safetensors", {"a": shared, "b": shared})


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "change its permissions"),
        (errno.ENOTDIR, "a file lies where a folder is needed"),
    ],
)
def test_errors_of_the_disk_name_the_path_and_a_fix(number, fix):
    with pytest.raises(StorageError) as caught, storing("runs/a"):
        raise OSError(number, "reason")
    assert str(caught.value).startswith(f"runs/a: reason; {fix}")


def test_weights_have_ordinary_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "model.safetensors", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("keys", [(9, 10), (False, True), ("b", "a")])
def test_the_checksum_of_json_covers_what_is_read(keys, tmp_path):
    """JSON turns keys into texts, which sort differently: "10" comes before "9"."""
    content = {"weights": dict.fromkeys(keys, 1.0)}
    path = write_json(tmp_path / "config.json", sealed(content))
    found = unsealed(path, read_json(path, "restore it"))
    assert list(found["weights"].values()) == [1.0, 1.0]
