"""Arrays in ``.npz`` and ``.h5`` files: series, clouds, and fields on grids or on points."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, require
from .collection import Collection, in_order, looks_continuous
from .reading import Reading
from .table import Coded, check_unchanged
from .tables import parts_of

INPUTS = ("x", "inputs", "input", "data", "values", "series", "a")
CLOUDS = ("points", "clouds", "cloud", "pos", "xyz", "vertices")
PLACES = ("coordinates", "coords", "positions", "grid", "locations")
ANSWERS = ("outputs", "output", "answers", "targets", "solution", "u", "y")
LABELS = ("y", "labels", "label", "target", "targets", "classes")
TIMES = ("times", "time", "t", "timestamps")
LENGTHS = ("lengths", "length", "sizes")
GROUPS = ("groups", "group")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name; no pickled object is loaded.

    Raises:
        DataError: a missing or damaged file, or objects in it.
        MissingExtraError: HDF5 without h5py.
    """
    if path.suffix.lower() == ".npz":
        return _read_npz(path)
    h5py = require("h5py", "clouds", f"reading {path.name}")
    try:
        before = path.stat()
        with h5py.File(path, "r") as file:
            result = {n: np.asarray(v) for n, v in file.items() if isinstance(v, h5py.Dataset)}
    except OSError as error:
        raise DataError(f"{path}: no HDF5 file ({error}); it is missing or corrupt") from error
    check_unchanged(path, before)
    return result


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        before = path.stat()
        with np.load(path, allow_pickle=False) as file:
            result = {name: file[name] for name in file.files}
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path}: no npz file ({error}); it is missing or corrupt") from error
    except ValueError as error:
        raise DataError(
            f"{path}: holds Python objects, which are not loaded; save series of unequal length as "
            "values (all points, channels) and lengths (series), or padded with NaN"
        ) from error
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
    collected = [
        _COLLECTORS[kind](file, arrays, reading.settled(kind=kind), labelled)
        for file, arrays in zip(files, read)
    ]
    return _joined(files, name, collected)


def _kind(arrays: dict[str, np.ndarray], reading: Reading, path: Path) -> str:
    if reading.kind in ("series", "clouds", "fields"):
        return reading.kind
    if reading.kind is not None:
        raise DataError(f"{path}: holds arrays; {reading.kind} are read from tables or folders")
    inputs = _find(arrays, INPUTS)
    if _find(arrays, PLACES) or ("outputs" in {key.lower() for key in arrays}):
        return "fields"
    if _find(arrays, CLOUDS):
        return "clouds"
    answers = _find(arrays, ANSWERS)
    if inputs and answers and inputs != answers and _same_grid(arrays[inputs], arrays[answers]):
        return "fields"
    data = {key.lower() for key in arrays}
    if {"data", "label"} <= data and arrays[_find(arrays, ("data",)) or ""].shape[-1] == 3:
        return "clouds"  # as ModelNet's and ScanObjectNN's files
    return "series"


def _same_grid(inputs: np.ndarray, answers: np.ndarray) -> bool:
    return min(inputs.ndim, answers.ndim) >= 3 and inputs.shape[-2:] == answers.shape[-2:]


def _find(arrays: dict[str, np.ndarray], names: Sequence[str]) -> str | None:
    lower = {key.lower(): key for key in arrays}
    return next((lower[name] for name in names if name in lower), None)


def _needed(
    arrays: dict[str, np.ndarray], names: Sequence[str], said: str | None, path: Path, what: str
) -> str:
    """The name of the array that is meant.

    Raises:
        DataError: there is none.
    """
    found = said if said is not None else _find(arrays, names)
    if found is None or found not in arrays:
        have = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
        raise DataError(
            f"{path}: no array of {what} (looked for {said or ', '.join(names)}); has {have}"
        )
    return found


def _first_channel(reading: Reading) -> str | None:
    return reading.channels[0] if reading.channels else None


# --- series and clouds ----------------------------------------------------------------------------


