"""Sequences of symbols, and pairs of them, as torch data sets of padded token numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ....errors import DataError, ShapeError
from .dataset import Indices, LabelledDataset, check_labels, index_tensor
from .images import ImageDataset
from .kind import Kind, Page, register_kind
from .texts import prepare_texts


class Rows:
    """Rows of symbols 0 … 255, one byte each, of different lengths. A call with indices returns
    padded token numbers.

    A token's number is 1 + its symbol; 0 is padding.

    Args:
        symbols: of all rows, one after another.
        ends: (N,) where each row ends.

    Example:
        >>> rows = Rows.of([torch.tensor([7, 8]), torch.tensor([9])])
        >>> rows(torch.tensor([0, 1])).tolist()
        [[8, 9], [10, 0]]
    """

    def __init__(self, symbols: Tensor, ends: Tensor):
        self.symbols = symbols
        self.ends = ends

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Rows:
        """Return rows from one tensor each.

        Raises:
            DataError: an empty row.
        """
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        if not lengths.all():
            row = int(lengths.argmin()) + 1
            raise DataError(f"row {row}: expected at least one symbol, got none; leave it out")
        none = torch.empty(0, dtype=torch.uint8)
        parts = [row.to(torch.uint8) for row in rows]
        symbols = torch.cat([none, *parts])
        return cls(symbols, lengths.cumsum(0))

    @classmethod
    def of_texts(cls, texts: Sequence[str], max_length: int) -> Rows:
        """Return the first ``max_length`` bytes of each text's UTF-8."""
        rows = []
        for text in texts:
            symbols = list(text.encode("utf-8")[:max_length])
            rows.append(torch.tensor(symbols, dtype=torch.uint8))
        return cls.of(rows)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> Int[Tensor, " n"]:
        """Symbols of each row."""
        start = self.ends.new_zeros(1)
        return self.ends.diff(prepend=start)

    def __getitem__(self, index: int) -> Tensor:
        start = 0
        if index:
            start = int(self.ends[index - 1])
        stop = int(self.ends[index])
        return self.symbols[start:stop]

    def __call__(
        self,
        indices: Int[Tensor, " b"],
        width: int = 1,
    ) -> Int[Tensor, "b n"]:
        rows = [self[i].long() + 1 for i in indices.tolist()]
        longest = max([width, *map(len, rows)])
        out = torch.zeros(len(rows), longest, dtype=torch.int64)
        for place, row in enumerate(rows):
            out[place, : len(row)] = row
        return out


class Symbols(Kind):
    """Sequences of symbols as token numbers, (N, length) or pairs (N, 2, length)."""

    name = "symbols"
    one = "sequence"
    many = "sequences"
    encoder = "text"

    def fits(self, inputs: Any) -> bool:
        # A single sequence looks like a text; only its data set knows.
        if not isinstance(inputs, Tensor) or inputs.is_floating_point():
            return False
        return inputs.dim() == 3

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        tokens = inputs.flatten(1)
        return inputs, prepare_texts(tokens, facts.texts)

    def size(self, inputs: Any) -> str:
        return f"{inputs[0].numel()} tokens"


SYMBOLS = register_kind(Symbols())


class TokenDataset(LabelledDataset):
    """Sequences of symbols with a class each: ``batch(indices)`` returns (B, N) token numbers, or
    (B, 2, N) with ``pair``, 0 where padded.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        labels: class numbers (N,).
        classes: their names.
        numbers: from indices (int64) to padded token numbers.
        tokens: how many token numbers there are, padding included.
        max_length: of the longest sequence.
        pair: two sequences per sample.

    Raises:
        DataError: labels outside the classes.

    Example:
        >>> rows = Rows.of([torch.tensor([7, 8]), torch.tensor([9])])
        >>> labels, sizes = torch.tensor([1, 0]), {"tokens": 11, "max_length": 2}
        >>> data = TokenDataset("tiny", "train", labels, ("a", "b"), rows, **sizes)
        >>> data[1]
        (tensor([10]), tensor(0))
    """

    kind = SYMBOLS

    def __init__(
        self,
        name: str,
        split: str,
        labels: Int[Tensor, " n"],
        classes: Sequence[str],
        numbers: Callable[[Tensor], Tensor],
        *,
        tokens: int,
        max_length: int,
        pair: bool = False,
    ):
        super().__init__(name, split, labels, classes)
        check_labels(labels, classes)
        self.numbers = numbers
        self.tokens = tokens
        self.max_length = max_length
        self.pair = pair

    def raw(self, indices: Indices) -> tuple[Int[Tensor, "b ..."], Int[Tensor, " b"]]:
        indices = index_tensor(indices)
        return self.numbers(indices), self.labels[indices]

    def encoder(self) -> dict[str, Any]:
        fields = {
            **super().encoder(),
            "vocabulary": self.tokens,
            "max_length": self.max_length,
        }
        if self.pair:
            fields["views"] = 2
        return fields

    def example(self) -> Tensor:
        shape = [1, self.max_length]
        if self.pair:
            shape = [1, 2, self.max_length]
        return torch.ones(shape, dtype=torch.int64)

    def __repr__(self) -> str:
        what = "sequences"
        if self.pair:
            what = "pairs of sequences"
        size = f"at most {self.max_length} of {self.tokens} tokens"
        shape = f"{len(self)} {what}, {size}"
        return f"TokenDataset({self.name!r}, {self.split!r}, {shape}, {len(self.classes)} classes)"


def image_tokens(images: ImageDataset) -> TokenDataset:
    """Return images as sequences of pixels, row after row, each grey level a token: 257 numbers.

    Colours become grey as 0.2989 R + 0.587 G + 0.114 B, rounded down as the Long Range Arena's
    conversion does.

    Raises:
        ShapeError: neither one channel nor three.
    """
    channels, height, width = images.shape
    if channels not in (1, 3):
        raise ShapeError(
            f"grey levels: expected images of 1 or 3 channels, got {channels}; convert them first"
        )
    weights = torch.tensor([0.2989, 0.587, 0.114], dtype=torch.float64)
    weights = weights[:, None, None]

    def numbers(indices: Tensor) -> Tensor:
        pixels, _ = images.raw(indices)
        if channels == 3:
            weighted = pixels.double() * weights
            grey = weighted.sum(1)
            # TensorFlow's conversion from floats in [0, 1] to bytes: floor(x · 255.5).
            scaled = grey * (255.5 / 255)
            pixels = scaled.clamp(max=255).floor()
        return pixels.flatten(1).long() + 1

    return TokenDataset(
        images.name,
        images.split,
        images.labels,
        images.classes,
        numbers,
        tokens=257,
        max_length=height * width,
    )
