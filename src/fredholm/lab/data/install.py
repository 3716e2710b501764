"""Installed data sets: folders with a manifest, whose files have the pinned checksums.

A manifest (``manifest.json``) is written last and into a folder that is then renamed into place, so
a folder that has one was complete at that moment. Changes to its files since then are found by
their SHA-256 at every load.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DataError
from ...files import write_json
from .formats import sha256
from .sources import PinnedFile, Source

if TYPE_CHECKING:
    from .registry import Entry

MANIFEST = "manifest.json"


def has_files(folder: Path) -> bool:
    """Return whether ``folder`` holds anything."""
    return folder.is_dir() and any(folder.iterdir())


def source_of(entry: Entry, folder: Path) -> Source:
    """Return the source of a data set that filled ``folder``: the one in its manifest, or for a
    user's files the one whose sizes they have; else the first.
    """
    try:
        kind = json.loads((folder / MANIFEST).read_bytes())["client"]
    except (OSError, ValueError, KeyError, TypeError):
        # No manifest, or a corrupt one, which is an error as soon as its files are read.
        kind = None
    for source in entry.sources:
        if source.kind == kind:
            return source
        sizes = {folder / file.name: file.bytes for file in source.files}
        found = [path for path in sizes if path.is_file()]
        same = found and all(path.stat().st_size == sizes[path] for path in found)
        if kind is None and same:
            return source
    return entry.sources[0]


def installed_files(source: Source, folder: Path) -> tuple[PinnedFile, ...]:
    """Return the source's pinned files; of a derived data set the files that its manifest lists,
    and none where it has no manifest.

    Raises:
        DataError: a manifest that cannot be read.
    """
    path = folder / MANIFEST
    if source.derive is None or not path.is_file():
        return source.files
    try:
        listed = json.loads(path.read_bytes())["files"]
        return tuple(
            PinnedFile(name, name, int(facts["bytes"]), str(facts["sha256"]))
            for name, facts in sorted(listed.items())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: expected a manifest of fetch, got another file or a corrupt one ({error}); "
            "fetch again with --force"
        ) from error


def state_of(source: Source, folder: Path) -> str:
    """Return ``fetched``, ``damaged``, ``your files`` or ``not fetched``, by the manifest and the
    files' sizes alone.
    """
    if not has_files(folder):
        return "not fetched"
    if not (folder / MANIFEST).is_file():
        return "your files"
    try:
        files = installed_files(source, folder)
    except DataError:
        return "damaged"
    for file in files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.bytes:
            return "damaged"
    return "fetched"


def verify_file(file: PinnedFile, folder: Path, fix: str) -> None:
    """Check the size, then the SHA-256, of one file.

    Raises:
        DataError: another file, with what was expected, what was found, and ``fix``.
    """
    path = folder / file.name
    if not path.is_file():
        raise DataError(
            f"{path}: missing: expected {file.bytes:,} bytes of sha256 {file.sha256}; {fix}"
        )
    # The size comes first: it costs nothing, and tells a truncated file from a changed one.
    size = path.stat().st_size
    if size != file.bytes:
        word = "truncated" if size < file.bytes else "corrupt"
        raise DataError(f"{path}: {word}: expected {file.bytes:,} bytes, got {size:,}; {fix}")
    digest = sha256(path)
    if digest != file.sha256:
        raise DataError(f"{path}: corrupt: expected sha256 {file.sha256}, got {digest}; {fix}")


def verify_installed(
    name: str,
    source: Source,
    folder: Path,
    files: tuple[PinnedFile, ...] | None = None,
) -> None:
    """Check ``files`` (default all) of an installed data set; in a folder without a manifest, those
    of them that are there.

    A folder without a manifest was filled by the user, who may have another official layout; its
    readers check structure.

    Raises:
        DataError: the first file that is not the pinned one.
    """
    if files is None:
        files = installed_files(source, folder)
    fetched = (folder / MANIFEST).is_file()
    for file in files:
        if fetched or (folder / file.name).exists():
            verify_file(file, folder, f"fix: `fredholm data fetch {name} --force`")


def write_manifest(
    name: str,
    source: Source,
    folder: Path,
    archive: str,
    archive_sha256: str,
) -> None:
    """Write a list of the files in ``folder`` and their source, flushed to the disk."""
    # Derived files have no pins; the checksums they have now are those that later loads compare.
    files = source.files or [
        PinnedFile(path.name, path.name, path.stat().st_size, sha256(path))
        for path in sorted(folder.iterdir())
    ]
    record = {
        "name": name,
        "client": source.kind,
        "package": source.name,
        "version": source.version,
        "archive": archive,
        "archive_sha256": archive_sha256,
        "files": {file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in files},
    }
    write_json(folder / MANIFEST, record)


def swap_in(new: Path, target: Path, trash: Path) -> None:
    """Put the finished folder ``new`` in the place of ``target``; a former one is first moved to
    ``trash``, then deleted.

    All three lie on one file system. Between the two renames there is no ``target``, but never one
    with files of both.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.replace(target, trash)
    os.replace(new, target)
    shutil.rmtree(trash, ignore_errors=True)
