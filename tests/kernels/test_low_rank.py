"""The kernel of low rank: its matrix, its start, its forms and the size of its state."""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import OptionError
from fredholm.kernels import LowRankKernel
from fredholm.operators import Linear, create_operator

from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 7


def operator(**options):
    options = {"rank": 2, "width": 5, "frequencies": 3, "sigma": 1.0} | options
    built = create_operator("itnet_low_rank", DIM, HEADS, **options).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def signal():
    return torch.randn(2, N, DIM, dtype=torch.float64)


@pytest.mark.parametrize("rank", [1, 2, 6])
def test_the_matrix_of_all_pairs_has_rank_r(rank):
    matrix = operator(rank=rank).kernel_matrix(signal(), Domain.line(N, dtype=torch.float64))
    whole = matrix.permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)
    values = torch.linalg.svdvals(whole)
    assert (values[..., rank - 1] > 1e-6 * values[..., 0]).all(), "all of the rank is used"
    assert (values[..., rank:] < 1e-12 * values[..., :1]).all(), "and no more"


@pytest.mark.parametrize("rank", [4, 6])
def test_the_operator_starts_as_the_mean(rank):
    built = create_operator("itnet_low_rank", DIM, HEADS, rank=rank, width=64)
    u = torch.randn(1, N, DIM)
    mean = built.projection(u.mean(1, keepdim=True).expand_as(u)) + u
    assert (built(u) - mean).abs().max() < 0.1 * mean.abs().max()


def test_a_small_rank_starts_as_the_mean_of_its_directions():
    kernel = LowRankKernel(HEADS, 4, rank=2, width=8, frequencies=2)
    for bias in kernel.query.bias2:
        assert_close(bias.mT @ bias, torch.eye(2))
    assert torch.equal(kernel.query.bias2, kernel.key.bias2)


@pytest.mark.parametrize(
    ("causal", "path"),
    [(False, "hidden units pooled"), (True, "causal chunks")],
    ids=["pooled", "chunks"],
)
def test_auto_selects_the_linear_forms(causal, path):
    built = operator()
    domain = Domain.line(N, causal=causal, dtype=torch.float64)
    u = signal()
    assert built.plan(domain).path == path
    expected = built.dense(u, domain)
    for strategy in ("auto", Linear(chunk=3), "exact"):
        built.strategy = strategy
        assert_close(built(u, domain), expected, str(strategy))


def test_the_state_has_r_numbers_per_head():
    built = operator(rank=3)
    domain = Domain.line(N, causal=True, dtype=torch.float64)
    state = built.init_state(2, domain)
    u = signal()
    for t in range(N):
        _, state = built.step(u[:, t], state)
        assert {name: tuple(x.shape) for name, x in state.keys.items()} == {
            "moment": (2, HEADS, 1, 3)
        }


def test_a_rank_above_the_number_of_points_works():
    built = operator(rank=20)
    u = signal()[:, :1]
    assert_close(built(u), built.dense(u))


def test_queries_at_other_points_equal_the_definition():
    built = operator()
    u = signal()
    domain = Domain.line(N, dtype=torch.float64)
    fine = Domain.points(torch.rand(11, 1, dtype=torch.float64))
    query = torch.randn(2, 11, DIM, dtype=torch.float64)
    assert_close(
        built(u, domain, query=query, query_domain=fine),
        built.dense(u, domain, query=query, query_domain=fine),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank: expected at least 1, got 0"),
        ({"width": 0}, "width=....: expected 1 or more, got 0"),
        ({"activation": "gelo"}, "unknown activation 'gelo'; did you mean 'gelu'"),
        ({"frequencies": 0}, "positive sizes"),
        ({"depth": 3}, "no option 'depth'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        operator(**options)
