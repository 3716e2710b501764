"""Labelled texts as padded token numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ....errors import DataError, OptionError, ShapeError
from ..vocabulary import PADDING, Vocabulary, check_count, check_tokens
from .dataset import Indices, LabelledDataset, check_labels, index_tensor
from .kind import Line, Page, register_kind

MAX_LENGTH = {
    "words": 64,
    "wordpieces": 64,
    "bytes": 256,
    "characters": 256,
}


@dataclass(frozen=True)
class TextOptions:
    """How texts become token numbers.

    Args:
        tokens: words (the default), wordpieces, bytes or characters.
        max_length: tokens of a text that are read, from its start (default 64 words or pieces,
            256 bytes or characters).
        min_count: how often a word must occur in the training split to have a number (default 2).
        vocabulary: used instead of one made from the training split.
        pieces: the size of a vocabulary of wordpieces (default 30,000).

    Raises:
        OptionError: an unknown kind of tokens, a length below 1, a vocabulary of another kind, or
            an option that this kind of tokens does not have.
    """

    tokens: str | None = None
    max_length: int | None = None
    min_count: int | None = None
    vocabulary: Vocabulary | None = None
    pieces: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None:
            check_tokens(self.tokens)
        if self.max_length is not None:
            check_count("max_length", self.max_length)
        if self.vocabulary is not None and self.tokens not in (None, self.vocabulary.kind):
            raise OptionError(
                f"tokens: expected {self.vocabulary.kind}, of which the vocabulary is, got "
                f"{self.tokens!r}; leave it out"
            )

        # A vocabulary that is given has its size; these two options shape one that is made.
        if self.vocabulary is not None:
            return
        if self.min_count is not None and self.kind != "words":
            raise OptionError(
                f"min_count: expected tokens='words' with it, got {self.kind!r}, all of which have "
                "numbers; leave it out"
            )
        if self.pieces is not None and self.kind != "wordpieces":
            raise OptionError(
                f"pieces: expected tokens='wordpieces' with it, got {self.kind!r}; leave it out"
            )

    @property
    def kind(self) -> str:
        """A name of :data:`fredholm.lab.data.vocabulary.KINDS`."""
        if self.vocabulary:
            return self.vocabulary.kind
        return self.tokens or "words"

    @property
    def length(self) -> int:
        """How many tokens of a text are read."""
        return self.max_length or MAX_LENGTH[self.kind]

    def by_characters(self) -> TextOptions:
        """Return these options with characters as the default tokens."""
        if self.vocabulary is not None or self.tokens is not None:
            return self
        return replace(self, tokens="characters")

    def make_vocabulary(self, training: Sequence[str]) -> Vocabulary:
        """Return the vocabulary that was given, or that of the training texts."""
        if self.vocabulary is not None:
            return self.vocabulary
        if self.kind == "bytes":
            return Vocabulary("bytes")
        if self.kind == "characters":
            return Vocabulary.of_characters(training)
        if self.kind == "wordpieces":
            return Vocabulary.of_pieces(training, self.pieces or 30_000)
        if self.min_count is not None:
            return Vocabulary.of_words(training, self.min_count)
        return Vocabulary.of_words(training)


def encode_texts(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    max_length: int,
    where: str = "text",
) -> tuple[Int[Tensor, "b n"], int]:
    """Return texts as rows of numbers, padded with 0 to the longest, and how many were longer than
    ``max_length`` and lost their end.

    Raises:
        DataError: a text without a token, named by ``where`` and its place.

    Example:
        >>> encode_texts(["a b", "b"], Vocabulary("words", ("a", "b")), 8)
        (tensor([[2, 3],
                [3, 0]]), 0)
    """
    numbers, cut = encode_rows(texts, vocabulary, max_length, where)
    return numbers, int(cut.sum())


def encode_rows(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    max_length: int,
    where: str,
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, " b"]]:
    """Return the rows of :func:`encode_texts`, and of each text whether it lost its end."""
    rows = [vocabulary.encode(text) for text in texts]
    for number, row in enumerate(rows, 1):
        # Without a point, a sample has no integral and no mean.
        if not row:
            raise DataError(
                f"{where} {number}: expected at least one {vocabulary.kind[:-1]}, got "
                f"{texts[number - 1]!r}; leave the text out"
            )
    lengths = [len(row) for row in rows]
    width = min(max_length, max(lengths, default=1))
    numbers = torch.full((len(rows), width), PADDING)
    for place, row in enumerate(rows):
        kept = row[:width]
        numbers[place, : len(kept)] = torch.tensor(kept)
    return numbers, torch.tensor(lengths, dtype=torch.int64) > max_length


def trimmed(numbers: Int[Tensor, "b n"]) -> Int[Tensor, "b m"]:
    """Return padded token numbers, cut to the longest row of the batch; empty batches to 1."""
    if not len(numbers):
        return numbers[:, :1]
    width = int((numbers != PADDING).sum(1).max())
    return numbers[:, :width]


class Texts(Line):
    """Texts as token numbers (N, length), 0 where padded."""

    name = "text"
    one = "text"
    many = "texts"
    encoder = "text"
    point = "token"
    axis = "place in the text"
    unit = "1 is the longest text that the model takes"
    worded = True
    takes = ("tokens", "max_length", "min_count", "pieces", "vocabulary", "masked")

    def request(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        super().request(name, given)
        # Tokens are hidden after the texts have been read, by create_dataset.
        options = {key: value for key, value in given.items() if key != "masked"}
        return {"text": TextOptions(**options)}

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 2 and not inputs.is_floating_point()

    def described(self, facts: Mapping[str, Any]) -> bool:
        return "vocabulary" in facts

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        return inputs, prepare_texts(inputs, facts.texts)


TEXTS = register_kind(Texts())


class TokenizedDataset(LabelledDataset):
    """Texts in the numbers of a vocabulary, up to ``max_length`` tokens each.

    ``cut`` (N,) is True of texts that lost their end.
    """

    kind = TEXTS
    vocabulary: Vocabulary
    max_length: int
    cut: Tensor | None = None
    per_sample = ("labels", "cut")

    @property
    def truncated(self) -> int:
        """How many texts lost their end."""
        if self.cut is None:
            return 0
        return int(self.cut.sum())

    def encoder(self) -> dict[str, Any]:
        sizes = {"vocabulary": len(self.vocabulary), "max_length": self.max_length}
        return {**super().encoder(), **sizes}

    def describe(self) -> dict[str, Any]:
        facts = super().describe()
        # Where tokens are predicted, the classes are the vocabulary, which is saved already.
        if self.task == "tokens":
            facts["classes"] = []
        words = {"vocabulary": self.vocabulary.to_dict(), "max_length": self.max_length}
        return facts | words

    def example(self) -> Tensor:
        return torch.ones(1, self.max_length, dtype=torch.int64)

    def remarks(self) -> list[str]:
        result = super().remarks()
        if self.truncated:
            cut = f"longer than {self.max_length} tokens and lost their end"
            result.insert(0, f"{self.truncated} of {len(self)} texts are {cut}")
        return result


class TextDataset(TokenizedDataset):
    """Labelled texts in memory; a batch is (B, N) token numbers, 0 where padded, as wide as its
    longest text.

    A text longer than ``max_length`` tokens loses its end; ``truncated`` counts those that did.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        texts, labels: (N,) each.
        classes: class names, in the order of their numbers.
        vocabulary: of tokens, made from the training split.
        max_length: tokens of a text that are read.
        targets: (N,) a real number per text, such as a mean rating, where there is one.
        task: ``classification`` by the labels, or ``regression`` of the targets.

    Raises:
        DataError: a text without a token, labels outside the classes, or a regression without
            targets.
        ShapeError: labels or targets of another number than the texts.

    Example:
        >>> texts, labels = ["a fine film", "dull"], torch.tensor([1, 0])
        >>> words = Vocabulary.of_words(texts, min_count=1)
        >>> data = TextDataset("tiny", "train", texts, labels, ("bad", "good"), words, 2)
        >>> data.batch([0, 1])[0].tolist(), data.truncated
        ([[2, 5], [3, 0]], 1)
    """

    def __init__(
        self,
        name: str,
        split: str,
        texts: Sequence[str],
        labels: Int[Tensor, " n"],
        classes: Sequence[str],
        vocabulary: Vocabulary,
        max_length: int,
        targets: Tensor | None = None,
        task: str = "classification",
    ):
        super().__init__(name, split, labels, classes)
        tasks = ["classification"]
        if targets is not None:
            tasks.append("regression")
        if task not in tasks:
            raise DataError(
                f"task: expected 'classification', or 'regression' with targets, got {task!r}; "
                "give targets, or choose the other"
            )
        shapes = [tuple(part.shape) for part in (labels, targets) if part is not None]
        if set(shapes) != {(len(texts),)}:
            raise ShapeError(
                f"{name}: expected labels (and targets) of shape ({len(texts)},), one per text, "
                f"got {', '.join(map(str, shapes))}; give as many"
            )
        check_labels(labels, classes)
        self.texts = list(texts)
        self.targets = targets
        self.task = task
        self.vocabulary = vocabulary
        self.max_length = max_length
        where = f"{name} {split}: text"
        self.numbers, self.cut = encode_rows(self.texts, vocabulary, max_length, where)

    def raw(self, indices: Indices) -> tuple[Int[Tensor, "b n"], Tensor]:
        indices = index_tensor(indices)
        labels = self.labels
        if self.task == "regression" and self.targets is not None:
            labels = self.targets
        return trimmed(self.numbers[indices]), labels[indices]

    def select(self, chosen: Int[Tensor, " m"]) -> TextDataset:
        result = copy.copy(self)
        result.texts = [self.texts[i] for i in chosen.tolist()]
        for name in ("numbers", "targets", *self.per_sample):
            value = getattr(self, name)
            if value is not None:
                setattr(result, name, value[chosen])
        return result

    def shown(self, indices: Int[Tensor, " b"]) -> dict[str, Any]:
        return {"inputs": self.raw(indices)[0], "texts": [self.texts[i] for i in indices.tolist()]}

    def written(self) -> Sequence[str]:
        return self.texts

    def texts_and_targets(self, numbers: bool) -> tuple[list[str], Tensor]:
        if not numbers:
            return self.texts, self.labels
        if self.targets is None:
            raise OptionError(
                f"{self.name}: expected a real number for each text, got only classes; classify "
                "the texts instead"
            )
        return self.texts, self.targets

    def __repr__(self) -> str:
        tokens = f"at most {self.max_length} of {len(self.vocabulary):,} {self.vocabulary.kind}"
        size = f"{len(self)} texts, {tokens}, {len(self.classes)} classes"
        return f"TextDataset({self.name!r}, {self.split!r}, {size})"


# --- texts without a data set ---------------------------------------------------------------------


def read_lines(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a file, one per line, each after its ``file:line``; empty lines are
    skipped.

    Raises:
        DataError: no such file, not UTF-8, or no text.
    """
    try:
        # Reading has made all line ends "\n"; splitlines() would also split a text at U+2028 and
        # form feeds.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; correct the path") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 with one text per line, got another byte at {error.start:,}; "
            "convert it: iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    texts = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise DataError(f"{path}: expected one text per line, got only empty lines; write some")
    return texts


def prepare_texts(numbers: Tensor, texts: Sequence[str] | None) -> list[str]:
    """Return the texts to show; token numbers where there are none.

    Raises:
        ShapeError: another number of texts than rows.
    """
    if texts is None:
        return [" ".join(str(n) for n in row if n) for row in numbers.tolist()]
    if len(texts) != len(numbers):
        raise ShapeError(
            f"texts: expected one for each of {len(numbers)} rows of token numbers, got "
            f"{len(texts)}; give as many"
        )
    return list(texts)
