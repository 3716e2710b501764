"""Resumable state on disk: written atomically, read without executing code, the newest readable one
found.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from ..errors import CheckpointError
from .failures import Interrupted

KEEP = 2


class AtomicIO(TorchCheckpointIO):
    """Lightning's checkpoint files, synced to disk under another name and then renamed; loaded as
    tensors and plain data.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path, storage_options: Any = None
    ) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def load_checkpoint(
        self, path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        return read_checkpoint(path)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of one checkpoint file; nothing in it is executed.

    Raises:
        CheckpointError: the file is truncated, corrupt or holds more than tensors and plain data.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and storage errors share no base class
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a readable checkpoint ({reason})") from error
    if not isinstance(state, dict) or "state_dict" not in state or "loops" not in state:
        raise CheckpointError(
            f"{path}: received a file without training state; needs a checkpoint of this run"
        )
    return state


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint files, newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def newest_readable(folder: Path) -> Path:
    """The newest checkpoint that can be read; each one skipped is named in a warning.

    Raises:
        CheckpointError: there is none.
    """
    problems = []
    for path in list_checkpoints(folder):
        try:
            read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            warnings.warn(f"skipped {error}; resuming from the one before it", stacklevel=2)
            continue
        return path
    found = "; ".join(problems) if problems else "it holds none"
    raise CheckpointError(
        f"{folder}: no checkpoint to resume from ({found}); start again with --overwrite"
    )


class Checkpoints(Checkpoint):
    """Saves after every epoch, and within one every so many minutes or steps; keeps the newest two.

    Within an epoch it saves only after an optimizer step (accumulated gradients are not part of the
    state) and never after the last batch, whose epoch is not over before its validation.
    ``requested`` asks for a save at the next such moment, and for the run to end there.
    """

    def __init__(self, folder: Path, minutes: float | None = None, steps: int | None = None):
        super().__init__()
        self.folder, self.minutes, self.steps = folder, minutes, steps
        self.requested = False
        self.last_save = time.monotonic()

    def on_train_start(self, trainer, pl_module) -> None:
        self.last_save = time.monotonic()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx: int) -> None:
        done = batch_idx + 1
        if done % trainer.accumulate_grad_batches or done >= trainer.num_training_batches:
            return
        waited = self.minutes is not None and time.monotonic() - self.last_save >= 60 * self.minutes
        counted = self.steps is not None and trainer.global_step % self.steps == 0
        if trainer.strategy.broadcast(self.requested or waited or counted):
            self.save(trainer)

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.save(trainer)

    def save(self, trainer) -> None:
        """Write the state now, drop all but the newest two, and end the run if that was asked for."""
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:09d}.ckpt")
        self.last_save = time.monotonic()
        if trainer.is_global_zero:
            for old in list_checkpoints(self.folder)[KEEP:]:
                old.unlink(missing_ok=True)
        if trainer.strategy.broadcast(self.requested):
            raise Interrupted(f"interrupted at step {trainer.global_step}; the state is saved")
