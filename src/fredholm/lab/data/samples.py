"""Samples in memory (arrays, lists, texts) as a :class:`Collection`, the form of files' samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from ...errors import OptionError, ShapeError
from .files.casts import LARGEST
from .files.collection import Collection, blocks, too_large
from .files.reading import Reading
from .files.times import NotATime, Ticks, ticks_of_array, ticks_of_words
from .frames import is_frame

_BY_AXES = {2: "rows", 3: "series", 4: "images"}


def recognise(samples: Any) -> str:
    """Return the kind of samples in memory, one of :data:`fredholm.lab.data.files.datasets.KINDS`.

    An array (N, columns) is rows, (N, times, channels) series, (N, H, W, C) images; strings are
    texts; a list of arrays (times, channels), or of pairs (times, values), is series, one of arrays
    (H, W, C) images. Clouds and fields look like other kinds and are never guessed.

    Raises:
        ShapeError: none of these.

    Example:
        >>> recognise(np.zeros((5, 3))), recognise(["a text"])
        ('rows', 'texts')
        >>> recognise([np.zeros((4, 1)), np.zeros((6, 1))])
        'series'
    """
    if is_frame(samples):
        return "rows"

    # The samples are read again when they are collected, so an iterator would be empty by then.
    listed = isinstance(samples, Iterable) and not isinstance(samples, Iterator)
    if not (listed or hasattr(samples, "__array__")):
        raise ShapeError(
            "X: expected an array or a list of samples, which can be read more than once, got "
            f"{type(samples).__name__}; pass list(X)"
        )

    # Some libraries' arrays have no ``ndim``; numpy's copy of them does.
    if hasattr(samples, "__array__") and not hasattr(samples, "ndim"):
        samples = np.asarray(samples)
    axes = getattr(samples, "ndim", 1)
    if axes == 1:
        return _kind_of_list(samples)
    if axes not in _BY_AXES:
        raise ShapeError(
            "X: expected (N, columns), (N, times, channels) or (N, H, W, C), got an array of "
            f"{axes} axes; reshape it, or pass a list of samples"
        )
    return _BY_AXES[axes]


def _kind_of_list(samples: Any) -> str:
    """Return the kind of a list of samples, of which the first decides."""
    first: Any = next(iter(samples), None)
    if isinstance(first, str):
        return "texts"
    if is_frame(first):
        return "series"
    if isinstance(first, Mapping):
        raise ShapeError(
            "X: expected samples as rows of numbers, got dictionaries; pass pandas.DataFrame(X)"
        )
    if isinstance(first, tuple) and len(first) == 2 and np.ndim(first[0]) == 1:
        return "series"
    if hasattr(first, "__array__") and np.ndim(first) == 3:
        return "images"
    if hasattr(first, "__array__") and np.ndim(first):
        return "series"

    # Plain lists of numbers are rows if all are equally long, and else series of one channel.
    if isinstance(first, list) and first and np.ndim(first[0]) == 0:
        lengths = {len(row) for row in samples}
        return "rows" if len(lengths) == 1 else "series"
    if isinstance(first, list):
        return "series"
    return "rows"


def collect_samples(samples: Any, kind: str, task: str) -> Collection:
    """Return samples of a kind, without labels, as a collection. Frames have been converted to
    arrays before, see :mod:`.frames`.

    Series are an array (N, times, channels), a list of arrays (times, channels) or (times,), or one
    of pairs (times, values); NaN is what was not measured. Images are (N, H, W) or (N, H, W, C),
    whole numbers (0 to 255) as shares of 255. Clouds are (points, channels) each, coordinates
    first; a point with NaN is left out, as one that is not there. Fields are (N, H, W) or
    (N, C, H, W), or a list of pairs (coordinates (points, d), values (points, C)).

    Raises:
        ShapeError: arrays of other shapes, or of different ones; a cloud without a point; values
            of another number than their points.
        OptionError: times that do not increase, an infinite value; NaN in images and fields; a
            blank text.
    """
    reading = Reading(kind=kind, task=task, split="random")
    result = Collection(reading, None, lambda i: {"file": "X", "sample": i}, name="samples")
    _FILL[kind](result, samples)
    return result


def collect_answers(answers: Any, collection: Collection) -> Any:
    """Return the targets of the samples in a collection: numbers (N,); of fields (N, K, H, W), or
    a list of (points, K).

    Raises:
        ShapeError: another grid, or another number of points, than the field has.
        OptionError: a value that is not a finite number.
    """
    # Errors name the targets, but are otherwise those of samples.
    result = replace(collection, place=lambda number: {"file": "y", "sample": number})
    if collection.kind != "fields":
        _check_finite(result, answers)
        return answers

    if collection.coordinates is None:
        fields = _grids(result, answers, "y")
        grid = collection.samples.shape[2:]
        if fields.shape[2:] != grid:
            raise ShapeError(
                f"y: expected fields on the grid of X, {grid}, got {fields.shape[2:]}; bring both "
                "to one grid"
            )
        return fields
    parts = _matrices(result, list(answers))
    _check_points(result, collection.coordinates, parts)
    return [part.astype(np.float32) for part in parts]


# --- one function per kind ------------------------------------------------------------------------


def _rows(result: Collection, samples: Any) -> None:
    result.samples = np.asarray(samples)
    # Columns of words are cast later, where their errors name the cell.
    if np.issubdtype(result.samples.dtype, np.number):
        _check_size(result, result.samples)
    result.channels = tuple(str(i) for i in range(result.samples.shape[1]))


def _texts(result: Collection, samples: Any) -> None:
    # A string is iterable too: each of its letters would become a text.
    if isinstance(samples, str):
        raise ShapeError(f"X: expected a list of texts, got one text, {samples[:40]!r}; pass [X]")
    result.samples = list(samples)
    for number, text in enumerate(result.samples):
        where = result.where(number)
        if not isinstance(text, str):
            raise ShapeError(f"{where}: expected a text, like the first sample, got {text!r}")
        if not text.strip():
            raise OptionError(
                f"{where}: expected a text of one word or more, got {text!r}; leave it out"
            )


def _series(result: Collection, samples: Any) -> None:
    parts = list(samples)
    if any(map(_is_pair, parts)):
        clocks, parts = _halves(result, parts, "(times, values)")
        result.times = _clocks(result, clocks)
    result.samples = _matrices(result, parts)

    for number, times in enumerate(result.times or ()):
        rows = len(result.samples[number])
        if times.shape != (rows,):
            raise ShapeError(
                f"{result.where(number)}: expected one time per value, got {rows} values at times "
                f"{times.shape}; give both the same length"
            )
        if not (np.diff(times) > 0).all():
            raise OptionError(
                f"{result.where(number)}: expected times that increase, got times that do not; "
                "sort the points by time and leave out repeated ones"
            )


def _clocks(result: Collection, clocks: Sequence[Any]) -> list[np.ndarray]:
    """Return the times of each series since its own first point, and set ``result.dated``.

    Times are in seconds if they are dates or spans of time, else in the unit of the given numbers.
    The first point is subtracted in integers, before the conversion to float64, which would lose
    the nanoseconds of a time since 1970.

    Args:
        clocks: the times of each series as the user gave them: numbers, dates, or words for dates.

    Returns:
        One float64 array per series, in the shape that was given. The caller compares it with the
        number of values, and names the shape in its error.

    Raises:
        OptionError: dates in some series and numbers in others; a value that is not a time, or a
            missing one.
    """
    seconds = []
    for number, times in enumerate(clocks):
        values = _array(result, number, times)
        # `Ticks` are one axis long; the given shape is restored below, for the caller's check.
        ticks = _ticks(result, number, values.reshape(-1))
        # Spans of time (numpy's timedelta64) are converted to seconds, as dates are.
        dated = ticks.dated or values.dtype.kind == "m"
        # The first series decides for all.
        if result.dated is None:
            result.dated = dated
        if dated != result.dated:
            raise OptionError(
                f"{result.where(number)}: expected times that are {times_word(result.dated)}, as "
                f"sample 0 has them, got {times_word(dated)}; give all series the same"
            )
        seconds.append(ticks.seconds.reshape(values.shape))
    return seconds


def _ticks(result: Collection, number: int, values: np.ndarray) -> Ticks:
    """Return the times of one series; dates may be words, and may have a zone."""
    try:
        if values.dtype.kind in "iufmMb":
            return ticks_of_array(values)
        return ticks_of_words([_as_word(value) for value in values.tolist()])
    except NotATime as error:
        cell = values[error.number]
        # Numbers and numpy's dates are times, unless they are missing, infinite or too far apart.
        if values.dtype.kind in "iufmM":
            fix = error.why
            if not np.isfinite(cell):
                fix = "leave the point out"
            raise OptionError(
                f"{result.where(number)}: expected finite times, got {cell} as time "
                f"{error.number}; {fix}"
            ) from None
        raise OptionError(
            f"{result.where(number)}: expected times that are numbers, or dates such as "
            f"2026-03-01T06:00+01:00, got {str(cell)!r}; correct them"
        ) from None


def _as_word(time: Any) -> str:
    # pandas' NaT is a date that differs from itself, and has no ISO form.
    if isinstance(time, date) and time == time:
        return time.isoformat()
    return str(time)


def times_word(dated: bool | None) -> str:
    """Return what times are called in an error: dates, or numbers whose unit nobody knows."""
    return "dates" if dated else "numbers"


def _clouds(result: Collection, samples: Any) -> None:
    clouds = _matrices(result, list(samples))
    # NaN pads clouds to one length in an array, so such rows are not points.
    result.samples = [cloud[~np.isnan(cloud).any(1)] for cloud in clouds]
    for number, cloud in enumerate(result.samples):
        if not len(cloud):
            raise ShapeError(
                f"{result.where(number)}: expected one point or more without NaN, got "
                f"{len(clouds[number])} points that all have NaN; leave the cloud out"
            )


def _images(result: Collection, samples: Any) -> None:
    images = _stack(result, samples)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        raise ShapeError(
            f"X: expected images (N, H, W) or (N, H, W, C), got {images.shape}; reshape them"
        )
    # One or three rows of pixels with more than four "channels" are almost certainly (N, C, H, W).
    if images.shape[1] in (1, 3) and images.shape[2] > 4 < images.shape[3]:
        raise ShapeError(
            f"X: expected images (N, H, W, C), got {images.shape}, channels first; pass "
            "X.transpose(0, 2, 3, 1)"
        )

    low = 0
    high = 0
    if images.size:
        low = images.min()
        high = images.max()
    scale = 1
    if np.issubdtype(images.dtype, np.integer):
        if not 0 <= low <= high <= 255:
            raise OptionError(
                f"X: expected whole numbers from 0 to 255, got images of {images.dtype} from {low} "
                f"to {high}; give numbers on another scale as floats"
            )
        result.pixels = "bytes"
        scale = 255
    elif 0 <= low <= high <= 1:
        result.pixels = "shares"
    else:
        result.pixels = "numbers"
    result.samples = np.moveaxis(images, -1, 1).astype(np.float32) / scale
    _check_finite(result, result.samples)


def _fields(result: Collection, samples: Any) -> None:
    parts = samples
    if not hasattr(samples, "ndim"):
        parts = list(samples)
    if isinstance(parts, list) and any(map(_is_pair, parts)):
        places, values = _halves(result, parts, "(coordinates, values)")
        result.coordinates = _matrices(result, places)
        result.samples = _matrices(result, values)
        _check_points(result, result.coordinates, result.samples)
        return
    result.samples = _grids(result, parts, "X")


def _grids(result: Collection, samples: Any, name: str) -> np.ndarray:
    """Return fields (N, C, H, W) of finite float32 numbers."""
    fields = _stack(result, samples).astype(np.float32)
    if fields.ndim not in (3, 4):
        raise ShapeError(
            f"{name}: expected fields (N, H, W) or (N, C, H, W), got {fields.shape}; reshape them"
        )
    if fields.ndim == 3:
        fields = fields[:, None]
    _check_finite(result, fields)
    return fields


def _check_points(
    result: Collection,
    places: list[np.ndarray],
    values: list[np.ndarray],
) -> None:
    """Refuse values that are not one for each point, and points or values with NaN."""
    for number, (here, there) in enumerate(zip(places, values)):
        if len(here) != len(there):
            raise ShapeError(
                f"{result.where(number)}: expected one value per point, got {len(there)} values at "
                f"{len(here)} points; give both the same length"
            )
    for arrays in (places, values):
        _check_finite(result, arrays, fix="leave such points out of X and y")


_FILL: dict[str, Callable[[Collection, Any], None]] = {
    "rows": _rows,
    "texts": _texts,
    "series": _series,
    "clouds": _clouds,
    "images": _images,
    "fields": _fields,
}


# --- arrays ---------------------------------------------------------------------------------------


def _is_pair(sample: Any) -> bool:
    return isinstance(sample, tuple) and len(sample) == 2 and np.ndim(sample[0]) > 0


def _halves(
    result: Collection,
    samples: list[Any],
    form: str,
) -> tuple[list[Any], list[Any]]:
    """Return the first and the second of each pair; where one sample is a pair, all must be."""
    for number, sample in enumerate(samples):
        if not _is_pair(sample):
            raise ShapeError(
                f"{result.where(number)}: expected a pair {form} like other samples, got "
                f"{type(sample).__name__}; give all samples as pairs, or none"
            )
    return [first for first, _ in samples], [second for _, second in samples]


def _array(
    result: Collection,
    number: int,
    sample: Any,
    dtype: Any = None,
) -> np.ndarray:
    try:
        return np.asarray(sample, dtype)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"{result.where(number)}: expected an array of numbers, got {type(sample).__name__} "
            f"({error}); make all rows equally long"
        ) from error


def _stack(result: Collection, samples: Any) -> np.ndarray:
    """Return samples of one shape as one array."""
    if hasattr(samples, "ndim"):
        return np.asarray(samples)
    arrays = [_array(result, number, sample) for number, sample in enumerate(samples)]
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ShapeError(
                f"{result.where(number)}: expected the shape of the first sample, "
                f"{arrays[0].shape}, got {array.shape}; bring all to one size"
            )
    return np.stack(arrays)


def _matrices(result: Collection, parts: Sequence[Any]) -> list[np.ndarray]:
    """Return samples (points, channels) of one width; (points,) is one channel."""
    arrays = []
    for number, part in enumerate(parts):
        array = _array(result, number, part, np.float64)
        if array.ndim == 1:
            array = array[:, None]
        arrays.append(array)
    for number, array in enumerate(arrays):
        if array.ndim != 2 or not len(array) or array.shape[1] != arrays[0].shape[1]:
            raise ShapeError(
                f"{result.where(number)}: expected (points, {arrays[0].shape[-1]}) with one point "
                f"or more, got {np.shape(parts[number])}; give all samples the same channels"
            )
    _check_size(result, arrays)
    return arrays


def _check_size(result: Collection, arrays: Any) -> None:
    """Refuse infinite numbers, and those that float32, in which models compute, cannot hold."""
    found = too_large(arrays)
    if found is not None:
        number, at = found
        raise OptionError(
            f"{result.where(number)}: expected finite numbers up to {LARGEST:.2g}, got "
            f"{arrays[number][at]:g}; correct the value, or leave the sample out"
        )


def _check_finite(
    result: Collection,
    arrays: Any,
    fix: str = "leave the sample out",
) -> None:
    """Refuse NaN too, where it cannot stand for a missing value."""
    _check_size(result, arrays)
    for start, block in blocks(arrays):
        missing = np.isnan(block).reshape(len(block), -1).any(1)
        if missing.any():
            where = result.where(start + int(missing.argmax()))
            raise OptionError(f"{where}: expected finite numbers, got NaN; {fix}")
