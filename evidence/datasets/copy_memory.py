"""The copy memory problem: repeat ten symbols after a delay (Hochreiter and Schmidhuber, 1997;
Arjovsky, Shah and Bengio, 2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.configuration import check_counts
from fredholm.lab.data.counter import integers
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset

SYMBOLS, MEMORY, MARKER = 8, 10, 9
# A key of the generator, so that splits share no sample.
SPLITS = {"train": 0, "val": 1, "test": 2}


@dataclass(frozen=True)
class CopyOptions:
    """Options: ``delay`` T; the number of samples in ``train``, ``val`` and ``test``; ``seed`` of
    the generator.

    Raises:
        OptionError: a size below 1.
    """

    delay: int = 100
    train: int = 10000
    val: int = 1000
    test: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "delay", "train", "val", "test")


def copy_memory(indices: Tensor, delay: int, *keys: int) -> tuple[Tensor, Tensor]:
    """Return inputs (B, T + 20, 1) and a target at every point (B, T + 20), a function of ``keys``
    and index alone.

    Inputs are ten symbols from 1 to 8, T - 1 zeros and eleven markers 9; targets are zero until the
    ten symbols at the last ten points.

    Example:
        >>> x, y = copy_memory(torch.tensor([3]), 5)
        >>> bool((x[0, :10, 0] == y[0, -10:]).all()), x[0, 10:, 0].int().tolist()
        (True, [0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9])
    """
    symbols = integers(SYMBOLS, *keys, indices[:, None], torch.arange(MEMORY)) + 1
    inputs = torch.zeros(len(indices), delay + 2 * MEMORY, dtype=torch.int64)
    targets = torch.zeros_like(inputs)
    inputs[:, :MEMORY] = symbols
    inputs[:, MEMORY + delay - 1 :] = MARKER
    targets[:, -MEMORY:] = symbols
    return inputs[..., None].float(), targets


def guessing(delay: int) -> float:
    """Return the accuracy of all points where the symbols are guessed and the zeros are known.

    Example:
        >>> guessing(30)
        0.825
    """
    return 1 - MEMORY / (delay + 2 * MEMORY) * (1 - 1 / SYMBOLS)


def create(request: Request) -> SequenceDataset:
    """Return the data set of a request; the inputs of a batch are made when it is read."""
    options = request.options
    count = getattr(options, request.split)
    key = SPLITS[request.split]
    _, targets = copy_memory(torch.arange(count), options.delay, options.seed, key)
    return SequenceDataset(
        request.entry.name,
        request.split,
        targets,
        request.entry.classes,
        lambda indices: copy_memory(indices, options.delay, options.seed, key)[0],
        shape=(options.delay + 2 * MEMORY, 1),
        task="steps",
    )


ENTRY = Entry(
    name="copy-memory",
    title="Copy memory: repeat ten symbols after a delay of T steps",
    source="generated",
    licence_package="none needed",
    licence_data="none needed",
    samples={"train": 10000, "val": 1000, "test": 1000},
    classes=tuple("0123456789"),
    read=create,
    notes="options: delay (T, default 100), train, val, test, seed; a class at every one of T + 20 "
    "points",
    kind=SEQUENCES,
    options=CopyOptions,
)
register_dataset(ENTRY)
