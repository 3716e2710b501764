"""Meshes in OFF, the format of ModelNet."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ....errors import DataError


def parse_off(content: bytes, where: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) and triangles (T, 3) of an OFF file; larger polygons are cut into fans.

    ModelNet's files with the counts in the first line (``OFF123 45 0``) are read as well.

    Raises:
        DataError: anything else.
    """
    words = content.split()
    try:
        if words and words[0].upper().startswith(b"OFF") and len(words[0]) > 3:
            words[0:1] = [b"OFF", words[0][3:]]
        if not words or words[0].upper() != b"OFF":
            raise ValueError("no line OFF")
        count, faces = int(words[1]), int(words[2])
        numbers = np.array(words[4 : 4 + 3 * count], np.float64).reshape(count, 3)
        place, triangles = 4 + 3 * count, []
        for _ in range(faces):
            size = int(words[place])
            corners = [int(w) for w in words[place + 1 : place + 1 + size]]
            if size < 3 or len(corners) < size or not 0 <= min(corners) <= max(corners) < count:
                raise ValueError(f"a face of {size} corners")
            triangles += [(corners[0], corners[i], corners[i + 1]) for i in range(1, size - 1)]
            place += 1 + size
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{where}: no OFF mesh ({error}); it is truncated or of another format"
        ) from error
    return numbers, np.array(triangles, np.int64).reshape(-1, 3)
