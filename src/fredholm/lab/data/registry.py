"""The data sets by name: where each comes from, what pins it, and what may be done with it.

An entry is one file of ``catalogue/``, or of a user's: declare an :class:`Entry` and register it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DataError, OptionError
from ...registry import Registry
from .. import checkout
from ..checkout import where_to_get
from .kinds.dataset import LabelledDataset
from .kinds.images import IMAGES
from .kinds.kind import Kind
from .sources import Package, Packages, Source

if TYPE_CHECKING:
    from .kinds.texts import TextOptions

DATA_ROOT_VARIABLE = "FREDHOLM_DATA"


@dataclass(frozen=True)
class Request:
    """What a caller gave to :func:`fredholm.data.create_dataset`, checked."""

    entry: Entry
    split: str
    root: Path
    path: Path | None
    val_fraction: float | int | None
    image_size: tuple[int, int] | None = None
    text: TextOptions | None = None
    options: Any = None

    @property
    def folder(self) -> Path:
        """The user's folder, of an entry that needs one."""
        assert self.path is not None
        return self.path

    @property
    def share(self) -> float | int:
        """The share of the training samples that is ``val``."""
        return self.entry.val_fraction if self.val_fraction is None else self.val_fraction


@dataclass(frozen=True)
class Entry:
    """A data set, declared.

    Attributes:
        name, title: how it is called, and what it is.
        kind: of its samples.
        kind_at: of samples whose kind only the files tell: (path, options, share of val) to it.
        read: builds the split of a request.
        sources: of its files, the first that answers is used: a registry's package (or several, all
            of which it takes), then an official address; none where they come with a library
            (``embedded``: their folder) or from the user (``needs``), or where the samples are
            generated.
        source: where it comes from, in words; by default the first source's title.
        licence_package, licence_data: what may be done with either.
        official: which original files a user may put into the folder instead.
        needs: options without which it cannot be read, each with what it is.
        samples: how many each official split has.
        classes: their names; of images also ``shape``, and ``mean`` and ``std`` per channel, in
            units where white is 1.
        val_fraction: the share of the training samples held out as ``val``.
        options: a dataclass of the set's own options, made from what the caller gave.
        base: the data set whose files this one is made from.
        notes: what a table says beside all this.
    """

    name: str
    title: str
    licence_package: str
    licence_data: str
    read: Callable[[Request], LabelledDataset]
    kind: Kind = IMAGES
    kind_at: Callable[[Path, Any, float | int], Kind] | None = None
    sources: tuple[Source, ...] = ()
    source: str = ""
    official: str = ""
    needs: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    embedded: Callable[[], Path] | None = None
    val_fraction: float = 0.1
    options: type | None = None
    base: str = ""
    notes: str = ""

    @property
    def reads_files(self) -> bool:
        """Whether it reads files that a user may give."""
        return bool(self.sources or self.base or "path" in self.needs)

    @property
    def package(self) -> Package | Packages | None:
        """The registry's package or packages, if there are any."""
        found = (one for one in self.sources if isinstance(one, Package | Packages))
        return next(found, None)


DATASETS: Registry[Entry] = Registry("data set", home="fredholm.lab.data.catalogue")


def register_dataset(entry: Entry) -> Entry:
    """Make ``entry`` known by its name.

    Raises:
        OptionError: when the name is taken.
    """
    return DATASETS.add(entry.name, entry)


def get_entry(name: str) -> Entry:
    """The entry of a data set.

    Raises:
        OptionError: for an unknown name, with the nearest known one.

    Example:
        >>> get_entry("mnist").shape
        (1, 28, 28)
    """
    hint = where_to_get(name, checkout.DATASETS)
    if hint and name not in DATASETS:
        raise OptionError(f"unknown data set {name!r}{hint}")
    return DATASETS[name]


def list_datasets() -> list[str]:
    """The names of all data sets, sorted.

    Example:
        >>> "digits" in list_datasets()
        True
    """
    return DATASETS.names()


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
        DataError: for a data set that has no place of its own, such as ``image-folder``.

    Example:
        >>> dataset_path("mnist", "there").name
        'mnist'
    """
    entry = get_entry(name)
    if entry.base:
        return dataset_path(entry.base, root)
    if entry.embedded is not None:
        return entry.embedded()
    if "path" in entry.needs:
        needed = ", ".join(f"{key}=..." for key in entry.needs if key != "path")
        raise DataError(
            f"{name}: has no folder of its own; it reads yours: create_dataset({name!r}, split, "
            f"path=FOLDER{', ' if needed else ''}{needed})"
        )
    return data_root(root) / name


def describe(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What a table shows of a data set: kind, source, version, licences of package and data, sizes,
    place, state.

    ``state`` is one of ``embedded``, ``fetched``, ``your files`` (present, not put there by fetch),
    ``damaged`` (sizes do not fit), ``not fetched``, ``your folder``, ``generated``. Sizes are
    looked at, contents are not hashed.

    Raises:
        OptionError: for an unknown name.

    Example:
        >>> describe("digits")["state"]
        'embedded'
    """
    from .install import source_of, state_of

    entry = get_entry(name)
    files = get_entry(entry.base) if entry.base else entry
    path = None if "path" in entry.needs else dataset_path(name, root)
    source = source_of(files, path) if path is not None and files.sources else None
    if path is None:
        state = "your folder"
    elif source is None:
        state = "generated" if entry.embedded is None else "embedded"
    else:
        state = state_of(source, path)
    return {
        "name": name,
        "title": entry.title,
        "kind": entry.kind.name,
        "source": entry.source or (files.sources[0].title if files.sources else state),
        "version": files.package.version if files.package else None,
        "licence_package": entry.licence_package,
        "licence_data": entry.licence_data,
        "samples": dict(entry.samples),
        "size": " + ".join(f"{count:,} {split}" for split, count in entry.samples.items())
        or entry.kind.unsized
        or ("yours" if "path" in entry.needs else "without an official split"),
        "classes": len(entry.classes) or None,
        "shape": entry.shape,
        "download_bytes": source.archive_bytes if source else 0,
        "bytes": source.total_bytes if source else 0,
        "path": None if path is None else str(path),
        "fetched": state in ("embedded", "generated", "fetched", "your files"),
        "state": state,
        "notes": entry.notes,
    }
