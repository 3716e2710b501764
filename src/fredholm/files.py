"""Files that are written whole or not at all, checksums of what they hold, and errors of disks and
permissions that say how to go on.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import CheckpointError, FredholmError, StorageError

CHECKSUM = "sha256"  # the key of a checksum, in a weights file's metadata and in config.json
MEASURED = "model_sha256"  # the key of an evaluation for the checksum of the weights it measured

_FIXES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "files here may not become so large; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "change its permissions or choose another folder",
    errno.EPERM: "change its permissions or choose another folder",
    errno.ENOTDIR: "a file lies where a folder is needed; choose another folder",
    errno.EEXIST: "a file lies where a folder is needed; choose another folder",
}


def cache_folder() -> Path:
    """The folder of what is kept from one run to the next and may be deleted: $FREDHOLM_CACHE, else
    ``fredholm`` in $XDG_CACHE_HOME, else in ~/.cache.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    chosen = os.environ.get("FREDHOLM_CACHE")
    if not chosen:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fredholm")
    return Path(chosen).expanduser().absolute()


def storage_error(error: OSError, path: str | Path | None = None) -> StorageError:
    """The operating system's error in one line: which file, what is wrong, and how to go on.

    Example:
        >>> str(storage_error(OSError(28, "No space left on device"), "runs/a/model"))
        'runs/a/model: No space left on device; free some space'
    """
    where = error.filename or path
    what = error.strerror or str(error) or type(error).__name__
    fix = _FIXES.get(error.errno or 0)
    return StorageError(
        f"{f'{os.fsdecode(where)}: ' if isinstance(where, str | bytes | Path) else ''}{what}"
        f"{f'; {fix}' if fix else ''}"
    )


@contextmanager
def storing(path: str | Path) -> Iterator[None]:
    """Errors of disk and permissions below become a :class:`StorageError`; ``path`` is named where
    the operating system names no file.
    """
    try:
        yield
    except FredholmError:  # a StorageError is an OSError too
        raise
    except OSError as error:
        raise storage_error(error, path) from error


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary file to write; it takes the place of ``path`` in one step once it is complete
    and on the disk.

    A reader sees the old file or the new one, never half of it. After an error the old one is still
    there, and the temporary file is not: on a full disk what was written of it must make room.

    Raises:
        StorageError: a full disk, a missing permission, a file in place of a folder.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replacing(path) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> path.read_text(), [p.name for p in path.parent.iterdir()]
        ('whole', ['note.txt'])
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storing(path):
        try:
            yield temporary
            # Without this a power cut can leave the new name with none of the content.
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def is_unfinished(path: Path) -> bool:
    """Whether a path is the temporary file of :func:`replacing`, which a kill leaves behind.

    Example:
        >>> is_unfinished(Path(".note.txt.12.tmp")), is_unfinished(Path("note.txt"))
        (True, False)
    """
    return re.fullmatch(r"\..+\.\d+\.tmp", path.name) is not None


def write_json(path: Path, value: Any) -> Path:
    """Write ``value`` as JSON in one step, see :func:`replacing`."""
    return write_text(path, json.dumps(value, indent=2) + "\n")


def read_state(path: Path, fix: str = "delete it and run again") -> dict[str, Any]:
    """What a command kept as JSON, by names; empty where it kept nothing yet.

    Raises:
        FredholmError: a file that cannot be read; ``fix`` says how to go on.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict):
            raise ValueError(f"it holds {type(result).__name__}")
        return result
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise unreadable(path, error, fix) from error


def unreadable(path: Path, error: Exception, fix: str = "delete it and run again") -> FredholmError:
    """The error of a damaged file."""
    return FredholmError(f"{path}: cannot be read ({error}); {fix}")


def write_text(path: Path, text: str) -> Path:
    """Write ``text`` in one step, see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file whose metadata hold the checksum of its tensors.

    The checksum lies in the file itself, not beside it: two files cannot be replaced in one step.

    Raises:
        StorageError: it cannot be written; what was there before still is.
        FredholmError: tensors that share memory.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.touch()  # with the permissions of any new file; safetensors' own are 0600
        ordinary = temporary.stat().st_mode
        try:
            save_file(plain, temporary, metadata={"format": "pt", CHECKSUM: digest_tensors(plain)})
        except SafetensorError as error:  # the library hides the operating system's error in a text
            raise _system_error(error, path) from error
        except RuntimeError as error:  # tensors that share memory
            raise FredholmError(f"{path.name}: {' '.join(str(error).split())}") from error
        _sort_metadata(temporary)
        temporary.chmod(ordinary)


def _system_error(error: Exception, path: Path) -> OSError:
    number = re.search(r"\(os error (\d+)\)", str(error))
    if number is None:
        return OSError(f"{path}: {error}")
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path))


def _sort_metadata(path: Path) -> None:
    """Put the metadata in order: the library writes them in a random one, and equal weights are to
    give equal files.
    """
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(8)
        file.write(text.ljust(size))


def read_tensors(path: Path, fix: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, compared with its checksum; files without one, as earlier
    versions wrote them, are read as they are.

    Raises:
        CheckpointError: a file that is missing, truncated or damaged; ``fix`` says how to go on.
    """
    if not path.is_file():
        raise CheckpointError(f"no {path.name} in {str(path.parent)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get(CHECKSUM)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except PermissionError as error:
        raise storage_error(error, path) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is corrupt or truncated ({error}); {fix}") from error
    if expected is not None and digest_tensors(tensors) != expected:
        raise CheckpointError(
            f"{path} is corrupt (its tensors do not match their SHA-256 checksum); {fix}"
        )
    return tensors


def read_checksum(path: Path) -> str | None:
    """The checksum that a safetensors file keeps of its tensors; None of a file that has none, or
    is not there. Tensors are not read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get(CHECKSUM)
    except (SafetensorError, OSError):
        return None


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of tensors, whatever their order.

    Example:
        >>> a, b = torch.zeros(2), torch.ones(3)
        >>> digest_tensors({"a": a, "b": b}) == digest_tensors({"b": b, "a": a})
        True
        >>> digest_tensors({"a": a}) == digest_tensors({"a": a.view(1, 2)})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of plain data: of its JSON with sorted keys, so that layout does not count.

    Example:
        >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
