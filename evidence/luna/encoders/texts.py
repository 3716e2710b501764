"""Hidden words of Python's documentation: the data of the contest between encoders.

The words of the documents of a split stand one after another. They are cut into segments of as many
tokens as the encoders are trained on, and the same words are hidden from a segment whether an
encoder reads it alone or within a longer text. The most frequent words, mostly signs, are not
hidden: their neighbours tell what they are, and no longer text is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.data import create_dataset

DATA, LEAST = "python-docs", 30
"""Words that occur less often in the training documents have no number of their own."""
FREQUENT = 100
"""Number of the most frequent words, which are not hidden."""
TRAINED, LONGEST = 512, 8_192
LENGTHS = (512, 1_024, 2_048, 4_096, 8_192)
"""Tokens of a text. All are multiples of a segment and divide the longest."""
HIDDEN = 32
"""Words that are hidden in each segment."""
MASK, UNKNOWN = 0, 1
"""Numbers of a hidden word and of an unknown one. Number 0 is padding, of which there is none."""
PLACES_SEED = 7


class Corpus(NamedTuple):
    """Token numbers of each split, (n,), and how many different numbers there are."""

    splits: dict[str, Tensor]
    words: int


class Hidden(NamedTuple):
    """Texts of which some words are hidden.

    Attributes:
        tokens: with hidden words replaced, (B, N).
        places: of the hidden words, (B, P).
        answers: the hidden words, (B, P).
    """

    tokens: Tensor
    places: Tensor
    answers: Tensor


@cache
def corpus() -> Corpus:
    """Read the documents; the vocabulary is that of the training documents."""
    train = create_dataset(
        DATA, "train", download=True, tokens="words", min_count=LEAST, max_length=TRAINED
    )
    splits = {"train": train.numbers.long()}
    for split in ("val", "test"):
        other = create_dataset(DATA, split, vocabulary=train.vocabulary, max_length=TRAINED)
        splits[split] = other.numbers.long()
    return Corpus(splits, len(train.vocabulary))


def draw_places(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the places of :data:`HIDDEN` words per row of ``tokens`` (B, N), (B, HIDDEN).

    Where a row has too few words to hide, frequent words follow, and unknown ones come last.
    """
    # A vocabulary lists words by frequency, after the numbers of hidden and unknown words.
    frequent = tokens <= UNKNOWN + FREQUENT
    order = torch.rand(tokens.shape, generator=generator)
    order = order + frequent.to(order) + (tokens == UNKNOWN).to(order)
    return order.topk(HIDDEN, 1, largest=False).indices


def hide(tokens: Tensor, places: Tensor) -> Hidden:
    """Replace the words at ``places`` (B, P) of ``tokens`` (B, N)."""
    answers = tokens.gather(1, places)
    return Hidden(tokens.scatter(1, places, MASK), places, answers)


def training_batch(size: int, generator: torch.Generator) -> Hidden:
    """Draw ``size`` segments that begin anywhere in the training documents."""
    text = corpus().splits["train"]
    starts = torch.randint(len(text) - TRAINED, (size, 1), generator=generator)
    tokens = text[starts + torch.arange(TRAINED)]
    return hide(tokens, draw_places(tokens, generator))


def evaluation_batches(split: str, length: int) -> Iterator[Hidden]:
    """Yield all texts of a split in batches of :data:`LONGEST` tokens, each of ``length`` tokens.

    All lengths have the same tokens and the same hidden words, in the same order.
    """
    text = corpus().splits[split]
    count = len(text) // LONGEST
    segments = text[: count * LONGEST].view(-1, TRAINED)
    places = draw_places(segments, torch.Generator().manual_seed(PLACES_SEED))

    # Within a longer text, a place is counted from the text's start.
    parts = length // TRAINED
    offsets = torch.arange(parts)[:, None] * TRAINED
    within = (places.view(-1, parts, HIDDEN) + offsets).flatten(1)
    texts = segments.view(-1, length)
    for batch in torch.arange(len(texts)).split(LONGEST // length):
        yield hide(texts[batch], within[batch])
