"""Samples whose points are distributed over ranks: each rank reads its stretch of every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...distributed.shards import even_sizes
from ...errors import DataError
from .kinds.dataset import Indices, LabelledDataset, Transform


@dataclass(frozen=True)
class Stretch:
    """The part of a sample's points that a rank owns: the ``rank``-th of ``count`` stretches, as
    even as possible.

    Attributes:
        rank, count: the number of the stretch, and of how many.
        axis: the dimension of inputs (B, …) along which points run.
        labels: the same dimension of labels; None where a sample has one label for all points.
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
        """Return (start, stop) of this rank's part of ``length`` entries.

        Raises:
            DataError: a length that the grain does not divide.
            DomainError: fewer grains than ranks.
        """
        if length % self.grain:
            raise DataError(
                f"a sample: expected a multiple of {self.grain} entries, got {length}; choose "
                "another patch or size"
            )
        sizes = even_sizes(length // self.grain, self.count)
        start = sum(sizes[: self.rank])
        return start * self.grain, (start + sizes[self.rank]) * self.grain


class PartDataset:
    """A data set of which every batch is cut to this rank's points; see :class:`Stretch`.

    Of samples that stay on disk only this part is read. A random change concerns the complete
    sample, which is then read and cut afterwards.

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

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Any, Tensor]:
        """Return inputs of a model and labels at this rank's points.

        Raises:
            DataError: inputs that are not a single tensor, or labels at other points.
        """
        if transform is None and self.part is not None:
            return self.part.batch(indices)
        inputs, labels = self.whole.batch(indices, transform)
        cut = self.stretch
        if not isinstance(inputs, Tensor):
            raise DataError(
                f"{self.whole.name}: expected samples of one tensor to cut, got "
                f"{type(inputs).__name__}; train without distributing the points"
            )
        length = inputs.shape[cut.axis]
        start, stop = cut(length)
        inputs = inputs.narrow(cut.axis, start, stop - start)
        if cut.labels is None:
            return inputs, labels
        if labels.shape[cut.labels] != length:
            got = f"inputs {tuple(inputs.shape)}, labels {tuple(labels.shape)}"
            raise DataError(
                f"{self.whole.name}: expected a label for each point, got {got}; train without "
                "distributing the points"
            )
        return inputs, labels.narrow(cut.labels, start, stop - start)
