"""A user's files as data sets: read once, divided, scaled, and described."""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import DataError, OptionError
from ..splits import SPLITS
from .casts import Coded
from .channels import first_of
from .collect import collect
from .collection import check_labels, constant_channels, leaks, with_labels
from .description import describe
from .parts import divide, divided_groups
from .reading import Reading
from .scaling import measure
from .schema import Entry, marks, schema_of

# Describing files needs no torch; their data sets do, and :mod:`.datasets` is imported by those.
if TYPE_CHECKING:
    from ..kinds.dataset import LabelledDataset
    from ..kinds.kind import Kind
    from ..kinds.texts import TextOptions

VAL_SHARE = 0.2  # of what is left to train on
LARGEST_SIDE = 64  # of pictures whose size nobody said
UNBALANCED = 3.0  # the largest class over the smallest, from where accuracy alone misleads


class Source:
    """What lies at a path, as data sets.

    Attributes:
        collection: its samples.
        parts: the split of each sample.

    Raises:
        DataError: what nobody should train on, see :func:`.collection.check_labels`.
    """

    def __init__(self, path: Path, reading: Reading, val: float | int = VAL_SHARE):
        self.path = path
        self.asked = reading
        self.collection = with_labels(collect(path, reading))
        check_labels(self.collection)
        if self.collection.kind == "series" and self.collection.steps is None:
            self.collection.remarks += leaks(self.collection, constant_channels(self.collection))
        self.parts = divide(self.collection, float(val))
        self.collection.remarks += divided_groups(self.collection, self.parts)
        self.training = np.flatnonzero(self.parts == 0)
        self._check_training()
        self.collection.remarks += self._untested()

    @property
    def name(self) -> str:
        return self.collection.name

    @property
    def reading(self) -> Reading:
        return self.collection.reading

    @cached_property
    def kind(self) -> Kind:
        """The kind of the samples."""
        from .datasets import kind_of

        return kind_of(self.collection)

    @cached_property
    def schema(self) -> list[Entry]:
        """What stands for what, and whether the user says so."""
        return schema_of(self.asked, self.reading, self.collection.written)

    @property
    def classes(self) -> tuple[str, ...]:
        labels = self.collection.labels
        return tuple(labels.names) if isinstance(labels, Coded) else ()

    @property
    def said(self) -> str:
        """In a line: the kind, what was taken for what, and how the samples were divided."""
        split = self.facts()["split"]
        counts = ", ".join(f"{split[name]:,} {name}" for name in SPLITS)
        marked = marks(self.schema)
        taken = "; ".join(
            f"{what}: {found}{marked.get(what, '')}"
            for what, found in self.collection.taken.items()
        )
        return f"{self.name}: {self.collection.kind}, {taken}; {counts} ({split['rule']})"

    @cached_property
    def description(self) -> dict[str, Any]:
        """Counts, gaps, rates, balance, the first samples, and what was taken for what."""
        return describe(self)

    @cached_property
    def scaling(self) -> dict[str, Any]:
        return measure(self.collection, self.training)

    @cached_property
    def prepared(self) -> Any:
        """The samples as the kind's data set holds them."""
        from .datasets import as_read

        return as_read(self.collection, self.scaling)

    @cached_property
    def units(self) -> tuple[float, float]:
        """Of a regression: mean and deviation of the training samples' targets."""
        labels = self.collection.labels
        if self.collection.task != "regression" or self.collection.kind == "fields":
            return 0.0, 1.0
        values = labels[self.training]
        return float(values.mean()), float(values.std()) or 1.0

    def _check_training(self) -> None:
        """Refuse classes that no training sample has.

        Raises:
            DataError: naming the class.
        """
        labels, counts = self.collection.labels, self._per_class(self.training)
        if isinstance(labels, Coded) and counts is not None and (counts == 0).any():
            name = labels.names[int((counts == 0).argmax())]
            rows = np.flatnonzero(labels.codes == labels.names.index(name))
            if not len(rows):
                raise DataError(
                    f"{self.path}: declares the class {name!r}, of which there is no sample; add "
                    "some, or remove the class"
                )
            row = int(rows[0])
            raise DataError(
                f"{self.collection.where(row)}: is of the class {name!r}, of which the training "
                "set has no sample; add some, or remove the class"
            )

    def _per_class(self, chosen: Any) -> np.ndarray | None:
        """How many of some samples are of each class; None where a sample has no class of its
        own.
        """
        labels = self.collection.labels
        if not isinstance(labels, Coded) or self.collection.steps is not None:
            return None
        return np.bincount(labels.codes[chosen], minlength=len(labels.names))

    def _untested(self) -> Iterator[str]:
        """What is said of classes that no test sample has."""
        counts = self._per_class(self.parts == SPLITS.index("test"))
        if counts is None or not counts.any():
            return
        names = [name for name, count in zip(self.classes, counts) if not count]
        if names:
            shown = first_of([*map(repr, names)], 4)
            yield (
                f"no test sample is of the class {shown}: no score tells how it is recognised; it "
                "needs five samples or so"
            )

    def trained_on(self, chosen: np.ndarray) -> Source:
        """The same samples, of which these alone are learned from: what is measured on training
        samples, such as scales and units, is measured anew.
        """
        result = copy.copy(self)
        result.training = chosen
        for name in ("scaling", "prepared", "units"):
            vars(result).pop(name, None)
        return result

    # --- data sets --------------------------------------------------------------------------------

    def dataset(
        self,
        split: str,
        *,
        image_size: tuple[int, int] | None = None,
        text: TextOptions | None = None,
    ) -> LabelledDataset:
        """One split: train, val or test.

        Args:
            image_size: of pictures, the size that they are brought to (default: the median of
                theirs, at most 64).
            text: of texts, how they become numbers.
        """
        chosen = np.flatnonzero(self.parts == SPLITS.index(split))
        return self.subset(split, chosen, image_size=image_size, text=text)

    def subset(
        self,
        split: str,
        chosen: np.ndarray,
        *,
        image_size: tuple[int, int] | None = None,
        text: TextOptions | None = None,
    ) -> LabelledDataset:
        """The samples of these numbers, called ``split``, as :meth:`dataset` gives one."""
        from .datasets import make_dataset

        result = make_dataset(self, split, chosen, image_size=image_size, text=text)
        result.kind, result.units, result.source = self.kind, self.units, self.facts()
        result.notes = (*self.collection.remarks, *result.notes)
        result.said = (self.said,)
        result.measures = self._measures()
        return result

    def facts(self) -> dict[str, Any]:
        """What is saved with a model: how to read further files, and how these were divided."""
        counts = {name: int((self.parts == i).sum()) for i, name in enumerate(SPLITS)}
        rule = self.reading.split
        if self.collection.parts is not None:
            rule = "given by the files"
        elif rule == "random" and self.collection.kind != "fields" and not self.collection.steps:
            rule = "stratified"
        elif rule == "group" and self.collection.joined:
            rule = "group, over all files"
        words = {"words": self.collection.words} if self.collection.kind == "rows" else {}
        collection = self.collection
        dated = {} if collection.dated is None else {"dated": collection.dated}
        dated |= {} if collection.layout is None else {"layout": collection.layout}
        return {
            "path": str(self.path),
            "reading": self.reading.to_dict(),
            "channels": list(self.collection.channels),
            **words,
            **dated,
            "scaling": self.scaling,
            "split": {"rule": rule, "seed": self.reading.seed, **counts},
            "files": self.collection.files,
        }

    def _measures(self) -> tuple[str, ...]:
        """Accuracy of an unbalanced set goes by classes."""
        counts = self._per_class(slice(None))
        if counts is None or counts.max() <= UNBALANCED * counts.min():
            return ()
        return ("balanced_accuracy", "accuracy")

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """The median size of some training pictures, at most ``LARGEST_SIDE``."""
        from ..kinds.images import picture_size

        some = self.training[:: max(1, len(self.training) // 100)]
        sizes = [picture_size(self.collection.samples[i]) for i in some]
        height, width = np.median(np.array(sizes), 0)
        return min(LARGEST_SIDE, int(height)), min(LARGEST_SIDE, int(width))


# --- by path --------------------------------------------------------------------------------------

_KEPT: OrderedDict[Any, Source] = OrderedDict()
_KEEP = 2  # sources whose three splits are usually asked for one after the other


def open_files(
    path: str | os.PathLike[str],
    reading: Reading | Mapping[str, Any] | None = None,
    *,
    val: float | int = VAL_SHARE,
) -> Source:
    """What lies at ``path``, a file or a folder: read, its kind recognised, divided into training,
    validation and test.

    The last two sources are kept in memory while their files stay as they are.

    Args:
        path: CSV, Parquet, ``.ts``, npz or h5; pictures, clouds or sounds in one folder per
            class.
        reading: what is known of it, see :class:`Reading`.
        val: the share of the training samples that is held out for validation.

    Raises:
        DataError: nothing that can be read, or nothing that can be learned from, with file, row and
            column.
        OptionError: an impossible reading.
    """
    place = Path(path).expanduser().absolute()
    if not isinstance(reading, Reading):
        try:
            reading = Reading(**(reading or {}))
        except TypeError as error:
            raise OptionError(f"reading: {error}") from error
    reading.check_rule()
    key = (place, reading, val, _state(place))
    if key in _KEPT:
        _KEPT.move_to_end(key)
        return _KEPT[key]
    result = _KEPT[key] = Source(place, reading, val)
    while len(_KEPT) > _KEEP:
        _KEPT.popitem(last=False)
    return result


def _state(place: Path) -> tuple[Any, ...]:
    """Sizes and times of what lies at a path."""
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
