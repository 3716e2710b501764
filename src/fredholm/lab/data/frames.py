"""Names and indices of data frames in memory: matched from sample to sample, or refused by name.

A model reads arrays, which know no names. Frames of pandas, polars and pyarrow are therefore
brought into one order of columns before anything else looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import OptionError, ShapeError

# Beginnings of the names of types for dates and spans of time, in pandas, polars and pyarrow.
_DATED = ("datetime", "timestamp", "date", "time", "duration", "period")
# How many names an error lists.
_SHOWN = 6


class Names(NamedTuple):
    """Names of columns; None where samples are arrays, or columns are only numbered.

    Attributes:
        channels: of the values of a sample.
        coordinates: of the places of fields on points.
    """

    channels: tuple[str, ...] | None = None
    coordinates: tuple[str, ...] | None = None


class Plain(NamedTuple):
    """Samples as arrays, with the names that they had."""

    samples: Any
    names: Names


def is_frame(data: Any) -> bool:
    """Return whether an object is a table with named columns.

    Example:
        >>> import pyarrow
        >>> is_frame(pyarrow.table({"a": [1]})), is_frame(np.zeros((2, 2)))
        (True, False)
    """
    return _labels(data) is not None


def plain_samples(samples: Any, kind: str, known: Names | None) -> Plain:
    """Return samples as arrays, columns in one order: that of ``known``, else of the first sample.

    A time index of a series (dates or floats) becomes its times. Rows and texts stay as they are.

    Raises:
        OptionError: columns of other names; an index that may be times or row numbers; labels of a
            grid that do not grow; samples with names beside samples without.
        ShapeError: one frame where a list of them is needed; a column of words or dates.
    """
    known = known or Names()
    # A row is a sample of its frame, so rows keep their frame; scikit-learn checks its names.
    if kind in ("rows", "texts"):
        return Plain(samples, Names())
    _refuse_one_frame(samples, kind)
    # An array of several axes holds all samples, and no names.
    if getattr(samples, "ndim", 1) != 1:
        return Plain(samples, Names())
    parts = list(samples)
    halves = [half for part in parts for half in _halves(part)]
    if not any(is_frame(half) or _is_column(half) for half in halves):
        return Plain(samples, Names())
    if kind == "series":
        return _series(parts, known)
    if kind == "fields" and any(isinstance(part, tuple) for part in parts):
        return _fields_on_points(parts, known)
    if kind == "clouds":
        values, channels = matched(parts, known.channels)
        return Plain(values, Names(channels))
    return Plain(_grids(parts, "X"), Names())


def plain_answers(
    answers: Any,
    samples: Any,
    points: bool,
    known: Sequence[str] | None = None,
) -> tuple[Any, tuple[str, ...] | None]:
    """Return the fields to be answered as arrays, and the names of their columns.

    Args:
        answers: a field per sample.
        samples: where they belong, whose rows have to be in the same order.
        points: whether the fields are on points, not on grids.
        known: the order of the columns, of fields on points.

    Raises:
        OptionError: other names, or rows in another order than those of ``samples``.
    """
    parts = list(answers)
    if not any(is_frame(part) or _is_column(part) for part in parts):
        return answers, None
    for number, (part, sample) in enumerate(zip(parts, samples)):
        where = f"y, sample {number}"
        for half in _halves(sample):
            _check_same_rows(half, part, where, "the field and its points in X")
    if points:
        return matched(parts, known, "y")
    return _grids(parts, "y"), None


def matched(
    parts: Sequence[Any],
    known: Sequence[str] | None,
    place: str = "X",
) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return frames as arrays with their columns in the order of ``known``, else of the first.

    Raises:
        OptionError: columns of other names, or names in some samples alone.
    """
    places = [f"{place}, sample {number}" for number in range(len(parts))]
    names = [columns_of(part, where) for part, where in zip(parts, places)]
    named = [number for number, columns in enumerate(names) if columns is not None]
    if not named:
        arrays = [_numbers(part, where) for part, where in zip(parts, places)]
        return arrays, None
    if len(named) < len(parts):
        other = names.index(None)
        raise OptionError(
            f"{places[other]}: expected columns with names, as sample {named[0]} has them, got "
            "none; give all samples names, or none"
        )

    order = known
    whose = "the estimator was fitted on"
    if order is None:
        order = names[0] or ()
        whose = "sample 0 has"
    result: list[Any] = []
    for part, columns, where in zip(parts, names, places):
        # Every sample has names by now.
        columns = columns or ()
        if sorted(columns) != sorted(order):
            raise OptionError(
                f"{where}: expected the columns {_listed(order)}, which {whose}, got "
                f"{_listed(columns)}; rename them, or leave others out"
            )
        values = _numbers(part, where)
        place_of = {name: column for column, name in enumerate(columns)}
        in_order = [place_of[name] for name in order]
        result.append(values[:, in_order])
    return result, tuple(order)


