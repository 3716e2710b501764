"""Linear attention: sums, chunks and steps equal the dense density, in values and gradients."""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import StrategyError
from fredholm.ops.linear_attention import (
    guarded,
    linear_attention,
    linear_attention_naive,
    linear_attention_step,
    linear_density,
)

from ..tolerances import assert_close

B, H, N, R, D = 2, 3, 7, 4, 5
FLOOR = 1e-6


def inputs(queries: int = N):
    torch.manual_seed(1)
    sizes = ((queries, R), (N, R), (N, D))
    q, k, v = (torch.randn(B, H, *size, dtype=torch.float64) for size in sizes)
    return [q.exp().requires_grad_(), k.exp().requires_grad_(), v.requires_grad_()]


def domains() -> dict[str, Domain]:
    torch.manual_seed(5)
    double = {"dtype": torch.float64}
    valid = torch.tensor([[True] * N, [False, True, True, True, False, False, False]])
    line, points = (
        Domain.line(N, **double),
        Domain.points(torch.rand(B, N, 1, **double), valid=valid),
    )
    causal = Domain.line(N, causal=True, **double)
    return {
        "uniform": line,
        "counting": Domain.line(N, measure="counting", **double),
        "masses": line.with_masses(torch.rand(B, N, **double)),
        "padded": points,
        "all padding": points.replace(valid=torch.tensor([[True] * N, [False] * N])),
        "causal": causal,
        "causal counting": causal.replace(kind="counting"),
        "causal masses": causal.with_masses(torch.rand(N, **double)),
        "causal padded": points.replace(causal=True),
    }


def check(actual, expected, leaves):
    assert_close(actual, expected)
    direction = torch.randn_like(expected)
    for g, e in zip(
        torch.autograd.grad(actual, leaves, direction),
        torch.autograd.grad(expected, leaves, direction),
    ):
        assert g.isfinite().all()
        assert_close(g, e, "gradient")


@pytest.mark.parametrize("floor", [FLOOR, None])
@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("name", list(domains()))
def test_linear_forms_equal_the_density(name, chunk, floor):
    quadrature = domains()[name].quadrature()
    leaves = inputs()
    actual = linear_attention(*leaves, quadrature, floor=floor, chunk=chunk)
    check(actual, linear_attention_naive(*leaves, quadrature.weights(), floor), leaves)


def test_queries_on_another_domain_equal_the_density():
    quadrature = domains()["padded"].quadrature(Domain.line(3, dtype=torch.float64))
    leaves = inputs(3)
    actual = linear_attention(*leaves, quadrature, floor=FLOOR)
    check(actual, linear_attention_naive(*leaves, quadrature.weights(), FLOOR), leaves)


@pytest.mark.parametrize("floor", [FLOOR, None])
@pytest.mark.parametrize("name", ["causal", "causal counting", "causal masses", "causal padded"])
def test_steps_equal_the_density(name, floor):
    q = domains()[name].quadrature()
    leaves = inputs()
    moment = None
    outputs = []
    for t in range(N):
        scale = None if q.scale is None else q.scale[..., t]
        point = [x[:, :, t] for x in leaves]
        y, moment = linear_attention_step(*point, q.mass[:, t], scale, moment, floor=floor)
        assert moment.shape == (B, H, R, D + (floor is not None))
        outputs.append(y)
    check(torch.stack(outputs, 2), linear_attention_naive(*leaves, q.weights(), floor), leaves)


@pytest.mark.parametrize("name", ["masses", "causal padded", "causal counting"])
def test_gradients_pass_gradcheck(name):
    quadrature = domains()[name].quadrature()
    leaves = inputs()
    assert torch.autograd.gradcheck(
        lambda *x: linear_attention(*x, quadrature, floor=FLOOR, chunk=3), leaves
    )


def test_gradients_of_the_measure_equal_the_density():
    leaves = inputs()
    for causal in (False, True):
        mass = torch.rand(N, dtype=torch.float64).requires_grad_()
        domain = Domain.line(N, causal=causal, dtype=torch.float64).with_masses(
            mass, normalised=True
        )
        actual = linear_attention(*leaves, domain.quadrature(), floor=FLOOR, chunk=2)
        check(
            actual,
            linear_attention_naive(*leaves, domain.quadrature().weights(), FLOOR),
            [mass, *leaves],
        )


def test_outputs_do_not_depend_on_later_chunks():
    leaves = inputs()
    out = linear_attention(*leaves, domains()["causal"].quadrature(), floor=FLOOR, chunk=3)
    for t in range(N - 1):
        for g in torch.autograd.grad(out[:, :, t].sum(), leaves[1:], retain_graph=True):
            assert (g[:, :, t + 1 :] == 0).all()
            assert g[:, :, : t + 1].abs().max() > 0


def test_zero_features_give_zero():
    q, k, v = inputs()
    quadrature = domains()["causal"].quadrature()
    out = linear_attention(torch.zeros_like(q), k, v, quadrature, floor=FLOOR)
    assert (out == 0).all()
    assert (linear_density(torch.zeros_like(q), k, quadrature.weights(), FLOOR) == 0).all()
    zero = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad((1 / guarded(zero, FLOOR)).sum(), zero)
    assert (g == 0).all()


def test_density_integrates_to_one():
    q, k, _ = inputs()
    weights = domains()["masses"].quadrature().weights()
    mass = (linear_density(q, k, weights, FLOOR) * weights).sum(-1)
    assert_close(mass, torch.ones_like(mass))


def test_statistics_keep_float32_under_autocast():
    torch.manual_seed(0)
    n = 600
    q, k = (torch.rand(1, 1, n, R) + 0.5 for _ in range(2))
    v = torch.randn(1, 1, n, D) + 100.0
    for causal in (False, True):
        quadrature = Domain.line(n, causal=causal).quadrature()
        expected = linear_attention(q, k, v, quadrature, floor=FLOOR)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = linear_attention(q, k, v, quadrature, floor=FLOOR)
            naive = linear_attention_naive(q, k, torch.ones_like(v), quadrature.weights(), FLOOR)
        assert actual.dtype == torch.float32
        assert_close(actual, expected, "sums under autocast")
        assert_close(naive, torch.ones_like(v), "density under autocast", torch.bfloat16)


def test_pairs_and_two_domains_in_time_have_no_linear_form():
    leaves = inputs()
    line = domains()["causal"]
    with pytest.raises(StrategyError, match="pair weights"):
        linear_attention(
            *leaves, line.replace(pairs=torch.ones(N, N).bool()).quadrature(), floor=FLOOR
        )
    with pytest.raises(StrategyError, match="two domains"):
        linear_attention(
            *inputs(2), line.quadrature(Domain.line(2, dtype=torch.float64)), floor=FLOOR
        )
