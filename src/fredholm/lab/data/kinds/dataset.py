"""The base class of data sets: labelled samples that are read in batches, and the facts that
encoders, reports and saved models need, so that nothing else has to ask for its class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import Dataset

from ....errors import DataError, OptionError
from ..counter import permutation
from ..stored import StoredRows
from .kind import SAMPLES, Kind

Indices = Int[Tensor, " b"] | Sequence[int]
"""Numbers of samples in their data set."""
Transform = Callable[[Tensor], Tensor]
Cut = Callable[[int], tuple[int, int]]
"""From a number of points to the (start, stop) of one part of them."""
IGNORED = -100
"""The label of a point that no loss counts, as in :func:`torch.nn.functional.cross_entropy`."""


def index_tensor(indices: Indices) -> Int[Tensor, " b"]:
    """Return numbers of samples as int64, with which tensors can be indexed."""
    return torch.as_tensor(indices, dtype=torch.int64)


class LabelledDataset(Dataset):
    """Labelled samples: ``raw(indices)`` returns them as stored, ``batch(indices)`` as a model
    reads them, ``self[i]`` one such pair.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        labels: (N,) class numbers, or other targets of each sample, which may stay on disk.
        classes: class names, in the order of their numbers.

    Attributes:
        kind: kind of its samples.
        task: name of a task of :mod:`fredholm.lab.training.tasks`.
        counted: what an evaluation counts, if neither samples nor what the task counts.
        measures: names of the measures that results are reported in, the chief one first; empty
            where accuracy or loss is all.
        metric: name of the metric that chooses among a recipe's models; None: the task's own.
        notes: messages before a training or an evaluation, such as rows that were skipped.
        said: how a user's files were read, printed before a training.
        units: of a regression, (shift, scale): a target is shift + scale · label.
        source: how files were read, scaled and split, saved with a model so that further files are
            read alike; None where samples are read as they are.
        prepared: a preparation of the files' values, in words, that cannot be repeated for further
            files: a model of such samples refuses them.
        origins: where the first samples lie in a user's files, in words, for reports; empty where
            that is not known.
        per_sample: names of the attributes that have a row for each sample.
    """

    kind: Kind = SAMPLES
    task: str = "classification"
    counted: str | None = None
    measures: tuple[str, ...] = ()
    metric: str | None = None
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    units: tuple[float, float] = (0.0, 1.0)
    source: Mapping[str, Any] | None = None
    prepared: str | None = None
    origins: tuple[str, ...] = ()
    per_sample: ClassVar[tuple[str, ...]] = ("labels",)

    def __init__(
        self,
        name: str,
        split: str,
        labels: Tensor | StoredRows,
        classes: Sequence[str],
    ):
        self.name = name
        self.split = split
        self.labels: Any = labels
        self.classes = tuple(classes)

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self, indices: Indices) -> tuple[Any, Tensor]:
        """Return the samples as they are stored, and their labels.

        Raises:
            IndexError: an index outside −N … N − 1.
            DataError: a file that cannot be read.
        """
        raise NotImplementedError

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Any, Tensor]:
        """Return inputs of a model and labels of ``indices``; ``transform`` (an augmentation)
        changes the stored samples first.
        """
        inputs, labels = self.raw(indices)
        if transform is not None:
            inputs = transform(inputs)
        return inputs, labels

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        # A for loop over the data set ends at this error.
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"index: expected less than the {len(self)} samples of {self.name} {self.split}, "
                f"got {index}"
            )
        inputs, labels = self.batch([int(index)])
        return inputs[0], labels[0]

    # --- facts about the data ---------------------------------------------------------------------

    def encoder(self) -> dict[str, Any]:
        """Return what a model's encoder must know, as ``data`` of
        :func:`fredholm.models.create_model`: the ``kind`` that it reads, and the fields of its
        configuration that the data determine.
        """
        return {"kind": self.kind.encoder}

    def head(self) -> dict[str, Any]:
        """Return fields of the head's configuration that the data determine, such as ``pool``."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the facts that are saved with a model, so that it can be used without its data."""
        facts: dict[str, Any] = {
            "dataset": self.name,
            "kind": self.kind.name,
            "task": self.task,
            "classes": list(self.classes),
        }
        if self.units != (0.0, 1.0):
            facts["units"] = list(self.units)
        if self.prepared is not None:
            facts["prepared"] = self.prepared
        if self.source is not None:
            facts["source"] = dict(self.source)
        return facts

    def in_units(self, values: Tensor) -> Tensor:
        """Return outputs of a regression, or its labels, in the units of the files."""
        if self.task != "regression" or self.units == (0.0, 1.0):
            return values
        shift, scale = self.units
        # In float64, since a shift such as a year would take the digits of a small scale.
        return values.double() * scale + shift

    def example(self) -> Any:
        """Return a batch of one sample of full length, with no gap in it."""
        inputs, _ = self.batch([0])
        return inputs

    def remarks(self) -> list[str]:
        """Return the messages before a training."""
        return [*self.said, *self.notes]

    def augmentation(self, options: Mapping[str, Any]) -> Callable[..., Any] | None:
        """Return a random change of the training samples, drawn from (seed, epoch, index) as
        :class:`fredholm.data.Augment` draws it, or None.

        Raises:
            OptionError: an option that this kind of data does not have.
        """
        self.refuse(options)
        return None

    def refuse(self, options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
        """Refuse augmentations other than ``known``, unless they are switched off.

        Raises:
            OptionError: an augmentation of another kind of data.
        """
        for key, value in options.items():
            if value and key not in known:
                raise OptionError(
                    f"augment.{key}: expected an augmentation of {self.kind.many}, which "
                    f"{self.name} holds, got {value!r}; leave it out"
                )

    def shown(self, indices: Int[Tensor, " b"]) -> dict[str, Any]:
        """Return fields of :class:`fredholm.explain.Samples` for a report on these samples."""
        inputs, _ = self.batch(indices)
        return {"inputs": inputs}

    def masks(
        self,
        indices: Indices,
        kind: str = "mask",
    ) -> Bool[Tensor, "b h w"] | None:
        """Return the object of each image: its pixels (``kind="mask"``) or its filled boxes
        (``"box"``); None where it is unknown.
        """
        return None

    def written(self) -> Sequence[str] | None:
        """Return the samples as texts; None of samples that are not texts."""
        return None

    def normalisation(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """Return (mean, std) per channel by which pictures in [0, 1] are normalised; None of
        other samples.
        """
        return None

    def texts_and_targets(self, numbers: bool) -> tuple[list[str], Tensor]:
        """Return the texts, and their classes, or with ``numbers`` a real number each.

        Raises:
            OptionError: there are no texts, or no numbers.
        """
        raise OptionError(
            f"{self.name}: expected a data set of texts, got {self.kind.many}; choose another"
        )

    # --- parts of the data ------------------------------------------------------------------------

    def select(self, chosen: Int[Tensor, " m"]) -> Any:
        """Return the same data set with some of its samples; nothing is copied."""
        result = copy.copy(self)
        for name in self.per_sample:
            value = getattr(self, name)
            if isinstance(value, StoredRows):
                setattr(result, name, value.select(chosen))
            elif value is not None:
                setattr(result, name, value[chosen])
        # Only the first samples have an origin, and those of the result must be its first.
        origins = []
        for sample in chosen.tolist():
            if sample >= len(self.origins):
                break
            origins.append(self.origins[sample])
        result.origins = tuple(origins)
        result.raw = _Chosen(self.raw, chosen)  # type: ignore[method-assign]
        result.masks = _Chosen(self.masks, chosen)  # type: ignore[method-assign]
        return result

    def stretch(self, axis: int, cut: Cut) -> Any:
        """Return the same samples with a part of their points; the rest is never read.

        None, the default, means that samples can only be read as a whole.

        Args:
            axis: the axis of inputs (B, …) along which points run. Labels that go with the points
                are cut as well.
            cut: from the number of points to the (start, stop) of the part.
        """
        return None


AnyDataset = TypeVar("AnyDataset", bound=LabelledDataset)


@dataclass(frozen=True)
class _Chosen:
    """Calls a method of the full data set with the numbers that samples have there."""

    method: Callable[..., Any]
    chosen: Tensor

    def __call__(self, indices: Indices, *arguments: Any, **named: Any) -> Any:
        numbers = self.chosen[index_tensor(indices)]
        return self.method(numbers, *arguments, **named)


def stretched(rows: Any, axis: int, cut: Cut) -> Any:
    """Return a part of every row of a tensor, which stays a view, or of :class:`StoredRows`."""
    start, stop = cut(rows.shape[axis])
    if isinstance(rows, StoredRows):
        return rows.stretch(axis, start, stop)
    return rows.narrow(axis, start, stop - start)


def limit_samples(dataset: AnyDataset, limit: int, seed: int = 0) -> AnyDataset:
    """Return the same data set with at most ``limit`` of its samples, a random selection fixed by
    ``seed``; nothing is copied.

    Raises:
        OptionError: a limit below 1.

    Example:
        >>> from fredholm.data import create_dataset
        >>> few = limit_samples(create_dataset("digits", "train"), 100)
        >>> len(few), few.batch([99])[0].shape
        (100, torch.Size([1, 1, 8, 8]))
    """
    if limit < 1:
        raise OptionError(f"limit: expected 1 or more, got {limit}; leave it out to read all")
    if limit >= len(dataset):
        return dataset
    chosen = permutation(len(dataset), seed)[:limit]
    # In the order of the data set, in which a disk is read faster.
    return dataset.select(chosen.sort().values)


def check_labels(labels: Tensor, classes: Sequence[str]) -> None:
    """Refuse class numbers that have no name.

    Raises:
        DataError: one below 0 or beyond the names.
    """
    outside = (labels < 0) | (labels >= len(classes))
    counted = labels != IGNORED
    wrong = labels[outside & counted]
    if len(wrong):
        raise DataError(
            f"labels: expected class numbers from 0 to {len(classes) - 1}, got {int(wrong[0])}; "
            "number the classes from 0, and name all of them"
        )
