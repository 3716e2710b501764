"""Samples of a user's files, before they are split, scaled and handed out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....errors import DataError
from .casts import LARGEST, Coded
from .reading import Reading
from .table import in_words
from .writing import is_number

TRAIN, VAL, TEST = 0, 1, 2
LISTED = 100  # samples that are listed one by one
SOME = 200  # samples that a leak is first looked for in
BLOCK = 1 << 19  # numbers that are looked at a time
PART_NAMES = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VAL,
    "valid": VAL,
    "validation": VAL,
    "dev": VAL,
    "test": TEST,
}


@dataclass
class Collection:
    """What a reader gives.

    Attributes:
        name: of the user's file or folder.
        reading: how it was read, settled.
        samples: of series (n, channels) arrays, NaN where nothing was measured; of rows one array
            (N, columns); texts; paths of pictures; clouds (points, channels); fields (N, C, …).
        labels: classes as :class:`Coded`, numbers (N,), of fields the answers; None where there are
            none.
        steps: classes at every point of each series, as codes of ``labels.names``.
        place: of a sample's number its ``file``, and what tells it from others there, such as its
            ``row``.
        times: of series with times, how long after its first each point was measured.
        starts: when the first was, as text.
        rows: of series in a table of a row per time, the rows of each.
        dated: of times in a table, whether they are dates; None where that is not known.
        coordinates: of fields on points, where each point is.
        parts: TRAIN, VAL or TEST of each sample, where the files say it.
        groups: a number for each sample, equal ones are not divided; ``joined`` where they go over
            several files of arrays.
        order: when each sample was taken, for a split by time.
        ids: how the files call each sample.
        channels: names of what a model reads.
        taken: what was taken for what, in words.
        remarks: what is worth a warning.
        words: of rows, those of each column of words, in the order of their channels.
        pixels: of images in memory, what their numbers were: ``bytes`` (whole ones), ``shares`` of
            1, or ``numbers`` of another scale.
        files: bytes and names of what was read, by which a change is noticed.
        layout: of series in a table: ``long`` (a row per time), ``wide`` or ``lists``.
        written: of a table of text, how it is written, by keys of ``--read``.
    """

    name: str
    reading: Reading
    samples: Any
    labels: Any
    place: Callable[[int], dict[str, Any]]
    steps: list[np.ndarray] | None = None
    times: list[np.ndarray] | None = None
    starts: list[str] | None = None
    rows: Sequence[Any] | None = None
    dated: bool | None = None
    coordinates: list[np.ndarray] | None = None
    parts: np.ndarray | None = None
    groups: np.ndarray | None = None
    joined: bool = False
    order: np.ndarray | None = None
    ids: list[str] | None = None
    channels: tuple[str, ...] = ()
    taken: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)
    pixels: str | None = None
    files: str = ""
    layout: str | None = None
    written: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.samples)

    def where(self, number: int) -> str:
        """In which file and row a sample is, in words."""
        return in_words(self.place(number))

    def take(self, chosen: np.ndarray) -> Collection:
        """Return the samples of these numbers, in their order."""
        place, labels, steps = self.place, self.labels, self.steps
        if isinstance(labels, Coded) and steps is None:
            labels = Coded(labels.codes[chosen], labels.names)
        elif not isinstance(labels, Coded):
            labels = _taken(labels, chosen)
        result = replace(self, labels=labels, place=lambda i: place(int(chosen[i])))
        for key in PER_SAMPLE:
            setattr(result, key, _taken(getattr(self, key), chosen))
        return result

    @property
    def kind(self) -> str:
        return self.reading.kind or ""

    @property
    def task(self) -> str:
        return self.reading.task or "classification"


PER_SAMPLE = (
    "samples",
    "steps",
    "times",
    "starts",
    "rows",
    "coordinates",
    "parts",
    "groups",
    "order",
    "ids",
)


def _taken(values: Any, chosen: np.ndarray) -> Any:
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else values[chosen]
    return [values[i] for i in chosen]


def in_order(labels: Coded) -> Coded:
    """The same classes, numbered in the order of their names: numbers by size, words by the
    alphabet. Where names are numbers, 1 and 1.0 are one class.

    Example:
        >>> in_order(Coded(np.array([0, 1, 0]), ["10", "9"]))
        Coded(codes=array([1, 0, 1]), names=['9', '10'])
        >>> in_order(Coded(np.array([0, 1, 2]), ["1.0", "0", "1"]))
        Coded(codes=array([1, 0, 1]), names=['0', '1'])
    """
    numbers = all(is_number(name) for name in labels.names)
    twice = numbers and len({*map(_whole, labels.names)}) < len(labels.names)
    names = [*map(_whole, labels.names)] if twice else labels.names  # else as they are written
    order = sorted({*names}, key=(lambda n: (float(n), n)) if numbers else str)
    place = {name: i for i, name in enumerate(order)}
    table = np.array([*(place[name] for name in names), -1], np.int64)
    return Coded(table[labels.codes], order)


def _whole(name: str) -> str:
    """A number without a fraction of zeros."""
    return re.sub(r"(?<=\d)\.0*$", "", name)


def looks_continuous(cells: Sequence[str]) -> bool:
    """Whether cells of a label are measured numbers rather than names of classes: some are no
    integers (such as ``inf``, no name of a class), or there are many different ones.

    Example:
        >>> looks_continuous(["0.5", "1"]), looks_continuous(["0", "1", "1"])
        (True, False)
        >>> looks_continuous(["0", "1", "inf"])
        True
    """
    if not cells or not all(is_number(cell) for cell in cells):
        return False
    values = [float(cell) for cell in cells]
    if not all(value.is_integer() for value in values):
        return True
    return len(set(values)) > max(20, len(values) / 10)


# --- numbers that no model can read ---------------------------------------------------------------


def check_range(collection: Collection) -> None:
    """Refuse infinite numbers, and those beyond float32's.

    Raises:
        DataError: naming the first such sample, and its channel.
    """
    if collection.kind not in ("series", "rows", "clouds", "fields"):
        return
    images = collection.kind == "fields" and collection.coordinates is None
    for values in (collection.samples, collection.coordinates):
        if values is None or (found := too_large(values)) is None:
            continue
        number, at = found
        column, names = at[0 if images else -1], collection.channels
        named = values is collection.samples and column < len(names)
        where = f", {names[column]!r}" if named else ""
        raise DataError(
            f"{collection.where(number)}{where}: received {values[number][at]:g}; needs finite "
            f"numbers, none beyond {LARGEST:.2g}"
        )


def too_large(values: Any) -> tuple[int, tuple[int, ...]] | None:
    """The sample, and the place in it, of the first number that float32 does not hold; None where
    there is none. NaN is no such number.

    Example:
        >>> too_large([np.zeros(3), np.array([0.0, np.nan, -1e39])]), too_large(np.zeros((2, 2)))
        ((1, (2,)), None)
    """
    for start, block in blocks(values):
        beyond = np.abs(block) > LARGEST
        if beyond.any():
            number, *at = (int(i[0]) for i in beyond.nonzero())
            return start + number, tuple(at)
    return None


def blocks(values: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Arrays of samples, of an array :data:`BLOCK` numbers at a time, and the number of the first
    of each.
    """
    if not isinstance(values, np.ndarray):
        yield from ((number, np.asarray(sample)[None]) for number, sample in enumerate(values))
        return
    size = max(1, BLOCK // max(1, values[:1].size))
    yield from ((start, values[start : start + size]) for start in range(0, len(values), size))


# --- labels that nobody should train on -----------------------------------------------------------


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
    """Refuse labels from which nothing can be learned, before anything is trained.

    Raises:
        DataError: a sample without a label, a number that float32 does not hold, a label that
            counts the rows, one class only, a class of a single sample.
    """
    labels, name = collection.labels, collection.reading.label or "label"
    if collection.kind == "fields" or collection.steps is not None:
        return
    numbers = isinstance(labels, np.ndarray)
    values = labels if numbers else labels.codes
    missing = ~np.isfinite(values) if numbers else values < 0
    if missing.any():
        row = int(missing.argmax())
        raise DataError(
            f"{collection.where(row)}, column {name!r}: has no label ({int(missing.sum()):,} of "
            f"{len(values):,} samples have none: none, NA, - and ? count as missing); give it one, "
            "or leave those samples out"
        )
    found = too_large(values) if numbers else None
    if found is not None:
        raise DataError(
            f"{collection.where(found[0])}, column {name!r}: received {values[found[0]]:g}; needs "
            f"a number, none beyond {LARGEST:.2g}"
        )
    if _counts_rows(labels, numbers):
        raise DataError(
            f"{collection.where(0)}, column {name!r}: the label is another one in every sample, as "
            "a row number is; name the column of the label: label"
        )
    if numbers:
        if _numbers_samples(labels):
            collection.remarks.append(
                f"the label {name!r} takes each whole number from {labels.min():.0f} to "
                f"{labels.max():.0f} once, as the number of a sample does; if it is one, name the "
                "column of the label: label"
            )
        if len(values) > 1 and float(values.min()) == float(values.max()):
            raise DataError(
                f"{collection.where(0)}, column {name!r}: every sample has the label {values[0]:g}"
                "; needs different ones"
            )
        return
    counts = np.bincount(values, minlength=len(labels.names))
    if (counts > 0).sum() < 2:  # a file may declare others
        raise DataError(
            f"{collection.where(0)}, column {name!r}: every sample has the class "
            f"{labels.names[values[0]]!r}; needs two classes or more"
        )
    single = [labels.names[i] for i in np.flatnonzero(counts == 1)]
    if single:
        row = int((values == labels.names.index(single[0])).argmax())
        more = f", and so have {len(single) - 1} others" if len(single) > 1 else ""
        raise DataError(
            f"{collection.where(row)}, column {name!r}: the class {single[0]!r} has one sample"
            f"{more}; a class needs two or more, to train on and to test: add samples, or remove it"
        )


def _counts_rows(labels: Any, numbers: bool) -> bool:
    if len(labels if numbers else labels.codes) < 5:
        return False
    if numbers:
        return bool((np.diff(labels) == 1).all())
    return len(labels.names) == len(labels.codes)


def _numbers_samples(labels: np.ndarray) -> bool:
    """Whether numbers are those of the samples, in another order."""
    return len(labels) >= 5 and bool((np.diff(np.sort(labels)) == 1).all())


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
