"""Files that are written completely or not at all; errors of disks and permissions, with a fix.

Nothing here imports torch: :mod:`fredholm.tensor_files` reads and writes tensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import CheckpointError, FredholmError, StorageError

CHECKSUM = "sha256"
"""Key of a checksum, in a weights file's metadata and in config.json."""

MEASURED = "model_sha256"
"""Key of an evaluation for the checksum of the weights that it measured."""

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
    """Return the cache folder, which may be deleted between runs: $FREDHOLM_CACHE, else
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
    """Return the operating system's error in one line: which file, which error, which fix.

    Example:
        >>> str(storage_error(OSError(28, "No space left on device"), "runs/a/model"))
        'runs/a/model: No space left on device; free some space'
    """
    text = error.strerror or str(error) or type(error).__name__
    file = error.filename or path
    if isinstance(file, str | bytes | Path):
        text = f"{os.fsdecode(file)}: {text}"
    if error.errno in _FIXES:
        text = f"{text}; {_FIXES[error.errno]}"
    return StorageError(text)


def check_format(path: str | Path, found: int, known: int) -> None:
    """Refuse a file of any format but the ``known`` one, which this version writes.

    Raises:
        CheckpointError: another format, with what to do about it.

    Example:
        >>> check_format("a.json", 2, 2)
        >>> check_format("a.json", 3, 2)
        Traceback (most recent call last):
            ...
        fredholm.errors.CheckpointError: a.json: expected format 2, got format 3; update fredholm
    """
    if found == known:
        return
    fix = "update fredholm"
    if found < known:
        fix = "read it with the version of fredholm that wrote it, or train or convert again"
    raise CheckpointError(f"{path}: expected format {known}, got format {found}; {fix}")


@contextmanager
def storing(path: str | Path) -> Iterator[None]:
    """Turn errors of disk and permissions into a :class:`StorageError`; ``path`` is named where the
    operating system names no file.
    """
    try:
        yield
    except FredholmError:  # a StorageError is an OSError too
        raise
    except OSError as error:
        raise storage_error(error, path) from error


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file to write; it replaces ``path`` in one step once it is complete and on
    the disk.

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


def check_target(path: str | Path) -> None:
    """Refuse a file that could not be written, before the work that makes its content.

    Raises:
        StorageError: a folder of this name, or no folder that may be written around it.

    Example:
        >>> check_target("/no/folder/model.onnx")
        Traceback (most recent call last):
            ...
        fredholm.errors.StorageError: /no/folder: No such file or directory; make the folder first
    """
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise StorageError(f"{path}: expected a file's name, got a folder; name a file in it")
    if not folder.exists():
        raise StorageError(f"{folder}: No such file or directory; make the folder first")
    if not folder.is_dir():
        raise storage_error(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), folder)
    if not os.access(folder, os.W_OK):
        raise storage_error(OSError(errno.EACCES, os.strerror(errno.EACCES)), folder)


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


def read_json(path: Path, fix: str) -> Any:
    """Return what a JSON file holds.

    Raises:
        CheckpointError: something else than JSON; ``fix`` ends the message.
        StorageError: a file that cannot be read.
    """
    with storing(path):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # a JSONDecodeError or a UnicodeDecodeError
            raise CheckpointError(f"{path}: expected JSON, got {error}; {fix}") from error


def read_state(path: Path, fix: str = "delete it and run again") -> dict[str, Any]:
    """Return the state that a command saved as a JSON object, empty where it saved none yet.

    Raises:
        FredholmError: a file that cannot be read; ``fix`` ends the message.
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


def unreadable(
    path: Path,
    error: Exception,
    fix: str = "delete it and run again",
) -> FredholmError:
    """Return the error for a damaged file."""
    return FredholmError(f"{path}: cannot be read ({error}); {fix}")


def write_text(path: Path, text: str) -> Path:
    """Write ``text`` in one step, see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return what is to be written as JSON with its checksum, see :func:`unsealed`."""
    return content | {CHECKSUM: digest_json(content)}


def unsealed(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return what was read from a file without its checksum, which it must have if any.

    Raises:
        CheckpointError: a file that was changed since it was written.
    """
    plain = dict(content)
    expected = plain.pop(CHECKSUM, None)
    if expected is not None and digest_json(plain) != expected:
        raise CheckpointError(
            f"{path}: expected the content that its checksum says, got another; restore it, or "
            f"remove its line {CHECKSUM!r} if the change was meant"
        )
    return plain


def digest_json(value: Any) -> str:
    """Return the SHA-256 of plain data: of its JSON with sorted keys, whatever its layout.

    Example:
        >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
        True
    """
    # JSON turns keys into texts, which sort differently from numbers. They are sorted as texts,
    # so that the digest is that of what is read from a file.
    plain = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