def columns_of(sample: Any, where: str) -> tuple[str, ...] | None:
    """Return the names of a frame's columns; None of arrays, and of columns 0, 1, 2, ….

    Raises:
        OptionError: two columns of one name, or names that are no strings.
    """
    labels = _labels(sample)
    if labels is None or labels == list(range(len(labels))):
        return None
    if not all(isinstance(label, str) for label in labels):
        raise OptionError(
            f"{where}: expected columns whose names are strings, got {_listed(labels)}; give them "
            "names: frame.columns = frame.columns.astype(str)"
        )
    for label in labels:
        if labels.count(label) > 1:
            raise OptionError(
                f"{where}: expected columns of different names, got {label!r} twice; rename one"
            )
    return tuple(labels)


# --- kinds ----------------------------------------------------------------------------------------


def _series(parts: list[Any], known: Names) -> Plain:
    """Return pairs (times, values) where indices are times, else values."""
    pairs = any(isinstance(part, tuple) for part in parts)
    if pairs:
        for number, (times, values) in enumerate(map(_halves, parts)):
            _check_same_rows(times, values, f"X, sample {number}", "times and values")
    of_values = [_halves(part)[-1] for part in parts]
    values, channels = matched(of_values, known.channels)
    if pairs:
        of_times = [part[0] for part in parts]
        return Plain(list(zip(of_times, values)), Names(channels))

    times = []
    timed = []
    untimed = []
    for number, part in enumerate(parts):
        index = _times_of(part, f"X, sample {number}")
        times.append(index)
        if index is None:
            untimed.append(number)
        else:
            timed.append(number)
    if not timed:
        return Plain(values, Names(channels))
    if untimed:
        raise OptionError(
            f"X, sample {untimed[0]}: expected an index of times, as sample {timed[0]} has one, "
            "got row numbers; give all series times, or none: frame.reset_index(drop=True)"
        )
    return Plain(list(zip(times, values)), Names(channels))


def _fields_on_points(parts: list[Any], known: Names) -> Plain:
    pairs = [_halves(part) for part in parts]
    for number, pair in enumerate(pairs):
        if len(pair) == 2:
            _check_same_rows(*pair, f"X, sample {number}", "coordinates and values")
    of_places = [pair[0] for pair in pairs]
    of_values = [pair[-1] for pair in pairs]
    places, coordinates = matched(of_places, known.coordinates)
    values, channels = matched(of_values, known.channels)
    return Plain(list(zip(places, values)), Names(channels, coordinates))


def _grids(samples: Sequence[Any], place: str) -> list[Any]:
    """Return the values of frames on a grid; ``place`` (X or y) names them in errors."""
    return [_grid(sample, f"{place}, sample {number}") for number, sample in enumerate(samples)]


def _grid(sample: Any, where: str) -> Any:
    """Return the values of a frame whose rows and columns are the places of a grid."""
    if not is_frame(sample):
        return sample
    axes = {"rows": _index(sample), "columns": _labels(sample)}
    for what, labels in axes.items():
        # Frames of polars and pyarrow have no index.
        if labels is None:
            continue
        values = np.asarray(labels)
        comparable = values.dtype.kind in "iufM"
        if not comparable or not (values[1:] > values[:-1]).all():
            raise OptionError(
                f"{where}: expected {what} of a grid at numbers or dates that grow, got "
                f"{_listed(list(values))}; sort the frame, or give frame.to_numpy()"
            )
    return _numbers(sample, where)


# --- indices --------------------------------------------------------------------------------------


def _times_of(sample: Any, where: str) -> Any:
    """Return the times that a series has as its index; None of row numbers.

    Raises:
        OptionError: an index of words, of several levels, of periods, or of whole numbers that do
            not follow one another, which may be times or row numbers.
    """
    index = _index(sample)
    if index is None:
        return None
    kind = str(index.dtype)
    if getattr(index, "nlevels", 1) > 1:
        raise OptionError(
            f"{where}: expected an index of one level, the times, got {index.nlevels}; drop the "
            "others: frame.droplevel(0)"
        )
    if kind.startswith(("datetime", "timedelta", "float")):
        return index
    if kind.startswith("period"):
        raise OptionError(
            f"{where}: expected an index of times, got periods; frame.to_timestamp() gives them"
        )
    if kind.startswith(("int", "uint")):
        values = np.asarray(index)
        # Consecutive numbers are rows cut from a larger frame; others may be seconds, or rows of
        # which some were dropped.
        if (np.diff(values) == 1).all():
            return None
        raise OptionError(
            f"{where}: expected times or no index, got the whole numbers {_listed(list(values))}, "
            "which may be times or row numbers; give pairs (frame.index, frame), or "
            "frame.reset_index(drop=True)"
        )
    raise OptionError(
        f"{where}: expected an index of times, got {_listed(list(index))}; for dates in words: "
        "pandas.to_datetime(frame.index); without times: frame.reset_index(drop=True)"
    )


