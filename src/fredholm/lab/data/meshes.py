"""Triangle meshes in OFF, the format of ModelNet, and points drawn from their surface."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from ...errors import DataError
from .mixing import shares


def parse_off(content: bytes, where: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices (V, 3) and triangles (T, 3) of an OFF file; polygons are cut into fans.

    Raises:
        DataError: anything else.
    """
    words = content.split()
    try:
        # Some of ModelNet's files lack the end of the first line: OFF123 45 0.
        if words and words[0].upper().startswith(b"OFF") and len(words[0]) > 3:
            words[0:1] = [b"OFF", words[0][3:]]
        if not words or words[0].upper() != b"OFF":
            raise ValueError("no line OFF")

        # The number of edges, words[3], is not used.
        count = int(words[1])
        faces = int(words[2])
        end = 4 + 3 * count
        vertices = np.array(words[4:end], np.float64)
        vertices = vertices.reshape(count, 3)
        triangles = _triangles(words[end:], faces, count)
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{where}: no OFF mesh ({error}); it is truncated or of another format"
        ) from error
    return vertices, triangles


def _triangles(words: list[bytes], faces: int, vertices: int) -> np.ndarray:
    """Return triangles (T, 3), a fan for each face.

    Args:
        words: of each face its number of corners, then the numbers of its vertices.
        faces, vertices: how many there are.

    Raises:
        ValueError, IndexError: fewer words, or a corner that is not a vertex.
    """
    triangles = []
    place = 0
    for _ in range(faces):
        size = int(words[place])
        start = place + 1
        place = start + size
        corners = [int(word) for word in words[start:place]]
        if size < 3 or len(corners) < size:
            raise ValueError(f"a face of {size} corners")
        if min(corners) < 0 or max(corners) >= vertices:
            raise ValueError(f"a face of {size} corners")
        for second, third in pairwise(corners[1:]):
            triangles.append((corners[0], second, third))
    return np.array(triangles, np.int64).reshape(-1, 3)


def sample_surface(
    vertices: np.ndarray,
    triangles: np.ndarray,
    n: int,
    key: int,
) -> np.ndarray:
    """Return n points (n, 3), uniform over the triangles' area, centred, and scaled into the unit
    ball; random by ``key`` alone.

    Args:
        vertices: (V, 3) coordinates.
        triangles: (T, 3) numbers of vertices.

    Raises:
        DataError: a mesh without area, or with infinite coordinates.

    Example:
        >>> square = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
        >>> sample_surface(square, np.array([[0, 1, 2], [0, 2, 3]]), 64, key=1).shape
        (64, 3)
    """
    a, b, c = (vertices[corner] for corner in triangles.T)
    ab = b - a
    ac = c - a
    # Sums of the areas (twice, which cancels): a uniform number finds a triangle by its area.
    normals = np.cross(ab, ac)
    area = np.linalg.norm(normals, axis=1).cumsum()
    if not len(area) or not np.isfinite(area[-1]) or area[-1] <= 0:
        raise DataError(
            "a mesh: expected a surface with an area and finite coordinates, got none; repair it, "
            "or leave it out"
        )
    chosen, u, v = (shares(n, key, stream) for stream in range(3))
    face = np.searchsorted(area, chosen * area[-1], side="right")
    face = face.clip(max=len(area) - 1)

    # (u, v) is uniform in a parallelogram; its far half is turned onto the triangle.
    far = u + v > 1
    u = np.where(far, 1 - u, u)[:, None]
    v = np.where(far, 1 - v, v)[:, None]
    points = a[face] + u * ab[face] + v * ac[face]
    return unit_ball(points)


def unit_ball(points: np.ndarray) -> np.ndarray:
    """Return points (n, 3) with their mean at the origin and the farthest at distance 1 (all at the
    origin where they coincide).
    """
    points = points - points.mean(0)
    radius = np.linalg.norm(points, axis=1).max()
    if radius == 0:
        return points
    return points / radius
