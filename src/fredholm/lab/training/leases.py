"""Locks: one process at a time works in a folder, and the lock of a dead process is taken over.

A folder has two files. ``.lock`` carries a lock of the operating system, which ends with its
process in any case; the empty file stays. ``lock.json`` names the holder, and exists only while
somebody holds the folder, or after a process that died.

Some network drives do not pass locks on between machines. There, ``lock.json`` keeps a second
machine out. Its holder renews the file's time every :data:`RENEWED` seconds as long as it lives, by
which the workers of a grid notice a machine that died.
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
from typing import NamedTuple

from filelock import FileLock, Timeout

from ...errors import FredholmError
from ...files import storing, write_json

LOCK = ".lock"
HOLDER = "lock.json"

# Seconds between two renewals, and after which a lock without a renewal has expired.
RENEWED = 15.0
EXPIRED = 90.0


class InUseError(FredholmError, RuntimeError):
    """Another process works in a folder."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that works in a folder.

    Attributes:
        process: its number.
        host: its machine.
        since: the time at which it took the lock, ISO 8601 in UTC.
    """

    process: int
    host: str
    since: str

    def is_same_process(self, other: Holder) -> bool:
        return self.process == other.process and self.host == other.host

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (since {self.since})"


def read_holder(folder: Path) -> Holder | None:
    """Return the holder of ``folder``, which may have died; None if there is none.

    Raises:
        InUseError: the lock cannot be read, so that its holder is unknown.
    """
    path = folder / HOLDER
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InUseError(
            f"{path}: not a readable lock ({error}); delete it if no process uses this folder"
        ) from error


@contextlib.contextmanager
def hold(
    folder: Path,
    say: Callable[[str], None] | None = None,
    *,
    expired: Callable[[Path], bool] = lambda folder: False,
) -> Iterator[None]:
    """Keep other processes out of ``folder`` during a ``with`` block.

    The folder is created if it does not exist. The lock of a process that died on this host is
    taken over, and ``say`` receives a line about it. Whether a process of another host lives cannot
    be seen from here; its lock is taken over only if ``expired(folder)`` is true, see
    :class:`Watch`.

    Raises:
        InUseError: a live process, or a process of another host, holds the folder.
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
        except Timeout:
            # Timeout is an OSError, which `storing` would take for one of the disk.
            holder = read_holder(folder) or "another process"
            raise InUseError(f"{folder}: in use by {holder}; wait for it, or stop it") from None
    try:
        _take_over(folder, say or (lambda line: None), expired)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(folder / HOLDER, dataclasses.asdict(_this_process(now)))
        stop = _renew(folder / HOLDER)
        try:
            yield
        finally:
            stop.set()

            # If the disk has gone, the file stays. Others will treat it as that of a dead process.
            with contextlib.suppress(OSError):
                (folder / HOLDER).unlink()
    finally:
        lock.release()


def holds(folder: Path) -> bool:
    """Tell whether this process still holds the lock; while suspended, it may have lost it."""
    holder = read_holder(folder)
    return holder is not None and holder.is_same_process(_this_process())


def _this_process(since: str = "") -> Holder:
    return Holder(os.getpid(), socket.gethostname(), since)


def remove_lock_of(folder: Path, dead: Holder | None) -> None:
    """Remove the lock in ``folder`` if it was left by ``dead``, a process known to have died."""
    left = read_holder(folder)
    if dead is not None and left is not None and left.is_same_process(dead):
        (folder / HOLDER).unlink(missing_ok=True)


class Watch:
    """Detection of locks that were not renewed for ``seconds`` while this process watched them.

    It measures with its own clock alone, since the clocks of machines differ.
    """

    def __init__(self, seconds: float = EXPIRED):
        self.seconds = seconds

        # The last renewal of each lock, as its file's time, and when this process first saw it.
        self.sightings: dict[Path, _Sighting] = {}

    def expired(self, folder: Path) -> bool:
        """Tell whether the lock in ``folder`` has expired; the first call only begins to watch."""
        try:
            renewed = (folder / HOLDER).stat().st_mtime_ns
        except OSError:
            return False

        sighting = self.sightings.get(folder)
        if sighting is None or sighting.renewed != renewed:
            self.sightings[folder] = _Sighting(renewed, time.monotonic())
            return False
        return time.monotonic() - sighting.first_seen >= self.seconds


class _Sighting(NamedTuple):
    renewed: int
    first_seen: float


def _renew(path: Path) -> threading.Event:
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEWED):
            with contextlib.suppress(OSError):
                os.utime(path)

    threading.Thread(target=renew, daemon=True, name="fredholm-lease").start()
    return stop


def _take_over(folder: Path, say: Callable[[str], None], expired: Callable[[Path], bool]) -> None:
    """Decide about the holder that a previous process left.

    This process has the operating system's lock, so a holder on this host is dead. A holder on
    another host may be alive, on a drive that does not pass locks on.
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
