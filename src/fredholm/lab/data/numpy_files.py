"""NumPy's ``.npy`` and ``.npz`` files, without Python objects and within a size.

Such a file declares the shape of each array before its values. NumPy allocates what is declared,
so that a few bytes could ask for any amount of memory: the sizes are compared first.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ...errors import DataError
from .formats import check_declared

_DAMAGED = (ValueError, OSError, EOFError, SyntaxError, zlib.error, zipfile.BadZipFile)


def read_npy(path: Path, mapped: Literal["r"] | None = None) -> np.ndarray:
    """Return the array of a ``.npy`` file, with ``mapped`` "r" as a view of the disk.

    Raises:
        DataError: a missing, truncated or damaged file, or one of Python objects.
    """
    try:
        with path.open("rb") as file:
            header = _header_of(file)
            declared = header.nbytes + file.tell()
        # NumPy would allocate them before it noticed that they are not there.
        if declared > path.stat().st_size:
            raise ValueError(f"its header declares {declared:,} bytes")
        return np.load(path, mapped, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; correct the path") from None
    except _DAMAGED as error:
        raise DataError(
            f"{path}: not a valid .npy file ({error}); the file may be damaged"
        ) from error


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` file by name.

    Raises:
        DataError: a missing or damaged file, one of Python objects, one that holds something else
            than arrays, or one that unpacks to more than :func:`check_declared` allows.
    """
    try:
        with path.open("rb") as file:
            lone = file.read(6) == b"\x93NUMPY"
        if lone:
            raise DataError(
                f"{path}: expected named arrays of np.savez, got one array, as .npy files hold; "
                "rename it to .npy"
            )
        with zipfile.ZipFile(path) as packed:
            members = packed.infolist()
            # The sizes are in the directory of the archive, which is read without unpacking.
            check_declared(path, sum(member.file_size for member in members))
            for member in members:
                _check_member(packed, member, path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except DataError:
        raise
    except (*_DAMAGED, RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"{path}: not a valid .npz file ({error}); it is missing or corrupt"
        ) from error


def _check_member(
    packed: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    path: Path,
) -> None:
    """Refuse a member that is not an array, is one of Python objects, or is smaller than its header
    declares.

    Raises:
        DataError: naming the member.
        ValueError: a header that cannot be read.
    """
    name = member.filename
    if not name.endswith(".npy"):
        raise DataError(
            f"{path}: expected only arrays of np.savez, got {name!r} as well; save the arrays again"
        )
    with packed.open(member) as file:
        header = _header_of(file)
        if header.has_objects:
            raise DataError(
                f"{path}: holds Python objects, which are not loaded; save series of unequal "
                "length as values (all points, channels) and lengths (series), or padded with NaN"
            )
        declared = header.nbytes + file.tell()
    if declared > member.file_size:
        raise DataError(
            f"{path}: expected {declared:,} bytes of {name!r}, which its header declares, got "
            f"{member.file_size:,}; the file is corrupt"
        )


class _Header(NamedTuple):
    """The declarations of a ``.npy`` header about its array."""

    nbytes: int
    has_objects: bool


def _header_of(file: Any) -> _Header:
    """Read the header at the beginning of an opened ``.npy`` file.

    Raises:
        ValueError: it is none.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    # Python's integers do not overflow; NumPy's product could pass for a small array.
    count = math.prod(int(length) for length in shape)
    if count < 0:
        raise ValueError(f"its header declares the shape {shape}")
    return _Header(count * dtype.itemsize, dtype.hasobject)
