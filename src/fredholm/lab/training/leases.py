"""One process at a time in a folder: who has it, and what becomes of a lock whose process died.

Two files: ``.lock`` carries the operating system's own lock, which ends with its process however
that ends, and stays behind empty; ``lock.json`` says who holds it, and is there only while somebody
does, or after a process that died. On a network drive that passes no locks on between machines,
``lock.json`` is what keeps a second machine out; its holder renews it every :data:`RENEWED` seconds
for as long as it lives, which is how workers of a grid know a machine that died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ...errors import FredholmError
from ...files import storing, write_json

LOCK, HOLDER = ".lock", "lock.json"
RENEWED, EXPIRED = 15.0, 90.0  # seconds


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
def hold(
    folder: Path,
    say: Callable[[str], None] | None = None,
    *,
    expired: Callable[[Path], bool] = lambda folder: False,
) -> Iterator[None]:
    """Keep other processes out of ``folder``, made if need be, for the length of a ``with`` block.

    The lock of a process that died on this host is taken over, and ``say`` is told whose. The lock
    of another host is taken over only where ``expired(folder)`` says that nobody renews it, see
    :class:`Watch`: whether its process lives cannot be seen from here.

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
        _take_over(folder, say or (lambda line: None), expired)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(
            folder / HOLDER, dataclasses.asdict(Holder(os.getpid(), socket.gethostname(), now))
        )
        stop = _renew(folder / HOLDER)
        try:
            yield
        finally:
            stop.set()
            # A lock that cannot be removed, on a disk that has gone, is a dead process's to others.
            with contextlib.suppress(OSError):
                (folder / HOLDER).unlink()
    finally:
        lock.release()


def holds(folder: Path) -> bool:
    """Whether the lock is still this process's: one that slept may have lost it."""
    holder = read_holder(folder)
    return holder is not None and _name(holder) == (os.getpid(), socket.gethostname())


def bury(folder: Path, holder: Holder | None) -> None:
    """Remove a lock that ``holder``, which is known to have died, left in another folder."""
    left = read_holder(folder)
    if holder is not None and left is not None and _name(left) == _name(holder):
        (folder / HOLDER).unlink(missing_ok=True)


class Watch:
    """Knows locks that were not renewed for :data:`EXPIRED` seconds in which this process watched
    them; by its own clock alone, since those of machines differ.
    """

    def __init__(self, seconds: float = EXPIRED):
        self.seconds = seconds
        self.seen: dict[Path, tuple[int, float]] = {}

    def expired(self, folder: Path) -> bool:
        try:
            renewed = (folder / HOLDER).stat().st_mtime_ns
        except OSError:
            return False
        before, since = self.seen.get(folder, (None, 0.0))
        if before != renewed:
            self.seen[folder] = renewed, time.monotonic()
            return False
        return time.monotonic() - since >= self.seconds


def _name(holder: Holder) -> tuple[int, str]:
    return holder.process, holder.host


def _renew(path: Path) -> threading.Event:
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEWED):
            with contextlib.suppress(OSError):
                os.utime(path)

    threading.Thread(target=renew, daemon=True, name="fredholm-lease").start()
    return stop


def _take_over(folder: Path, say: Callable[[str], None], expired: Callable[[Path], bool]) -> None:
    """The operating system's lock is ours: a holder of this host is dead; one of another host may
    be on a drive that passes no locks on.
    """
    previous = read_holder(folder)
    if previous is None:
        return
    if previous.host != socket.gethostname() and not expired(folder):
        raise InUseError(
            f"{folder}: in use by {previous}; wait for it, or delete {folder / HOLDER} if that "
            "process no longer runs"
        )
    say(f"took over the lock of {previous}, which no longer runs")
