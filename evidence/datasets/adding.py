"""The adding problem: the sum of two marked numbers of a sequence (Hochreiter and Schmidhuber,
1997).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.configuration import check_counts
from fredholm.errors import OptionError
from fredholm.lab.data.counter import integers, uniform
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset

from .copy_memory import SPLITS


@dataclass(frozen=True)
class AddingOptions:
    """Options: ``length`` T of a sequence; the number of samples in ``train``, ``val`` and
    ``test``; ``seed`` of the generator.

    Raises:
        OptionError: a size below 1, or a length below 2.
    """

    length: int = 100
    train: int = 50000
    val: int = 1000
    test: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "length", "train", "val", "test")
        if self.length < 2:
            raise OptionError(
                f"length: expected 2 or more, since two numbers are marked, got {self.length}"
            )


def adding(indices: Tensor, length: int, *keys: int) -> tuple[Tensor, Tensor]:
    """Return inputs (B, T, 2), uniform numbers and two marks, and the sum of the marked numbers
    (B,), a function of ``keys`` and index alone.

    A constant answer of 1 has the loss 1/6.

    Example:
        >>> x, y = adding(torch.tensor([3, 4]), 20)
        >>> x[..., 1].sum(1).tolist(), bool(torch.allclose((x[..., 0] * x[..., 1]).sum(1), y))
        ([2.0, 2.0], True)
    """
    column = indices[:, None]
    numbers = uniform(*keys, 0, column, torch.arange(length)).float()
    # The second mark is drawn among the other places: those behind the first move up by one.
    first = integers(length, *keys, 1, indices)
    other = integers(length - 1, *keys, 2, indices)
    second = other + (other >= first).long()
    marks = torch.zeros_like(numbers)
    rows = torch.arange(len(indices))
    marks[rows, first] = 1.0
    marks[rows, second] = 1.0
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1)


def create(request: Request) -> SequenceDataset:
    """Return the data set of a request; the inputs of a batch are made when it is read."""
    options = request.options
    count = getattr(options, request.split)
    key = SPLITS[request.split]
    # The numbers of all samples at once would need gigabytes.
    pieces = torch.arange(count).split(4096)
    sums = torch.cat([adding(piece, options.length, options.seed, key)[1] for piece in pieces])
    return SequenceDataset(
        request.entry.name,
        request.split,
        sums,
        (),
        lambda indices: adding(indices, options.length, options.seed, key)[0],
        shape=(options.length, 2),
        task="regression",
    )


ENTRY = Entry(
    name="adding",
    title="Adding problem: the sum of two marked numbers among T",
    source="generated",
    licence_package="none needed",
    licence_data="none needed",
    samples={"train": 50000, "val": 1000, "test": 1000},
    read=create,
    notes="options: length (T, default 100), train, val, test, seed; a regression, always "
    "answering 1 has the loss 1/6",
    kind=SEQUENCES,
    options=AddingOptions,
)
register_dataset(ENTRY)
