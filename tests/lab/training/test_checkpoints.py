"""Checkpoints: damage is detected, the newest intact one is used, a full disk loses none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch

from fredholm.errors import CheckpointError, StorageError
from fredholm.lab.distill.progress import Progress
from fredholm.lab.training import checkpoints
from fredholm.lab.training.checkpoints import (
    list_checkpoints,
    newest_readable,
    read_checkpoint,
    write_checkpoint,
)
from fredholm.training import TrainingFailed, train

STATE = {"state_dict": {"a": torch.arange(5.0), "b": torch.tensor([7])}, "loops": {"n": 3}}


def same(state) -> bool:
    return (
        state["loops"] == STATE["loops"]
        and state["state_dict"].keys() == STATE["state_dict"].keys()
        and all(torch.equal(state["state_dict"][k], v) for k, v in STATE["state_dict"].items())
    )


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


class FullDisk(checkpoints._HashingFile):
    """The file of a checkpoint on a full disk."""

    def __init__(self, file):
        super().__init__(os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0))


def place_of(path: Path, tensor: torch.Tensor) -> int:
    """Return the position of a tensor's first byte in a checkpoint."""
    return path.read_bytes().index(tensor.numpy().tobytes())


def test_a_flipped_bit_anywhere_is_refused(tmp_path):
    path = tmp_path / "step-000000001.ckpt"
    write_checkpoint(STATE, path)
    whole = path.read_bytes()
    read = []
    for place in [*range(0, len(whole) - 80, 3), *range(len(whole) - 80, len(whole))]:
        path.write_bytes(whole)
        flip(path, place, place % 8)
        with contextlib.suppress(CheckpointError):
            read_checkpoint(path)
            read.append(place)
    assert not read


def test_a_checkpoint_is_a_file_of_torch(tmp_path):
    path = tmp_path / "step-000000001.ckpt"
    write_checkpoint(STATE, path)
    assert same(torch.load(path, weights_only=True))
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_without_a_checksum_is_refused(tmp_path):
    path = tmp_path / "step-000000001.ckpt"
    torch.save(STATE, path)
    with pytest.raises(CheckpointError, match="it has no checksum at its end"):
        read_checkpoint(path)


def stopped(recipe, folder: Path, monkeypatch) -> None:
    """Stop a run after its second epoch."""
    original = checkpoints.Checkpoints.on_train_epoch_end

    def stop(self, trainer, pl_module):
        original(self, trainer, pl_module)
        if trainer.current_epoch == 1:
            raise KeyError("stop")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "on_train_epoch_end", stop)
        with pytest.raises(KeyError):
            train(recipe, folder)


def test_the_newest_intact_checkpoint_is_used_and_reported(tmp_path, recipe, monkeypatch):
    chosen = recipe()
    folder = tmp_path / "run"
    lines = []
    train(chosen, tmp_path / "whole")
    stopped(chosen, folder, monkeypatch)
    newest, older = list_checkpoints(folder / "checkpoints")
    weights = max(torch.load(newest)["state_dict"].values(), key=torch.Tensor.numel)
    flip(newest, place_of(newest, weights))
    train(chosen, folder, resume=True, report=lines.append)
    assert f"skipped {newest}: not a readable checkpoint" in lines[0]
    assert "its bytes do not match its SHA-256 checksum" in lines[0]
    assert lines[1] == f"resuming from {older}"
    model = Path("model", "model.safetensors")
    assert (folder / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_ends_the_run_in_one_line_and_keeps_checkpoints(tmp_path, recipe, monkeypatch):
    chosen = recipe()
    folder = tmp_path / "run"
    train(chosen, tmp_path / "whole")
    original = checkpoints.write_checkpoint

    def fill(state, path):
        if state["epoch"] == 1:
            patch.setattr(checkpoints, "_HashingFile", FullDisk)
        original(state, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_checkpoint", fill)
        with pytest.raises(TrainingFailed) as caught:
            train(chosen, folder)
    (kept,) = list_checkpoints(folder / "checkpoints")
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert "No space left on device; free some space" in line
    assert f"{kept.name} is intact, continue with --resume" in line
    assert list((folder / "checkpoints").iterdir()) == [kept]
    train(chosen, folder, resume=True)
    model = Path("model", "model.safetensors")
    assert (folder / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_the_error_of_a_full_disk_replaces_torchs_own(tmp_path, monkeypatch):
    path = tmp_path / "step-000000001.ckpt"
    write_checkpoint(STATE, path)
    monkeypatch.setattr(checkpoints, "_HashingFile", FullDisk)
    with pytest.raises(StorageError, match=r"step-000000001.ckpt: No space left on device"):
        write_checkpoint({**STATE, "more": torch.zeros(1000)}, path)
    assert same(read_checkpoint(newest_readable(tmp_path)))


def test_damaged_weights_of_a_conversion_are_detected(tmp_path):
    layer = torch.nn.Linear(3, 2)
    progress = Progress(tmp_path / "out", {}, resume=False)
    progress.keep("student", layer)
    progress.restore("student", torch.nn.Linear(3, 2))
    file = tmp_path / "out" / "student.pt"
    flip(file, place_of(file, layer.weight.detach()))
    with pytest.raises(CheckpointError, match="SHA-256"):
        progress.restore("student", torch.nn.Linear(3, 2))
