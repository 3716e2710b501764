"""Counter-based random numbers and splits."""

from __future__ import annotations

import math

import pytest
import torch

from fredholm.errors import OptionError
from fredholm.lab.data.counter import hash64, integers, permutation, uniform
from fredholm.lab.data.splits import check_fraction, check_split, stratified


def reference_mix(x: int) -> int:
    """SplitMix64 in Python's unbounded integers."""
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_hash_equals_splitmix64():
    assert reference_mix(0) == 0xE220A8397B1DCDAF  # the published first output for seed 0
    keys = (3, 2**63 + 11, -5)
    expected = 0
    for key in keys:
        expected = reference_mix(expected ^ (key % 2**64))
    assert int(hash64(*keys)) % 2**64 == expected


def test_random_numbers_depend_on_every_key_and_not_on_the_batch():
    base = hash64(1, 2, torch.arange(1000))
    assert base.unique().numel() == 1000
    assert torch.equal(base[torch.tensor([7, 3])], hash64(1, 2, torch.tensor([7, 3])))
    for other in (hash64(2, 2, torch.arange(1000)), hash64(1, 3, torch.arange(1000))):
        assert not (base == other).any()


def test_uniform_and_integers_are_even():
    n = 100_000
    x = uniform(5, torch.arange(n))
    assert x.min() >= 0
    assert x.max() < 1
    counts = torch.histc(x, 10, 0, 1)
    assert (
        (counts - n / 10) ** 2 / (n / 10)
    ).sum() < 27.9  # chi-squared, 9 degrees of freedom, 0.1%
    assert torch.bincount(integers(7, 5, torch.arange(n))).numel() == 7
    neighbours = torch.corrcoef(torch.stack([x[:-1], x[1:]]))[0, 1]
    assert abs(neighbours) < 4 / math.sqrt(n)


def test_permutations_equal_recorded_ones():
    """A change of these values would change every split and every saved run."""
    assert permutation(8, 0, 1).tolist() == PERMUTATION
    assert sorted(permutation(1000, 4).tolist()) == list(range(1000))


PERMUTATION = [4, 6, 3, 0, 1, 5, 2, 7]


def test_stratified_slices_are_disjoint_complete_and_proportional():
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 7)[torch.randperm(87)]
    rest, held = stratified(labels, 0.2)
    assert torch.equal(torch.cat([rest, held]).sort().values, torch.arange(87))
    assert torch.bincount(labels[held]).tolist() == [10, 6, 1]
    again = stratified(labels, 0.2)
    assert torch.equal(again[1], held)
    assert not torch.equal(stratified(labels, 0.2, seed=1)[1], held)


def test_larger_slices_contain_smaller_ones():
    labels = torch.arange(100) % 5
    small, large = (
        set(stratified(labels, 0.1)[1].tolist()),
        set(stratified(labels, 0.3)[1].tolist()),
    )
    assert small < large


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan, math.inf])
def test_wrong_fractions_are_refused(value):
    with pytest.raises(OptionError, match="val_fraction: expected"):
        check_fraction(value)


def test_an_unknown_split_is_refused():
    with pytest.raises(OptionError, match="did you mean 'train'"):
        check_split("tarin")
