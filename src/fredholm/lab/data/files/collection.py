"""Samples of a user's files, before they are split, scaled and handed out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .casts import LARGEST, Coded
from .reading import Reading
from .table import in_words
from .writing import is_number

TRAIN = 0
VAL = 1
TEST = 2
# Samples that a remark lists one by one: more would hide the other remarks.
LISTED = 100
# Numbers per block: 4 MiB of float64, so that checks of a large table need no second copy of it.
BLOCK = 1 << 19
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
        reading: how it was read, settled.
        samples: series as arrays (n, channels), NaN where nothing was measured; rows as one array
            (N, columns); texts; paths of pictures; clouds (points, channels); fields (N, C, …).
        place: maps a sample's number to its ``file`` and its ``row`` or other number in that file.
        labels: classes as :class:`Coded`, numbers (N,), or the answers of fields; None if there are
            none.
        name: of the user's file or folder.
        steps: classes at every point of each series, as codes of ``labels.names``.
        times: of series with times, the time of each point since the first one.
        starts: the time of each series' first point, as text.
        rows: rows of each series in a table of one row per time.
        dated: whether the times of a table are dates; None where that is not known.
        coordinates: positions of the points of fields at scattered points.
        parts: TRAIN, VAL or TEST of each sample, where the files say it.
        groups: the group of each sample as a number; a group is never split. ``joined``: groups
            that span several files of arrays.
        order: when each sample was taken, for a split by time.
        ids: name of each sample in the files.
        channels: names of a model's inputs.
        taken: the column or array of each role, in words.
        remarks: warnings and notes for the user.
        words: of rows, the words of each column of words, in the order of their channels.
        pixels: scale of images in memory: ``bytes`` (integers), ``shares`` of 1, or ``numbers`` on
            another scale.
        files: fingerprint of the files, by which a later change is noticed.
        named: pictures or sounds that a table names.
        layout: layout of series in a table: ``long`` (one row per time), ``wide`` or ``lists``.
        written: how a table of text is written, by keys of ``--read``.
    """

    reading: Reading
    samples: Any
    place: Callable[[int], dict[str, Any]]
    labels: Any = None
    name: str = ""
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
    named: Sequence[Path] = ()
    layout: str | None = None
    written: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.samples)

    def where(self, number: int) -> str:
        """Return the file and row of a sample, in words."""
        return in_words(self.place(number))

    def take(self, chosen: np.ndarray) -> Collection:
        """Return the samples of these numbers, in their order."""
        place = self.place
        labels = self.labels
        if not isinstance(labels, Coded):
            labels = _taken(labels, chosen)
        elif self.steps is None:
            labels = Coded(labels.codes[chosen], labels.names)
        # Else the codes are those of points, not of samples: `steps` below holds what is needed.

        values = {key: _taken(getattr(self, key), chosen) for key in PER_SAMPLE}
        return replace(
            self,
            labels=labels,
            place=lambda i: place(int(chosen[i])),
            **values,
        )

    @property
    def kind(self) -> str:
        return self.reading.kind or ""

    @property
    def width(self) -> int:
        """Channels of a sample as a model reads it, with the coordinates of its points."""
        shape = self.samples[0].shape
        if self.coordinates is not None:
            dimensions = self.coordinates[0].shape[1]
            return shape[1] + dimensions
        # Channels are the last axis of a sample, but the first one of an image or a grid.
        if self.kind in ("images", "fields"):
            return shape[0]
        return shape[1]

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
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        return values[chosen]
    return [values[i] for i in chosen]


def listed(lines: Sequence[str]) -> str:
    """Join lines into one; of more than :data:`LISTED`, the first ones and how many follow."""
    shown = list(lines[:LISTED])
    if len(lines) > LISTED:
        shown.append(f"and {len(lines) - LISTED:,} more")
    return "; ".join(shown)


def numbered(word: str, count: int) -> tuple[str, ...]:
    """Return names of channels that the files do not name.

    Example:
        >>> numbered("channel", 2)
        ('channel 1', 'channel 2')
    """
    return tuple(f"{word} {number}" for number in range(1, count + 1))


# --- classes --------------------------------------------------------------------------------------