def _series(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    """(N, time, channels) or (N, time), NaN where nothing was measured; or (points, channels) and
    ``lengths``.
    """
    key = _needed(arrays, INPUTS, _first_channel(reading), path, "series")
    samples = _ragged(path, arrays, key)
    time = reading.time or _find(arrays, TIMES)
    times = None
    if time is not None:
        times = _times(path, arrays, time, samples)
        samples = [sample[: len(t)] for sample, t in zip(samples, times)]
    settled, labels, steps = _labels(path, arrays, reading, labelled, len(samples), samples)
    taken = {"series": f"array {key!r}"} | ({"time": f"array {time!r}"} if time else {})
    result = _collection(path, settled.settled(time=time, channels=(key,)), samples, labels, taken)
    result.times, result.steps = times, steps
    result.groups = _groups(path, arrays, reading, len(samples))
    result.order = None if times is None else np.array([t[0] for t in times])
    result.channels = tuple(f"channel {i + 1}" for i in range(samples[0].shape[1]))
    return result


def _ragged(path: Path, arrays: dict[str, np.ndarray], key: str) -> list[np.ndarray]:
    values, lengths = arrays[key], _find(arrays, LENGTHS)
    if not np.issubdtype(values.dtype, np.number):
        raise DataError(f"{path}: the array {key!r} holds {values.dtype}; needs numbers")
    if lengths is not None and values.ndim <= 2:
        ends = np.cumsum(arrays[lengths])
        if len(ends) == 0 or ends[-1] != len(values):
            raise DataError(
                f"{path}: {lengths!r} sum to {int(ends[-1]) if len(ends) else 0}; {key!r} has "
                f"{len(values)} points"
            )
        flat = values.astype(np.float32).reshape(len(values), -1)
        return np.split(flat, ends[:-1])
    if values.ndim not in (2, 3):
        raise DataError(f"{path}: {key!r} has shape {values.shape}; needs (N, time, channels)")
    whole = values.astype(np.float32).reshape(*values.shape[:2], -1)
    samples = []
    for row, sample in enumerate(whole):
        known = np.flatnonzero(~np.isnan(sample).all(1))
        if not len(known):
            raise DataError(f"{path}: sample {row} of {key!r} holds no number")
        samples.append(sample[: known[-1] + 1])
    return samples


def _times(
    path: Path, arrays: dict[str, np.ndarray], key: str, samples: list[np.ndarray]
) -> list[np.ndarray]:
    values, lengths = arrays[key].astype(np.float64), [len(sample) for sample in samples]
    if values.ndim == 1 and _find(arrays, LENGTHS):
        result = np.split(values, np.cumsum(lengths)[:-1])
    elif values.ndim == 1:
        result = [values[:n] for n in lengths]
    else:
        result = [row[:n] for row, n in zip(values, lengths)]
    for row, (times, n) in enumerate(zip(result, lengths)):
        if len(times) != n or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
            raise DataError(
                f"{path}: {key!r} of sample {row} does not go forward, or is not as long as its "
                f"{n} points; needs one later time a point"
            )
    return result


def _clouds(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    """(N, points, 2 or more), coordinates first, NaN where a cloud has fewer; or all points and
    ``lengths``.
    """
    key = _needed(arrays, (*CLOUDS, *INPUTS), _first_channel(reading), path, "clouds")
    clouds = [c[~np.isnan(c).any(1)] for c in _ragged(path, arrays, key)]
    settled, labels, _ = _labels(path, arrays, reading, labelled, len(clouds), None)
    taken = {"clouds": f"array {key!r}"}
    result = _collection(path, settled.settled(channels=(key,)), clouds, labels, taken)
    result.groups = _groups(path, arrays, reading, len(clouds))
    result.channels = tuple("xyz"[: clouds[0].shape[1]]) + tuple(
        f"channel {i + 1}" for i in range(3, clouds[0].shape[1])
    )
    return result


def _groups(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, count: int
) -> np.ndarray | None:
    if reading.group is None:
        return None
    values = arrays[_needed(arrays, GROUPS, reading.group, path, "groups")]
    if values.shape != (count,):
        raise DataError(f"{path}: {reading.group!r} has shape {values.shape}; needs ({count},)")
    return np.unique(values, return_inverse=True)[1]


def _labels(
    path: Path,
    arrays: dict[str, np.ndarray],
    reading: Reading,
    labelled: bool,
    count: int,
    samples: list[np.ndarray] | None,
) -> tuple[Reading, Any, list[np.ndarray] | None]:
    """(the reading with label and task, labels, classes at every point)."""
    split = reading.split or ("group" if reading.group else "random")
    if not labelled:
        return reading, None, None
    key = _needed(arrays, LABELS, reading.label, path, "labels")
    values = arrays[key]
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    settled = reading.settled(label=key, split=split)
    if samples is not None and values.ndim == 2 and len(values) == count:
        return settled.settled(task="steps"), *_steps(values, samples)
    if values.shape != (count,):
        raise DataError(f"{path}: {key!r} has shape {arrays[key].shape}; needs ({count},)")
    words = [_word(value) for value in values.tolist()]
    known = [word for word in words if word not in ("nan", "")]
    task = reading.task or ("regression" if looks_continuous(known) else "classification")
    if task == "regression":
        return settled.settled(task=task), values.astype(np.float64), None
    return settled.settled(task=task), _coded(words), None


def _word(value: Any) -> str:
    """A class's name: 3.0 is 3, bytes are text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _coded(words: Sequence[str]) -> Coded:
    names = [n for n in dict.fromkeys(words) if n not in ("nan", "")]
    place = {name: i for i, name in enumerate(names)}
    return in_order(Coded(np.array([place.get(word, -1) for word in words]), names))


def _steps(values: np.ndarray, samples: list[np.ndarray]) -> tuple[Coded, list[np.ndarray]]:
    rows = values.tolist()
    whole = [[_word(v) for v in row[: len(s)]] for row, s in zip(rows, samples)]
    coded = _coded([word for row in whole for word in row])
    return coded, np.split(coded.codes, np.cumsum([len(row) for row in whole])[:-1])


# --- fields ---------------------------------------------------------------------------------------


def _fields(
    path: Path, arrays: dict[str, np.ndarray], reading: Reading, labelled: bool
) -> Collection:
    """Inputs and answers (N, H, W) or (N, C, H, W) on a grid; or (N, points) or (N, points, C) and
    coordinates (N, points, d), or (points, d) for all.
    """
    key = _needed(arrays, INPUTS, _first_channel(reading), path, "inputs")
    places = _find(arrays, PLACES)
    inputs = arrays[key].astype(np.float32)
    answer, answers = reading.label, None
    if labelled:
        rest = {name: value for name, value in arrays.items() if name not in (key, places)}
        answer = _needed(rest, ANSWERS, reading.label, path, "answers")
        answers = arrays[answer].astype(np.float32)
    taken = {"inputs": f"array {key!r}", "answers": f"array {answer!r}"}
    settled = reading.settled(label=answer, task="regression", channels=(key,), split="random")
    if places is None and inputs.ndim == 2:  # a line is points at equal distances
        line = np.linspace(0, 1, inputs.shape[1], dtype=np.float32)[:, None]
        return _on_points(path, settled, inputs, answers, line, taken | {"grid": "a line"})
    if places is not None:
        taken |= {"coordinates": f"array {places!r}"}
        return _on_points(path, settled, inputs, answers, arrays[places], taken)
    samples = inputs[:, None] if inputs.ndim == 3 else inputs
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
    result = _collection(
        path,
        settled,
        samples,
        answers,
        taken | {"grid": f"{samples.shape[2]} × {samples.shape[3]}"},
    )
    result.channels = tuple(f"{key} {i + 1}" for i in range(samples.shape[1]))
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
    places = np.asarray(places, np.float32)
    places = np.broadcast_to(places, (count, *places.shape)) if places.ndim == 2 else places
    answers = None if answers is None else answers.reshape(*answers.shape[:2], -1)
    shapes = [inputs.shape[:2], places.shape[:2], *([] if answers is None else [answers.shape[:2]])]
    if len(set(shapes)) > 1 or places.ndim != 3:
        raise DataError(
            f"{path}: inputs, coordinates and answers of {shapes} samples and points; needs "
            "(N, points, C), (N, points, d) and (N, points, K)"
        )
    here = ~np.isnan(places).any(2)
    samples = [values[mask] for values, mask in zip(inputs, here)]
    said = None if answers is None else [values[mask] for values, mask in zip(answers, here)]
    for what, rows in (("inputs", samples), ("answers", said or [])):
        for row, values in enumerate(rows):
            if not np.isfinite(values).all():
                raise DataError(
                    f"{path}: {what} of sample {row} hold a value that is no finite number; "
                    "coordinates of NaN mark points that are not there"
                )
    result = _collection(path, reading, samples, said, taken)
    result.coordinates = [values[mask] for values, mask in zip(places, here)]
    result.channels = tuple(f"input {i + 1}" for i in range(inputs.shape[2]))
    return result


def _check_finite(path: Path, key: str, values: np.ndarray) -> None:
    bad = ~np.isfinite(values).reshape(len(values), -1).all(1)
    if bad.any():
        raise DataError(
            f"{path}: {key!r} of sample {int(bad.argmax())} holds a value that is no finite number"
        )


def _collection(
    path: Path, reading: Reading, samples: Any, labels: Any, taken: dict[str, str]
) -> Collection:
    taken = taken | ({"label": f"array {reading.label!r}"} if reading.kind != "fields" else {})
    return Collection(
        path.name, reading, samples, labels, lambda i: f"{path}, sample {i}", taken=taken
    )


_COLLECTORS = {"series": _series, "clouds": _clouds, "fields": _fields}


# --- several files --------------------------------------------------------------------------------


def _joined(files: Sequence[Path], name: str, collected: list[Collection]) -> Collection:
    first = collected[0]
    first.parts = parts_of(files, [len(part) for part in collected])
    if len(collected) > 1:
        places = [part.where(i) for part in collected for i in range(len(part))]
        first.where = places.__getitem__
        for key in ("samples", "labels", "steps", "times", "coordinates", "groups", "order"):
            values = [getattr(part, key) for part in collected]
            setattr(first, key, None if values[0] is None else _concatenated(values))
        if first.steps is not None and isinstance(first.labels, Coded):
            ends = np.cumsum([len(s) for s in first.samples])[:-1]
            first.steps = np.split(first.labels.codes, ends)
    first.name = name
    return first


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for part in values for item in part]
    if isinstance(values[0], Coded):
        return _coded(
            [part.names[code] if code >= 0 else "" for part in values for code in part.codes]
        )
    return np.concatenate(values)
