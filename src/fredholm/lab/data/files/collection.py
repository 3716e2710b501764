"""Samples of a user's files, before they are split, scaled and handed out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Samples and their labels, as a reader returns them.

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


def coded(words: Sequence[str], names: Iterable[str]) -> Coded:
    """Return words as classes in the order of their names, -1 where one is not among ``names``.

    Example:
        >>> coded(["b", "a", "?"], ["b", "a"])
        Coded(codes=array([ 1,  0, -1]), names=['a', 'b'])
    """
    unique = list(dict.fromkeys(names))
    place = {name: code for code, name in enumerate(unique)}
    return in_order(Coded(np.array([place.get(word, -1) for word in words]), unique))


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
