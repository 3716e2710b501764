"""Checks of labels: those that a model cannot learn from, and columns that leak them."""

from __future__ import annotations

import numpy as np

from ....errors import DataError
from .casts import LARGEST, Coded
from .collection import LISTED, Collection, too_large

FEWEST = 5  # labels that may count the rows
SOME = 200  # samples that a leak is first looked for in


def with_labels(collection: Collection) -> Collection:
    """Return the samples that have a label; all, where every missing label is refused.

    A class at every time may be missing at some of them.
    """
    labels = collection.labels
    if collection.kind == "fields" or collection.steps is not None or collection.reading.strict:
        return collection
    missing = np.isnan(labels) if isinstance(labels, np.ndarray) else labels.codes < 0
    count = int(missing.sum())
    if not count or count == len(missing):
        return collection
    rows = np.flatnonzero(missing)
    places = [collection.where(int(row)) for row in rows[:LISTED]]
    if count > LISTED:
        places.append(f"and {count - LISTED:,} more")
    result = collection.take(np.flatnonzero(~missing))
    result.remarks = [
        *result.remarks,
        f"{count:,} of {len(missing):,} samples have no label and are left out (none, NA, - and ? "
        f"count as missing; --strict refuses them): {'; '.join(places)}",
    ]
    return result


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
    regression = isinstance(labels, np.ndarray)
    values = labels if regression else labels.codes
    missing = ~np.isfinite(values) if regression else values < 0
    if missing.any():
        raise DataError(
            f"{collection.where(int(missing.argmax()))}, {column}: has no label "
            f"({int(missing.sum()):,} of {len(values):,} samples have none: none, NA, - and ? "
            "count as missing); give it one, or leave those samples out"
        )
    if regression:
        _check_numbers(collection, values, column)
    else:
        _check_classes(collection, labels, column)


def _check_numbers(collection: Collection, values: np.ndarray, column: str) -> None:
    found = too_large(values)
    if found is not None:
        raise DataError(
            f"{collection.where(found[0])}, {column}: received {values[found[0]]:g}; needs a "
            f"number, none beyond {LARGEST:.2g}"
        )
    if len(values) >= FEWEST and (np.diff(values) == 1).all():
        raise _counts_rows(collection, column)
    if len(values) >= FEWEST and (np.diff(np.sort(values)) == 1).all():
        collection.remarks.append(
            f"the label {column.removeprefix('column ')} takes each whole number from "
            f"{values.min():.0f} to {values.max():.0f} once, as the number of a sample does; if it "
            "is one, name the column of the label: label"
        )
    if len(values) > 1 and float(values.min()) == float(values.max()):
        raise DataError(
            f"{collection.where(0)}, {column}: every sample has the label {values[0]:g}; needs "
            "different ones"
        )


def _check_classes(collection: Collection, labels: Coded, column: str) -> None:
    values, names = labels.codes, labels.names
    if len(values) >= FEWEST and len(names) == len(values):
        raise _counts_rows(collection, column)
    counts = np.bincount(values, minlength=len(names))
    if (counts > 0).sum() < 2:  # a file may declare others
        raise DataError(
            f"{collection.where(0)}, {column}: every sample has the class {names[values[0]]!r}; "
            "needs two classes or more"
        )
    single = np.flatnonzero(counts == 1)
    if len(single):
        row = int((values == single[0]).argmax())
        more = f", and so have {len(single) - 1} others" if len(single) > 1 else ""
        raise DataError(
            f"{collection.where(row)}, {column}: the class {names[single[0]]!r} has one sample"
            f"{more}; a class needs two or more, to train on and to test: add samples, or remove it"
        )


def _counts_rows(collection: Collection, column: str) -> DataError:
    return DataError(
        f"{collection.where(0)}, {column}: the label is another one in every sample, as a row "
        "number is; name the column of the label: label"
    )


def leaks(collection: Collection, columns: dict[str, np.ndarray]) -> list[str]:
    """Warnings of columns that tell the label by themselves.

    A column leaks a class if, sorted by it, every class is one stretch, and a number if it is
    (nearly) a linear function of it. Fewer than 20 samples tell nothing. O(n log n) per column.
    """
    labels, result = collection.labels, []
    if labels is None or len(collection) < 20:
        return result
    name = collection.reading.label
    for column, values in columns.items():
        known = np.isfinite(values)
        if known.sum() < 20 or np.ptp(values[known]) == 0:
            continue
        if isinstance(labels, np.ndarray):
            told = abs(np.corrcoef(values[known], labels[known])[0, 1]) > 0.9999
        else:
            # What some samples disprove need not be asked of all.
            values, codes = values[known], labels.codes[known]
            some = slice(None, None, max(1, len(values) // SOME))
            told = _separates(values[some], codes[some]) and _separates(values, codes)
        if told:
            result.append(
                f"column {column!r} tells {name!r} by itself; if it is known only when {name!r} "
                "is, leave it out (channels)"
            )
    return result


def constant_channels(collection: Collection) -> dict[str, np.ndarray]:
    """The value of each channel of series that never varies within one, such as a score."""
    result = {}
    for number, name in enumerate(collection.channels):
        columns = [sample[:, number] for sample in collection.samples]
        known = [column[~np.isnan(column)] for column in columns]
        if all(len(column) > 1 for column in known) and all(np.ptp(c) == 0 for c in known):
            result[name] = np.array([column[0] for column in known], np.float64)
    return result


def _separates(values: np.ndarray, codes: np.ndarray) -> bool:
    order = np.lexsort((codes, values))
    ordered, by = codes[order], values[order]
    changes = ordered[1:] != ordered[:-1]
    if (changes & (by[1:] == by[:-1])).any():  # equal values of different classes
        return False
    return int(changes.sum()) == len(np.unique(codes)) - 1
