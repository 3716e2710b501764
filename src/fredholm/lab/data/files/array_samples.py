"""Series and clouds in arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....errors import DataError
from .array_labels import read_labels
from .clouds import exchanged, point_channels
from .collection import Collection, numbered
from .named import CLOUDS, INPUTS, LENGTHS, TIMES, ArrayFile, first_channel
from .times import NotATime, Ticks, ticks_of_array


def collect_series(file: ArrayFile) -> Collection:
    """Read series: (N, time, channels) or (N, time), NaN where nothing was measured; or
    (points, channels) and ``lengths``.

    Raises:
        DataError: arrays that are missing or do not fit.
    """
    key = file.needed(INPUTS, first_channel(file.reading), "series")
    samples = _ragged(file, key)
    time = file.reading.time or file.find(TIMES)
    taken = {"series": f"array {key!r}"}
    clocks: list[Ticks] = []
    if time is not None:
        time = file.needed(TIMES, time, "times")
        taken["time"] = f"array {time!r}"
        clocks = _times(file, time, samples, file[key].shape)
    settled, labels, steps = read_labels(file, len(samples), samples)
    taken["label"] = f"array {settled.label!r}"

    settled = settled.settled(time=time, channels=(key,))
    result = file.collection(settled, samples, labels, taken)
    result.steps = steps
    if clocks:
        result.times = [clock.seconds for clock in clocks]
        result.starts = [clock.text(0) for clock in clocks]
        # Each series has an origin of its own: only absolute times can be compared.
        result.order = np.array([clock.absolute(0) for clock in clocks], np.longdouble)
    result.channels = numbered("channel", samples[0].shape[1])
    result.remarks += _axes(file[key], key)
    return result


def _axes(values: np.ndarray, key: str) -> Iterator[str]:
    """Yield a remark if the axes of an array look like those of something else."""
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


def _ragged(file: ArrayFile, key: str) -> list[np.ndarray]:
    """Return the samples of an array, each as (points, channels).

    Either the array is padded, and samples end where ``lengths`` say or before NaN at their ends;
    or it holds all points one after the other, and ``lengths`` divide it.
    """
    values = file.floats(key)
    counts = None
    lengths = file.find(LENGTHS)
    if lengths is not None:
        counts = _counts(file, lengths)
        # With two axes, both are possible: padded series of one channel, unless the lengths add up
        # to the first axis.
        padded = values.ndim == 3
        if values.ndim == 2 and counts.shape == values.shape[:1]:
            padded = counts.sum() != len(values)
        if not padded:
            return _divided(file, key, lengths, counts)

    if values.ndim not in (2, 3):
        raise file.error(key, "(N, time, channels)", "bring it to these axes")
    count, points = values.shape[:2]
    samples: Sequence[np.ndarray] = list(values.reshape(count, points, -1))
    if lengths is not None and counts is not None:
        most = counts.max(initial=0)
        if counts.shape != (count,) or most > points:
            raise file.error(
                lengths,
                f"({count},), each at most {points}, as {key!r} has",
                f"the largest is {most}: correct it, or if it holds something else, rename it",
            )
        # Whatever lies behind a sample's points is padding, even if it is not NaN.
        samples = [sample[:n] for sample, n in zip(samples, counts)]

    result = []
    for row, sample in enumerate(samples):
        known = np.flatnonzero(~np.isnan(sample).all(1))
        if not len(known):
            raise _no_number(file, key, row)
        end = known[-1] + 1
        result.append(sample[:end])
    return result


def _divided(
    file: ArrayFile,
    key: str,
    lengths: str,
    counts: np.ndarray,
) -> list[np.ndarray]:
    """Return the samples of an array that holds all points one after the other."""
    values = file.floats(key)
    if counts.sum() != len(values):
        raise file.error(
            lengths,
            f"lengths that sum to the {len(values)} points of {key!r}",
            f"they sum to {counts.sum()}: correct them",
        )
    points = values.reshape(len(values), -1)
    ends = np.cumsum(counts)[:-1]
    samples = np.split(points, ends)
    for row, sample in enumerate(samples):
        if np.isnan(sample).all():
            raise _no_number(file, key, row)
    return samples


def _no_number(
    file: ArrayFile,
    key: str,
    row: int,
) -> DataError:
    return DataError(f"{file.path}: sample {row} of {key!r} holds no number; leave it out")


def _counts(file: ArrayFile, key: str) -> np.ndarray:
    """Return the number of points of each sample.

    Raises:
        DataError: anything but whole numbers from 1 on.
    """
    values = file[key]
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise file.error(key, "whole numbers (N,)", "give the number of points of each sample")
    few = values < 1
    if few.any():
        row = int(few.argmax())
        raise DataError(
            f"{file.path}: {key!r} of sample {row}: expected 1 point or more, got {values[row]}; "
            "leave the sample out"
        )
    return values


def _times(
    file: ArrayFile,
    key: str,
    samples: list[np.ndarray],
    shape: tuple[int, ...],
) -> list[Ticks]:
    """Return the times of each sample of an array of this ``shape``.

    Times are one array for all samples, or have one row per sample, or lie one after the other as
    the points do.
    """
    values = file[key]
    lengths = [len(sample) for sample in samples]
    if values.dtype.kind not in "iufmM":
        raise file.error(key, "times: numbers, or numpy's dates", "convert them")
    if values.ndim == 1 and file.find(LENGTHS) and len(samples) != shape[0]:
        ends = np.cumsum(lengths)[:-1]
        parts = np.split(values, ends)
    elif values.shape == shape[1:2]:
        parts = [values[:n] for n in lengths]
    elif values.ndim == 2 and len(values) == len(samples):
        parts = [row[:n] for row, n in zip(values, lengths)]
    else:
        fix = "correct it, or if it holds other times, rename it"
        if values.shape == shape[:1]:
            fix = f"it has one per sample: {fix}"
        raise file.error(key, f"the times of the points, {shape[1:2]} or {shape[:2]}", fix)

    result = []
    for row, (times, n) in enumerate(zip(parts, lengths)):
        where = f"{file.path}: {key!r} of sample {row}"
        try:
            ticks = ticks_of_array(times)
        except NotATime as error:
            time = times[error.number]
            fix = error.why
            if not np.isfinite(time):
                fix = "leave the point out, or the sample"
            raise DataError(
                f"{where}: expected finite times, got {time} as time {error.number}; {fix}"
            ) from error
        grow = np.diff(ticks.values) > 0
        if len(times) != n or not grow.all():
            raise DataError(
                f"{where}: expected {n} times, each later than the one before, got {times[:4]}, …; "
                "sort them, or leave the sample out"
            )
        result.append(ticks)
    return result


def collect_clouds(file: ArrayFile) -> Collection:
    """Read clouds: (N, points, 2 or more), coordinates first, NaN where a cloud has fewer points;
    or all points and ``lengths``.

    Raises:
        DataError: arrays that are missing or do not fit, or a cloud without a point.
    """
    key = file.needed((*CLOUDS, *INPUTS), first_channel(file.reading), "clouds")
    clouds = []
    for number, cloud in enumerate(_ragged(file, key)):
        # NaN is the padding: a point with a missing value cannot be told from it.
        missing = np.isnan(cloud).any(1)
        known = cloud[~missing]
        if not len(known):
            raise DataError(
                f"{file.path}: every point of sample {number} of {key!r} has a NaN, and counts as "
                "missing; leave the sample out, or the channel"
            )
        clouds.append(known)
    settled, labels, _ = read_labels(file, len(clouds), None)
    taken = {"clouds": f"array {key!r}", "label": f"array {settled.label!r}"}
    settled = settled.settled(channels=(key,))
    result = file.collection(settled, clouds, labels, taken)
    result.order = file.order(len(clouds))
    result.channels = point_channels(clouds[0].shape[1])
    result.remarks += exchanged(clouds)
    return result
