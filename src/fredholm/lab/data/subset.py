"""A random selection of a data set's samples."""

from __future__ import annotations

from typing import TypeVar

from ...errors import OptionError
from .counter import permutation
from .kinds.dataset import LabelledDataset

AnyDataset = TypeVar("AnyDataset", bound=LabelledDataset)


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
