"""Meshes in OFF, the format of ModelNet."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from ....errors import DataError


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
        place = 4 + 3 * count
        vertices = np.array(words[4:place], np.float64).reshape(count, 3)
        triangles = []
        for _ in range(faces):
            size = int(words[place])
            corners = [int(word) for word in words[place + 1 : place + 1 + size]]
            if size < 3 or len(corners) < size or not 0 <= min(corners) <= max(corners) < count:
                raise ValueError(f"a face of {size} corners")
            for second, third in pairwise(corners[1:]):
                triangles.append((corners[0], second, third))
            place += 1 + size
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{where}: no OFF mesh ({error}); it is truncated or of another format"
        ) from error
    return vertices, np.array(triangles, np.int64).reshape(-1, 3)
