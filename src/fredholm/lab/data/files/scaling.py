"""From stored samples to what a model reads, by numbers that were taken from the training samples
and are saved with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....errors import DataError
from ..meshes import unit_ball
from ..mixing import permuted
from .collection import BLOCK, Collection, blocks

MAX_POINTS = 2048  # of a cloud, stored
READ_POINTS = 1024  # of a cloud, read by a model unless more are asked for
EVEN = 1e-3  # of a step, by which regular times may differ from it
COARSEST = 10  # steps of training for each point of a regular series, at most


def measure(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    """The numbers by which samples of this kind are scaled, from the training samples."""
    kind = collection.kind
    if kind == "series":
        return _of_series(collection, training)
    if kind == "rows":
        mean, std = _moments(collection.samples, training)
        return {"mean": mean, "std": std}
    if kind == "clouds":
        smallest = min(len(collection.samples[i]) for i in training)
        points = collection.reading.points or min(smallest, READ_POINTS)
        return {"points": points, "coordinates": min(3, collection.samples[0].shape[1])}
    if kind == "fields" and collection.coordinates is not None:
        return _of_points(collection, training)
    return {}


def as_arrays(collection: Collection, scaling: Mapping[str, Any]) -> Any:
    """Return the samples as a model reads them, float32: one array, or one per sample; texts, files
    and grids as they are.
    """
    if collection.coordinates is not None:
        return point_rows(collection, scaling)
    make = {"series": series_rows, "rows": table_rows, "clouds": cloud_tensor}.get(collection.kind)
    return collection.samples if make is None else make(collection, scaling)


def _moments(values: np.ndarray, rows: np.ndarray | None = None) -> tuple[list[float], list[float]]:
    """Mean and deviation of each column, over all rows or some; what never varies, or is never
    there, keeps its scale. A few columns at a time: no second copy of a large table is held.
    """
    count = len(values) if rows is None else len(rows)
    width = max(1, BLOCK // max(1, count))
    parts = []
    for start in range(0, values.shape[1], width):
        block = values[:, start : start + width]
        parts.append(_of_columns(block if rows is None else block[rows]))
    mean, std = (np.concatenate(part) for part in zip(*parts))
    return mean.tolist(), std.tolist()


def _of_columns(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums go over what is left of a column's least value, so that dates and other large numbers
    keep their digits.
    """
    precision = values.dtype if np.issubdtype(values.dtype, np.floating) else np.float64
    known = ~np.isnan(values)
    count = known.sum(0)
    least = np.where(count > 0, np.where(known, values, np.inf).min(0, initial=np.inf), 0.0)
    rest = np.where(known, values - least.astype(np.float64), 0.0)
    middle = rest.sum(0) / count.clip(min=1)
    std = np.sqrt((np.where(known, rest - middle, 0.0) ** 2).sum(0) / count.clip(min=1))
    largest = np.maximum(np.abs(least), np.abs(least + rest.max(0, initial=0.0)))
    varies = std > 8 * np.finfo(precision).eps * largest
    return least + middle, np.where(varies, std, 1.0)


def scaled(values: np.ndarray, mean: np.ndarray | float, std: np.ndarray | float) -> np.ndarray:
    """(value − mean) / std in float64, then as float32: a block of rows at a time, which a table of
    many rows has no second copy of.
    """
    result = np.empty(values.shape, np.float32)
    for start, block in blocks(values):
        with np.errstate(over="ignore"):  # what is that far away has an answer that is none
            result[start : start + len(block)] = (block.astype(np.float64) - mean) / std
    return result


# --- series and rows ------------------------------------------------------------------------------