def in_order(labels: Coded) -> Coded:
    """Return the same classes, numbered in the order of their names: numbers by size, words
    alphabetically. Where names are numbers, 1 and 1.0 are one class.

    Example:
        >>> in_order(Coded(np.array([0, 1, 0]), ["10", "9"]))
        Coded(codes=array([1, 0, 1]), names=['9', '10'])
        >>> in_order(Coded(np.array([0, 1, 2]), ["1.0", "0", "1"]))
        Coded(codes=array([1, 0, 1]), names=['0', '1'])
    """
    names = labels.names
    if all(map(is_number, names)):
        # Names stay as they are written, unless two of them are the same number.
        shortened = [re.sub(r"(?<=\d)\.0*$", "", name) for name in names]
        if len(set(shortened)) < len(names):
            names = shortened
        order = sorted(set(names), key=lambda name: (float(name), name))
    else:
        order = sorted(set(names))

    place = {name: code for code, name in enumerate(order)}
    codes = [place[name] for name in names]
    # The last entry is that of the code -1, a missing label.
    table = np.array([*codes, -1], np.int64)
    return Coded(table[labels.codes], order)


def coded(words: Sequence[str], names: Iterable[str]) -> Coded:
    """Return words as classes in the order of their names, -1 where one is not among ``names``.

    Example:
        >>> coded(["b", "a", "?"], ["b", "a"])
        Coded(codes=array([ 1,  0, -1]), names=['a', 'b'])
    """
    unique = list(dict.fromkeys(names))
    place = {name: code for code, name in enumerate(unique)}
    codes = [place.get(word, -1) for word in words]
    return in_order(Coded(np.array(codes), unique))


def looks_continuous(cells: Sequence[str]) -> bool:
    """Whether the cells of a label are measured numbers rather than names of classes.

    They are if some are not integers (``inf`` does not name a class), or if many differ.

    Example:
        >>> looks_continuous(["0.5", "1"]), looks_continuous(["0", "1", "1"])
        (True, False)
        >>> looks_continuous(["0", "1", "inf"])
        True
    """
    if not cells or not all(map(is_number, cells)):
        return False
    values = [float(cell) for cell in cells]
    if not all(value.is_integer() for value in values):
        return True
    # Numbered classes have several samples each; 20 of them may be few in a small file.
    most = max(20, len(values) / 10)
    return len(set(values)) > most


# --- numbers that no model can read ---------------------------------------------------------------


def check_range(collection: Collection) -> None:
    """Refuse infinite numbers, and those beyond the range of float32, in which models compute.

    Raises:
        DataError: naming the first such sample, and its channel.
    """
    if collection.kind not in ("series", "rows", "clouds", "fields"):
        return
    # Channels are the last axis of a sample, but the first one of a field on a grid.
    channel_axis = -1
    if collection.kind == "fields" and collection.coordinates is None:
        channel_axis = 0

    for values in (collection.samples, collection.coordinates):
        if values is None:
            continue
        found = too_large(values)
        if found is None:
            continue
        number, at = found
        where = collection.where(number)
        names = collection.channels
        channel = at[channel_axis]
        if values is collection.samples and channel < len(names):
            where += f", {names[channel]!r}"
        raise DataError(
            f"{where}: expected finite numbers, none beyond {LARGEST:.2g}, got "
            f"{values[number][at]:g}; correct it, or leave the sample out"
        )


def too_large(values: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return the sample, and the place in it, of the first number that float32 cannot hold; None if
    there is none. NaN stands for a missing value and is allowed.

    Example:
        >>> too_large([np.zeros(3), np.array([0.0, np.nan, -1e39])]), too_large(np.zeros((2, 2)))
        ((1, (2,)), None)
    """
    for start, block in blocks(values):
        beyond = np.abs(block) > LARGEST
        if beyond.any():
            first = [int(axis[0]) for axis in beyond.nonzero()]
            number, *at = first
            return start + number, tuple(at)
    return None


def blocks(values: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield blocks of samples, each with the number of its first sample.

    A block of an array holds up to :data:`BLOCK` numbers; of a list, a block is one sample.
    """
    if not isinstance(values, np.ndarray):
        for number, sample in enumerate(values):
            yield number, np.asarray(sample)[None]
        return
    per_sample = max(1, values[:1].size)
    size = max(1, BLOCK // per_sample)
    for start in range(0, len(values), size):
        yield start, values[start : start + size]
