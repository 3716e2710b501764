"""NumPy's ``.npy`` and ``.npz`` files, without Python objects and within a size.

Such a file declares the shape of each array before its values. NumPy allocates what is declared,
so that a few bytes could ask for any amount of memory: the sizes are compared first.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .formats import check_declared

OBJECTS = "holds Python objects, which are not loaded"
_DAMAGED = (ValueError, OSError, EOFError, SyntaxError, zlib.error, zipfile.BadZipFile)


def read_npy(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file.

    Raises:
        DataError: a missing, truncated or damaged file, or one of Python objects.
    """
    try:
        with path.open("rb") as file:
            header = _header_of(file)
            declared = header.nbytes + file.tell()
        if declared > path.stat().st_size:
            raise ValueError(f"its header declares {declared:,} bytes")
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
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
            raise DataError(f"{path}: holds one array, as .npy files do; needs np.savez's")
        with zipfile.ZipFile(path) as packed:
            members = packed.infolist()
            check_declared(path, sum(member.file_size for member in members))
            for member in members:
                _check_member(packed, member, path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except DataError:
        raise
    except (*_DAMAGED, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{path}: no npz file ({error}); it is missing or corrupt") from error


def _check_member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    """Refuse a member that is no array, is one of Python objects, or is smaller than its header
    says.

    Raises:
        DataError: naming the member.
        ValueError: a header that cannot be read.
    """
    name = member.filename
    if not name.endswith(".npy"):
        raise DataError(f"{path}: holds {name!r}, which is no array; needs np.savez's")
    with packed.open(member) as file:
        header = _header_of(file)
        if header.has_objects:
            raise DataError(
                f"{path}: {OBJECTS}; save series of unequal length as values (all points, "
                "channels) and lengths (series), or padded with NaN"
            )
        declared = header.nbytes + file.tell()
    if declared > member.file_size:
        raise DataError(
            f"{path}: {name!r} declares {declared:,} bytes, and holds {member.file_size:,}; the "
            "file is corrupt"
        )


class _Header:
    """What a ``.npy`` header declares of its array."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]):
        count = 1
        for length in shape:  # Python's integers, which do not overflow
            count *= int(length)
        self.has_objects = dtype.hasobject
        self.nbytes = count * dtype.itemsize
        if count < 0:
            raise ValueError(f"its header declares the shape {shape}")


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
    return _Header(shape, dtype)
