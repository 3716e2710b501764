"""A user's files as data sets: read once, split, scaled, and described."""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....errors import DataError, OptionError
from ..splits import SPLITS
from .casts import Coded
from .channels import first_of
from .collect import collect
from .description import describe
from .division import divide, divided_groups, other_shares
from .labels import check_labels, constant_channels, leaks, with_labels
from .reading import Reading
from .row_samples import with_training_words
from .scaling import measure
from .schema import Entry, marks, schema_of
from .table import in_words

# Files are described without torch, whose import takes seconds; :mod:`.datasets` needs it.
if TYPE_CHECKING:
    from ..kinds.dataset import LabelledDataset
    from ..kinds.kind import Kind
    from ..kinds.texts import TextOptions

VAL_SHARE = 0.2  # share of the samples outside the test set
NAMED = 1000  # samples of a split whose place in the files is kept for reports
LARGEST_SIDE = 64  # pixels per side of pictures, unless the user gives a size

# Largest class over the smallest, from which on accuracy alone misleads.
UNBALANCED = 3.0


class Source:
    """Data sets of the samples at a path.

    Attributes:
        asked: the reading as the user declares it; ``reading`` is settled.
        collection: the samples.
        parts: the split of each sample, an index into ``SPLITS``.
        training: numbers of the training samples.

    Raises:
        DataError: samples that no model should be trained on, see :func:`.labels.check_labels`.
    """

    def __init__(
        self,
        path: Path,
        reading: Reading,
        val: float | int = VAL_SHARE,
    ):
        self.path = path
        self.asked = reading
        collection = with_labels(collect(path, reading))
        check_labels(collection)
        if collection.kind == "series" and collection.steps is None:
            constant = constant_channels(collection)
            collection.remarks += leaks(collection, constant)
        self.parts = divide(collection, float(val))
        collection.remarks += divided_groups(collection, self.parts)
        collection.remarks += other_shares(collection, self.parts, float(val))
        self.training = np.flatnonzero(self.parts == 0)
        if collection.words:
            collection = with_training_words(collection, self.training)
        self.collection = collection
        self._check_training()
        collection.remarks += self._untested()

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
        """Role of each column, and whether the user declares it."""
        return schema_of(self.asked, self.reading, self.collection.written)

    @property
    def classes(self) -> tuple[str, ...]:
        labels = self.collection.labels
        if isinstance(labels, Coded):
            return tuple(labels.names)
        return ()

    @property
    def said(self) -> str:
        """Summary in one line: kind, roles of the columns, and splits."""
        split = self.facts()["split"]
        counts = ", ".join(f"{split[name]:,} {name}" for name in SPLITS)
        marked = marks(self.schema)
        roles = []
        for what, found in self.collection.taken.items():
            mark = marked.get(what, "")
            roles.append(f"{what}: {found}{mark}")
        taken = "; ".join(roles)
        return f"{self.name}: {self.collection.kind}, {taken}; {counts} ({split['rule']})"

    @cached_property
    def description(self) -> dict[str, Any]:
        """Counts, gaps, rates, balance, the first samples, and the roles of the columns."""
        return describe(self)

    @cached_property
    def scaling(self) -> dict[str, Any]:
        return measure(self.collection, self.training)

    @cached_property
    def prepared(self) -> Any:
        """Scaled samples, shared by the data sets of all splits."""
        from .datasets import as_read

        return as_read(self.collection, self.scaling)

    @cached_property
    def units(self) -> tuple[float, float]:
        """Mean and deviation of a regression's targets over the training samples; else 0 and 1."""
        labels = self.collection.labels
        if self.collection.task != "regression" or self.collection.kind == "fields":
            return 0.0, 1.0
        values = labels[self.training]
        mean = float(values.mean())
        std = float(values.std()) or 1.0
        return mean, std

    def _check_training(self) -> None:
        """Refuse classes without a training sample.

        Raises:
            DataError: naming the class.
        """
        labels = self.collection.labels
        counts = self._per_class(self.training)
        if counts is None or counts.all():
            return
        code = int((counts == 0).argmax())
        name = labels.names[code]
        rows = np.flatnonzero(labels.codes == code)
        if not len(rows):
            raise DataError(
                f"{self.path}: declares the class {name!r}, of which there is no sample; add some, "
                "or remove the class"
            )
        raise DataError(
            f"{self.collection.where(int(rows[0]))}: is of the class {name!r}, of which the "
            "training set has no sample; add some, or remove the class"
        )

    def _per_class(self, chosen: Any) -> np.ndarray | None:
        """Count the chosen samples of each class; None if samples do not have one class each."""
        labels = self.collection.labels
        if not isinstance(labels, Coded) or self.collection.steps is not None:
            return None
        return np.bincount(labels.codes[chosen], minlength=len(labels.names))

    def _untested(self) -> Iterator[str]:
        """Yield a remark on classes without a test sample."""
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
        """Return the same samples with another training set, as for cross-validation.

        Scales and units are measured anew: they must not know the samples held out.
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
        """Return one split: train, val or test.

        Args:
            image_size: height and width that pictures are resized to (default: their median, at
                most 64).
            text: how texts become numbers.

        Raises:
            OptionError: a split without samples, as that for validation is with a share of 0.
        """
        chosen = np.flatnonzero(self.parts == SPLITS.index(split))
        if not len(chosen):
            raise OptionError(
                f"{self.name}: expected samples in split {split!r}, got none, as with "
                "val_fraction=0; choose another fraction"
            )
        return self.subset(split, chosen, image_size=image_size, text=text)

    def subset(
        self,
        split: str,
        chosen: np.ndarray,
        *,
        image_size: tuple[int, int] | None = None,
        text: TextOptions | None = None,
    ) -> LabelledDataset:
        """Return the samples of these numbers as a data set called ``split``."""
        from .datasets import make_dataset

        result = make_dataset(self, split, chosen, image_size=image_size, text=text)
        result.kind = self.kind
        result.units = self.units
        result.source = self.facts()
        result.notes = (*self.collection.remarks, *result.notes)
        result.said = (self.said,)
        result.measures = self._measures()
        # Reports are of the test split. Row numbers may need the file to be read once more.
        if split == "test":
            shown = chosen[:NAMED].tolist()
            result.origins = tuple(map(self._origin, shown))
        return result

    def _origin(self, number: int) -> str:
        """Return the id of a sample, or else its file and row, in words."""
        collection = self.collection
        if collection.ids is not None:
            return f"{collection.reading.id or 'id'} {collection.ids[number]}"
        place = collection.place(number)
        file = Path(place["file"])
        name = file.name
        # Files that are samples may have the same name in the folders of several classes.
        if len(place) == 1:
            name = f"{file.parent.name}/{name}"
        return in_words(place | {"file": name})

    def facts(self) -> dict[str, Any]:
        """Return what is saved with a model: how to read further files, and the splits of these."""
        collection = self.collection
        result: dict[str, Any] = {
            "path": str(self.path),
            "reading": self.reading.to_dict(),
            "channels": list(collection.channels),
        }
        if collection.kind == "rows":
            result["words"] = collection.words
        if collection.dated is not None:
            result["dated"] = collection.dated
        if collection.layout is not None:
            result["layout"] = collection.layout
        split: dict[str, Any] = {"rule": self._rule(), "seed": self.reading.seed}
        for number, name in enumerate(SPLITS):
            members = self.parts == number
            split[name] = int(members.sum())
        return result | {
            "scaling": self.scaling,
            "split": split,
            "files": collection.files,
        }

    def _rule(self) -> str | None:
        """Return the rule of the split, in words."""
        collection = self.collection
        rule = self.reading.split
        if collection.parts is not None:
            return "given by the files"
        if rule == "random" and collection.kind != "fields" and not collection.steps:
            return "stratified"
        if rule == "group" and collection.joined:
            return "group, over all files"
        return rule

    def _measures(self) -> tuple[str, ...]:
        """Return the measures to list first, if not the task's own.

        Where one class is rare, a model without it has a high accuracy.
        """
        counts = self._per_class(slice(None))
        if counts is None or counts.max() <= UNBALANCED * counts.min():
            return ()
        return ("balanced_accuracy", "accuracy")

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Median height and width of about 100 training pictures, at most ``LARGEST_SIDE``."""
        from ..kinds.picture_files import picture_size

        step = max(1, len(self.training) // 100)
        some = self.training[::step]
        sizes = [picture_size(self.collection.samples[i]) for i in some]
        height, width = np.median(np.array(sizes), 0)
        return min(LARGEST_SIDE, int(height)), min(LARGEST_SIDE, int(width))


# --- by path --------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """A source in memory, and the state of the files that its tables name."""

    source: Source
    named: tuple[Any, ...]


_KEPT: OrderedDict[Any, _Kept] = OrderedDict()
# Sources in memory: the three splits of one are usually asked for one after the other.
_KEEP = 2


def open_files(
    path: str | os.PathLike[str],
    reading: Reading | Mapping[str, Any] | None = None,
    *,
    val: float | int = VAL_SHARE,
) -> Source:
    """Read the file or folder at ``path``, recognise its kind, and split the samples into training,
    validation and test.

    The last two sources are kept in memory while their files do not change.

    Args:
        path: a table, ``.ts``, npz or h5; pictures, clouds, sounds or texts in one folder per
            class.
        reading: declarations, see :class:`Reading`.
        val: share of the training samples that is held out for validation.

    Raises:
        DataError: files that cannot be read, or not be learned from, with file, row and column.
        OptionError: an impossible reading.
    """
    place = Path(path).expanduser().absolute()
    if not isinstance(reading, Reading):
        try:
            reading = Reading(**(reading or {}))
        except TypeError as error:
            # An unknown key: Python's message names it.
            raise OptionError(f"reading: {error}") from error
    reading.check_rule()
    key = (place, reading, val, _state(place))
    kept = _KEPT.get(key)
    # The files that a table names may lie anywhere, so that the state of the path does not tell.
    if kept is not None and kept.named == _stats(kept.source.collection.named):
        _KEPT.move_to_end(key)
        return kept.source
    result = Source(place, reading, val)
    _KEPT[key] = _Kept(result, _stats(result.collection.named))
    while len(_KEPT) > _KEEP:
        _KEPT.popitem(last=False)
    return result


def _state(place: Path) -> tuple[Any, ...]:
    """Return sizes and times of change of the files at a path."""
    files = [place]
    if place.is_dir():
        files = sorted(place.rglob("*"))
    return _stats(files)


def _stats(files: Sequence[Path]) -> tuple[Any, ...]:
    """Return name, size and time of change of each file; files that are gone are left out."""
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
