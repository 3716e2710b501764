"""Arrays by their names: what each is usually called, and which one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .collection import Collection
from .reading import Reading

INPUTS = ("x", "inputs", "input", "data", "values", "series", "a")
CLOUDS = ("points", "clouds", "cloud", "pos", "xyz", "vertices")
PLACES = ("coordinates", "coords", "positions", "grid", "locations")
ANSWERS = ("outputs", "output", "answers", "targets", "solution", "u", "y")
LABELS = ("y", "labels", "label", "target", "targets", "classes")
TIMES = ("times", "time", "t", "timestamps")
LENGTHS = ("lengths", "length", "sizes")
GROUPS = ("groups", "group")


def find(arrays: dict[str, np.ndarray], names: Sequence[str]) -> str | None:
    lower = {key.lower(): key for key in arrays}
    return next((lower[name] for name in names if name in lower), None)


def needed(
    arrays: dict[str, np.ndarray], names: Sequence[str], said: str | None, path: Path, what: str
) -> str:
    """The name of the array that is meant.

    Raises:
        DataError: there is none.
    """
    found = said if said is not None else find(arrays, names)
    if found is None or found not in arrays:
        have = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
        raise DataError(
            f"{path}: no array of {what} (looked for {said or ', '.join(names)}); has {have}"
        )
    return found


def first_channel(reading: Reading) -> str | None:
    return reading.channels[0] if reading.channels else None


def collection_of(
    path: Path, reading: Reading, samples: Any, labels: Any, taken: dict[str, str]
) -> Collection:
    taken = taken | ({"label": f"array {reading.label!r}"} if reading.kind != "fields" else {})
    return Collection(
        path.name, reading, samples, labels, lambda i: f"{path}, sample {i}", taken=taken
    )
