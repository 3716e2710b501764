"""Fewer samples of a data set."""

from __future__ import annotations

import pytest
import torch

from fredholm.data import create_dataset, limit_samples
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


def test_a_limit_is_positive():
    with pytest.raises(OptionError, match="limit: received 0"):
        limit_samples(create_dataset("digits", "val"), 0)
