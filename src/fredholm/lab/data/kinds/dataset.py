"""What every data set is: labelled samples that are handed out in whole batches, and what it says
of itself, so that nothing else asks for its class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import Dataset

from ....errors import DataError, OptionError
from ..stored import StoredRows
from .kind import SAMPLES, Kind

Transform = Callable[[Tensor], Tensor]
Cut = Callable[[int], tuple[int, int]]  # of so many places, which ones: start and stop
IGNORED = -100  # the label of a point that no loss counts


class LabelledDataset(Dataset):
    """Labelled samples: ``raw(indices)`` gives them as stored, ``batch(indices)`` as a model reads
    them, ``self[i]`` one such pair.

    Args:
        name, split: what this is.
        labels: (N,) class numbers, or what else is asked of each sample, which may stay on disk.
        classes: class names, in the order of their numbers.

    Attributes:
        kind: of its samples.
        task: what is asked of them, by the name of a task of :mod:`fredholm.lab.training.tasks`.
        counted: what an evaluation counts, where those are neither the samples nor what the task
            counts.
        measures: names of those by which this data set is judged, the chief one first; none
            where accuracy or loss is all.
        metric: by which the models of a recipe are chosen, by its name; None: the task's own.
        notes: what whoever trains or evaluates on it is told, such as rows that were skipped.
        said: how a user's files were read, told before a training.
        units: of a regression, (shift, scale): a target is shift + scale · label.
        source: how files were read, scaled and divided, saved with a model so that further files
            are read alike; None where samples are read as they are.
        prepared: what was made of the files' values, in words, where nothing makes it of further
            files: a model of such samples answers none.
        per_sample: attributes that have a row for each sample.
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
    per_sample: ClassVar[tuple[str, ...]] = ("labels",)

    def __init__(self, name: str, split: str, labels: Tensor | StoredRows, classes: Sequence[str]):
        self.name, self.split = name, split
        self.labels: Any = labels
        self.classes = tuple(classes)

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self, indices: Int[Tensor, " b"] | Sequence[int]) -> tuple[Any, Tensor]:
        """The samples as they are stored, and their labels.

        Raises:
            IndexError: for an index outside −N … N − 1.
            DataError: when a file cannot be read.
        """
        raise NotImplementedError

    def batch(
        self, indices: Int[Tensor, " b"] | Sequence[int], transform: Transform | None = None
    ) -> tuple[Any, Tensor]:
        """Inputs of a model and labels of ``indices``; ``transform`` changes what is stored first
        (an augmentation).
        """
        inputs, labels = self.raw(indices)
        return (inputs if transform is None else transform(inputs)), labels

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index}; {self.name} {self.split} has {len(self)} samples")
        inputs, labels = self.batch([int(index)])
        return inputs[0], labels[0]

    # --- what it says of itself -------------------------------------------------------------------

    def encoder(self) -> dict[str, Any]:
        """What a model's encoder must know, as ``data`` of :func:`fredholm.models.create_model`:
        the ``kind`` that it reads, and the fields of its configuration that the data determine.
        """
        return {"kind": self.kind.encoder}

    def head(self) -> dict[str, Any]:
        """Fields of the head's configuration, such as its ``pool``, where the data determine
        them.
        """
        return {}

    def describe(self) -> dict[str, Any]:
        """What is saved with a model, so that it can be used without its data."""
        facts = {"dataset": self.name, "kind": self.kind.name, "task": self.task}
        facts |= {"classes": list(self.classes)}
        facts |= {"units": list(self.units)} if self.units != (0.0, 1.0) else {}
        facts |= {} if self.prepared is None else {"prepared": self.prepared}
        return facts | ({} if self.source is None else {"source": dict(self.source)})

    def in_units(self, values: Tensor) -> Tensor:
        """Outputs of a model, or labels, of a regression as the files have them."""
        if self.task != "regression" or self.units == (0.0, 1.0):
            return values
        shift, scale = self.units
        return values.double() * scale + shift

    def example(self) -> Any:
        """A batch of one sample of full length, with no gap in it."""
        return self.batch([0])[0]

    def remarks(self) -> list[str]:
        """What is said before a training."""
        return [*self.said, *self.notes]

    def augmentation(self, options: Mapping[str, Any]) -> Callable[..., Any] | None:
        """A random change of the training samples, drawn from (seed, epoch, index) as
        :class:`fredholm.data.Augment` does, or None.

        Raises:
            OptionError: an option that this kind of data does not have.
        """
        self.refuse(options)
        return None

    def refuse(self, options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
        """Refuse augmentations other than ``known``; what is off may be named."""
        for key, value in options.items():
            if value and key not in known:
                raise OptionError(
                    f"augment.{key}: received {value!r}; {self.name} gives {self.kind.many}, which "
                    "are not changed so; leave it out"
                )

    def shown(self, indices: Int[Tensor, " b"]) -> dict[str, Any]:
        """Fields of :class:`fredholm.explain.Samples`, what a report is given of some samples."""
        return {"inputs": self.batch(indices)[0]}

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"] | None:
        """Where each image's object is: its pixels (``kind="mask"``) or its filled boxes
        (``"box"``); None where that is unknown.
        """
        return None

    def hidden(self, share: float) -> LabelledDataset:
        """The same samples, a share of their tokens hidden and asked for.

        Raises:
            OptionError: samples without tokens, or that ask for tokens already.
        """
        what = f"holds {self.kind.many} and asks for {self.task}"
        raise OptionError(f"masked: {self.name} {what}; needs texts with labels")

    def written(self) -> Sequence[str] | None:
        """The samples as they were written; None of samples that are no texts."""
        return None

    def normalisation(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """(mean, std) by which pictures in [0, 1] are normalised, a number per channel; None of
        samples that are no such pictures.
        """
        return None

    def texts_and_targets(self, numbers: bool) -> tuple[list[str], Tensor]:
        """The texts, and their classes, or with ``numbers`` a real number each.

        Raises:
            OptionError: there are no texts, or no numbers.
        """
        raise OptionError(f"{self.name} holds no texts, but {self.kind.many}")

    # --- parts of it ------------------------------------------------------------------------------

    def select(self, chosen: Int[Tensor, " m"]) -> Any:
        """The same data set with some of its samples; nothing is copied."""
        result = copy.copy(self)
        for name in self.per_sample:
            value = getattr(self, name)
            if isinstance(value, StoredRows):
                setattr(result, name, value.select(chosen))
            else:
                setattr(result, name, None if value is None else value[chosen])
        result.raw = _Rows(self, chosen)  # type: ignore[method-assign]
        return result

    def stretch(self, axis: int, cut: Cut) -> Any:
        """The same samples with a part of their points, of which the rest is not read; None where
        samples come whole, as they do by default. ``axis`` of inputs (B, …) is the one along which
        points run; labels that go with the points are cut as well.
        """
        return None


@dataclass(frozen=True)
class _Rows:
    """Reads samples of ``whole`` by their place in ``chosen``."""

    whole: Any
    chosen: Tensor

    def __call__(self, indices: Tensor | Sequence[int]) -> tuple[Any, Tensor]:
        return self.whole.raw(self.chosen[torch.as_tensor(indices, dtype=torch.int64)])


def stretched(rows: Any, axis: int, cut: Cut) -> Any:
    """A part of every row of a tensor, which stays a view, or of :class:`StoredRows`."""
    start, stop = cut(rows.shape[axis])
    if isinstance(rows, StoredRows):
        return rows.stretch(axis, start, stop)
    return rows.narrow(axis, start, stop - start)


def check_labels(labels: Tensor, classes: Sequence[str]) -> None:
    """Refuse class numbers that have no name.

    Raises:
        DataError: one below 0 or beyond the names.
    """
    asked = labels[labels != IGNORED]
    if len(asked) and not 0 <= int(asked.min()) <= int(asked.max()) < len(classes):
        raise DataError(
            f"labels: from {int(asked.min())} to {int(asked.max())}; needs 0 to {len(classes) - 1}"
        )
