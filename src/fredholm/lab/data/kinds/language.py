"""Texts for language models: predicting the next token, and predicting hidden tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ....errors import DataError, OptionError
from ..counter import uniform
from ..vocabulary import PADDING, UNKNOWN, Vocabulary
from .dataset import IGNORED, Indices, LabelledDataset, index_tensor
from .texts import TextDataset, TokenizedDataset

# Shares of the targets that are hidden, and that become a random token; the rest stay visible.
HIDDEN, RANDOM = 0.8, 0.1
# The stream of random numbers that chooses targets.
_MASKS = 0x3A


class NextTokens(TokenizedDataset):
    """A long text in windows of N tokens: a batch is (B, N) token numbers and, for each of them,
    the number that follows.

    The windows lie side by side, so that every token but the first is a target once; an incomplete
    window at the end is dropped. The first tokens of a window have little context.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        numbers: the text's token numbers.
        vocabulary: of its tokens.
        max_length: N.
        documents: the texts that it consists of, for models with their own tokenizer.

    Raises:
        DataError: a text shorter than one window.

    Example:
        >>> vocabulary = Vocabulary.of_characters(["abc"])
        >>> tokens = torch.tensor(vocabulary.encode("abcab"))
        >>> data = NextTokens("tiny", "train", tokens, vocabulary, 2)
        >>> data.batch([0, 1])
        (tensor([[2, 3],
                [4, 2]]), tensor([[3, 4],
                [2, 3]]))
    """

    task = "tokens"

    def __init__(
        self,
        name: str,
        split: str,
        numbers: Int[Tensor, " n"],
        vocabulary: Vocabulary,
        max_length: int,
        documents: Sequence[str] = (),
    ):
        count = (len(numbers) - 1) // max_length
        if count < 1:
            raise DataError(
                f"{name} {split}: expected a text of {max_length + 1} tokens or more for one "
                f"window of max_length, got {len(numbers)}; reduce max_length"
            )
        end = count * max_length + 1
        following = numbers[1:end].view(count, max_length)
        super().__init__(name, split, following, token_names(vocabulary))
        self.numbers = numbers
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.documents = tuple(documents)

    def raw(self, indices: Indices) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        indices = index_tensor(indices)
        count = self.labels.numel()
        inputs = self.numbers[:count].view_as(self.labels)
        return inputs[indices].long(), self.labels[indices].long()

    def __repr__(self) -> str:
        tokens = f"{self.max_length} of {len(self.vocabulary):,} {self.vocabulary.kind}"
        return f"NextTokens({self.name!r}, {self.split!r}, {len(self)} windows of {tokens})"


class HiddenTokens(TokenizedDataset):
    """Texts of which some tokens are targets: a batch is (B, N) token numbers with most targets
    hidden, and the targets, -100 elsewhere.

    Of the targets 80% become number 1, 10% a random token, 10% stay as they are. In training the
    loader's ``augment`` chooses them anew each epoch; without one (validation, test) they follow
    from the sample alone.

    Args:
        texts: a :class:`TextDataset`; its labels are not read.
        share: of the tokens that are targets.

    Raises:
        OptionError: other samples, texts whose targets are tokens already, or a share outside
            (0, 1).

    Reference: ITNet App. K.2; Devlin et al. 2019.

    Example:
        >>> vocabulary = Vocabulary.of_words(["a b c d"], min_count=1)
        >>> lines, labels = ["a b c d", "d c"], torch.zeros(2).long()
        >>> texts = TextDataset("tiny", "val", lines, labels, ("one",), vocabulary, 4)
        >>> inputs, asked = HiddenTokens(texts, 0.5).batch([0, 1])
        >>> inputs.shape, bool((asked[inputs == 1] > 1).all())
        (torch.Size([2, 4]), True)
    """

    task = "tokens"

    def __init__(self, texts: LabelledDataset, share: float):
        if not isinstance(texts, TextDataset):
            raise OptionError(
                f"masked: expected texts with labels, got {texts.name}, which holds "
                f"{texts.kind.many} for the task {texts.task}; leave it out, or choose a data set "
                "of texts"
            )
        if not 0.0 < share < 1.0:
            raise OptionError(
                f"masked: expected a share of the tokens between 0 and 1, got {share}; such as 0.15"
            )
        tokens = token_names(texts.vocabulary)
        super().__init__(texts.name, texts.split, texts.labels, tokens)
        self.texts = texts
        self.share = share
        self.notes = texts.notes
        self.vocabulary = texts.vocabulary
        self.max_length = texts.max_length
        self.cut = texts.cut

    def raw(self, indices: Indices) -> tuple[Int[Tensor, "b n"], Int[Tensor, " b"]]:
        return self.texts.raw(indices)

    def batch(
        self,
        indices: Indices,
        transform: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """Return token numbers and targets; ``transform`` hides tokens."""
        numbers, _ = self.raw(indices)
        if transform is not None:
            return transform(numbers)
        # No epoch of a training is -1, so these masks are not among those trained on.
        indices = torch.as_tensor(indices)
        return self.hide(numbers, indices, seed=0, epoch=-1)

    def select(self, chosen: Int[Tensor, " m"]) -> HiddenTokens:
        return HiddenTokens(self.texts.select(chosen), self.share)

    def augmentation(self, options: Mapping[str, Any]) -> Callable[..., Any]:
        self.refuse(options)
        return self.hide

    def hide(
        self,
        numbers: Tensor,
        indices: Tensor,
        *,
        seed: int,
        epoch: int,
    ) -> tuple[Tensor, Tensor]:
        """Return token numbers (B, N) with hidden ones, and targets (B, N).

        Both are a function of (seed, epoch, index, place) alone. A text has one target at least.
        """
        place = torch.arange(numbers.shape[1])
        sample = indices[:, None]
        draw, how, other = (
            uniform(seed, epoch + 1, _MASKS, stream, sample, place) for stream in range(3)
        )
        # Draws are below 1, so padding is never chosen, and never the lowest of its row.
        real = numbers != PADDING
        draw = torch.where(real, draw, 2.0)
        lowest = draw == draw.amin(1, keepdim=True)
        target = (draw < self.share) | (lowest & real)

        words = len(self.vocabulary) - 2
        random = 2 + (other * words).long()
        changed = torch.where(how < HIDDEN + RANDOM, random, numbers)
        changed = torch.where(how < HIDDEN, UNKNOWN, changed)
        inputs = torch.where(target, changed, numbers)
        targets = torch.where(target, numbers, IGNORED)
        return inputs, targets

    def __repr__(self) -> str:
        return f"HiddenTokens({self.texts!r}, {self.share:g})"


def token_names(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return a name for each number of a vocabulary: the classes of a language model."""
    if vocabulary.kind == "bytes":
        return ("padding", *(f"byte {i}" for i in range(len(vocabulary) - 1)))
    return ("padding", "unknown", *vocabulary.words)
