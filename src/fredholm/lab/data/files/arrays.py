"""Arrays in ``.npz`` and ``.h5`` files: series, clouds, and fields on grids or on points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ..hdf5 import read_hdf5
from ..numpy_files import read_npz
from .casts import Coded
from .clouds import exchanged
from .collection import Collection, in_order, looks_continuous
from .fields import collect_fields
from .named import (
    ANSWERS,
    CLOUDS,
    INPUTS,
    LABELS,
    LENGTHS,
    PLACES,
    TIMES,
    collection_of,
    find,
    first_channel,
    floats,
    groups_of,
    needed,
    order_of,
    rule_of,
)
from .opening import check_unchanged
from .parts import parts_of
from .reading import Reading
from .times import NotATime, Ticks, ticks_of_array


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name; no pickled object is loaded.

    Raises:
        DataError: a missing or damaged file, or objects in it.
        MissingExtraError: HDF5 without h5py.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    before = path.stat()
    read = read_npz if path.suffix.lower() == ".npz" else read_hdf5
    result = read(path)
    check_unchanged(path, before)
    return result


def collect_arrays(
    files: Sequence[Path], name: str, reading: Reading, labelled: bool = True
) -> Collection:
    """The samples of one or several files of the same arrays; those called train and test are the
    splits.

    Raises:
        DataError: arrays that are missing or do not fit.
    """
    read = [read_arrays(file) for file in files]
    for file, arrays in zip(files, read):
        missing = [key for key in read[0] if key not in arrays and key.lower() not in LABELS]
        if missing:
            raise DataError(f"{file}: has no array {missing[0]!r}, which {files[0]} has")
    kind = _kind(read[0], reading, files[0])
    _refuse_flags(files[0], reading, kind)
    settled, collected = reading.settled(kind=kind), []
    for file, arrays in zip(files, read):
        collected.append(_COLLECTORS[kind](file, arrays, settled, labelled))
        settled = settled.settled(task=collected[0].reading.task)  # the training files tell it
    _check_alike(files, collected)
    return _joined(files, name, collected, labelled)


def _refuse_flags(path: Path, reading: Reading, kind: str) -> None:
    """Refuse what is said of columns, and what samples of this kind in arrays do not have.

    Raises:
        DataError: naming what was said.
    """
    for name in ("id", "text"):
        said = getattr(reading, name)
        if said is not None:
            raise DataError(
                f"{path}: {name}: expected no column, got {said!r}; samples in arrays have no "
                "columns: leave it out, or give a table"
            )
    if reading.channels is not None and len(reading.channels) > 1:
        raise DataError(
            f"{path}: channels: expected the name of one array, got "
            f"{','.join(reading.channels)!r}; join them in one array (samples, points, channels)"
        )
    if reading.time is not None and kind != "series" and reading.split != "time":
        raise DataError(
            f"{path}: time: expected none, got {reading.time!r}; {kind} have no times within a "
            "sample: leave it out, or split by it (split: time)"
        )


def _kind(arrays: dict[str, np.ndarray], reading: Reading, path: Path) -> str:
    if reading.kind in ("series", "clouds", "fields"):
        return reading.kind
    if reading.kind is not None:
        raise DataError(f"{path}: holds arrays; {reading.kind} are read from tables or folders")
    inputs = find(arrays, INPUTS)
    if find(arrays, PLACES) or ("outputs" in {key.lower() for key in arrays}):
        return "fields"
    if find(arrays, CLOUDS):
        return "clouds"
    answers = find(arrays, ANSWERS)
    if inputs and answers and inputs != answers and _same_grid(arrays[inputs], arrays[answers]):
        return "fields"
    data = {key.lower() for key in arrays}
    if {"data", "label"} <= data and arrays[find(arrays, ("data",)) or ""].shape[-1:] == (3,):
        return "clouds"  # as ModelNet's and ScanObjectNN's files
    return "series"


def _same_grid(inputs: np.ndarray, answers: np.ndarray) -> bool:
    return min(inputs.ndim, answers.ndim) >= 3 and inputs.shape[-2:] == answers.shape[-2:]


# --- series and clouds ----------------------------------------------------------------------------


def _series(
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
    settled, labels, steps = _labels(path, arrays, reading, labelled, len(samples), samples)
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
    """What is said of arrays whose axes may mean something else."""
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


def _clouds(
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
    settled, labels, _ = _labels(path, arrays, reading, labelled, len(clouds), None)
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


def _labels(
    path: Path,
    arrays: dict[str, np.ndarray],
    reading: Reading,
    labelled: bool,
    count: int,
    samples: list[np.ndarray] | None,
) -> tuple[Reading, Any, list[np.ndarray] | None]:
    """(the reading with label and task, labels, classes at every point)."""
    if not labelled:
        return reading, None, None
    key = needed(arrays, LABELS, reading.label, path, "labels")
    values = arrays[key]
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    settled = reading.settled(label=key, split=rule_of(reading))
    if samples is not None and values.ndim == 2 and len(values) == count:
        return settled.settled(task="steps"), *_steps(values, samples, f"{path}: {key!r}")
    if values.shape != (count,):
        raise DataError(f"{path}: {key!r} has shape {arrays[key].shape}; needs ({count},)")
    if reading.task == "steps":
        raise DataError(
            f"{path}: {key!r} has shape {values.shape}; needs a class at every point, as asked for "
            "by task steps, or had by the training files"
        )
    words = [_word(value) for value in values.tolist()]
    task = reading.task or ("regression" if looks_continuous(_known(words)) else "classification")
    if task == "regression":
        return settled.settled(task=task), _numbers(values, f"{path}: {key!r}"), None
    return settled.settled(task=task), _coded(words), None


def _numbers(values: np.ndarray, where: str) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except ValueError as error:
        raise DataError(f"{where}: {error}; needs numbers, as a regression is asked for") from error


def _word(value: Any) -> str:
    """A class's name: 3.0 is 3, bytes are text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _known(words: Iterable[str]) -> list[str]:
    """Those that are not missing."""
    return [word for word in words if word not in ("nan", "")]


