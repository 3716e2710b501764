"""Points drawn from the surface of triangle meshes."""

from __future__ import annotations

import numpy as np

from ...errors import DataError
from .mixing import shares


def sample_surface(vertices: np.ndarray, triangles: np.ndarray, n: int, key: int) -> np.ndarray:
    """n points (n, 3), uniform over the triangles' area, centred, and scaled into the unit ball;
    random by ``key`` alone.

    Raises:
        DataError: a mesh without area, or with infinite coordinates.

    Example:
        >>> square = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
        >>> sample_surface(square, np.array([[0, 1, 2], [0, 2, 3]]), 64, key=1).shape
        (64, 3)
    """
    a, b, c = (vertices[triangles[:, i]] for i in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).cumsum()
    if not len(area) or not np.isfinite(area[-1]) or area[-1] <= 0:
        raise DataError(
            "a mesh without area, or with coordinates that are no numbers; it holds no surface to "
            "sample"
        )
    chosen, u, v = (shares(n, key, stream) for stream in range(3))
    face = np.searchsorted(area, chosen * area[-1], side="right").clip(max=len(area) - 1)
    flip = u + v > 1
    u, v = np.where(flip, 1 - u, u)[:, None], np.where(flip, 1 - v, v)[:, None]
    points = a[face] + u * (b - a)[face] + v * (c - a)[face]
    return unit_ball(points)


def unit_ball(points: np.ndarray) -> np.ndarray:
    """Points (n, 3) with their mean at the origin and the farthest at distance 1 (all at the origin
    where they coincide).
    """
    points = points - points.mean(0)
    radius = np.linalg.norm(points, axis=1).max()
    return points / radius if radius > 0 else points
