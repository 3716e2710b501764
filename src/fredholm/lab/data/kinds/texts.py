"""Labelled texts as padded token numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ....errors import DataError, OptionError, ShapeError, suggest
from ..vocabulary import KINDS, PADDING, Vocabulary
from .dataset import LabelledDataset, check_labels
from .kind import WORDS, Kind, Page, register_kind

MAX_LENGTH = {"words": 64, "wordpieces": 64, "bytes": 256, "characters": 256}


@dataclass(frozen=True)
class TextOptions:
    """How texts become numbers: ``tokens`` is words, wordpieces, bytes or characters,
    ``max_length`` how many of them are kept (default 64 words or pieces, 256 bytes or characters).

    ``min_count`` is how often a word must occur in the training split to have a number (default 2);
    ``pieces`` is how many numbers wordpieces have at most (default 30,000); ``vocabulary``, where
    given, is used instead of one made from the training split.

    Raises:
        OptionError: for an unknown kind, a length below 1, a vocabulary of another kind, or a count
            of bytes.
    """

    tokens: str | None = None
    max_length: int | None = None
    min_count: int | None = None
    vocabulary: Vocabulary | None = None
    pieces: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens not in KINDS:
            raise OptionError(f"tokens: received {self.tokens!r}{suggest(str(self.tokens), KINDS)}")
        length = self.max_length
        if length is not None and (
            not isinstance(length, int) or isinstance(length, bool) or length < 1
        ):
            raise OptionError(f"max_length: received {length!r}; needs an integer of 1 or more")
        if self.vocabulary is not None and self.tokens not in (None, self.vocabulary.kind):
            raise OptionError(
                f"tokens: received {self.tokens!r} with a vocabulary of {self.vocabulary.kind}; "
                "leave it out"
            )

        if self.min_count is not None and self.vocabulary is None and self.kind != "words":
            raise OptionError(
                f"min_count: received {self.min_count} with tokens {self.kind!r}; all {self.kind} "
                "have numbers, leave it out"
            )

        if self.pieces is not None and self.vocabulary is None and self.kind != "wordpieces":
            raise OptionError(
                f"pieces: received {self.pieces} with tokens {self.kind!r}; needs "
                "tokens='wordpieces', or leave it out"
            )

    @property
    def kind(self) -> str:
        """A name of :data:`fredholm.lab.data.vocabulary.KINDS`."""
        return self.vocabulary.kind if self.vocabulary else self.tokens or "words"

    @property
    def length(self) -> int:
        """How many tokens of a text are kept."""
        return self.max_length or MAX_LENGTH[self.kind]

    def make_vocabulary(self, training: Sequence[str]) -> Vocabulary:
        """The vocabulary given, or that of the training texts."""
        if self.vocabulary is not None:
            return self.vocabulary
        if self.kind == "bytes":
            return Vocabulary("bytes")
        if self.kind == "characters":
            return Vocabulary.of_characters(training)
        if self.kind == "wordpieces":
            return Vocabulary.of_pieces(training, self.pieces or 30_000)
        return Vocabulary.of_words(training, 2 if self.min_count is None else self.min_count)


def encode_texts(
    texts: Sequence[str], vocabulary: Vocabulary, max_length: int, where: str = "text"
) -> tuple[Int[Tensor, "b n"], int]:
    """Texts as rows of numbers, padded with 0 to the longest, and how many were longer than
    ``max_length`` and lost their end.

    Raises:
        DataError: for a text without a token, naming it by ``where`` and its place.

    Example:
        >>> encode_texts(["a b", "b"], Vocabulary("words", ("a", "b")), 8)
        (tensor([[2, 3],
                [3, 0]]), 0)
    """
    numbers, cut = encode_rows(texts, vocabulary, max_length, where)
    return numbers, int(cut.sum())


def encode_rows(
    texts: Sequence[str], vocabulary: Vocabulary, max_length: int, where: str
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, " b"]]:
    """As :func:`encode_texts`, and of each text whether it lost its end."""
    rows = [vocabulary.encode(text) for text in texts]
    empty = next((i for i, row in enumerate(rows) if not row), None)
    if empty is not None:
        raise DataError(
            f"{where} {empty + 1}: {texts[empty]!r} holds no token; needs at least one "
            f"{vocabulary.kind[:-1]}"
        )
    cut = torch.tensor([len(row) > max_length for row in rows], dtype=torch.bool)
    width = min(max_length, max((len(row) for row in rows), default=1))
    numbers = torch.full((len(rows), width), PADDING)
    for place, row in enumerate(rows):
        kept = row[:width]
        numbers[place, : len(kept)] = torch.tensor(kept)
    return numbers, cut


class Texts(Kind):
    """Texts as token numbers (N, length), 0 where padded."""

    name, one, many, encoder = "text", "text", "texts", "text"
    point, axis, unit = "token", "place in the text", "1 is the longest text that the model takes"
    worded = True
    # A text alone lies on a line of its own: its positions mean nothing to a text below a picture.
    rooms = (
        ("encoder.token", "encoder.token"),
        ("encoder.embed.weight", WORDS),
        ("encoder.", "line."),
    )
    takes = ("tokens", "max_length", "min_count", "pieces", "vocabulary", "masked")

    def request(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        super().request(name, given)
        own = {key: value for key, value in given.items() if key != "masked"}  # asked at the end
        return {"text": TextOptions(**own)}

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 2 and not inputs.is_floating_point()

    def described(self, facts: Mapping[str, Any]) -> bool:
        return "vocabulary" in facts

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        return inputs, prepare_texts(inputs, facts.texts)

    def size(self, inputs: Any) -> str:
        return f"{inputs.shape[1]} tokens"

    def made_of(self, encoder: Any) -> str:
        return "on texts"


TEXTS = register_kind(Texts())


class TokenizedDataset(LabelledDataset):
    """Texts in the numbers of a vocabulary, of which ``max_length`` tokens are kept; ``cut`` says
    of each text whether it lost its end.
    """

    kind = TEXTS
    vocabulary: Vocabulary
    max_length: int
    cut: Tensor | None = None
    per_sample = ("labels", "cut")

    @property
    def truncated(self) -> int:
        """How many texts lost their end."""
        return 0 if self.cut is None else int(self.cut.sum())

    def encoder(self) -> dict[str, Any]:
        sizes = {"vocabulary": len(self.vocabulary), "max_length": self.max_length}
        return {**super().encoder(), **sizes}

    def describe(self) -> dict[str, Any]:
        words = {"vocabulary": self.vocabulary.to_dict(), "max_length": self.max_length}
        return {**super().describe(), **words}

    def example(self) -> Tensor:
        return torch.ones(1, self.max_length, dtype=torch.int64)

    def remarks(self) -> list[str]:
        lost = (
            f"{self.truncated} of {len(self)} texts are longer than {self.max_length} tokens and "
            "lost their end"
        )
        return [*([lost] if self.truncated else []), *super().remarks()]


class TextDataset(TokenizedDataset):
    """Labelled texts in memory; a batch is (B, N) token numbers, 0 where padded, as wide as its
    longest text.

    A text longer than ``max_length`` tokens loses its end; ``truncated`` counts those that did.

    Args:
        name, split: what this is.
        texts, labels: (N,) each.
        classes: class names, in the order of their numbers.
        vocabulary: of tokens, made from the training split.
        max_length: tokens kept of a text.
        targets: a real number a text, such as a mean rating, where there is one.
        task: ``classification``, or ``regression``: what is asked are the targets.

    Raises:
        DataError: for a text without a token, labels outside the classes, or a regression without
            targets.
        ShapeError: when labels or targets do not fit the texts.

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
        if task not in ("classification", "regression") or (
            task == "regression" and targets is None
        ):
            raise DataError(
                f"task: received {task!r}; needs 'classification', or 'regression' and targets"
            )
        self.task = task
        if len(texts) != len(labels) or (targets is not None and targets.shape != labels.shape):
            shape = None if targets is None else tuple(targets.shape)
            result = f"{len(texts)} texts, {len(labels)} labels, targets {shape}"
            raise ShapeError(
                f"{name}: received {result}; needs one label (and target) for each text"
            )
        check_labels(labels, classes)
        self.texts, self.vocabulary, self.max_length, self.targets = (
            list(texts),
            vocabulary,
            max_length,
            targets,
        )
        self.numbers, self.cut = encode_rows(
            self.texts, vocabulary, max_length, f"{name} {split}: text"
        )

    def raw(self, indices: Int[Tensor, " b"] | Sequence[int]) -> tuple[Int[Tensor, "b n"], Tensor]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        numbers = self.numbers[indices]
        width = int((numbers != PADDING).sum(1).max()) if len(numbers) else 1
        asked = (
            self.targets if self.task == "regression" and self.targets is not None else self.labels
        )
        return numbers[:, :width], asked[indices]

    def select(self, chosen: Int[Tensor, " m"]) -> TextDataset:
        result = copy.copy(self)
        result.texts = [self.texts[i] for i in chosen.tolist()]
        for name in ("numbers", *self.per_sample):
            setattr(result, name, getattr(self, name)[chosen])
        result.targets = None if self.targets is None else self.targets[chosen]
        return result

    def shown(self, indices: Int[Tensor, " b"]) -> dict[str, Any]:
        return {"inputs": self.raw(indices)[0], "texts": [self.texts[i] for i in indices.tolist()]}

    def hidden(self, share: float) -> LabelledDataset:
        from .language import HiddenTokens

        return HiddenTokens(self, share)

    def written(self) -> Sequence[str]:
        return self.texts

    def texts_and_targets(self, numbers: bool) -> tuple[list[str], Tensor]:
        if numbers and self.targets is None:
            raise OptionError(f"{self.name} has no real number for each text, only classes")
        return self.texts, self.targets if numbers and self.targets is not None else self.labels

    def __repr__(self) -> str:
        tokens = f"at most {self.max_length} of {len(self.vocabulary):,} {self.vocabulary.kind}"
        size = f"{len(self)} texts, {tokens}, {len(self.classes)} classes"
        return f"TextDataset({self.name!r}, {self.split!r}, {size})"


# --- texts without a data set ---------------------------------------------------------------------


def read_lines(path: Path) -> list[tuple[str, str]]:
    """The texts of a file, one a line, each with ``file:line``; empty lines are passed over.

    Raises:
        DataError: no such file, no UTF-8, or no text.
    """
    try:
        # universal newlines; splitlines() would also part a text at U+2028 and form feeds
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text (byte {error.start:,}); needs one text a line"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    texts = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise DataError(f"{path}: holds no text; needs one a line")
    return texts


def prepare_texts(numbers: Tensor, texts: Sequence[str] | None) -> list[str]:
    """The texts to show; token numbers where there are none.

    Raises:
        ShapeError: another number of texts than rows.
    """
    if texts is None:
        return [" ".join(str(n) for n in row if n) for row in numbers.tolist()]
    if len(texts) != len(numbers):
        raise ShapeError(
            f"texts: received {len(texts)} for {len(numbers)} rows of token numbers; needs one each"
        )
    return list(texts)
