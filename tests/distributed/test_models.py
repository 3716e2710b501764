"""Models on sharded points: token-wise work is local, read-outs are over all ranks."""

from __future__ import annotations

import pytest

from ..tolerances import assert_close
from . import jobs
from .test_contract import TOLERANCE


@pytest.mark.parametrize("name", jobs.MODELS)
def test_loss_and_gradients_equal_one_process(two, name):
    for gaps in two.run(jobs.model_on_shards, name):
        assert len(gaps) > 10
        assert max(gaps.values()) <= TOLERANCE, gaps


@pytest.mark.parametrize("name", ["block", "accumulation", "operator term", "network term"])
def test_ranks_drop_the_same_branches(two, name):
    first, second = two.run(jobs.dropped_branches, name)
    assert_close(first, second)


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_token_dropout_acts_in_training_only(two, kind):
    for found in two.run(jobs.left_out_tokens, kind):
        assert found[""] <= TOLERANCE
        assert "which tokens are left out in training is drawn for all" in found["training"]


def test_read_outs_equal_one_process(two):
    for gaps in two.run(jobs.read_outs):
        assert max(gaps.values()) <= TOLERANCE, gaps


@pytest.mark.slow
def test_read_outs_with_an_empty_shard_equal_one_process(three):
    for gaps in three.run(jobs.read_outs):
        assert max(gaps.values()) <= TOLERANCE, gaps
