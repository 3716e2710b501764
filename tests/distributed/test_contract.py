"""Every registered operator on a domain sharded over several processes, with shards of different
sizes, equals one process in values and in all gradients.
"""

from __future__ import annotations

import pytest

from fredholm.operators import list_operators

from ..contracts.cases import cases
from ..tolerances import RELATIVE
from . import jobs

TOLERANCE = RELATIVE[jobs.torch.float64]
ONE_EACH = [next(case.label for case in cases([name])) for name in (*list_operators(), "sum")]
FEW = ["padded", "bias", "causal masses"]

# Layers and options whose algorithm needs all points in one process, and the domains on which each
# is refused. The list may only get shorter.
PAIRS = {"graph", "bias", "causal window"}
# Edges can be sharded where queries may lie on another domain, a reach where outputs are local.
REACH = {"reach", "causal reach"}
EDGES = {"edges", "radius", "mesh"}
REFUSED: dict[str, set[str] | str] = {
    "linear attention": PAIRS,
    "infsa-resolvent": "everywhere",
    "infsa-resolvent-gmres": "everywhere",
    "convolution": {"bias"},
    "convolution-2d-circular": {"bias"},
    "recurrence-lstm": "everywhere",
    "recurrence-gru-both-ways": "everywhere",
    "s4d-fft": "everywhere",
    "linear-system-in-time": "everywhere",
    "mamba": "everywhere",
}
REGISTERED = [
    case.label for case in cases() if case.name in list_operators() and case.label not in REFUSED
]


def refused_sparse(label: str) -> set[str]:
    """Return the domains of few neighbours that an operator cannot shard."""
    case = jobs.find_case(label)
    refused = set() if case.cross else set(EDGES)
    if not case.operator().kernel.local:
        refused |= REACH
    return refused


def check(label: str, answers: list[dict]) -> set[str]:
    """Check that every output is within tolerance, by an exchange that the plan names. Return the
    refused domains.
    """
    refused = set()
    for rank, answer in enumerate(answers):
        for where, found in answer.items():
            if isinstance(found, str):
                assert "Error: " in found
                refused.add(where)
                continue
            gaps, exchange = found
            wrong = {name: gap for name, gap in gaps.items() if not gap <= TOLERANCE}
            assert not wrong, f"{label} on {where}, rank {rank}: {wrong}"
            assert exchange, f"{label} on {where}, rank {rank}: the plan names no exchange"
    return refused


@pytest.mark.parametrize("label", ONE_EACH)
def test_two_shards_equal_one_process(two, label):
    served = [where for where in FEW if where in jobs.find_case(label).domains()]
    assert served
    assert not check(label, two.run(jobs.contract, label, served))


@pytest.mark.parametrize("label", ["linear_attention-decay", "linear_attention-decay-exponential"])
def test_a_decay_reaches_across_shards(two, label):
    """The moment of a rank decays over all points of the ranks between, and over timestamps."""
    assert not check(
        label, two.run(jobs.contract, label, ["causal masses", "causal clocks with gaps"])
    )


@pytest.mark.parametrize("label", ["softmax", "itnet", "luna"])
def test_sharded_edges_and_reach_equal_one_process(three, label):
    """Each rank has the rows of its points, one rank none. Edges have densities and order, and a
    reach includes points of other ranks.
    """
    served = sorted((EDGES | REACH) & set(jobs.find_case(label).domains()))
    assert served
    assert not check(label, three.run(jobs.contract, label, served))


@pytest.mark.parametrize("causal", [False, True])
def test_a_reach_counts_visible_points_across_ranks(three, causal):
    """With two hidden points at a cut, the window continues on another rank."""
    for gaps in three.run(jobs.hidden_in_reach, causal):
        assert max(gaps.values()) <= TOLERANCE, gaps


@pytest.mark.slow
@pytest.mark.parametrize("label", REGISTERED)
def test_three_shards_with_an_empty_one_equal_one_process(three, label):
    domains = set(jobs.find_case(label).domains())
    assert check(label, three.run(jobs.contract, label)) == domains & refused_sparse(label)