def _check_same_rows(first: Any, second: Any, where: str, what: str) -> None:
    """Refuse two parts of a sample whose rows have other labels.

    Row numbers from 0 say nothing, unless the other part has the same ones in another order.
    """
    one = _index(first)
    other = _index(second)
    if one is None or other is None or len(one) != len(other) or one.equals(other):
        return
    first_labels = list(one)
    second_labels = list(other)
    from_zero = list(range(len(first_labels)))
    numbered = from_zero in (first_labels, second_labels)
    if numbered and set(first_labels) != set(second_labels):
        return
    raise OptionError(
        f"{where}: expected {what} with the same index, got {_listed(first_labels)} and "
        f"{_listed(second_labels)}; sort both alike, or reset_index(drop=True)"
    )


# --- parts ----------------------------------------------------------------------------------------


def _refuse_one_frame(samples: Any, kind: str) -> None:
    if is_frame(samples):
        raise ShapeError(
            f"X: expected a list of frames, one per sample, for kind={kind!r}, got one "
            f"{type(samples).__name__}; divide it: [part for _, part in X.groupby('id')]"
        )
    # Arrays of xarray have names of axes, which could be in any order.
    some = samples
    if not hasattr(samples, "dims"):
        some = next(iter(samples), None)
    if hasattr(some, "dims") and hasattr(some, "coords"):
        raise ShapeError(
            f"X: expected arrays or data frames, got {type(some).__name__}, whose dimensions are "
            "not matched; bring them into one order and give X.to_numpy()"
        )


def _halves(sample: Any) -> tuple[Any, ...]:
    """Return both parts of a pair, or a sample that is not a pair by itself."""
    if isinstance(sample, tuple) and len(sample) == 2:
        return sample
    return (sample,)


def _labels(data: Any) -> list[Any] | None:
    """Return the labels of a frame's columns; None of anything that is not a frame."""
    # pyarrow's ``columns`` are the cells, so its names come from another attribute.
    names = getattr(data, "column_names", None)
    if isinstance(names, list):
        return names
    if hasattr(data, "columns") and hasattr(data, "dtypes"):
        return list(data.columns)
    return None


def _is_column(data: Any) -> bool:
    """Return whether an object is one column with an index, as pandas has it."""
    return hasattr(data, "iloc") and getattr(data, "ndim", 0) == 1


def _index(data: Any) -> Any:
    """Return the index of pandas' frames and columns; None of everything else."""
    # Lists have an ``index`` too, which is a method.
    if not hasattr(data, "iloc"):
        return None
    return data.index


def column_types(frame: Any) -> list[tuple[str, str]]:
    """Return the names of a frame's columns and their types, as its library calls them."""
    if _is_arrow(frame):
        types = frame.schema.types
    else:
        types = frame.dtypes
    labels = _labels(frame) or ()
    return [(str(name), str(kind).lower()) for name, kind in zip(labels, types)]


def _is_arrow(frame: Any) -> bool:
    return isinstance(getattr(frame, "column_names", None), list)


def is_dated(kind: str) -> bool:
    """Return whether a type of :func:`column_types` is of dates or of spans of time."""
    return kind.startswith(_DATED)


def cells_of(frame: Any, number: int) -> list[Any]:
    """Return the cells of a frame's column as Python's numbers and strings."""
    if hasattr(frame, "iloc"):
        return frame.iloc[:, number].tolist()
    if _is_arrow(frame):
        return frame.column(number).to_pylist()
    return frame.to_series(number).to_list()


def _numbers(sample: Any, where: str) -> Any:
    """Return the cells of a frame as float64, NaN where there is none; arrays as they are."""
    if is_frame(sample):
        for name, kind in column_types(sample):
            if is_dated(kind):
                raise ShapeError(
                    f"{where}, column {name!r}: expected numbers, got {kind}; of a series, make it "
                    f"the index: frame.set_index({name!r})"
                )
    elif not _is_column(sample):
        return sample
    try:
        if hasattr(sample, "iloc"):
            return sample.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.asarray(sample, np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{where}: expected columns of numbers, got others ({error})") from error


def _listed(names: Sequence[Any]) -> str:
    """Return the first names as an error shows them."""
    # numpy's numbers are shown as Python's, without their type.
    plain = []
    for name in names[:_SHOWN]:
        if hasattr(name, "item"):
            name = name.item()
        plain.append(name)
    shown = ", ".join(map(repr, plain))
    if len(names) > _SHOWN:
        shown += f", … ({len(names)})"
    return shown