def _coded(words: Sequence[str]) -> Coded:
    names = _known(dict.fromkeys(words))
    place = {name: i for i, name in enumerate(names)}
    return in_order(Coded(np.array([place.get(word, -1) for word in words]), names))


def _steps(
    values: np.ndarray, samples: list[np.ndarray], where: str
) -> tuple[Coded, list[np.ndarray]]:
    rows, longest = values.tolist(), max(len(s) for s in samples)
    known = _known(_word(value) for value in values.ravel()[:MANY])
    if values.shape[1] < longest or looks_continuous(known):
        raise DataError(
            f"{where} has shape {values.shape}; needs ({len(rows)},), a class "
            f"or a number of each sample, or ({len(rows)}, {longest}), a class at every point"
        )
    whole = [[_word(v) for v in row[: len(s)]] for row, s in zip(rows, samples)]
    coded = _coded([word for row in whole for word in row])
    return coded, np.split(coded.codes, np.cumsum([len(row) for row in whole])[:-1])


MANY = 10_000  # values that tell numbers from classes
_COLLECTORS = {"series": _series, "clouds": _clouds, "fields": collect_fields}


# --- several files --------------------------------------------------------------------------------


def _check_alike(files: Sequence[Path], collected: Sequence[Collection]) -> None:
    """Refuse samples of other channels, or fields on another grid, than the first file has.

    Raises:
        DataError: naming both files.
    """
    for file, part in zip(files, collected):
        for key in ("samples", "labels") if part.kind == "fields" else ("samples",):
            mine, first = (_form(getattr(some, key)) for some in (part, collected[0]))
            if mine != first:
                what = "answers" if key == "labels" else "samples"
                raise DataError(
                    f"{file}: {what} of {mine}; {files[0]} has {what} of {first}; needs the same "
                    "in all files that are read together"
                )


def _form(values: Any) -> str | None:
    """What samples of several files have in common, in words."""
    if values is None or not len(values):
        return None
    channels, *grid = values[0].shape if isinstance(values, np.ndarray) else values[0].shape[1:]
    return f"{channels} channels" + (f" on a grid of {grid[0]} × {grid[1]}" if grid else "")


JOINED = ("samples", "labels", "steps", "times", "starts", "coordinates", "groups", "order")


def _joined(
    files: Sequence[Path], name: str, collected: list[Collection], labelled: bool
) -> Collection:
    first = collected[0]
    first.parts = parts_of(files, [len(part) for part in collected]) if labelled else None
    if len(collected) > 1:
        places = [part.place(i) for part in collected for i in range(len(part))]
        first.place = places.__getitem__
        for key in JOINED:
            values = [getattr(part, key) for part in collected]
            setattr(first, key, None if values[0] is None else _concatenated(values))
        if first.steps is not None and isinstance(first.labels, Coded):
            ends = np.cumsum([len(s) for s in first.samples])[:-1]
            first.steps = np.split(first.labels.codes, ends)
    if first.groups is not None:
        first.groups, first.joined = _coded_groups(first.groups), len(collected) > 1
    first.name = name
    return first


def _coded_groups(values: np.ndarray) -> np.ndarray:
    """Groups as numbers; the same one in several files has the same."""
    if values.dtype == object:  # texts of several files, or of HDF5
        values = np.array([_word(value) for value in values.tolist()])
    return np.unique(values, return_inverse=True)[1]


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for part in values for item in part]
    if isinstance(values[0], np.ndarray) and len({value.dtype.kind for value in values}) > 1:
        return np.concatenate([np.array([_word(v) for v in part.tolist()]) for part in values])
    if isinstance(values[0], Coded):
        return _coded(
            [part.names[code] if code >= 0 else "" for part in values for code in part.codes]
        )
    return np.concatenate(values)
