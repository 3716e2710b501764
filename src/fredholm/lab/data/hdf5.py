"""HDF5 files that hold their arrays themselves.

An HDF5 file can name other files, and the HDF5 library opens them without asking: external links,
external storage and virtual data sets. In a file that somebody sent, such a name could be any file
of its reader. Files with any of the three are refused before anything in them is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, require
from .formats import check_declared

COPY = "ask its sender for a copy that holds all arrays itself (h5repack writes one)"


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays at the root of an HDF5 file, by name.

    Raises:
        DataError: a missing or damaged file, one that reads from other files, or one that declares
            more than :func:`check_declared` allows.
        MissingExtraError: h5py is not installed.
    """
    h5py = require("h5py", "clouds", f"reading {path.name}")
    try:
        with h5py.File(path, "r") as file:
            _refuse_links(h5py, file, path)
            _refuse_sources(h5py, file, path)

            # Sizes come from headers, so that nothing is allocated for a file that declares too
            # much. Data sets in groups are not read: their names could be anything.
            chosen = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
            declared = sum(int(item.size or 0) * item.dtype.itemsize for item in chosen.values())
            check_declared(path, declared)
            return {name: np.asarray(item) for name, item in chosen.items()}
    except (OSError, KeyError, RuntimeError) as error:
        # DataError is a RuntimeError, too.
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: not a valid HDF5 file ({error}); it is missing or corrupt"
        ) from error


def _refuse_links(h5py: Any, file: Any, path: Path) -> None:
    """Refuse links into other files, wherever in the file they are.

    Raises:
        DataError: naming the first.
    """
    inside = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)
    found: list[str] = []

    def visit(name: bytes, info: Any) -> None:
        if info.type not in inside:
            found.append(name.decode("utf-8", "replace"))

    # Links are visited without being followed.
    file.id.links.visit(visit, info=True)
    if found:
        raise DataError(
            f"{path}: expected arrays in the file itself, got {found[0]!r}, a link into another "
            f"file, which is not followed; {COPY}"
        )


def _refuse_sources(h5py: Any, file: Any, path: Path) -> None:
    """Refuse data sets whose values lie in other files, in a file without links into others.

    A virtual data set of the same file is refused as well: what it maps may lie outside.

    Raises:
        DataError: naming the first.
    """
    found: list[tuple[str, Any]] = []
    # The visit goes on as long as the function returns None.
    file.visititems(lambda name, item: found.append((name, item)))
    for name, item in found:
        way = None
        if not isinstance(item, h5py.Dataset):
            continue
        if item.external:
            way = "external storage"
        elif item.is_virtual:
            way = "a virtual data set"
        if way is not None:
            raise DataError(
                f"{path}: expected arrays in the file itself, got {name!r}, {way}, whose values "
                f"lie in other files and are not read; {COPY}"
            )
