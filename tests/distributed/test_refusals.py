"""Wrong input is refused by every rank, and nothing hangs."""

from __future__ import annotations

import pytest

from fredholm.domain import Domain
from fredholm.errors import DomainError

from . import jobs
from .pool import Pool

EXPECTED = {
    "no mesh": "DeviceMesh, got str",
    "no dimension": "got 'tensor'",
    "several dimensions": "expected one dimension, got 2",
    "one of several": "answered",
    "more ranks": "expected at most as many ranks as the domain has points",
    "sizes": "with sum 8",
    "points": "points: expected the same on all ranks of a sharded domain, got 8 on rank 0 and 9",
    "order": "got False on rank 0 and True on rank 1",
    "other values": "values of positions: expected the same on all ranks of a sharded domain, got",
    "parts of two kinds": "causal: expected the same on all ranks of a sharded domain, got False",
    "parts of times": "give masses",
    "sharded again": "expected a whole domain for shard,",
    "slice": "expected a whole domain for a slice,",
    "quadrature": "expected a whole domain for quadrature(),",
    "dense": "expected a whole domain for the definition,",
    "weights": "expected a whole domain for the definition,",
    "init_state": "expected a whole domain for init_state,",
    "collate": "expected a whole domain for collate,",
    "stencil": "expected a whole domain for StencilKernel, whose output is another grid, got",
    "resolvent": "Resolvent cannot integrate HopKernel over a sharded domain",
    "resolvent plan": "no exchange between ranks",
    "query domain": "shard it over the same mesh",
}


def test_wrong_input_is_refused_on_every_rank(two):
    for answer in two.run(jobs.refusals):
        assert answer.keys() == EXPECTED.keys()
        for what, words in EXPECTED.items():
            assert words in answer[what], (what, answer[what])


def test_another_domain_on_one_rank_is_refused_by_its_part_and_rank(three):
    others = ", ".join(str(rank) for rank in range(three.count) if rank != 1)
    part_of = {"bias": "values of pairs", "no edges": "edges"}
    for answer in three.run(jobs.other_domains):
        assert answer.keys() == jobs.unlike_domains().keys()
        for name, words in answer.items():
            part = part_of.get(name, name)
            expected = f"DomainError: {part}: expected the same on all ranks of a sharded domain"
            assert words.startswith(expected), words
            assert f"on ranks {others} and " in words, words
            assert "on rank 1;" in words, words


def test_equal_values_are_one_domain_in_any_layout_and_cost_one_message(three):
    assert three.run(jobs.equal_domains) == [[1]] * three.count


def test_parts_of_other_batches_are_refused_before_anything_is_sent(three):
    for answer in three.run(jobs.unlike_parts):
        assert answer.startswith("DomainError: batch of positions: expected the same"), answer


def test_a_missing_process_group_is_named():
    with pytest.raises(DomainError, match="torchrun"):
        Domain.line(4).shard(None)


@pytest.mark.parametrize(
    ("how", "seconds", "cause"),
    [("sum", 60, "died"), ("ring", 60, "died"), ("late", 4, "did not answer in time")],
)
def test_a_dead_or_late_rank_is_named(how, seconds, cause):
    said = Pool(3, seconds).ask(0, jobs.leave, how)
    assert said.startswith(f"PeerError: rank 1 of the 3 ranks of a sharded domain {cause}"), said
