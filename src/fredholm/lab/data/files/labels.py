"""Checks of labels: those that a model cannot learn from, and columns that leak them."""

from __future__ import annotations

import numpy as np

from ....errors import DataError
from .casts import LARGEST, Coded
from .collection import Collection, listed, too_large

FEWEST = 5  # fewest labels that can look like row numbers
SOME = 200  # samples in which a leak is looked for first


def with_labels(collection: Collection) -> Collection:
    """Return the samples that have a label.

    All are returned if a missing label is an error (``strict``), or if none has one; what is wrong
    is then told by :func:`check_labels`. A class at every time may be missing at some of them.
    """
    labels = collection.labels
    if collection.kind == "fields" or collection.steps is not None or collection.reading.strict:
        return collection
    missing = _missing(labels)
    count = int(missing.sum())
    if count in (0, len(missing)):
        return collection
    places = [collection.where(int(row)) for row in np.flatnonzero(missing)]
    result = collection.take(np.flatnonzero(~missing))
    result.remarks = [
        *result.remarks,
        f"{count:,} of {len(missing):,} samples have no label and are left out (none, NA, - and ? "
        f"count as missing; --strict refuses them): {listed(places)}",
    ]
    return result


def _missing(labels: np.ndarray | Coded) -> np.ndarray:
    if isinstance(labels, Coded):
        return labels.codes < 0
    return np.isnan(labels)


def check_labels(collection: Collection) -> None:
    """Refuse labels that a model cannot learn from, before anything is trained.

    Fields, and classes at every time, have no single label per sample and are not checked.

    Raises:
        DataError: a sample without a label, a number beyond the range of float32, a label that is
            a row number, only one class or number, or a class with a single sample.
    """
    labels = collection.labels
    column = f"column {collection.reading.label or 'label'!r}"
    if collection.kind == "fields" or collection.steps is not None:
        return

    # Labels are an array of numbers, or classes as codes into their names; -1 is missing.
    missing = _missing(labels)
    if not isinstance(labels, Coded):
        # Arrays may hold an infinite label, which is not a number to learn either.
        missing = ~np.isfinite(labels)
    if missing.any():
        raise DataError(
            f"{collection.where(int(missing.argmax()))}, {column}: has no label "
            f"({int(missing.sum()):,} of {len(missing):,} samples have none: none, NA, - and ? "
            "count as missing); give it one, or leave those samples out"
        )
    if isinstance(labels, Coded):
        _check_classes(collection, labels, column)
    else:
        _check_numbers(collection, labels, column)


def _check_numbers(
    collection: Collection,
    values: np.ndarray,
    column: str,
) -> None:
    found = too_large(values)
    if found is not None:
        row = found[0]
        raise DataError(
            f"{collection.where(row)}, {column}: expected a number, none beyond {LARGEST:.2g}, got "
            f"{values[row]:g}; correct it, or leave the sample out"
        )
    if len(values) >= FEWEST and (np.diff(values) == 1).all():
        raise _counts_rows(collection, column)
    # Shuffled row numbers may be ranks as well, which can be learned: a remark is enough.
    if len(values) >= FEWEST and (np.diff(np.sort(values)) == 1).all():
        collection.remarks.append(
            f"the label {column.removeprefix('column ')} takes each whole number from "
            f"{values.min():.0f} to {values.max():.0f} once, as the number of a sample does; if it "
            "is one, name the column of the label: label"
        )
    if len(values) > 1 and float(values.min()) == float(values.max()):
        raise DataError(
            f"{collection.where(0)}, {column}: expected different labels, got {values[0]:g} for "
            "every sample; name another column: label"
        )


def _check_classes(
    collection: Collection,
    labels: Coded,
    column: str,
) -> None:
    values = labels.codes
    names = labels.names
    if len(values) >= FEWEST and len(names) == len(values):
        raise _counts_rows(collection, column)
    # A file may declare classes that no sample has: these are refused with the splits.
    counts = np.bincount(values, minlength=len(names))
    if (counts > 0).sum() < 2:
        raise DataError(
            f"{collection.where(0)}, {column}: expected two classes or more, got "
            f"{names[values[0]]!r} for every sample; add samples of others, or name another "
            "column: label"
        )
    single = np.flatnonzero(counts == 1)
    if len(single):
        row = int((values == single[0]).argmax())
        more = ""
        if len(single) > 1:
            more = f", and of {len(single) - 1} others"
        raise DataError(
            f"{collection.where(row)}, {column}: expected two samples or more of each class, to "
            f"train on and to test, got one of {names[single[0]]!r}{more}; add samples, or remove "
            "it"
        )


def _counts_rows(collection: Collection, column: str) -> DataError:
    return DataError(
        f"{collection.where(0)}, {column}: expected a label, got another value in every sample, as "
        "a row number has; name the column of the label: label"
    )


def leaks(collection: Collection, columns: dict[str, np.ndarray]) -> list[str]:
    """Return warnings of columns that determine the label by themselves.

    Such a column is often filled in once the label is known, so that no new sample has it. It
    determines classes if, sorted by it, every class is one stretch, and a number if that is
    (nearly) a linear function of it. Fewer than 20 samples show nothing. O(n log n) per column.
    """
    labels = collection.labels
    result = []
    if labels is None or len(collection) < 20:
        return result
    name = collection.reading.label
    for column, values in columns.items():
        known = np.isfinite(values)
        if known.sum() < 20 or np.ptp(values[known]) == 0:
            continue
        values = values[known]
        if isinstance(labels, Coded):
            # Some samples disprove most columns, without sorting all.
            codes = labels.codes[known]
            step = max(1, len(values) // SOME)
            told = _separates(values[::step], codes[::step]) and _separates(values, codes)
        else:
            told = abs(np.corrcoef(values, labels[known])[0, 1]) > 0.9999
        if told:
            result.append(
                f"column {column!r} tells {name!r} by itself; if it is known only when {name!r} "
                "is, leave it out (channels)"
            )
    return result


def constant_channels(collection: Collection) -> dict[str, np.ndarray]:
    """Return the values of the channels that vary within no series, such as a patient's score."""
    result = {}
    for number, name in enumerate(collection.channels):
        columns = [sample[:, number] for sample in collection.samples]
        known = [column[~np.isnan(column)] for column in columns]
        if all(len(column) > 1 for column in known) and all(np.ptp(c) == 0 for c in known):
            result[name] = np.array([column[0] for column in known], np.float64)
    return result


def _separates(values: np.ndarray, codes: np.ndarray) -> bool:
    """Whether every class is one stretch of the sorted values."""
    order = np.lexsort((codes, values))
    codes = codes[order]
    values = values[order]
    changes = codes[1:] != codes[:-1]
    # Equal values of different classes separate nothing.
    if (changes & (values[1:] == values[:-1])).any():
        return False
    return int(changes.sum()) == len(np.unique(codes)) - 1
