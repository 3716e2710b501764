"""What every data set is: labelled samples that are handed out in whole batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import Dataset

Transform = Callable[[Tensor], Tensor]


class LabelledDataset(Dataset):
    """Labelled samples: ``raw(indices)`` gives them as stored, ``batch(indices)`` as a model reads
    them, ``self[i]`` one such pair.

    Args:
        name, split: what this is.
        labels: (N,) class numbers, or what else is asked of each sample.
        classes: class names, in the order of their numbers.

    Attributes:
        measures: names of those by which this data set is judged, the chief one first; none
            where accuracy or loss is all.
        notes: what whoever trains or evaluates on it is told, such as rows that were skipped.
    """

    measures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, name: str, split: str, labels: Tensor, classes: Sequence[str]):
        self.name, self.split = name, split
        self.labels = labels
        self.classes = tuple(classes)

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self, indices: Int[Tensor, " b"] | Sequence[int]) -> tuple[Tensor, Tensor]:
        """The samples as they are stored, and their labels.

        Raises:
            IndexError: for an index outside −N … N − 1.
            DataError: when a file cannot be read.
        """
        raise NotImplementedError

    def batch(
        self, indices: Int[Tensor, " b"] | Sequence[int], transform: Transform | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs of a model and labels of ``indices``; ``transform`` changes what is stored first
        (an augmentation).
        """
        raise NotImplementedError

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"] | None:
        """Where each image's object is: its pixels (``kind="mask"``) or its filled boxes
        (``"box"``); None where that is unknown.
        """
        return None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index}; {self.name} {self.split} has {len(self)} samples")
        inputs, labels = self.batch([int(index)])
        return inputs[0], labels[0]
