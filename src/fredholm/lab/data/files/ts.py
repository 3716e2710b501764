"""Series in the ``.ts`` files of the UEA and UCR archives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ..formats import read_bytes
from .casts import Coded
from .collection import Collection, in_order, looks_continuous
from .parts import parts_of
from .reading import Reading
from .table import in_words
from .writing import is_missing, is_number

STAMPED = re.compile(r"\(([^,()]+),([^,()]+)\)")
COLON = re.compile(r":(?![^()]*\))")  # between dimensions, not within a stamp


def read_ts(
    path: Path, unlabelled: bool = False, dtype: type = np.float32
) -> tuple[list[np.ndarray], list[str], tuple[str, ...]]:
    """Series (N, C), each series' class, and the classes that the header lists (none where it lists
    none).

    A series is a line: dimensions divided by colons, the class last. A dimension is numbers divided
    by commas, ``?`` where one is missing (NaN here); stamped values ``(time,value)`` are read where
    all dimensions have the same times, which are dropped. Where ``unlabelled``, a header that says
    that there are no classes is believed, and every class is "".

    Raises:
        DataError: a missing file, no @data, a line without a class, or values that are no numbers.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {error.start:,}; it is corrupt or another file"
        ) from error
    classes: tuple[str, ...] = ()
    bare = False
    start = next((i for i, line in enumerate(lines) if line.strip().lower() == "@data"), None)
    if start is None:
        raise DataError(f"{path}: has no line @data; it is truncated or no .ts file")
    for line in lines[:start]:
        words = line.split()
        if words[:1] and words[0].lower() == "@classlabel":
            bare = unlabelled and words[1:2] == ["false"]
            if words[1:2] != ["true"] and not bare:
                raise DataError(
                    f"{path}: its series have no classes (@classLabel {' '.join(words[1:2])}); "
                    "needs labelled ones"
                )
            classes = tuple(words[2:])
    series, labels = [], []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if line.strip():
            *dimensions, label = [*COLON.split(line.strip()), *([""] if bare else [])]
            if not dimensions or (classes and label.strip() not in classes):
                raise DataError(
                    f"{path}: line {number} ends in {label[:40]!r}; needs one of the classes "
                    f"{', '.join(classes)}"
                )
            series.append(_series(dimensions, f"{path}: line {number}", dtype))
            labels.append(label.strip())
    if not series:
        raise DataError(f"{path}: holds no series; it is truncated")
    if len({s.shape[1] for s in series}) > 1:
        raise DataError(
            f"{path}: series of {sorted({s.shape[1] for s in series})} dimensions; needs one "
            "number of them"
        )
    return series, labels, classes


def _series(dimensions: list[str], where: str, dtype: type) -> np.ndarray:
    columns, clocks = [], []
    for text in dimensions:
        cells = text.split(",")
        if "(" in text:
            if re.fullmatch(rf"\s*{STAMPED.pattern}(\s*,\s*{STAMPED.pattern})*\s*", text) is None:
                raise DataError(
                    f"{where}: expected stamps (time,value) divided by commas, got {text[:60]!r}; "
                    "mend the line"
                )
            cells = [cell for _, cell in STAMPED.findall(text)]
            clocks.append([time.strip() for time, _ in STAMPED.findall(text)])
        try:
            columns.append(
                np.array(
                    [np.nan if cell.strip() in ("?", "NaN") else float(cell) for cell in cells],
                    dtype,
                )
            )
        except ValueError as error:
            raise DataError(f"{where}: {error}; needs numbers divided by commas") from error
    if len({len(column) for column in columns}) > 1 or not len(columns[0]):
        raise DataError(
            f"{where}: dimensions of {[len(c) for c in columns]} samples; needs one length, at "
            "least 1"
        )
    odd = next((clock for clock in clocks if clock != clocks[0]), None)
    if odd is not None:
        raise DataError(
            f"{where}: expected dimensions of the same times, got {clocks[0][:3]} and {odd[:3]}, … "
            "; give a table with a row per time and an empty cell where none was measured"
        )
    return np.stack(columns, 1)


def collect_ts(
    files: Sequence[Path], name: str, reading: Reading, labelled: bool = True
) -> Collection:
    """The series of one or several files; those whose names end in TRAIN and TEST are the splits.

    Raises:
        DataError: as :func:`read_ts`, or files of different dimensions or classes, or groups.
    """
    if labelled and reading.group is not None:
        raise DataError(
            f"{files[0]}: group: received {reading.group!r}; .ts files have no groups: give a "
            "table with a column for it, or an npz with an array"
        )
    samples, words, known, counts = [], [], (), []
    for file in files:
        series, labels, classes = read_ts(file, not labelled, np.float64)
        if samples and series[0].shape[1] != samples[0].shape[1]:
            raise DataError(
                f"{file}: series of {series[0].shape[1]} dimensions; {files[0]} has "
                f"{samples[0].shape[1]}"
            )
        samples += series
        words += labels
        known = known or classes
        counts.append(len(series))
    there = words if known else [word for word in words if not is_missing(word)]
    numbers = not known and looks_continuous(there)
    task = reading.task or ("regression" if numbers else "classification")
    channels = tuple(f"dimension {i + 1}" for i in range(samples[0].shape[1]))
    places = [
        {"file": str(file), "series": i + 1} for file, n in zip(files, counts) for i in range(n)
    ]
    label: Any = None
    if labelled:
        label = _numbers(words, places) if task == "regression" else _classes(words, known, there)
    stamped = next((file for file in files if _stamped(file)), None)
    remarks = [f"{stamped}: its time stamps are not read; one step between two points"]
    return Collection(
        name,
        reading.settled(kind="series", task=task, label="label", split=reading.split or "random"),
        samples,
        label,
        places.__getitem__,
        parts=parts_of(files, counts) if labelled else None,
        channels=channels,
        taken={"layout": "one line per series", "label": "what stands last in a line"},
        remarks=remarks if stamped else [],
    )


def _classes(words: Sequence[str], known: Sequence[str], there: Sequence[str]) -> Coded:
    """The class of each series; -1 where it is missing, and no header lists it."""
    names = list(dict.fromkeys([*known, *there]))
    place = {name: code for code, name in enumerate(names)}
    return in_order(Coded(np.array([place.get(word, -1) for word in words]), names))


def _numbers(words: Sequence[str], places: Sequence[dict[str, Any]]) -> np.ndarray:
    """What stands last in each line, NaN where it is missing.

    Raises:
        DataError: it is no number.
    """
    odd = next((i for i, w in enumerate(words) if not (is_number(w) or is_missing(w))), None)
    if odd is not None:
        raise DataError(
            f"{in_words(places[odd])}: the label {words[odd][:40]!r} is no number, as a regression "
            "is asked for; needs numbers, or task classification"
        )
    return np.array([np.nan if is_missing(word) else float(word) for word in words])


def _stamped(file: Path) -> bool:
    """Whether a file says that it has time stamps, or has them in its first line."""
    with file.open(encoding="utf-8-sig") as lines:
        for line in lines:
            words = line.lower().split()
            if words == ["@timestamps", "true"]:
                return True
            if words and not words[0].startswith(("@", "#")):
                return STAMPED.search(line) is not None
    return False
