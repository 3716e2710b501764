"""Arrays by their names: what each is usually called, and which one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
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
        DataError: there is none, or it holds nothing, or complex numbers.
    """
    found = said if said is not None else find(arrays, names)
    if found is None or found not in arrays:
        have = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
        parts = any(key.lower().endswith(("_train", "_test")) for key in arrays)
        more = "; give each part a file of its own: train.npz, test.npz" if parts else ""
        raise DataError(
            f"{path}: no array of {what} (looked for {said or ', '.join(names)}); has {have}{more}"
        )
    values = arrays[found]
    if not values.ndim or not len(values):
        raise DataError(f"{path}: {found!r} has shape {values.shape}; holds no sample")
    if np.iscomplexobj(values):
        raise DataError(
            f"{path}: {found!r} holds {values.dtype}; needs real numbers: real and imaginary parts "
            "as two channels, or moduli"
        )
    return found


def floats(path: Path, key: str, values: np.ndarray) -> np.ndarray:
    """Numbers as floats that keep all digits: what is large is subtracted before any are dropped.

    Raises:
        DataError: they are none.
    """
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: {key!r} holds {values.dtype}; needs numbers (where it is a label, say the "
            "kind of the samples: series, clouds or fields)"
        )
    return values.astype(np.result_type(values.dtype, np.float32))


def groups_of(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, count: int
) -> np.ndarray | None:
    """The group of each sample as its file has it; None where nobody asks for one.

    Raises:
        DataError: an array of another shape, or a sample without a group.
    """
    if reading.group is None:
        return None
    name = needed(arrays, GROUPS, reading.group, path, "groups")
    values = arrays[name]
    if values.shape != (count,):
        raise DataError(f"{path}: {name!r} has shape {values.shape}; needs ({count},)")
    missing = np.array([value in ("", b"") or value != value for value in values.tolist()])
    if missing.any():
        raise DataError(
            f"{path}: {name!r} of sample {int(missing.argmax())} is missing; needs a group for each"
        )
    return values


def order_of(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, count: int
) -> np.ndarray | None:
    """When each sample was taken, of samples without times within them; None where no split goes by
    it.

    Raises:
        DataError: no such array, or another shape.
    """
    if reading.split != "time":
        return None
    name = needed(arrays, TIMES, reading.time, path, "times, by which the split goes")
    values = arrays[name]
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.number):
        raise DataError(
            f"{path}: {name!r} has shape {values.shape} of {values.dtype}; a split by time needs a "
            f"number for each of the {count} samples"
        )
    return values.astype(np.float64)


def rule_of(reading: Reading) -> str:
    """The rule of the split, settled."""
    return reading.split or ("group" if reading.group else "random")


def first_channel(reading: Reading) -> str | None:
    return reading.channels[0] if reading.channels else None


def collection_of(
    path: Path, reading: Reading, samples: Any, labels: Any, taken: dict[str, str]
) -> Collection:
    taken = taken | ({"label": f"array {reading.label!r}"} if reading.kind != "fields" else {})
    place = {"file": str(path)}
    return Collection(
        path.name, reading, samples, labels, lambda i: place | {"sample": i}, taken=taken
    )
