"""Points drawn from the surface of triangle meshes."""

from __future__ import annotations

import numpy as np

from ...errors import DataError
from .mixing import shares


def sample_surface(vertices: np.ndarray, triangles: np.ndarray, n: int, key: int) -> np.ndarray:
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
    a, b, c = (vertices[triangles[:, i]] for i in range(3))
    # Sums of the areas (twice, which cancels): a uniform number finds a triangle by its area.
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).cumsum()
    if not len(area) or not np.isfinite(area[-1]) or area[-1] <= 0:
        raise DataError(
            "a mesh: expected a surface with an area and finite coordinates, got none; repair it, "
            "or leave it out"
        )
    chosen, u, v = (shares(n, key, stream) for stream in range(3))
    face = np.searchsorted(area, chosen * area[-1], side="right").clip(max=len(area) - 1)

    # (u, v) is uniform in a parallelogram; its far half is turned onto the triangle.
    far = u + v > 1
    u = np.where(far, 1 - u, u)[:, None]
    v = np.where(far, 1 - v, v)[:, None]
    return unit_ball(a[face] + u * (b - a)[face] + v * (c - a)[face])


def unit_ball(points: np.ndarray) -> np.ndarray:
    """Return points (n, 3) with their mean at the origin and the farthest at distance 1 (all at the
    origin where they coincide).
    """
    points = points - points.mean(0)
    radius = np.linalg.norm(points, axis=1).max()
    if radius == 0:
        return points
    return points / radius
