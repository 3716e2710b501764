"""Scaling of samples, by numbers measured on the training samples and saved with the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....errors import DataError
from ..meshes import unit_ball
from ..mixing import permuted
from .collection import BLOCK, Collection, blocks

MAX_POINTS = 2048  # points of a cloud in memory
READ_POINTS = 1024  # points of a cloud that a model reads by default
EVEN = 1e-3  # of a step, by which regular times may differ from it

# Largest mean gap between the points of a regular series, in steps of training. Beyond it, a series
# would be mostly missing.
COARSEST = 10


def measure(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    """Return the numbers by which samples of this kind are scaled, as plain data to save.

    Only training samples are measured, so that nothing of the others reaches the model.

    Args:
        training: numbers of the training samples, (n,).

    Returns:
        Of series: see :func:`_of_series`. Of rows: ``mean`` and ``std`` per column. Of clouds:
        ``points``, how many points of a cloud a model reads, and ``coordinates``, how many of the
        first channels are positions (3 at most). Of fields at scattered points: ``low``, the lower
        corner of the box around all points, ``extent``, the longest side of that box, and ``mean``
        and ``std`` per channel. Empty for texts, which have no scale, and for images and fields on
        a grid, which their data sets scale.
    """
    kind = collection.kind
    samples = collection.samples
    if kind == "series":
        return _of_series(collection, training)
    if kind == "rows":
        mean, std = _moments(samples, training)
        return {"mean": mean, "std": std}
    if kind == "clouds":
        return _of_clouds(collection, training)
    if collection.coordinates is not None:
        return _of_point_fields(collection, training)
    return {}


def as_arrays(collection: Collection, scaling: Mapping[str, Any]) -> Any:
    """Return the samples as a model reads them, float32: one array, or one per sample.

    Texts, files and fields on a grid stay as they are.
    """
    if collection.coordinates is not None:
        return _point_rows(collection, scaling)
    if collection.kind == "series":
        return _series_rows(collection, scaling)
    if collection.kind == "rows":
        return _table_rows(collection, scaling)
    if collection.kind == "clouds":
        return _cloud_tensor(collection, scaling)
    return collection.samples


def _moments(
    values: np.ndarray,
    rows: np.ndarray | slice = slice(None),
) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each column, over some rows.

    A few columns at a time, so that there is no second copy of a large table.
    """
    count = len(values[rows, 0])
    width = max(1, BLOCK // max(1, count))
    mean = []
    std = []
    for start in range(0, values.shape[1], width):
        columns = values[:, start : start + width]
        block_mean, block_std = _of_columns(columns[rows])
        mean += block_mean.tolist()
        std += block_std.tolist()
    return mean, std


def _of_columns(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each column, without NaN.

    The deviation of a column that never varies is 1: it keeps its scale. Sums are over differences
    to the least value of a column, so that dates and other large numbers keep their digits.
    """
    precision = np.finfo(np.float64)
    if np.issubdtype(values.dtype, np.floating):
        precision = np.finfo(values.dtype)

    known = ~np.isnan(values)
    count = known.sum(0)
    divisor = count.clip(min=1)
    least = np.where(known, values, np.inf)
    least = least.min(0, initial=np.inf)
    least = np.where(count > 0, least, 0.0)
    rest = values - least.astype(np.float64)
    rest = np.where(known, rest, 0.0)
    middle = rest.sum(0) / divisor
    deviations = np.where(known, rest - middle, 0.0)
    squares = deviations**2
    std = np.sqrt(squares.sum(0) / divisor)

    # Rounding gives a constant column a small deviation.
    most = least + rest.max(0, initial=0.0)
    largest = np.maximum(np.abs(least), np.abs(most))
    varies = std > 8 * precision.eps * largest
    std = np.where(varies, std, 1.0)
    return least + middle, std


def scaled(
    values: np.ndarray,
    mean: np.ndarray | float,
    std: np.ndarray | float,
) -> np.ndarray:
    """Return (value − mean) / std, computed in float64, as float32.

    A block of rows at a time, so that there is no second copy of a large table in float64.
    """
    result = np.empty(values.shape, np.float32)
    for start, block in blocks(values):
        stop = start + len(block)
        # What overflows float32 is that far from the training samples: inf says so.
        with np.errstate(over="ignore"):
            differences = block.astype(np.float64) - mean
            result[start:stop] = differences / std
    return result


# --- series and rows ------------------------------------------------------------------------------


def _of_series(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    """Return moments of the channels, and the usual step between two points.

    ``timed``: times are irregular, and read by the model. ``clocked``: the files have times.
    """
    rows = np.concatenate([collection.samples[i] for i in training])
    mean, std = _moments(rows)
    if collection.reading.scale == "none":
        mean = [0.0] * len(mean)
        std = [1.0] * len(std)
    scaling: dict[str, Any] = {
        "mean": mean,
        "std": std,
        "step": 1.0,
        "timed": False,
        "clocked": False,
    }
    if collection.times is None:
        return scaling

    scaling["clocked"] = True
    gaps = np.concatenate([np.diff(collection.times[i]) for i in training])
    if len(gaps):
        scaling["step"] = float(np.median(gaps))

    # The times of all samples decide: a model without times could not read the others.
    for times in collection.times:
        steps = np.diff(times) / scaling["step"]
        if (np.abs(steps - 1) > EVEN).any():
            scaling["timed"] = True
            break
    return scaling


def _series_rows(collection: Collection, scaling: Mapping[str, Any]) -> list[np.ndarray]:
    """Return each series as (n, channels), every n-th point if ``scaling`` has ``every``.

    Irregular times are an additional first channel, in steps since the series began. A regular
    series has one row per step of training, NaN at those without a point.

    Raises:
        DataError: times between the steps of a training on regular series.
    """
    mean = np.array(scaling["mean"])
    std = np.array(scaling["std"])
    every = scaling.get("every", 1)

    rows = []
    for number, series in enumerate(collection.samples):
        sample = series[::every]
        times = None
        if collection.times is not None:
            times = collection.times[number][::every]
        if collection.reading.scale == "sample":
            mean, std = map(np.array, _moments(sample))
        values = scaled(sample, mean, std)

        if scaling["timed"]:
            step = scaling["step"]
            if times is None:
                times = np.arange(len(series))[::every] * step
            steps = (times - times[0]) / step
            steps = steps.astype(np.float32)
            values = np.concatenate([steps[:, None], values], 1)
        elif times is not None and len(times) > 1:
            gaps = np.diff(times)
            values = _on_steps(values, gaps, scaling, collection, number)
        rows.append(values)
    return rows


def _on_steps(
    values: np.ndarray,
    gaps: np.ndarray,
    scaling: Mapping[str, Any],
    collection: Collection,
    number: int,
) -> np.ndarray:
    """Return one row per step of training; the values themselves if there is one at every step."""
    # Whether the training series had times. Runs of earlier versions do not say it: those of the
    # catalogue, which alone have "every", had none, and those of files had some.
    if "clocked" in scaling:
        clocked = scaling["clocked"]
    else:
        clocked = "every" not in scaling
    step = float(np.median(gaps))
    if clocked:
        step = scaling["step"] * scaling.get("every", 1)

    ratios = gaps / step
    counts = np.round(ratios)
    near = np.abs(ratios - counts) <= EVEN * counts
    multiples = bool(((counts >= 1) & near).all())
    if multiples and (counts == 1).all():
        return values

    # A coarser series has gaps between its points. Where each point is classified, gaps would be
    # classified as well.
    coarser = clocked and collection.task != "steps"
    if coarser and multiples and counts.sum() < COARSEST * len(values):
        steps = np.concatenate([[0], counts.cumsum()])
        steps = steps.astype(np.int64)
        length = steps[-1] + 1
        result = np.full((length, values.shape[1]), np.nan, values.dtype)
        result[steps] = values
        return result

    given = f"after {gaps.min():g} to {gaps.max():g}"
    if (np.abs(gaps / gaps[0] - 1) <= EVEN).all():
        given = f"every {gaps[0]:g}"
    known = "series without times"
    needed = "equal steps"
    if clocked:
        known = f"one every {step:g}"
        needed = f"equal steps of {step:g}"
    if coarser:
        needed += f" or whole multiples of it, {COARSEST} at most"
    raise DataError(
        f"{collection.where(number)}: expected {needed}, as the model was trained on {known}, "
        f"got a point {given}; bring the values to these, or train on irregular times"
    )


def longest(
    collection: Collection,
    training: np.ndarray,
    scaling: Mapping[str, Any],
) -> int:
    """Return the length of the longest training series, in steps."""
    if not scaling["timed"] or collection.times is None:
        return max(len(collection.samples[i]) for i in training)

    spans = []
    for number in training:
        times = collection.times[number]
        spans.append(times[-1] - times[0])
    return round(max(spans) / scaling["step"]) + 1


def _table_rows(collection: Collection, scaling: Mapping[str, Any]) -> np.ndarray:
    """Return rows (N, columns, 1)."""
    if collection.reading.scale == "none":
        rows = np.asarray(collection.samples, np.float32)
    else:
        mean = np.array(scaling["mean"])
        std = np.array(scaling["std"])
        rows = scaled(collection.samples, mean, std)
    return rows[:, :, None]


# --- clouds and fields on points ------------------------------------------------------------------


def _of_clouds(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    """Return how many points a model reads, and how many channels are coordinates."""
    clouds = collection.samples
    points = collection.reading.points
    if not points:
        smallest = min(len(clouds[i]) for i in training)
        points = min(smallest, READ_POINTS)
    channels = clouds[0].shape[1]
    return {"points": points, "coordinates": min(3, channels)}


def _of_point_fields(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    """Return the box around all training points, and moments of the channels."""
    coordinates = collection.coordinates or ()
    places = np.concatenate([coordinates[i] for i in training])
    low = places.min(0)
    sides = places.max(0) - low
    # One length for all axes keeps the shape of the domain. If all points coincide, it is 1.
    extent = float(sides.max()) or 1.0

    values = np.concatenate([collection.samples[i] for i in training])
    mean, std = _moments(values)
    return {
        "low": low.tolist(),
        "extent": extent,
        "mean": mean,
        "std": std,
    }


def _cloud_tensor(collection: Collection, scaling: Mapping[str, Any]) -> np.ndarray:
    """Return clouds (N, points, channels) in the unit ball, NaN behind the points of a smaller one.

    The order of the points is random, so that the first ones of any number are a sample of all.
    """
    clouds = collection.samples
    d = scaling["coordinates"]
    largest = max(map(len, clouds))
    size = max(scaling["points"], min(largest, MAX_POINTS))
    channels = clouds[0].shape[1]

    result = np.full((len(clouds), size, channels), np.nan, np.float32)
    for number, cloud in enumerate(clouds):
        order = permuted(len(cloud), 5)[:size]
        if collection.reading.scale in (None, "sample"):
            positions = unit_ball(cloud[:, :d])
            cloud = np.concatenate([positions, cloud[:, d:]], 1)
        result[number, : len(order)] = cloud[order]
    return result


def _point_rows(collection: Collection, scaling: Mapping[str, Any]) -> list[np.ndarray]:
    """Return coordinates in the unit cube, then inputs, of each sample."""
    low = np.array(scaling["low"])
    mean = np.array(scaling["mean"])
    std = np.array(scaling["std"])
    rows = []
    for places, values in zip(collection.coordinates or (), collection.samples):
        unit = scaled(places, low, scaling["extent"])
        inputs = scaled(values, mean, std)
        rows.append(np.concatenate([unit, inputs], 1))
    return rows


def channel_scales(fields: np.ndarray, axis: tuple[int, ...]) -> list[float]:
    """Return the deviation of each channel, 1 if it never varies."""
    std = fields.astype(np.float64).std(axis)
    std = np.where(std > 0, std, 1.0)
    return std.tolist()
