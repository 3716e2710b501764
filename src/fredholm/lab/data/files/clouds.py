"""Point clouds in ``.ply``, ``.xyz``, ``.off`` and ``.npy`` files, one folder per class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ....errors import DataError
from ..formats import read_bytes
from ..meshes import parse_off, sample_surface
from ..numpy_files import read_npy
from .collection import numbered

SAMPLED = 2048  # points drawn on the surface of a mesh
SUFFIXES = frozenset({".ply", ".xyz", ".off", ".npy"})
_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2",
    "ushort": "u2", "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4",
    "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip
_BYTE_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">"}


def read_cloud(path: Path) -> np.ndarray:
    """Return a cloud (points, channels), coordinates first.

    Points of a mesh are drawn on its surface, by a key made of the file's name: the same in every
    run, and on every machine.

    Raises:
        DataError: a missing or damaged file, or a point that is not finite.
    """
    suffix = path.suffix.lower()
    content = read_bytes(path)
    if suffix == ".off":
        cloud, triangles = parse_off(content, path)
        if len(triangles):
            digest = hashlib.sha256(path.name.encode()).digest()
            key = int.from_bytes(digest[:7], "big")
            cloud = sample_surface(cloud, triangles, SAMPLED, key)
    elif suffix == ".ply":
        cloud = parse_ply(content, path)
    elif suffix == ".xyz":
        cloud = parse_xyz(content, path)
    else:
        cloud = read_npy(path)

    cloud = np.asarray(cloud)
    # Float32 at least.
    precision = np.result_type(cloud.dtype, np.float32)
    cloud = cloud.astype(precision, copy=False)
    if cloud.ndim != 2 or cloud.shape[1] < 2 or not len(cloud):
        raise DataError(
            f"{path}: expected an array (points, 2 or more coordinates), got {cloud.shape}; bring "
            "it to that"
        )
    bad = ~np.isfinite(cloud).all(1)
    if bad.any():
        point = int(bad.argmax())
        raise DataError(
            f"{path}, point {point + 1}: expected finite coordinates, got "
            f"{cloud[point].tolist()}; remove the point"
        )
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


def point_channels(width: int) -> tuple[str, ...]:
    """Return names of the numbers of a point, of which the first are coordinates.

    Example:
        >>> point_channels(2), point_channels(4)
        (('x', 'y'), ('x', 'y', 'z', 'channel 4'))
    """
    others = numbered("channel", width)[3:]
    names = ("x", "y", "z", *others)
    return names[:width]


def parse_xyz(content: bytes, where: Path | str) -> np.ndarray:
    """Return the points of lines of numbers, separated by spaces, commas or semicolons.

    Lines that begin with # are skipped.

    Raises:
        DataError: a line of something else.
    """
    lines = content.decode("utf-8", "replace").splitlines()
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        line = line.replace(",", " ").replace(";", " ")
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            row = [float(word) for word in words]
        except ValueError as error:
            raise DataError(
                f"{where}, row {number}: expected numbers x y z ({error}); correct the line"
            ) from error
        rows.append(row)
        width = len(rows[0])
        if len(row) != width:
            raise DataError(
                f"{where}, row {number}: expected {width} numbers, as the first point has, "
                f"got {len(row)}; correct the line"
            )
    # The reshape keeps two axes where there are no points.
    return np.array(rows, np.float64).reshape(len(rows), -1)


def parse_ply(content: bytes, where: Path | str) -> np.ndarray:
    """Return the vertices of a PLY file, ASCII or binary: x, y, z, then other numbers (normals,
    colours).

    Raises:
        DataError: anything else.
    """
    end = content.find(b"end_header")
    if not content.startswith(b"ply") or end < 0:
        raise DataError(
            f"{where}: expected a PLY file, got other bytes; it is truncated or of another format"
        )
    start = content.index(b"\n", end) + 1
    body = content[start:]
    header = content[:end].decode("ascii", "replace")
    words = [line.split() for line in header.splitlines()]
    form = ""
    for line in words:
        if line[:1] == ["format"]:
            form = line[1]
    vertices = _ply_vertices(words, where)
    count = vertices.count
    names = [name for name, _ in vertices.types]
    try:
        if form == "ascii":
            # Lists of faces follow the vertices.
            lines = body.split(b"\n")[:count]
            cells = [line.split()[: len(names)] for line in lines]
            table = np.array(cells, np.float64)
        else:
            order = _BYTE_ORDERS[form]
            types = [(name, order + kind) for name, kind in vertices.types]
            rows = np.frombuffer(body, np.dtype(types), count)
            columns = [rows[name].astype(np.float64) for name in names]
            table = np.stack(columns, 1)
        if len(table) != count:
            raise ValueError(f"{len(table)} of {count} vertices")
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{where}: expected {count} vertices, got an error ({error}); it is truncated"
        ) from error

    # Coordinates come first, wherever the file has them.
    axes = [names.index(axis) for axis in "xyz"]
    others = [i for i in range(len(names)) if i not in axes]
    return table[:, [*axes, *others]]


class _Vertices(NamedTuple):
    """Number of vertices, and the name and NumPy's type of each of their properties."""

    count: int
    types: list[tuple[str, str]]


def _ply_vertices(words: Sequence[Sequence[str]], where: Path | str) -> _Vertices:
    count = 0
    element = ""
    types: list[tuple[str, str]] = []
    for line in words:
        if line[:1] == ["element"]:
            element = line[1]
            if element == "vertex":
                count = int(line[2])
            elif not types:
                # Its rows would have to be skipped, and their length is not known.
                raise DataError(
                    f"{where}: expected the vertices first, got {element!r} before them; save them "
                    "first"
                )
        elif line[:1] == ["property"] and element == "vertex":
            if line[1] not in _TYPES:
                raise DataError(
                    f"{where}: expected vertices of numbers, got a property of {line[1]!r}; leave "
                    "it out"
                )
            types.append((line[2], _TYPES[line[1]]))
    names = [name for name, _ in types]
    if not count or not {"x", "y", "z"} <= {*names}:
        raise DataError(f"{where}: expected vertices with x, y and z, got {names}; add them")
    return _Vertices(count, types)
