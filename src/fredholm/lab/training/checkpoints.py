"""Resumable state on disk: written atomically, with a checksum that is compared when it is read;
read without executing code; the newest intact one found.

A file is what ``torch.save`` writes and, behind it, a line ``sha256 <digest>`` of everything before
it. The zip format is read from its end and ignores what follows, so ``torch.load`` reads the file
as well; but ``torch.load`` alone compares no checksum, not even the zip's own.
"""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from ...errors import CheckpointError
from ...files import replacing, storing
from .failures import Interrupted

KEEP = 2


_SEAL = re.compile(rb"\nsha256 (.{64})\n", re.DOTALL)  # a damaged digest is a seal that is broken
_SEAL_BYTES = 73


class _Sealed:
    """A file that keeps the checksum of what is written to it, and the first error: torch's writer
    replaces a full disk by a complaint about positions.
    """

    def __init__(self, file: Any):
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            count = self.file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise
        self.digest.update(content)
        return count

    def flush(self) -> None:
        self.file.flush()


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write ``state`` and its checksum in one step.

    Raises:
        StorageError: it cannot be written, for instance to a full disk; other checkpoints stay.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        sealed = _Sealed(file)
        try:
            torch.save(state, sealed)  # pyright: ignore[reportArgumentType]
        except RuntimeError:
            if sealed.error is not None:
                raise sealed.error from None
            raise
        file.write(b"\nsha256 " + sealed.digest.hexdigest().encode() + b"\n")


class AtomicIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written by :func:`write_checkpoint` and read by
    :func:`read_checkpoint`.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path, storage_options: Any = None
    ) -> None:
        path = Path(path)
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(checkpoint, path)

    def load_checkpoint(
        self, path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        return read_checkpoint(path)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of one checkpoint file, compared with its checksum; nothing in it is executed.

    Raises:
        CheckpointError: the file is truncated, damaged or holds more than tensors and plain data.
    """
    state = read_state(path)
    if not isinstance(state, dict) or "state_dict" not in state or "loops" not in state:
        raise CheckpointError(
            f"{path}: received a file without training state; needs a checkpoint of this run"
        )
    return state


def read_state(path: str | Path) -> Any:
    """What :func:`write_checkpoint` wrote, whatever it is.

    Raises:
        CheckpointError: as :func:`read_checkpoint`.
    """
    try:
        damage = _damage(Path(path))
        if damage is None:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and storage errors share no base class
        damage = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a readable checkpoint ({damage})") from error
    raise CheckpointError(f"{path}: not a readable checkpoint ({damage})")


def _damage(path: Path) -> str | None:
    """What is wrong with a file's bytes; None where they are those that were written."""
    with path.open("rb") as file:
        end = max(0, path.stat().st_size - _SEAL_BYTES)
        file.seek(end)
        seal = _SEAL.fullmatch(file.read())
        if seal is not None:
            file.seek(0)
            digest = hashlib.sha256()
            while block := file.read(min(1 << 20, end - file.tell())):
                digest.update(block)
            same = digest.hexdigest().encode() == seal[1]
            return None if same else "its bytes do not match its SHA-256 checksum"
    return "it has no checksum at its end: it is truncated, or not of this version"


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint files, newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def newest_readable(folder: Path, say: Callable[[str], None] | None = None) -> Path:
    """The newest checkpoint that is intact; each one skipped is named in a line to ``say``, or in a
    warning.

    Raises:
        CheckpointError: there is none.
    """
    problems = []
    for path in list_checkpoints(folder):
        try:
            read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            line = f"skipped {error}; resuming from the one before it"
            if say is None:
                warnings.warn(line, stacklevel=2)
            else:
                say(line)
            continue
        if problems and say is not None:
            say(f"resuming from {path}")
        return path
    result = "; ".join(problems) if problems else "it holds none"
    raise CheckpointError(
        f"{folder}: no checkpoint to resume from ({result}); start again with --overwrite"
    )


class Checkpoints(Checkpoint):
    """Saves after every epoch, and within one every so many minutes or steps; keeps the newest two.

    Within an epoch it saves only after an optimizer step (accumulated gradients are not part of the
    state) and never after the last batch, whose epoch is not over before its validation.
    ``requested`` asks for a save at the next such moment, and for the run to end there. Without a
    folder nothing is saved, and the run ends all the same.
    """

    def __init__(self, folder: Path | None, minutes: float | None = None, steps: int | None = None):
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
        if trainer.should_stop:  # the last step: the epoch ends here
            return
        waited = self.minutes is not None and time.monotonic() - self.last_save >= 60 * self.minutes
        counted = self.steps is not None and trainer.global_step % self.steps == 0
        if _any(trainer, self.requested or waited or counted):
            self.save(trainer)

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.save(trainer)

    def save(self, trainer) -> None:
        """Write the state now, drop all but the newest two, and end the run if that
        was asked for.
        """
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:09d}.ckpt")
            self.last_save = time.monotonic()
            if trainer.is_global_zero:
                for old in list_checkpoints(self.folder)[KEEP:]:
                    old.unlink(missing_ok=True)
        if _any(trainer, self.requested):
            saved = "the state is saved" if self.folder else "without a folder no state is saved"
            raise Interrupted(f"interrupted at step {trainer.global_step}; {saved}")


def _any(trainer: Any, mine: bool) -> bool:
    """Whether any of the processes says yes: a signal may have reached one of them alone."""
    if trainer.world_size == 1:
        return mine
    return trainer.strategy.reduce_boolean_decision(mine, all=False)
