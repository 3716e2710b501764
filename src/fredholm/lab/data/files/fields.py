"""Fields in arrays: inputs and answers on a grid, or on points of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....errors import DataError
from .collection import Collection, numbered
from .named import ANSWERS, INPUTS, PLACES, ArrayFile, first_channel, rule_of

FEW = 4  # most channels that a last axis may be


def collect_fields(file: ArrayFile) -> Collection:
    """Read fields: inputs and answers (N, H, W) or (N, C, H, W) on a grid; or (N, points) or
    (N, points, C) and coordinates (N, points, d), or (points, d) for all.

    Raises:
        DataError: arrays that are missing or do not fit, or values that are not finite.
    """
    key = file.needed(INPUTS, first_channel(file.reading), "inputs")
    places = file.find(PLACES)
    inputs = file.floats(key)
    answer = file.reading.label
    answers = None
    if file.labelled:
        # One array may have a usual name of both, such as `u`.
        rest = {name: file[name] for name in file.arrays if name not in (key, places)}
        answer = replace(file, arrays=rest).needed(ANSWERS, answer, "answers")
        answers = file.floats(answer).astype(np.float32)
    reading = file.reading.settled(
        label=answer,
        task="regression",
        channels=(key,),
        split=rule_of(file.reading),
    )
    result = file.collection(
        reading,
        inputs,
        answers,
        {"inputs": f"array {key!r}", "answers": f"array {answer!r}"},
    )
    result.order = file.order(len(inputs))

    if places is not None:
        result.taken["coordinates"] = f"array {places!r}"
        _put_on_points(result, file, file.floats(places))
    elif inputs.ndim == 2:
        # A line is points at equal distances.
        result.taken["grid"] = "a line"
        line = np.linspace(0, 1, inputs.shape[1], dtype=np.float32)
        _put_on_points(result, file, line[:, None])
    else:
        _put_on_grid(result, file, key)
    return result


def _put_on_grid(
    result: Collection,
    file: ArrayFile,
    key: str,
) -> None:
    """Bring fields to (N, C, H, W)."""
    samples = result.samples.astype(np.float32)
    answers = result.labels
    answer = result.reading.label or ""
    if samples.ndim == 3:
        samples = samples[:, None]
    fits = samples.ndim == 4
    if answers is not None:
        if answers.ndim == 3:
            answers = answers[:, None]
        fits = fits and answers.ndim == 4 and samples.shape[::2] == answers.shape[::2]
    if not fits:
        shapes = {name: file[name].shape for name in (key, answer) if name in file.arrays}
        raise DataError(
            f"{file.path}: expected fields (N, C, H, W) and (N, K, H, W), got {shapes}; bring them "
            "to these axes, or give coordinates for points"
        )
    for name, values in ((key, samples), (answer, answers)):
        if values is None:
            continue
        bad = ~np.isfinite(values).reshape(len(values), -1).all(1)
        if bad.any():
            raise _not_finite(file, repr(name), int(bad.argmax()), "fields on a grid have no gaps")

    _, channels, height, width = samples.shape
    result.samples = samples
    result.labels = answers
    result.taken["grid"] = f"{height} × {width}"
    result.channels = numbered(key, channels)
    # Channels of pictures often come last: then the "width" is small, and the "channels" are many.
    if width < min(channels, height) and width <= FEW:
        result.remarks.append(
            f"array {key!r} {samples.shape} is read as {channels} channels on a grid of {height} × "
            f"{width}; if its channels come last, move them: np.moveaxis({key}, -1, 1)"
        )


def _put_on_points(
    result: Collection,
    file: ArrayFile,
    places: np.ndarray,
) -> None:
    """Bring fields to lists of (points, C), without the points whose coordinates are NaN."""
    arrays = {"inputs": result.samples, "answers": result.labels}
    arrays = {
        what: values.reshape(*values.shape[:2], -1)
        for what, values in arrays.items()
        if values is not None
    }
    if places.ndim == 2:
        places = np.broadcast_to(places, (len(result), *places.shape))
    shapes = [values.shape[:2] for values in (*arrays.values(), places)]
    if len(set(shapes)) > 1 or places.ndim != 3:
        raise DataError(
            f"{file.path}: expected inputs (N, points, C), answers (N, points, K) and coordinates "
            f"(N, points, d), got {shapes} samples and points; bring them to the same"
        )

    here = np.logical_not(np.isnan(places).any(axis=2))
    lost = np.logical_not(here.any(axis=1))
    if lost.any():
        raise DataError(
            f"{file.path}: sample {int(lost.argmax())} has no point whose coordinates are all "
            "there; leave it out"
        )
    parts = {
        what: [rows[mask] for rows, mask in zip(values, here)] for what, values in arrays.items()
    }
    for what, rows in parts.items():
        for number, values in enumerate(rows):
            if not np.isfinite(values).all():
                fix = "coordinates of NaN mark points that are not there"
                raise _not_finite(file, what, number, fix)
    result.samples = parts["inputs"]
    result.labels = parts.get("answers")
    result.coordinates = [values[mask] for values, mask in zip(places, here)]
    result.channels = numbered("input", arrays["inputs"].shape[-1])


def _not_finite(
    file: ArrayFile,
    what: str,
    number: int,
    fix: str,
) -> DataError:
    return DataError(
        f"{file.path}: {what} of sample {number}: expected finite numbers, got NaN or an infinite "
        f"one; {fix}"
    )
