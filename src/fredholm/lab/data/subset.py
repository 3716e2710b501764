"""Fewer samples of a data set."""

from __future__ import annotations

from typing import TypeVar

import torch

from ...errors import OptionError
from .counter import permutation
from .kinds.dataset import LabelledDataset

AnyDataset = TypeVar("AnyDataset", bound=LabelledDataset)


def limit_samples(dataset: AnyDataset, limit: int, seed: int = 0) -> AnyDataset:
    """The same data set with at most ``limit`` of its samples, a random draw fixed by ``seed``;
    nothing is copied.

    Raises:
        OptionError: a limit below 1.

    Example:
        >>> from fredholm.data import create_dataset
        >>> few = limit_samples(create_dataset("digits", "train"), 100)
        >>> len(few), few.batch([99])[0].shape
        (100, torch.Size([1, 1, 8, 8]))
    """
    if limit < 1:
        raise OptionError(f"limit: received {limit}; needs 1 or more")
    if limit >= len(dataset):
        return dataset
    chosen = torch.as_tensor(permutation(len(dataset), seed)[:limit]).long().sort().values
    return dataset.select(chosen)
