"""Meshes in VRML 2, the format of KiCad's models (``.wrl``)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fredholm.errors import DataError

_POINT = re.compile(rb"\bpoint\s*\[([^\]]*)\]")


_INDEX = re.compile(rb"\bcoordIndex\s*\[([^\]]*)\]")


def parse_vrml(content: bytes, where: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) and triangles (T, 3) of all faces of a VRML 2 file; transforms between them
    are not read.

    Raises:
        DataError: lists of points and of indices that do not match, or no face at all.
    """
    points, indices = _POINT.findall(content), _INDEX.findall(content)
    if not points or len(points) != len(indices):
        raise DataError(
            f"{where}: {len(points)} lists of points, {len(indices)} of faces; needs as many of "
            "both"
        )
    vertices, triangles, before = [], [], 0
    for place, corners in zip(points, indices):
        numbers = np.array(place.replace(b",", b" ").split(), np.float64)
        faces = np.array(corners.replace(b",", b" ").split(), np.int64)
        if len(numbers) % 3 or not len(numbers):
            raise DataError(f"{where}: {len(numbers)} coordinates; needs three a point")
        mesh = _fans(faces)
        if len(mesh) and not 0 <= mesh.min() <= mesh.max() < len(numbers) // 3:
            raise DataError(f"{where}: a face names point {mesh.max()} of {len(numbers) // 3}")
        vertices.append(numbers.reshape(-1, 3))
        triangles.append(mesh + before)
        before += len(numbers) // 3
    return np.concatenate(vertices), np.concatenate(triangles)


def _fans(faces: np.ndarray) -> np.ndarray:
    """Triangles of polygons that end with −1 each."""
    if len(faces) and faces[-1] != -1:
        faces = np.append(faces, -1)
    if (
        len(faces) % 4 == 0
        and (faces.reshape(-1, 4)[:, 3] == -1).all()
        and (faces.reshape(-1, 4)[:, :3] >= 0).all()
    ):
        return faces.reshape(-1, 4)[:, :3]
    result = []
    for polygon in np.split(faces, np.flatnonzero(faces == -1)):
        corners = polygon[polygon >= 0]
        result += [(corners[0], corners[i], corners[i + 1]) for i in range(1, len(corners) - 1)]
    return np.array(result, np.int64).reshape(-1, 3)
