"""Position and content shares of kernels with known shares."""

from __future__ import annotations

import math

import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.errors import DomainError, ShapeError
from fredholm.explain import variance_share

from .known import CONTENT, GRID, POSITION, KnownOperator


def test_a_position_kernel_has_share_one():
    result = variance_share(POSITION, torch.randn(8, 25, 3), GRID)
    assert result.share == pytest.approx(1, abs=1e-6)
    assert result.error < 1e-6
    assert result.pairs == 8 * 25


def test_the_relative_size_is_deviation_over_root_mean_square():
    """K = 3 + v, v standard normal: sd 1, root mean square √10."""
    op = KnownOperator(lambda x, y, u, v: 3 + v[..., 0])
    result = variance_share(op, torch.randn(400, 25, 1), GRID)
    assert result.relative == pytest.approx(10**-0.5, rel=0.05)
    assert (
        variance_share(
            KnownOperator(lambda x, y, u, v: torch.ones(1, 1, 1)), torch.randn(4, 25, 1), GRID
        ).relative
        < 1e-6
    )


def test_a_content_kernel_has_share_zero():
    result = variance_share(
        KnownOperator(lambda x, y, u, v: v[..., 0]), torch.randn(200, 25, 1), GRID, queries=25
    )
    assert abs(result.share) < max(3 * result.error, 0.02)


@pytest.mark.parametrize("mix", [0.3, 1.0, 2.0])
def test_a_mixed_kernel_has_the_share_of_its_parts(mix):
    """K = f(x - y) + mix · u(y): position = Var f over pairs, content = mix², with the
    normalisation of a population.
    """
    op = KnownOperator(lambda x, y, u, v: 2 * (x - y)[..., 0] + mix * v[..., 0])
    result = variance_share(op, torch.randn(400, 25, 1), GRID, queries=25)
    spread = 4 * 2 * 0.08  # Var of x_i - y_j over independent i, j on five cell centres: 2 · 0.08
    share = spread / (spread + mix**2)
    assert result.share == pytest.approx(share, abs=4 * result.error + 0.003)
    assert float(result.position[0]) == pytest.approx(
        4 * spread, rel=0.1
    )  # the 2x2 matrix has squared norm 4


def test_few_signals_do_not_bias_the_share():
    """Averaged over draws of three signals; a plug-in variance would give the content kernel 1/3."""
    op = KnownOperator(lambda x, y, u, v: v[..., 0])
    draws = [variance_share(op, torch.randn(3, 25, 1), GRID, queries=2) for _ in range(200)]
    position = torch.stack([d.position[0] for d in draws]).mean()
    content = torch.stack([d.content[0] for d in draws]).mean()
    assert abs(float(position)) < 0.05 * float(content)


def test_the_jackknife_error_matches_the_spread_over_repetitions():
    op = KnownOperator(lambda x, y, u, v: 2 * (x - y)[..., 0] + v[..., 0] * u[..., 0])
    draws = [variance_share(op, torch.randn(20, 25, 1), GRID, queries=5) for _ in range(60)]
    spread = torch.tensor([d.share for d in draws]).std()
    typical = sum(d.error for d in draws) / len(draws)
    assert 0.6 < typical / float(spread) < 1.7


def test_shares_satisfy_the_law_of_total_variance():
    """The reference has plug-in variances of the dense kernel, with the same correction."""
    op = create_operator("itnet", 8, heads=2, position_dim=2, width=8)
    domain = Domain.grid(3, 3)
    u = torch.randn(50, 9, 8)
    dense = (
        op.kernel_matrix(u, domain).detach().double().flatten(4).transpose(0, 1).flatten(2, 3)
    )  # (H, S, P, E)
    within = dense.var(1).sum(-1).mean(1)
    centred = dense - dense.mean(2, keepdim=True)
    between = dense.mean(1).var(1, correction=0).sum(-1) - centred.var(1).sum(-1).mean(1) / 50
    result = variance_share(op, u, domain, queries=9, keys=9)
    torch.testing.assert_close(result.content, within, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(result.position, between, rtol=1e-5, atol=1e-8)
    small = variance_share(op, u, domain, queries=9, keys=9, budget=1)
    assert small.share == pytest.approx(result.share, rel=1e-5)


@pytest.mark.parametrize("groups", [["query_position", "key_position"], ["query", "key"]])
def test_shares_follow_the_groups_of_itnet(groups):
    op = create_operator("itnet", 8, heads=2, position_dim=2, width=16, groups=groups)
    share = variance_share(op, torch.randn(64, 16, 8), Domain.grid(4, 4), queries=16).share
    assert share == pytest.approx(1, abs=1e-6) if "key_position" in groups else abs(share) < 0.1


def test_a_constant_kernel_has_no_share():
    result = variance_share(
        KnownOperator(lambda x, y, u, v: torch.ones(1, 1, 1)), torch.randn(4, 25, 1), GRID
    )
    assert math.isnan(result.share)
    assert bool(result.head_share.isnan().all())


def test_hidden_pairs_are_not_sampled():
    """On a causal domain, a kernel that differs only between past and future is constant on the
    visible pairs.
    """
    op = KnownOperator(lambda x, y, u, v: (y[..., 0] > x[..., 0]).float() + 1)
    line = Domain.line(10, causal=True)
    assert math.isnan(variance_share(op, torch.randn(4, 10, 1), line, queries=10).share)
    assert variance_share(
        op, torch.randn(4, 10, 1), Domain.line(10), queries=10
    ).share == pytest.approx(1)


def test_wrong_arguments_are_refused():
    with pytest.raises(ShapeError, match="at least 3"):
        variance_share(CONTENT, torch.randn(2, 25, 1), GRID)
    with pytest.raises(DomainError, match="share"):
        variance_share(CONTENT, torch.randn(4, 5, 1), Domain.points(torch.rand(4, 5, 2)))
