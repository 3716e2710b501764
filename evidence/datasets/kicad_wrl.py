"""Parser of meshes in VRML 2, the format of KiCad's models (``.wrl``)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fredholm.errors import DataError

_POINT = re.compile(rb"\bpoint\s*\[([^\]]*)\]")
_INDEX = re.compile(rb"\bcoordIndex\s*\[([^\]]*)\]")


def parse_vrml(content: bytes, where: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices (V, 3) and triangles (T, 3) of all faces of a VRML 2 file.

    Transforms are not applied.

    Raises:
        DataError: the lists of points and of indices do not match, or there are no faces.
    """
    points, indices = _POINT.findall(content), _INDEX.findall(content)
    if not points or len(points) != len(indices):
        raise DataError(
            f"{where}: expected one list of faces per list of points, got {len(points)} lists of "
            f"points and {len(indices)} of faces; the file may be damaged"
        )
    vertices, triangles, before = [], [], 0
    for coordinates, corners in zip(points, indices):
        numbers = np.array(coordinates.replace(b",", b" ").split(), np.float64)
        faces = np.array(corners.replace(b",", b" ").split(), np.int64)
        if len(numbers) % 3 or not len(numbers):
            raise DataError(
                f"{where}: expected three coordinates per point, got {len(numbers)} numbers; the "
                f"file may be damaged"
            )
        mesh = _fans(faces)
        if len(mesh) and not 0 <= mesh.min() <= mesh.max() < len(numbers) // 3:
            raise DataError(
                f"{where}: expected faces of {len(numbers) // 3} points, got one with point "
                f"{mesh.max()}; the file may be damaged"
            )
        vertices.append(numbers.reshape(-1, 3))
        triangles.append(mesh + before)
        before += len(numbers) // 3
    return np.concatenate(vertices), np.concatenate(triangles)


def _fans(faces: np.ndarray) -> np.ndarray:
    """Divide polygons, each of which ends with −1, into triangles."""
    if len(faces) and faces[-1] != -1:
        faces = np.append(faces, -1)

    # Most files have only triangles, which need no loop.
    if len(faces) % 4 == 0:
        rows = faces.reshape(-1, 4)
        if (rows[:, 3] == -1).all() and (rows[:, :3] >= 0).all():
            return rows[:, :3]
    result = []
    for polygon in np.split(faces, np.flatnonzero(faces == -1)):
        corners = polygon[polygon >= 0]
        result += [(corners[0], corners[i], corners[i + 1]) for i in range(1, len(corners) - 1)]
    return np.array(result, np.int64).reshape(-1, 3)
