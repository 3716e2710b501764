"""Series in the ``.ts`` files of the UEA and UCR archives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError
from ..formats import read_utf8
from .collection import Collection, coded, looks_continuous, numbered
from .division import parts_of
from .reading import Reading
from .table import in_words
from .writing import PLAIN, is_number

STAMPED = re.compile(r"\(([^,()]+),([^,()]+)\)")
COLON = re.compile(r":(?![^()]*\))")  # between dimensions, not within a stamp


def read_ts(
    path: Path,
    unlabelled: bool = False,
    dtype: type = np.float32,
) -> tuple[list[np.ndarray], list[str], tuple[str, ...]]:
    """Return series (N, C), the class of each, and the classes that the header lists, if any.

    A series is a line: dimensions separated by colons, the class last. A dimension is numbers
    separated by commas, ``?`` for a missing one (NaN here). Stamped values ``(time,value)`` are
    read if all dimensions have the same times, which are dropped.

    Args:
        unlabelled: accept a header that says that there are no classes; every class is then "".

    Raises:
        DataError: a missing file, no @data, a line without a class, or values that are not numbers.
    """
    lines = read_utf8(path).splitlines()
    # The header is case-insensitive in the archives.
    marks = [line.strip().lower() for line in lines]
    if "@data" not in marks:
        raise DataError(
            f"{path}: expected a line @data, got none; it is truncated or not a .ts file"
        )
    start = marks.index("@data") + 1
    header = _header(path, lines[:start], unlabelled)

    series = []
    labels = []
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            continue
        dimensions = COLON.split(line.strip())
        label = ""
        if not header.bare:
            label = dimensions.pop().strip()
        if not dimensions or (header.classes and label not in header.classes):
            raise DataError(
                f"{path}: line {number}: expected one of the classes {', '.join(header.classes)} "
                f"at the end, got {label[:40]!r}; correct the line"
            )
        series.append(_series(dimensions, f"{path}: line {number}", dtype))
        labels.append(label)

    if not series:
        raise DataError(f"{path}: expected series, got none; it is truncated")
    widths = sorted({sample.shape[1] for sample in series})
    if len(widths) > 1:
        raise DataError(
            f"{path}: expected series of as many dimensions each, got {widths}; leave out the "
            "others"
        )
    return series, labels, header.classes


class _Header(NamedTuple):
    """Whether series have no class, and the classes that a header lists."""

    bare: bool = False
    classes: tuple[str, ...] = ()


def _header(
    path: Path,
    lines: Sequence[str],
    unlabelled: bool,
) -> _Header:
    found = _Header()
    for line in lines:
        key, *words = line.split() or [""]
        if key.lower() != "@classlabel":
            continue
        found = _Header(unlabelled and words[:1] == ["false"], tuple(words[1:]))
        if words[:1] != ["true"] and not found.bare:
            raise DataError(
                f"{path}: expected series with classes (@classLabel true), got {line.strip()!r}; "
                "give a file with labels"
            )
    return found


def _series(
    dimensions: list[str],
    where: str,
    dtype: type,
) -> np.ndarray:
    """Return one series (N, C) from the text of its dimensions."""
    columns = []
    clocks = []
    for text in dimensions:
        cells = text.split(",")
        if "(" in text:
            stamps = rf"\s*{STAMPED.pattern}(\s*,\s*{STAMPED.pattern})*\s*"
            if re.fullmatch(stamps, text) is None:
                raise DataError(
                    f"{where}: expected stamps (time,value) divided by commas, got {text[:60]!r}; "
                    "correct the line"
                )
            times, cells = zip(*STAMPED.findall(text))
            clocks.append([time.strip() for time in times])
        cells = [cell.strip() for cell in cells]
        try:
            numbers = [float({"?": "nan"}.get(cell, cell)) for cell in cells]
        except ValueError as error:
            raise DataError(
                f"{where}: expected numbers separated by commas ({error}); correct the line"
            ) from error
        columns.append(np.array(numbers, dtype))

    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise DataError(
            f"{where}: expected dimensions of one length, got {lengths}; give a table with a row "
            "per time and an empty cell where none was measured"
        )
    # Dimensions at different times cannot be read as one series of points.
    for clock in clocks:
        if clock != clocks[0]:
            raise DataError(
                f"{where}: expected dimensions of the same times, got {clocks[0][:3]} and "
                f"{clock[:3]}, …; give a table with a row per time and an empty cell where none "
                "was measured"
            )
    return np.stack(columns, 1)


def collect_ts(
    files: Sequence[Path],
    reading: Reading,
    labelled: bool,
) -> Collection:
    """Return the series of one or several files; names ending in TRAIN and TEST tell the splits.

    Raises:
        DataError: as :func:`read_ts`, or files of different dimensions or classes, or groups.
    """
    if labelled and reading.group is not None:
        raise DataError(
            f"{files[0]}: group: expected none, got {reading.group!r}; .ts files have no groups: "
            "give a table with a column for it, or an npz with an array"
        )
    samples = []
    words = []
    known = ()
    counts = []
    places = []
    for file in files:
        series, labels, classes = read_ts(file, not labelled, np.float64)
        width = series[0].shape[1]
        if samples and width != samples[0].shape[1]:
            raise DataError(
                f"{file}: expected {samples[0].shape[1]} dimensions, as {files[0]} has, got "
                f"{width}; give files of one data set"
            )
        samples += series
        words += labels
        # All parts of a data set list the same classes.
        known = known or classes
        counts.append(len(series))
        places += [{"file": str(file), "series": i + 1} for i in range(len(series))]

    # Where the header lists classes, any word may be one, also "?" and "none".
    there = words
    if not known:
        there = [word for word in words if not PLAIN.is_missing(word)]
    task = reading.task
    if task is None:
        task = "classification"
        if not known and looks_continuous(there):
            task = "regression"
    result = Collection(
        reading.settled(kind="series", task=task, label="label", split=reading.split or "random"),
        samples,
        places.__getitem__,
        channels=numbered("dimension", samples[0].shape[1]),
        taken={"layout": "one line per series", "label": "what stands last in a line"},
    )
    if labelled:
        result.parts = parts_of(files, counts)
        result.labels = coded(words, [*known, *there])
        if task == "regression":
            result.labels = _numbers(words, places)
    for file in files:
        if _stamped(file):
            result.remarks.append(
                f"{file}: its time stamps are not read; one step between two points; where gaps "
                "matter, write a table with one row per time, or .npz with times"
            )
            break
    return result


def _numbers(words: Sequence[str], places: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the labels as numbers, NaN where one is missing.

    Raises:
        DataError: a label that is not a number.
    """
    values = np.full(len(words), np.nan)
    for i, word in enumerate(words):
        if PLAIN.is_missing(word):
            continue
        if not is_number(word):
            raise DataError(
                f"{in_words(places[i])}: expected a number as the label of a regression, got "
                f"{word[:40]!r}; correct it, or pass task classification"
            )
        values[i] = float(word)
    return values


def _stamped(file: Path) -> bool:
    """Whether a header declares time stamps, or the first series has them."""
    with file.open(encoding="utf-8-sig") as lines:
        for line in lines:
            words = line.lower().split()
            if words == ["@timestamps", "true"]:
                return True
            # The first line behind the header and its remarks is a series.
            if words and not words[0].startswith(("@", "#")):
                return STAMPED.search(line) is not None
    return False
