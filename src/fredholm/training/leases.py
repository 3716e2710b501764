"""One process at a time in a folder: who has it, and what becomes of a lock whose process died.

Two files: ``.lock`` carries the operating system's own lock, which ends with its process however
that ends, and stays behind empty; ``lock.json`` says who holds it, and is there only while somebody
does, or after a process that died. On a network drive that passes no locks on between machines,
``lock.json`` is what keeps a second machine out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import FredholmError
from ..files import storing, write_json

LOCK, HOLDER = ".lock", "lock.json"


class InUseError(FredholmError, RuntimeError):
    """Another process is at work in a folder."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who works in a folder: the process and its host, since when (ISO 8601, UTC)."""

    process: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (since {self.since})"


def read_holder(folder: Path) -> Holder | None:
    """Who holds ``folder``, or held it when it died; None where nobody does.

    Raises:
        InUseError: a lock that cannot be read, so that nobody can tell.
    """
    path = folder / HOLDER
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InUseError(
            f"{path}: not a readable lock ({error}); delete it once you know that no process works "
            "in this folder"
        ) from error


@contextlib.contextmanager
def hold(folder: Path, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keep other processes out of ``folder``, made if need be, for the length of a ``with`` block.

    The lock of a process that died on this host is taken over, and ``say`` is told whose. The lock
    of another host is never taken over: whether its process lives cannot be seen from here.

    Raises:
        InUseError: a live process, or one of another host, holds the folder.
        StorageError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with hold(folder):
        ...     read_holder(folder).process == os.getpid()
        True
        >>> read_holder(folder) is None
        True
    """
    lock = FileLock(folder / LOCK)
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:  # an OSError, but not one of the disk
            holder = read_holder(folder) or "another process"
            raise InUseError(f"{folder}: in use by {holder}; wait for it, or stop it") from None
    try:
        _take_over(folder, say or (lambda line: None))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(
            folder / HOLDER, dataclasses.asdict(Holder(os.getpid(), socket.gethostname(), now))
        )
        try:
            yield
        finally:
            # A lock that cannot be removed, on a disk that has gone, is a dead process's to others.
            with contextlib.suppress(OSError):
                (folder / HOLDER).unlink()
    finally:
        lock.release()


def _take_over(folder: Path, say: Callable[[str], None]) -> None:
    """The operating system's lock is ours: a holder of this host is dead; one of another host may
    be on a drive that passes no locks on.
    """
    previous = read_holder(folder)
    if previous is None:
        return
    if previous.host != socket.gethostname():
        raise InUseError(
            f"{folder}: in use by {previous}; wait for it, or delete {folder / HOLDER} if that "
            "process no longer runs"
        )
    say(f"took over the lock of {previous}, which no longer runs")