def _of_series(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    whole = np.concatenate([collection.samples[i] for i in training])
    mean, std = _moments(whole)
    channels = len(mean)
    if collection.reading.scale == "none":
        mean, std = [0.0] * channels, [1.0] * channels
    step, timed = 1.0, False
    if collection.times is not None:
        gaps = np.concatenate([np.diff(collection.times[i]) for i in training])
        step = float(np.median(gaps)) if len(gaps) else 1.0
        timed = any((np.abs(np.diff(t) / step - 1) > EVEN).any() for t in collection.times)
    clocked = collection.times is not None
    return {"mean": mean, "std": std, "step": step, "timed": timed, "clocked": clocked}


def series_rows(collection: Collection, scaling: Mapping[str, Any]) -> list[np.ndarray]:
    """Each series as (n, channels), with its times in steps since its beginning in front where they
    are irregular; with ``every`` n, each n-th point. Where they are regular it has a row for each
    step of training, NaN at those without a point.

    Raises:
        DataError: times between the steps of a training on regular series.
    """
    mean, std = (np.array(scaling[key], np.float64) for key in ("mean", "std"))
    rows, every = [], scaling.get("every", 1)
    for number, whole in enumerate(collection.samples):
        sample = whole[::every]
        if collection.reading.scale == "sample":
            mean, std = (np.array(part, np.float64) for part in _moments(sample))
        values = scaled(sample, mean, std)
        if scaling["timed"]:
            times = np.arange(len(whole)) * scaling["step"]
            times = (times if collection.times is None else collection.times[number])[::every]
            steps = ((times - times[0]) / scaling["step"]).astype(np.float32)
            values = np.concatenate([steps[:, None], values], 1)
        elif collection.times is not None:
            values = _on_steps(
                values, collection.times[number][::every], scaling, collection, number
            )
        rows.append(values)
    return rows


def _on_steps(
    values: np.ndarray,
    times: np.ndarray,
    scaling: Mapping[str, Any],
    collection: Collection,
    number: int,
) -> np.ndarray:
    """A row for each step of training; the values alone where there is one at every step."""
    gaps = np.diff(times)
    if not len(gaps):
        return values
    # Runs of earlier versions do not say whether they had times; those of the catalogue had none.
    clocked = scaling.get("clocked", "every" not in scaling)
    step = scaling["step"] * scaling.get("every", 1) if clocked else float(np.median(gaps))
    counts = np.round(gaps / step)
    whole = (counts >= 1) & (np.abs(gaps / step - counts) <= EVEN * counts)
    if whole.all() and (counts == 1).all():
        return values
    steps = np.concatenate([[0.0], counts.cumsum()])
    coarser = clocked and collection.task != "steps"  # one answer for all of a series
    if not (coarser and whole.all() and steps[-1] < COARSEST * len(steps)):
        raise _between(collection.where(number), gaps, step if clocked else None, coarser)
    result = np.full((int(steps[-1]) + 1, values.shape[1]), np.nan, values.dtype)
    result[steps.astype(np.int64)] = values
    return result


def _between(where: str, gaps: np.ndarray, step: float | None, coarser: bool) -> DataError:
    """Return the error of times that are no steps of training."""
    even = bool((np.abs(gaps / gaps[0] - 1) <= EVEN).all())
    given = f"every {gaps[0]:g}" if even else f"after {gaps.min():g} to {gaps.max():g}"
    known, needed = "series without times", "equal steps"
    if step is not None:
        known, needed = f"one every {step:g}", f"equal steps of {step:g}"
    more = f" or whole multiples of it, {COARSEST} at most" if coarser else ""
    return DataError(
        f"{where}: has a point {given}; the model was trained on {known}, and needs {needed}{more}"
        ": bring the values to these, or train on irregular times"
    )


def longest(collection: Collection, training: np.ndarray, scaling: Mapping[str, Any]) -> int:
    """The length of a training series, in steps."""
    if not scaling["timed"] or collection.times is None:
        return max(len(collection.samples[i]) for i in training)
    spans = [collection.times[i][-1] - collection.times[i][0] for i in training]
    return round(max(spans) / scaling["step"]) + 1


def table_rows(collection: Collection, scaling: Mapping[str, Any]) -> np.ndarray:
    """Rows (N, columns, 1)."""
    mean, std = (np.array(scaling[key], np.float64) for key in ("mean", "std"))
    if collection.reading.scale == "none":
        return np.asarray(collection.samples, np.float32)[:, :, None]
    return scaled(collection.samples, mean, std)[:, :, None]


# --- clouds and fields on points ------------------------------------------------------------------


def cloud_tensor(collection: Collection, scaling: Mapping[str, Any]) -> np.ndarray:
    """Clouds (N, points, channels), each in a random order of its own, in the unit ball; NaN where
    a cloud has fewer.
    """
    d, widest = scaling["coordinates"], max(len(cloud) for cloud in collection.samples)
    size = max(scaling["points"], min(widest, MAX_POINTS))
    shape = (len(collection), size, collection.samples[0].shape[1])
    result = np.full(shape, np.nan, np.float32)
    for number, cloud in enumerate(collection.samples):
        order = permuted(len(cloud), 5)[:size]
        chosen = cloud
        if collection.reading.scale in (None, "sample"):
            chosen = np.concatenate([unit_ball(cloud[:, :d]), cloud[:, d:]], 1)
        result[number, : len(order)] = chosen[order]
    return result


def _of_points(collection: Collection, training: np.ndarray) -> dict[str, Any]:
    assert collection.coordinates is not None
    places = np.concatenate([collection.coordinates[i] for i in training])
    low = places.min(0)
    extent = float((places.max(0) - low).max()) or 1.0
    mean, std = _moments(np.concatenate([collection.samples[i] for i in training]))
    return {"low": low.tolist(), "extent": extent, "mean": mean, "std": std}


def point_rows(collection: Collection, scaling: Mapping[str, Any]) -> list[np.ndarray]:
    """Coordinates in the unit cube, then inputs, of each sample."""
    assert collection.coordinates is not None
    low, mean, std = (np.array(scaling[key], np.float64) for key in ("low", "mean", "std"))
    return [
        np.concatenate([scaled(places, low, scaling["extent"]), scaled(values, mean, std)], 1)
        for places, values in zip(collection.coordinates, collection.samples)
    ]


def channel_scales(fields: np.ndarray | Sequence[np.ndarray], axis: tuple[int, ...]) -> list[float]:
    """The deviation of each channel, 1 where it never varies."""
    whole = fields if isinstance(fields, np.ndarray) else np.concatenate(fields)
    std = whole.astype(np.float64).std(axis)
    return np.where(std > 0, std, 1.0).tolist()
