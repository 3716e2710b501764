"""Arrays in ``.npz`` and ``.h5`` files: series, clouds, and fields on grids or on points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ..hdf5 import read_hdf5
from ..numpy_files import read_npz
from .array_labels import known_words, word_of
from .array_samples import collect_clouds, collect_series
from .casts import Coded
from .collection import Collection, coded
from .fields import collect_fields
from .named import (
    ANSWERS,
    CLOUDS,
    INPUTS,
    LABELS,
    PLACES,
    find,
)
from .opening import check_unchanged
from .parts import parts_of
from .reading import Reading


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


_COLLECTORS = {"series": collect_series, "clouds": collect_clouds, "fields": collect_fields}


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
    """Describe the shape that samples of several files must share."""
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
        values = np.array([word_of(value) for value in values.tolist()])
    return np.unique(values, return_inverse=True)[1]


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for part in values for item in part]
    if isinstance(values[0], np.ndarray) and len({value.dtype.kind for value in values}) > 1:
        return np.concatenate([np.array([word_of(v) for v in part.tolist()]) for part in values])
    if isinstance(values[0], Coded):
        words = [part.names[code] if code >= 0 else "" for part in values for code in part.codes]
        return coded(words, known_words(words))
    return np.concatenate(values)
