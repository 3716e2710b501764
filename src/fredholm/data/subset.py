"""Fewer samples of a data set."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import OptionError
from .counter import permutation
from .kinds.dataset import LabelledDataset

AnyDataset = TypeVar("AnyDataset", bound=LabelledDataset)


@dataclass(frozen=True)
class _Rows:
    """Reads samples of ``whole`` by their place in ``chosen``."""

    whole: Any
    chosen: Tensor

    def __call__(self, indices: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.whole.raw(self.chosen[torch.as_tensor(indices, dtype=torch.int64)])


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
    found = copy.copy(dataset)
    found.labels = dataset.labels[chosen]
    if hasattr(dataset, "cut"):  # texts that lost their end, of which the rest are none of ours
        found.cut = dataset.cut[chosen]  # type: ignore[attr-defined]
    found.raw = _Rows(dataset, chosen)  # type: ignore[method-assign]
    return found