@pytest.mark.slow
@pytest.mark.parametrize("label", [c.label for c in cases() if c.label not in REGISTERED])
def test_converted_layers_equal_one_process_or_are_refused(two, label):
    domains = set(jobs.find_case(label).domains())
    listed = REFUSED.get(label, set())
    expected = domains if listed == "everywhere" else domains & {*listed, *refused_sparse(label)}
    assert check(label, two.run(jobs.contract, label)) == expected


STRATEGIES = {
    "infsa-rows-tied": {"name": "neumann", "hops": 3},
    "itnet": {"name": "monte_carlo", "samples": 3, "anchors": True},
}


@pytest.mark.parametrize("label", STRATEGIES)
@pytest.mark.parametrize("where", ["points", "causal padded"])
def test_every_strategy_equals_one_process(two, label, where):
    strategy = STRATEGIES[label]
    for gaps in two.run(jobs.compare, label, where, strategy):
        assert max(gaps.values()) <= TOLERANCE, gaps


# Operators that exchange a moment of their keys, whose size does not depend on the points.
MOMENTS = ["linear_attention", "luna", "itnet_low_rank"]
RINGS = ["softmax", "itnet", "infsa"]


@pytest.mark.parametrize(
    ("name", "causal"),
    [*((name, causal) for name in MOMENTS for causal in (False, True)), ("linear_infsa", False)],
)
def test_the_traffic_of_moments_does_not_grow_with_the_points(two, name, causal):
    few = two.run(jobs.traffic, name, 24, causal)
    assert min(few) > 0
    assert two.run(jobs.traffic, name, 48, causal) == few


@pytest.mark.parametrize("name", RINGS)
def test_the_traffic_of_a_ring_is_linear_in_the_keys(two, name):
    sent = [two.run(jobs.traffic, name, points, False) for points in (24, 48, 72)]
    for few, more, most in zip(*sent):
        assert more > few
        assert most - more == more - few


@pytest.mark.parametrize(
    ("label", "where"),
    [("softmax", "causal padded"), ("itnet", "bias"), ("linear_attention", "causal padded")],
)
def test_queries_on_another_domain_equal_one_process(two, label, where):
    for gaps in two.run(jobs.crossed, label, where):
        assert max(gaps.values()) <= TOLERANCE, gaps


@pytest.mark.slow
@pytest.mark.parametrize("where", ["bias", "padded", "causal padded"])
@pytest.mark.parametrize("label", ["softmax", "itnet", "itnet_low_rank", "luna", "ckconv"])
def test_queries_on_another_domain_with_empty_shards_equal_one_process(three, label, where):
    for gaps in three.run(jobs.crossed, label, where):
        assert max(gaps.values()) <= TOLERANCE, gaps


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_states_of_a_dense_system_cross_ranks(three, padded):
    for gaps in three.run(jobs.dense_system, padded):
        assert max(gaps.values()) <= TOLERANCE, gaps


@pytest.mark.slow
@pytest.mark.parametrize("where", ["masses", "causal"])
def test_keys_sampled_by_shard_are_unbiased(three, where):
    for gaps in three.run(jobs.drawn_in_parts, where):
        assert gaps.pop("spread") > 0, "nothing was drawn"
        assert max(gaps.values(), default=0.0) < 5, gaps


def test_each_rank_may_build_its_own_shard(two):
    for gaps in two.run(jobs.own_parts):
        assert max(gaps.values()) <= TOLERANCE, gaps


def test_a_ring_sends_while_it_computes(two):
    assert two.run(jobs.traced_ring) == [{"messages": 1, "ahead": 1}] * 2


@pytest.mark.slow
def test_every_message_of_a_longer_ring_is_sent_ahead(three):
    messages = three.count - 1
    found = three.run(jobs.traced_ring)
    assert found == [{"messages": messages, "ahead": messages}] * three.count
