"""Point clouds in ``.ply``, ``.xyz``, ``.off`` and ``.npy`` files, one folder per class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....errors import DataError
from ..formats import read_bytes
from ..meshes import sample_surface
from ..numpy_files import read_npy
from .off import parse_off

SAMPLED = 2048  # points drawn on a mesh's surface
SUFFIXES = frozenset({".ply", ".xyz", ".off", ".npy"})
_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2",
    "ushort": "u2", "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4",
    "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip


def read_cloud(path: Path) -> np.ndarray:
    """One cloud (points, channels), coordinates first; of a mesh, points drawn on its surface by
    the file's name.

    Raises:
        DataError: a missing or damaged file, or no finite point in it.
    """
    suffix, content = path.suffix.lower(), read_bytes(path)
    if suffix == ".off":
        corners, triangles = parse_off(content, path)
        key = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:7], "big")
        cloud = sample_surface(corners, triangles, SAMPLED, key) if len(triangles) else corners
    elif suffix == ".ply":
        cloud = parse_ply(content, path)
    elif suffix == ".xyz":
        cloud = parse_xyz(content, path)
    else:
        cloud = read_npy(path)
    cloud = np.asarray(cloud, np.result_type(np.asarray(cloud).dtype, np.float32))
    if cloud.ndim != 2 or cloud.shape[1] < 2 or not len(cloud):
        raise DataError(f"{path}: an array {cloud.shape}; needs (points, 2 or more coordinates)")
    bad = ~np.isfinite(cloud).all(1)
    if bad.any():
        raise DataError(f"{path}, point {int(bad.argmax()) + 1}: a coordinate is no finite number")
    return cloud


def exchanged(clouds: Sequence[np.ndarray]) -> list[str]:
    """Return a remark if the arrays look transposed, (coordinates, points); else an empty list.

    That is: no cloud has more than 3 rows, as many as there are coordinates in space, and the
    arrays have more columns than rows.
    """
    points = max(map(len, clouds))
    width = clouds[0].shape[1]
    if points > 3 or width <= points:
        return []
    return [
        f"clouds are read as {points} points of {width} numbers; if they are (coordinates, "
        "points), transpose them"
    ]


def parse_xyz(content: bytes, where: Path | str) -> np.ndarray:
    """Lines of numbers, divided by spaces or commas; lines that begin with # are passed over.

    Raises:
        DataError: a line of something else.
    """
    rows = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.replace(",", " ").replace(";", " ").split()
        if not words or words[0].startswith("#"):
            continue
        try:
            rows.append([float(word) for word in words])
        except ValueError as error:
            raise DataError(f"{where}, row {number}: {error}; needs x y z") from error
        if len(rows[-1]) != len(rows[0]):
            raise DataError(
                f"{where}, row {number}: {len(rows[-1])} numbers; the first point has "
                f"{len(rows[0])}"
            )
    return np.array(rows, np.float64).reshape(len(rows), -1)


def parse_ply(content: bytes, where: Path | str) -> np.ndarray:
    """The vertices of a PLY file, ASCII or binary: x, y, z, then its other numbers (normals,
    colours).

    Raises:
        DataError: anything else.
    """
    end = content.find(b"end_header")
    if not content.startswith(b"ply") or end < 0:
        raise DataError(f"{where}: no PLY file; it is truncated or of another format")
    body = content[content.index(b"\n", end) + 1 :]
    words = [line.split() for line in content[:end].decode("ascii", "replace").splitlines()]
    form = next((line[1] for line in words if line[:1] == ["format"]), "")
    count, names, types = _ply_vertices(words, where)
    try:
        if form == "ascii":
            lines = body.split(b"\n")[:count]
            table = np.array([line.split()[: len(names)] for line in lines], np.float64)
        else:
            order = {"binary_little_endian": "<", "binary_big_endian": ">"}[form]
            record = np.dtype([(n, order + t) for n, t in zip(names, types)])
            rows = np.frombuffer(body, record, count)
            table = np.stack([rows[name].astype(np.float64) for name in names], 1)
        if len(table) != count:
            raise ValueError(f"{len(table)} of {count} vertices")
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{where}: its vertices cannot be read ({error}); it is truncated"
        ) from error
    first = [names.index(axis) for axis in "xyz"]
    return table[:, [*first, *(i for i in range(len(names)) if i not in first)]]


def _ply_vertices(
    words: Sequence[Sequence[str]], where: Path | str
) -> tuple[int, list[str], list[str]]:
    count, names, types, element = 0, [], [], ""
    for line in words:
        if line[:1] == ["element"]:
            element = line[1]
            if element == "vertex":
                count = int(line[2])
            elif not names:
                raise DataError(f"{where}: element {element!r} comes before the vertices")
        elif line[:1] == ["property"] and element == "vertex":
            if line[1] not in _TYPES:
                raise DataError(f"{where}: vertices with a property of {line[1]!r}; needs numbers")
            types.append(_TYPES[line[1]])
            names.append(line[2])
    if not count or not {"x", "y", "z"} <= set(names):
        raise DataError(f"{where}: has no vertices with x, y and z")
    return count, names, types
