"""Arrays in ``.npz`` and ``.h5`` files: series, clouds, and fields on grids or on points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from .division import parts_of
from .fields import collect_fields
from .named import ANSWERS, CLOUDS, INPUTS, LABELS, PLACES, ArrayFile
from .opening import check_unchanged
from .reading import Reading, refuse_columns


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name; no pickled object is loaded, which could run code.

    Raises:
        DataError: a missing or damaged file, or objects in it.
        MissingExtraError: HDF5 without h5py.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    before = path.stat()
    read = read_hdf5
    if path.suffix.lower() == ".npz":
        read = read_npz
    result = read(path)
    check_unchanged(path, before)
    return result


def collect_arrays(
    files: Sequence[Path],
    reading: Reading,
    labelled: bool,
) -> Collection:
    """Return the samples of files with the same arrays; those called train and test are the splits.

    Raises:
        DataError: arrays that are missing or do not fit.
    """
    read = [read_arrays(file) for file in files]
    for file, arrays in zip(files, read):
        for key in read[0]:
            # Labels are looked for later, and only where they are read.
            if key not in arrays and key.lower() not in LABELS:
                raise DataError(f"{file}: has no array {key!r}, which {files[0]} has; add it")
    first = ArrayFile(files[0], read[0], reading, labelled)
    kind = _kind(first)
    _refuse_flags(files[0], reading, kind)

    settled = reading.settled(kind=kind)
    collect = _COLLECTORS[kind]
    collected = []
    for file, arrays in zip(files, read):
        array_file = ArrayFile(file, arrays, settled, labelled)
        collected.append(collect(array_file))
        # The first file holds training samples: its labels tell the task of all.
        settled = settled.settled(task=collected[0].reading.task)
    _check_alike(files, collected)
    counts = [len(part) for part in collected]
    result = _joined(collected)
    if labelled:
        result.parts = parts_of(files, counts)
    return result


def _refuse_flags(
    path: Path,
    reading: Reading,
    kind: str,
) -> None:
    """Refuse columns, and roles that samples of this kind do not have in arrays.

    Raises:
        DataError: naming the key of the reading.
    """
    reason = "samples in arrays have no columns: leave it out, or give a table"
    refuse_columns(path, reading, ("id", "text"), reason)
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


def _kind(file: ArrayFile) -> str:
    """Return the kind of the samples: as the user says, or by the names and shapes of the arrays.

    Raises:
        DataError: a kind that is not read from arrays.
    """
    kind = file.reading.kind
    if kind in ("series", "clouds", "fields"):
        return kind
    if kind is not None:
        raise DataError(
            f"{file.path}: kind: expected series, clouds or fields, which arrays can hold, got "
            f"{kind!r}; {kind} are read from tables or folders"
        )

    keys = {key.lower() for key in file.arrays}
    if file.find(PLACES) or "outputs" in keys:
        return "fields"
    if file.find(CLOUDS):
        return "clouds"
    # An answer on the same grid as the input is a field: labels have fewer axes.
    inputs = file.find(INPUTS)
    answers = file.find(ANSWERS)
    if inputs and answers and inputs != answers:
        here = file[inputs]
        there = file[answers]
        grids = min(here.ndim, there.ndim) >= 3
        if grids and here.shape[-2:] == there.shape[-2:]:
            return "fields"
    # ModelNet's and ScanObjectNN's files call the points of clouds `data`.
    data = file.find(("data",))
    if data is not None and "label" in keys:
        width = file[data].shape[-1:]
        if width == (3,):
            return "clouds"
    return "series"


_COLLECTORS = {
    "series": collect_series,
    "clouds": collect_clouds,
    "fields": collect_fields,
}


# --- several files --------------------------------------------------------------------------------


def _check_alike(files: Sequence[Path], collected: Sequence[Collection]) -> None:
    """Refuse samples of other channels, or fields on another grid, than the first file has.

    Raises:
        DataError: naming both files.
    """
    whats = {"samples": "samples"}
    if collected[0].kind == "fields":
        whats["labels"] = "answers"
    for file, part in zip(files, collected):
        for key, what in whats.items():
            mine = _form(getattr(part, key))
            first = _form(getattr(collected[0], key))
            if mine != first:
                raise DataError(
                    f"{file}: expected {what} of {first}, as {files[0]} has, got {mine}; bring all "
                    "files to the same"
                )


def _form(values: Any) -> str | None:
    """Describe the shape that samples of several files must share."""
    if values is None or not len(values):
        return None
    # Lists hold (points, channels): the number of points may vary.
    if not isinstance(values, np.ndarray):
        return f"{values[0].shape[1]} channels"
    channels, height, width = values[0].shape
    return f"{channels} channels on a grid of {height} × {width}"


JOINED = ("samples", "labels", "steps", "times", "starts", "coordinates", "groups", "order")


def _joined(collected: list[Collection]) -> Collection:
    """Return the samples of several files as one collection."""
    result = collected[0]
    if len(collected) > 1:
        places = [part.place(i) for part in collected for i in range(len(part))]
        joined: dict[str, Any] = {"place": places.__getitem__}
        for key in JOINED:
            values = [getattr(part, key) for part in collected]
            if values[0] is not None:
                joined[key] = _concatenated(values)
        result = replace(result, **joined)
        if result.steps is not None:
            # The classes of all files have been numbered anew.
            lengths = [len(sample) for sample in result.samples]
            ends = np.cumsum(lengths)[:-1]
            result.steps = np.split(result.labels.codes, ends)
    if result.groups is not None:
        result.groups = _coded_groups(result.groups)
        result.joined = len(collected) > 1
    return result


def _coded_groups(values: np.ndarray) -> np.ndarray:
    """Return groups as numbers; the same group has one number in all files."""
    # Texts of HDF5, or of files some of which have numbers.
    if values.dtype == object:
        values = _as_words(values)
    _, codes = np.unique(values, return_inverse=True)
    return codes


def _as_words(values: np.ndarray) -> np.ndarray:
    words = [word_of(value) for value in values.tolist()]
    return np.array(words)


def _concatenated(values: list[Any]) -> Any:
    """Join lists, arrays or classes of several files."""
    if isinstance(values[0], list):
        return [item for part in values for item in part]
    if isinstance(values[0], Coded):
        words = [word for part in values for word in part.words()]
        return coded(words, known_words(words))
    # NumPy would write 1 and 1.0 as different words beside texts.
    kinds = {part.dtype.kind for part in values}
    if len(kinds) > 1:
        values = [_as_words(part) for part in values]
    return np.concatenate(values)
