"""Fewer samples of a data set."""

from __future__ import annotations

import pytest
import torch

from fredholm.data import HiddenTokens, TextDataset, Vocabulary, create_dataset, limit_samples
from fredholm.errors import OptionError


def test_a_subset_is_a_fixed_draw_without_copies():
    whole = create_dataset("digits", "train")
    few, again, other = (
        limit_samples(whole, 50),
        limit_samples(whole, 50),
        limit_samples(whole, 50, seed=1),
    )
    images, labels = few.batch(torch.arange(50))
    assert len(few) == len(few.labels) == 50
    assert torch.equal(images, again.batch(torch.arange(50))[0])
    assert not torch.equal(labels, other.labels)
    assert torch.equal(labels, few.labels)
    pixels = whole.raw(torch.arange(len(whole)))[0].flatten(1)
    assert all((pixels == x).all(1).any() for x in few.raw(torch.arange(50))[0].flatten(1))
    assert len(set(map(bytes, few.raw(torch.arange(50))[0].flatten(1).numpy()))) == 50
    assert limit_samples(whole, 10**6) is whole
    assert few[-1][1] == labels[-1]


def test_sequences_keep_their_kind():
    whole = create_dataset("adding", "train", options={"length": 5})
    few = limit_samples(whole, 7)
    assert type(few) is type(whole)
    assert few.batch([0, 6])[0].shape == (2, 5, 2)
    assert (few.task, few.length) == (whole.task, whole.length)


@pytest.mark.parametrize("hidden", [False, True])
def test_truncated_texts_are_counted_within_the_subset(hidden):
    """A run once reported 1646 of 200 texts."""
    texts = [" ".join("abcdefgh"[: 1 + i % 8]) for i in range(400)]  # of 1 to 8 words
    vocabulary = Vocabulary.of_words(texts, min_count=1)
    numbers = torch.arange(400) % 2
    whole = TextDataset("tiny", "train", texts, numbers, ("even", "odd"), vocabulary, 4)
    if hidden:
        whole = HiddenTokens(whole, 0.2)
    few = limit_samples(whole, 50)
    full = (few.raw(torch.arange(50))[0] != 0).sum(1) == 4  # 4 of 4 or more words
    assert whole.truncated == 200  # of 5 to 8 words
    assert 0 < few.truncated <= int(full.sum()) < 50
    kept = few.texts.texts if hidden else few.texts
    assert few.truncated == sum(len(text.split()) > 4 for text in kept)
    assert whole.truncated == 200


def test_a_limit_must_be_positive():
    with pytest.raises(OptionError, match="limit: expected 1 or more, got 0"):
        limit_samples(create_dataset("digits", "val"), 0)
