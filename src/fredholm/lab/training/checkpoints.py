"""Checkpoint files, written atomically, verified by a checksum and read without executing code.

A file is the output of ``torch.save``, followed by a line ``sha256 <digest>`` of all bytes before
it. The zip format is read from its end and ignores what follows, so ``torch.load`` reads the file
as well. ``torch.load`` alone verifies no checksum, not even those inside the zip.
"""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from ...errors import CheckpointError
from ...files import replacing, storing
from .failures import Interrupted

# The number of checkpoints that a run folder keeps.
KEEP = 2

# Any 64 bytes are accepted as a digest, so that a damaged digest is reported as a wrong checksum
# and not as a missing one.
_SEAL = re.compile(rb"\nsha256 (.{64})\n", re.DOTALL)
_SEAL_BYTES = 73

_BLOCK_BYTES = 1 << 20


class _HashingFile:
    """A writable file that updates a SHA-256 digest and remembers the first error.

    On a full disk torch's writer hides the OSError behind a RuntimeError about file positions;
    ``error`` keeps the real cause.
    """

    def __init__(self, file: BinaryIO):
        self.file = file
        self.digest = hashlib.sha256()
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
    """Write ``state`` and its checksum atomically.

    Raises:
        StorageError: the file cannot be written, for instance because the disk is full; earlier
            checkpoints stay intact.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, hashing)  # pyright: ignore[reportArgumentType]
        except RuntimeError:
            if hashing.error is not None:
                raise hashing.error from None
            raise
        digest = hashing.digest.hexdigest()
        file.write(f"\nsha256 {digest}\n".encode())


class AtomicIO(TorchCheckpointIO):
    """Lightning's plugin for checkpoint files, by :func:`write_checkpoint` and
    :func:`read_checkpoint`.
    """

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path,
        storage_options: Any = None,
    ) -> None:
        path = Path(path)
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(checkpoint, path)

    def load_checkpoint(
        self,
        path,
        map_location: Any = "cpu",
        weights_only: bool | None = True,
    ) -> dict[str, Any]:
        return read_checkpoint(path)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint of a run and verify its checksum; nothing in it is executed.

    Raises:
        CheckpointError: the file is truncated or damaged, or holds more than tensors and plain
            data, or is not a training state.
    """
    state = read_state(path)
    if not isinstance(state, dict) or "state_dict" not in state or "loops" not in state:
        raise CheckpointError(
            f"{path}: expected the training state of a run, got another file; choose a checkpoint "
            "of this run"
        )
    return state


def read_state(path: str | Path) -> Any:
    """Read any object that :func:`write_checkpoint` wrote.

    Raises:
        CheckpointError: the file is truncated or damaged, or holds more than tensors and plain
            data.
    """
    try:
        damage = _find_damage(Path(path))
        if damage is None:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Errors of zip, pickle and storage share no narrower base class.
        damage = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a readable checkpoint ({damage})") from error
    raise CheckpointError(f"{path}: not a readable checkpoint ({damage})")


def _find_damage(path: Path) -> str | None:
    """Verify the checksum of a file; return the reason where it fails, None where it matches."""
    with path.open("rb") as file:
        content_bytes = max(0, path.stat().st_size - _SEAL_BYTES)
        file.seek(content_bytes)
        seal = _SEAL.fullmatch(file.read())
        if seal is None:
            return "it has no checksum at its end: it is truncated, or not of this version"

        # A checkpoint may be larger than memory, so it is hashed block by block.
        file.seek(0)
        digest = hashlib.sha256()
        remaining = content_bytes
        while block := file.read(min(_BLOCK_BYTES, remaining)):
            digest.update(block)
            remaining -= len(block)

    if digest.hexdigest().encode() == seal[1]:
        return None
    return "its bytes do not match its SHA-256 checksum"


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoint files of a folder, newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def newest_readable(folder: Path, say: Callable[[str], None] | None = None) -> Path:
    """Find the newest intact checkpoint.

    Each damaged one that is skipped is reported by a line to ``say``, or by a warning without it.

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

    found = "; ".join(problems) or "the folder holds none"
    raise CheckpointError(
        f"{folder}: no checkpoint to resume from ({found}); start again with --overwrite"
    )


class Checkpoints(Checkpoint):
    """Save after every epoch, and within an epoch every ``minutes`` or ``steps``.

    Only the newest :data:`KEEP` files are kept. Within an epoch, a save happens after an optimizer
    step, since accumulated gradients are not part of the state. It never happens after the last
    batch, because the epoch ends with its validation and is saved then.

    Setting ``requested`` asks for a save at the next possible step, and ends the run there. Without
    a folder nothing is saved, and the run ends all the same.
    """

    def __init__(
        self,
        folder: Path | None,
        minutes: float | None = None,
        steps: int | None = None,
    ):
        super().__init__()
        self.folder = folder
        self.minutes = minutes
        self.steps = steps
        self.requested = False
        self.last_save = time.monotonic()

    def on_train_start(self, trainer, pl_module) -> None:
        self.last_save = time.monotonic()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx: int) -> None:
        batches_done = batch_idx + 1
        inside_a_step = batches_done % trainer.accumulate_grad_batches != 0
        last_batch = batches_done >= trainer.num_training_batches

        # should_stop marks the last step of a run: the epoch ends here and is saved as a whole.
        if inside_a_step or last_batch or trainer.should_stop:
            return

        minutes_are_up = False
        if self.minutes is not None:
            minutes_are_up = time.monotonic() - self.last_save >= 60 * self.minutes

        steps_are_up = self.steps is not None and trainer.global_step % self.steps == 0
        if _any_rank(trainer, self.requested or minutes_are_up or steps_are_up):
            self.save(trainer)

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.save(trainer)

    def save(self, trainer) -> None:
        """Write the state and delete old checkpoints; end the run if that was requested.

        Raises:
            Interrupted: an end was requested.
        """
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:09d}.ckpt")
            self.last_save = time.monotonic()
            if trainer.is_global_zero:
                for old in list_checkpoints(self.folder)[KEEP:]:
                    old.unlink(missing_ok=True)

        if _any_rank(trainer, self.requested):
            outcome = "without a folder no state is saved"
            if self.folder is not None:
                outcome = "the state is saved"
            raise Interrupted(f"interrupted at step {trainer.global_step}; {outcome}")


def _any_rank(trainer: Any, mine: bool) -> bool:
    """Tell whether ``mine`` is true in any process; a signal may have reached only one of them."""
    if trainer.world_size == 1:
        return mine
    return trainer.strategy.reduce_boolean_decision(mine, all=False)
