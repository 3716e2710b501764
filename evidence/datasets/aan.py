"""AAN: does one paper cite the other? Bytes of two papers' texts, the Retrieval task of the Long
Range Arena (Tay et al., 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.configuration import check_counts
from fredholm.errors import DataError
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.sequences import SEQUENCES
from fredholm.lab.data.kinds.tokens import Rows, TokenDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "val": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
LABELS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


@dataclass(frozen=True)
class PairOptions:
    """Options of the data set.

    Attributes:
        max_length: number of bytes that are read of each text.

    Raises:
        OptionError: the length is not a positive integer.
    """

    max_length: int = 4000

    def __post_init__(self) -> None:
        check_counts(self, "max_length")


class Pairs(NamedTuple):
    """First texts, second texts, and labels."""

    first: Rows
    second: Rows
    labels: Tensor


def read(path: Path, max_length: int) -> Pairs:
    """Read an official file: without a header, one pair per line.

    A line has a label, two names and two texts, separated by tabs.

    Raises:
        DataError: the file is missing or empty, or a line has another form.
    """
    first, second, labels = [], [], []
    lines = read_bytes(path).decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = line.rstrip("\r").split("\t")
        if len(cells) != 5 or cells[0] not in LABELS or not cells[3] or not cells[4]:
            raise DataError(
                f"{path}, line {number}: expected 0 or 1, two names and two texts, got "
                f"{line[:60]!r}; check the file"
            )
        label, _, _, one, other = cells
        labels.append(LABELS[label])
        first.append(one)
        second.append(other)
    if not labels:
        raise DataError(f"{path}: expected pairs of texts, got none; the file may be truncated")
    return Pairs(
        Rows.of_texts(first, max_length),
        Rows.of_texts(second, max_length),
        torch.tensor(labels),
    )


def pairs(first: Rows, second: Rows) -> Callable[[Tensor], Tensor]:
    """Return a function from indices to two rows per sample: (B, 2, N) token numbers.

    Example:
        >>> a, b = Rows.of([torch.tensor([7, 8])]), Rows.of([torch.tensor([9])])
        >>> pairs(a, b)(torch.tensor([0])).tolist()
        [[[8, 9], [10, 0]]]
    """

    def numbers(indices: Tensor) -> Tensor:
        # Both rows of all samples get one width; an empty batch has width 1.
        lengths = [rows.lengths[indices] for rows in (first, second)]
        width = max(1, *(int(length) for length in torch.cat(lengths)))
        return torch.stack([first(indices, width), second(indices, width)], 1)

    return numbers


def pair_dataset(
    request: Request, first: Rows, second: Rows, labels: Tensor, max_length: int
) -> TokenDataset:
    """Return a data set with two rows of bytes per sample."""
    entry, numbers = request.entry, pairs(first, second)
    shape = {"tokens": 257, "max_length": max_length, "pair": True}
    return TokenDataset(entry.name, request.split, labels, entry.classes, numbers, **shape)


def create(request: Request) -> TokenDataset:
    """Return the data set of a request from the user's folder."""
    length = request.options.max_length
    return pair_dataset(request, *read(request.folder / FILES[request.split], length), length)


ENTRY = Entry(
    name="aan",
    title="AAN: does one paper cite the other? The Long Range Arena's Retrieval task, its official "
    "files",
    source="your folder: new_aan_pairs.{train,eval,test}.tsv",
    needs={"path": f"the folder of {', '.join(FILES.values())}"},
    licence_package="yours",
    licence_data="Apache-2.0 (google-research/long-range-arena); texts of the ACL Anthology",
    samples={"train": 147086, "val": 18090, "test": 17437},
    classes=("unrelated", "cited"),
    read=create,
    official="new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv of "
    "lra_release/tsv_data",
    notes="options: max_length; bytes of two texts a sample",
    kind=SEQUENCES,
    options=PairOptions,
)
register_dataset(ENTRY)
