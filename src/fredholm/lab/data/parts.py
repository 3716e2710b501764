"""Samples whose points are in several processes: each reads its stretch of every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...distributed.shards import even_sizes
from ...errors import DataError
from .kinds.dataset import Indices, LabelledDataset, Transform


@dataclass(frozen=True)
class Stretch:
    """Which of a sample's points are this process's: the ``rank``-th of ``count`` stretches, as
    even as they can be.

    Attributes:
        rank, count: which stretch, of how many.
        axis: the dimension of inputs (B, …) along which points run.
        labels: that of labels; None where a sample has one answer as a whole.
        grain: entries that stay together, such as the rows of a patch.

    Example:
        >>> Stretch(1, 2, axis=1)(7), Stretch(1, 2, axis=2, grain=4)(12)
        ((4, 7), (8, 12))
    """

    rank: int
    count: int
    axis: int
    labels: int | None = None
    grain: int = 1

    def __call__(self, length: int) -> tuple[int, int]:
        """The first of this process's entries of ``length``, and the one behind its last.

        Raises:
            DataError: entries that do not divide.
            DomainError: fewer of them than processes.
        """
        if length % self.grain:
            raise DataError(f"a sample of {length} entries; needs a multiple of {self.grain}")
        sizes = even_sizes(length // self.grain, self.count)
        start = sum(sizes[: self.rank])
        return start * self.grain, (start + sizes[self.rank]) * self.grain


class PartDataset:
    """A data set of which every batch is cut to this process's points; see :class:`Stretch`.

    Samples that stay on disk are read in this part only, others whole. A random change is one of
    the whole sample, so there the whole is read.

    Example:
        >>> import torch
        >>> from fredholm.data import PointDataset
        >>> data = PointDataset("tiny", "train", torch.rand(4, 9, 3), torch.zeros(4), ("a",))
        >>> PartDataset(data, Stretch(1, 2, axis=1)).batch([0, 3])[0].shape
        torch.Size([2, 4, 3])
    """

    def __init__(self, whole: LabelledDataset, stretch: Stretch):
        self.whole = whole
        self.stretch = stretch
        self.part = whole.stretch(stretch.axis, stretch)

    def __len__(self) -> int:
        return len(self.whole)

    def batch(self, indices: Indices, transform: Transform | None = None) -> tuple[Any, Tensor]:
        """Inputs of a model and labels at this process's points.

        Raises:
            DataError: inputs that are no single tensor, or labels at other points.
        """
        if transform is None and self.part is not None:
            return self.part.batch(indices)
        inputs, labels = self.whole.batch(indices, transform)
        cut = self.stretch
        if not isinstance(inputs, Tensor):
            raise DataError(f"{self.whole.name}: samples of several tensors are not cut")
        length = inputs.shape[cut.axis]
        start, stop = cut(length)
        inputs = inputs.narrow(cut.axis, start, stop - start)
        if cut.labels is None:
            return inputs, labels
        if labels.shape[cut.labels] != length:
            got = f"inputs {tuple(inputs.shape)}, labels {tuple(labels.shape)}"
            raise DataError(f"{self.whole.name}: {got}; needs a label for each point")
        return inputs, labels.narrow(cut.labels, start, stop - start)
