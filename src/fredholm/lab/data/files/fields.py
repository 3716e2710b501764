"""Fields in arrays: inputs and answers on a grid, or on points of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ....errors import DataError
from .collection import Collection
from .named import (
    ANSWERS,
    INPUTS,
    PLACES,
    collection_of,
    find,
    first_channel,
    floats,
    groups_of,
    needed,
    order_of,
    rule_of,
)
from .reading import Reading

FEW = 4  # channels that a last axis may be


def collect_fields(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    """Inputs and answers (N, H, W) or (N, C, H, W) on a grid; or (N, points) or (N, points, C) and
    coordinates (N, points, d), or (points, d) for all.
    """
    result = _collected(path, arrays, reading, labelled)
    if labelled:
        result.groups = groups_of(path, arrays, reading, len(result))
        result.order = order_of(path, arrays, reading, len(result))
    return result


def _collected(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    key = needed(arrays, INPUTS, first_channel(reading), path, "inputs")
    places = find(arrays, PLACES)
    inputs = floats(path, key, arrays[key])
    answer, answers = reading.label, None
    if labelled:
        rest = {name: value for name, value in arrays.items() if name not in (key, places)}
        answer = needed(rest, ANSWERS, reading.label, path, "answers")
        answers = floats(path, answer, arrays[answer]).astype(np.float32)
    taken = {"inputs": f"array {key!r}", "answers": f"array {answer!r}"}
    settled = reading.settled(
        label=answer, task="regression", channels=(key,), split=rule_of(reading)
    )
    if places is None and inputs.ndim == 2:  # a line is points at equal distances
        line = np.linspace(0, 1, inputs.shape[1], dtype=np.float32)[:, None]
        return _on_points(path, settled, inputs, answers, line, taken | {"grid": "a line"})
    if places is not None:
        taken |= {"coordinates": f"array {places!r}"}
        points = floats(path, places, arrays[places])
        return _on_points(path, settled, inputs, answers, points, taken)
    samples = (inputs[:, None] if inputs.ndim == 3 else inputs).astype(np.float32)
    if answers is not None:
        answers = answers[:, None] if answers.ndim == 3 else answers
        if samples.ndim != 4 or answers.ndim != 4 or samples.shape[::2] != answers.shape[::2]:
            raise DataError(
                f"{path}: {key!r} {arrays[key].shape} and {answer!r} {arrays[answer or ''].shape}; "
                "needs (N, C, H, W) and (N, K, H, W), or coordinates for points"
            )
    _check_finite(path, key, samples)
    if answers is not None:
        _check_finite(path, answer or "", answers)
    result = collection_of(
        path,
        settled,
        samples,
        answers,
        taken | {"grid": f"{samples.shape[2]} × {samples.shape[3]}"},
    )
    _, channels, height, width = samples.shape
    result.channels = tuple(f"{key} {i + 1}" for i in range(channels))
    if width < min(channels, height) and width <= FEW:
        result.remarks.append(
            f"array {key!r} {samples.shape} is read as {channels} channels on a grid of {height} × "
            f"{width}; if its channels come last, move them: np.moveaxis({key}, -1, 1)"
        )
    return result


def _on_points(
    path: Path,
    reading: Reading,
    inputs: np.ndarray,
    answers: np.ndarray | None,
    places: np.ndarray,
    taken: dict[str, str],
) -> Collection:
    inputs = inputs.reshape(*inputs.shape[:2], -1)
    count, _points = inputs.shape[:2]
    places = np.broadcast_to(places, (count, *places.shape)) if places.ndim == 2 else places
    answers = None if answers is None else answers.reshape(*answers.shape[:2], -1)
    shapes = [inputs.shape[:2], places.shape[:2], *([] if answers is None else [answers.shape[:2]])]
    if len(set(shapes)) > 1 or places.ndim != 3:
        raise DataError(
            f"{path}: inputs, coordinates and answers of {shapes} samples and points; needs "
            "(N, points, C), (N, points, d) and (N, points, K)"
        )
    here = np.logical_not(np.isnan(places).any(2))
    if not here.any(1).all():
        row = int(here.any(1).argmin())
        raise DataError(
            f"{path}: sample {row} has no point whose coordinates are all there; leave it out"
        )
    samples = [values[mask] for values, mask in zip(inputs, here)]
    said = None if answers is None else [values[mask] for values, mask in zip(answers, here)]
    for what, rows in (("inputs", samples), ("answers", said or [])):
        for row, values in enumerate(rows):
            if not np.isfinite(values).all():
                raise DataError(
                    f"{path}: {what} of sample {row} hold a value that is no finite number; "
                    "coordinates of NaN mark points that are not there"
                )
    result = collection_of(path, reading, samples, said, taken)
    result.coordinates = [values[mask] for values, mask in zip(places, here)]
    result.channels = tuple(f"input {i + 1}" for i in range(inputs.shape[2]))
    return result


def _check_finite(path: Path, key: str, values: np.ndarray) -> None:
    bad = ~np.isfinite(values).reshape(len(values), -1).all(1)
    if bad.any():
        raise DataError(
            f"{path}: {key!r} of sample {int(bad.argmax())} holds a value that is no finite number"
        )
