"""The registry of data sets: where each comes from, its checksums and its licences.

A data set is one file of ``catalogue/``, or of a user: declare an :class:`Entry` and register it.
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
from .install import source_of, state_of
from .kinds.dataset import LabelledDataset
from .kinds.images import IMAGES
from .kinds.kind import Kind
from .sources import Package, Packages, Source
from .splits import stratified

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from .kinds.texts import TextOptions

DATA_ROOT_VARIABLE = "FREDHOLM_DATA"


@dataclass(frozen=True)
class Request:
    """The arguments of a call of :func:`fredholm.data.create_dataset`, checked.

    Attributes:
        root: the folder of all fetched data sets.
        path: the user's folder, None for the fetched one.
        val_fraction: None for the data set's own.
        options: the data set's own options, an instance of ``entry.options``.
    """

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
        """The user's folder, for an entry that needs one."""
        assert self.path is not None
        return self.path

    @property
    def share(self) -> float | int:
        """The share of the training samples that is ``val``."""
        if self.val_fraction is None:
            return self.entry.val_fraction
        return self.val_fraction

    @property
    def official_split(self) -> str:
        """``train`` or ``test``; ``val`` is a part of the official training samples."""
        return "test" if self.split == "test" else "train"

    def chosen(self, labels: Int[Tensor, " n"]) -> Int[Tensor, " m"] | None:
        """Return the numbers of this split's samples in the official split, stratified by class;
        None for all of them.
        """
        if self.split == "test":
            return None
        rest, held = stratified(labels, self.share)
        return held if self.split == "val" else rest


@dataclass(frozen=True)
class Entry:
    """The declaration of a data set.

    Attributes:
        name, title: its name in commands, and its title in tables.
        kind: of its samples.
        kind_at: for samples whose kind depends on the files: from (path, options, share of val) to
            the kind.
        read: builds the split of a request.
        sources: of its files, in order of preference: a registry's package (or several, each of
            which has a part), then an official address. Empty if the files come with a library
            (``embedded``: their folder) or from the user (``needs``), or samples are generated.
        source: the source in words; by default the first source's title.
        licence_package, licence_data: licences of the package and of its data.
        official: the original files that a user may put into the folder instead.
        needs: arguments without which it cannot be read, each with a description.
        samples: the number of samples per official split.
        classes: their names; of images also ``shape``, and ``mean`` and ``std`` per channel, in
            units where white is 1.
        val_fraction: the share of the training samples held out as ``val``.
        options: a dataclass of the data set's own options.
        base: the data set from whose files this one is made.
        notes: further remarks for a table.
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
        """Whether a user may give the files that it reads."""
        return bool(self.sources or self.base or "path" in self.needs)

    @property
    def package(self) -> Package | Packages | None:
        """The registry's package or packages, if there are any."""
        for source in self.sources:
            if isinstance(source, Package | Packages):
                return source
        return None


DATASETS: Registry[Entry] = Registry("data set", home="fredholm.lab.data.catalogue")


def register_dataset(entry: Entry) -> Entry:
    """Make ``entry`` known by its name.

    Raises:
        OptionError: the name is taken.
    """
    return DATASETS.add(entry.name, entry)


def get_entry(name: str) -> Entry:
    """Return the entry of a data set.

    Raises:
        OptionError: an unknown name, with the nearest known one.

    Example:
        >>> get_entry("mnist").shape
        (1, 28, 28)
    """
    # Names of data sets in a checkout's ``evidence/`` need another fix than a misspelt name.
    hint = where_to_get(name, checkout.DATASETS)
    if hint and name not in DATASETS:
        raise OptionError(f"unknown data set {name!r}{hint}")
    return DATASETS[name]


def list_datasets() -> list[str]:
    """Return the names of all data sets, sorted.

    Example:
        >>> "digits" in list_datasets()
        True
    """
    return DATASETS.names()


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all fetched data sets: ``root``, else $FREDHOLM_DATA, else
    ~/.cache/fredholm/data.

    Example:
        >>> data_root("there").name
        'there'
    """
    chosen = root or os.environ.get(DATA_ROOT_VARIABLE) or "~/.cache/fredholm/data"
    return Path(chosen).expanduser().absolute()


def dataset_path(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder into which :func:`fetch` puts a data set, whether it is there or not.

    Raises:
        OptionError: an unknown name.
        DataError: a data set that reads the user's folder, such as ``image-folder``.

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
        arguments = [repr(name), "split", "path=FOLDER"]
        arguments += [f"{key}=..." for key in entry.needs if key != "path"]
        raise DataError(
            f"{name}: expected a folder of yours, since it has none of its own; call "
            f"create_dataset({', '.join(arguments)})"
        )
    return data_root(root) / name


def describe(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return one row of the table of data sets, as plain data by column: kind, source, version,
    licences of package and data, sizes, folder, state.

    ``state`` tells where the samples are:

    - ``embedded``: their files come with a library;
    - ``fetched``: fetch put the files there, and their sizes are right;
    - ``damaged``: fetch put them there, and a file or the manifest is not as it was;
    - ``your files``: the files are there, but fetch did not put them there;
    - ``not fetched``: no files are there;
    - ``your folder``: the data set only reads a folder that the user names;
    - ``generated``: there are no files.

    Only sizes are compared, which costs no time; checksums are not. ``fetched`` is True if the data
    set can be read as it is. ``samples`` counts the samples per official split, ``size`` says the
    same in words, ``shape`` is that of an image (C, H, W). ``download_bytes`` and ``bytes`` are the
    sizes of the archives and of the unpacked files, 0 if nothing has to be fetched.

    Raises:
        OptionError: an unknown name.

    Example:
        >>> describe("digits")["state"]
        'embedded'
    """
    entry = get_entry(name)
    # A data set that is made from another one's files has no sources of its own.
    files = get_entry(entry.base) if entry.base else entry
    path = ""
    state = "your folder"
    source = None
    if "path" not in entry.needs:
        folder = dataset_path(name, root)
        path = str(folder)
        state = "generated"
        if files.sources:
            source = source_of(files, folder)
            state = state_of(source, folder)
        elif entry.embedded is not None:
            state = "embedded"

    # The first text that is not empty names the source; the state stands in for a missing one.
    titles = [entry.source, *(one.title for one in files.sources), state]
    counts = " + ".join(f"{count:,} {split}" for split, count in entry.samples.items())
    unknown = "yours" if "path" in entry.needs else "without an official split"
    return {
        "name": name,
        "title": entry.title,
        "kind": entry.kind.name,
        "source": next(filter(None, titles)),
        "version": files.package.version if files.package else None,
        "licence_package": entry.licence_package,
        "licence_data": entry.licence_data,
        "samples": dict(entry.samples),
        "size": counts or entry.kind.unsized or unknown,
        "classes": len(entry.classes) or None,
        "shape": entry.shape,
        "download_bytes": source.archive_bytes if source else 0,
        "bytes": source.total_bytes if source else 0,
        "path": path or None,
        "fetched": state in ("embedded", "generated", "fetched", "your files"),
        "state": state,
        "notes": entry.notes,
    }
