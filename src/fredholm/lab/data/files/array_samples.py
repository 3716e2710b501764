"""Series and clouds in arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .array_labels import read_labels
from .clouds import exchanged
from .collection import Collection
from .named import (
    CLOUDS,
    INPUTS,
    LENGTHS,
    TIMES,
    collection_of,
    find,
    first_channel,
    floats,
    groups_of,
    needed,
    order_of,
)
from .reading import Reading
from .times import NotATime, Ticks, ticks_of_array


def collect_series(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    """(N, time, channels) or (N, time), NaN where nothing was measured; or (points, channels) and
    ``lengths``.
    """
    key = needed(arrays, INPUTS, first_channel(reading), path, "series")
    samples = _ragged(path, arrays, key)
    time = reading.time or find(arrays, TIMES)
    clocks: list[Ticks] | None = None
    if time is not None:
        time = needed(arrays, TIMES, time, path, "times")
        clocks = _times(path, arrays, time, samples, arrays[key].shape)
    settled, labels, steps = read_labels(path, arrays, reading, labelled, len(samples), samples)
    taken = {"series": f"array {key!r}"} | ({"time": f"array {time!r}"} if time else {})
    result = collection_of(
        path, settled.settled(time=time, channels=(key,)), samples, labels, taken
    )
    result.steps = steps
    if clocks is not None:
        result.times = [clock.seconds for clock in clocks]
        result.starts = [clock.text(0) for clock in clocks]
        result.order = np.array([clock.absolute(0) for clock in clocks], np.longdouble)
    result.groups = groups_of(path, arrays, reading, len(samples)) if labelled else None
    result.channels = tuple(f"channel {i + 1}" for i in range(samples[0].shape[1]))
    result.remarks += _axes(arrays[key], key)
    return result


def _axes(values: np.ndarray, key: str) -> Iterator[str]:
    """Say that the axes of an array may mean something else."""
    if values.ndim != 3:
        return
    _, points, channels = values.shape
    if values.dtype == np.uint8:
        yield (
            f"array {key!r} holds bytes {values.shape}, as pictures do; it is read as series of "
            f"{points} points: pictures are read from folders, and by the estimators"
        )
    elif channels > points:
        yield (
            f"array {key!r} {values.shape} is read as series of {points} points in {channels} "
            "channels; if it is (series, channels, times), transpose it"
        )


def _ragged(path: Path, arrays: dict[str, np.ndarray], key: str) -> list[np.ndarray]:
    """The samples of an array: padded ones, as far as ``lengths`` say or by NaN at their ends, or
    all points one after the other.
    """
    values, lengths = floats(path, key, arrays[key]), find(arrays, LENGTHS)
    counts = None if lengths is None else _counts(path, lengths, arrays[lengths])
    padded = values.ndim == 3 or (
        values.ndim == 2
        and counts is not None
        and counts.shape == values.shape[:1]
        and counts.sum() != len(values)
    )
    if counts is not None and not padded:
        ends = np.cumsum(counts)
        if len(ends) == 0 or ends[-1] != len(values):
            raise DataError(
                f"{path}: {lengths!r} sum to {int(ends[-1]) if len(ends) else 0}; {key!r} has "
                f"{len(values)} points"
            )
        samples = np.split(values.reshape(len(values), -1), ends[:-1])
        empty = next((i for i, sample in enumerate(samples) if np.isnan(sample).all()), None)
        if empty is not None:
            raise DataError(f"{path}: sample {empty} of {key!r} holds no number")
        return samples
    if values.ndim not in (2, 3):
        raise DataError(f"{path}: {key!r} has shape {values.shape}; needs (N, time, channels)")
    whole: Any = values.reshape(*values.shape[:2], -1)
    if counts is not None:  # what lies behind a sample's points is no part of it
        if counts.shape != values.shape[:1] or counts.max() > values.shape[1]:
            raise DataError(
                f"{path}: {lengths!r} {counts.shape}, up to {counts.max()}, does not fit {key!r} "
                f"{values.shape}; needs ({len(values)},), each at most {values.shape[1]}; where it "
                "holds something else, give it another name"
            )
        whole = [sample[:n] for sample, n in zip(whole, counts)]
    samples = []
    for row, sample in enumerate(whole):
        known = np.flatnonzero(~np.isnan(sample).all(1))
        if not len(known):
            raise DataError(f"{path}: sample {row} of {key!r} holds no number")
        samples.append(sample[: known[-1] + 1])
    return samples


def _counts(path: Path, key: str, values: np.ndarray) -> np.ndarray:
    """How many points each sample has.

    Raises:
        DataError: no whole numbers from 1 on.
    """
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise DataError(
            f"{path}: {key!r} has shape {values.shape} of {values.dtype}; needs a whole number of "
            "points for each sample"
        )
    few = values < 1
    if few.any():
        row = int(few.argmax())
        raise DataError(f"{path}: {key!r} of sample {row} is {values[row]}; needs 1 point or more")
    return values


def _times(
    path: Path,
    arrays: dict[str, np.ndarray],
    key: str,
    samples: list[np.ndarray],
    shape: tuple[int, ...],
) -> list[Ticks]:
    """Of each sample, which are an array of this ``shape`` together."""
    values, lengths = arrays[key], [len(sample) for sample in samples]
    if values.dtype.kind not in "iufmM":
        raise DataError(
            f"{path}: {key!r} holds {values.dtype}; needs times: numbers, or numpy's dates"
        )
    if values.ndim == 1 and find(arrays, LENGTHS) and len(samples) != shape[0]:
        parts = np.split(values, np.cumsum(lengths)[:-1])
    elif values.shape == shape[1:2]:
        parts = [values[:n] for n in lengths]
    elif values.ndim == 2 and len(values) == len(samples):
        parts = [row[:n] for row, n in zip(values, lengths)]
    else:
        each = ", one for each sample" if values.shape == shape[:1] else ""
        raise DataError(
            f"{path}: {key!r} has shape {values.shape}{each}; needs the times of the "
            f"points, {shape[1:2]} or {shape[:2]}; where it holds other times, give it another name"
        )
    result = []
    for row, (times, n) in enumerate(zip(parts, lengths)):
        try:
            ticks = ticks_of_array(times)
        except NotATime:
            ticks = None
        if ticks is None or len(times) != n or (np.diff(ticks.values) <= 0).any():
            raise DataError(
                f"{path}: {key!r} of sample {row} does not go forward, or is not as long as its "
                f"{n} points; needs one later time a point"
            )
        result.append(ticks)
    return result


def collect_clouds(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    """(N, points, 2 or more), coordinates first, NaN where a cloud has fewer; or all points and
    ``lengths``.
    """
    key = needed(arrays, (*CLOUDS, *INPUTS), first_channel(reading), path, "clouds")
    clouds = [c[~np.isnan(c).any(1)] for c in _ragged(path, arrays, key)]
    empty = next((i for i, cloud in enumerate(clouds) if not len(cloud)), None)
    if empty is not None:
        raise DataError(
            f"{path}: every point of sample {empty} of {key!r} has a NaN, and counts as not there; "
            "leave the sample out, or the channel"
        )
    settled, labels, _ = read_labels(path, arrays, reading, labelled, len(clouds), None)
    taken = {"clouds": f"array {key!r}"}
    result = collection_of(path, settled.settled(channels=(key,)), clouds, labels, taken)
    if labelled:
        result.groups = groups_of(path, arrays, reading, len(clouds))
        result.order = order_of(path, arrays, reading, len(clouds))
    result.channels = tuple("xyz"[: clouds[0].shape[1]]) + tuple(
        f"channel {i + 1}" for i in range(3, clouds[0].shape[1])
    )
    result.remarks += exchanged(clouds)
    return result
