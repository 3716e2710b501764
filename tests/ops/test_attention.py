"""Fused attention against a measure equals its dense density, and ordinary attention where the
measure is uniform.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fredholm.domain import Domain
from fredholm.operators import SoftmaxAttention
from fredholm.ops.attention import attention, attention_density, attention_naive, sdpa

from ..tolerances import assert_close

B, H, N, E, D = 2, 3, 5, 4, 6


def qkv(queries: int = N):
    sizes = ((queries, E), (N, E), (N, D))
    return [torch.randn(B, H, *size, dtype=torch.float64, requires_grad=True) for size in sizes]


def domains() -> dict[str, Domain]:
    torch.manual_seed(5)
    double = {"dtype": torch.float64}
    valid = torch.tensor([[True] * N, [False, True, True, False, False]])
    empty = torch.rand(N, N) > 0.5
    empty[[0, 3]] = False
    line, points = (
        Domain.line(N, **double),
        Domain.points(torch.rand(B, N, 1, **double), valid=valid),
    )
    return {
        "uniform": line,
        "causal": Domain.line(N, causal=True, **double),
        "counting": Domain.line(N, measure="counting", **double),
        "masses": line.with_masses(torch.rand(B, N, **double)),
        "zero masses": line.with_masses(torch.tensor([0.0, 1.0, 0.0, 2.0, 3.0], **double)),
        "probability": line.with_masses(torch.rand(N, **double), normalised=True),
        "padded": points,
        "all padding": points.replace(valid=torch.tensor([[True] * N, [False] * N])),
        "causal padded": points.replace(causal=True),
        "empty rows": line.replace(pairs=empty),
        "empty rows per head": line.replace(pairs=torch.stack([empty, empty.T, ~empty])[None]),
        "bias": line.replace(pairs=torch.randn(1, H, N, N, **double)),
        "bias hides rows": line.replace(
            pairs=torch.zeros(N, N, **double).masked_fill(~empty, -torch.inf)
        ),
        "causal window": Domain.line(
            N, causal=True, pairs=torch.ones(N, N).triu(-1).bool(), **double
        ),
    }


def check(quadrature, inputs):
    actual = attention(*inputs, quadrature)
    expected = attention_naive(*inputs, quadrature.weights(), quadrature.visible())
    assert_close(actual, expected)
    direction = torch.randn_like(expected)
    for name, g, e in zip(
        "qkv",
        torch.autograd.grad(actual, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
    ):
        assert g.isfinite().all()
        assert_close(g, e, f"gradient of {name}")
    return actual


# Domains with a query that sees no key.
BLIND = ("all padding", "causal padded", "empty rows", "empty rows per head", "bias hides rows")


@pytest.mark.parametrize("name", list(domains()))
def test_fused_attention_equals_the_density(name):
    quadrature = domains()[name].quadrature()
    out = check(quadrature, qkv())
    blind = (quadrature.weights() == 0).all(-1).expand(B, H, N)
    assert (out[blind] == 0).all()
    assert bool(blind.any()) == (name in BLIND)


@pytest.mark.parametrize("name", ["causal", "padded", "masses"])
def test_fused_attention_equals_the_density_across_domains(name):
    queries = Domain.points(torch.tensor([[-1.0], [0.3], [0.7]], dtype=torch.float64))
    check(domains()[name].quadrature(queries), qkv(3))


def test_an_empty_row_gives_zero_and_a_zero_gradient():
    domain = domains()["empty rows"]
    q, k, v = qkv()
    out = attention(q, k, v, domain.quadrature())
    assert (out[:, :, [0, 3]] == 0).all()
    g = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in g)
    assert (g[0][:, :, [0, 3]] == 0).all()
    assert g[0][:, :, 1].abs().max() > 0


def test_causal_order_alone_takes_the_fused_causal_path(monkeypatch):
    q, k, v = qkv()
    quadrature = domains()["causal"].quadrature()
    calls = []

    def spy(*args, **options):
        calls.append(options)
        return F.scaled_dot_product_attention(*args, **options)

    fake = type("F", (), {"scaled_dot_product_attention": staticmethod(spy)})
    monkeypatch.setattr(sdpa, "F", fake)
    out = sdpa.attention(q, k, v, quadrature)
    assert calls == [{"attn_mask": None, "is_causal": True, "scale": 1.0}]
    assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0))
    sdpa.attention(q, k, v, domains()["uniform"].quadrature())
    assert calls[1] == {"attn_mask": None, "is_causal": False, "scale": 1.0}
    sdpa.attention(q, k, v, domains()["causal window"].quadrature())
    assert calls[2]["attn_mask"].shape == (1, 1, N, N)


def test_density_integrates_to_one_and_survives_large_scores():
    scores = torch.tensor([[[[1000.0, 1001.0, 3000.0]]]], dtype=torch.float64)
    weights = torch.tensor([[[[0.5, 2.0, 0.0]]]], dtype=torch.float64)
    density = attention_density(scores, weights)
    assert_close((density * weights).sum(-1), torch.ones(1, 1, 1, dtype=torch.float64))
    assert_close(
        density[..., 1] / density[..., 0], torch.full((1, 1, 1), torch.e, dtype=torch.float64)
    )
    assert density[..., 2].item() == 0
    random = attention_density(
        torch.randn(B, H, N, N).double(), domains()["probability"].quadrature().weights()
    )
    assert_close(
        (random * domains()["probability"].quadrature().weights()).sum(-1),
        torch.ones(B, H, N).double(),
    )
    assert attention_density(scores, torch.zeros_like(weights)).abs().sum() == 0


def test_the_densitys_gradient_is_finite_beside_a_large_hidden_score():
    scores = torch.tensor([[0.0, 1.0, 3000.0], [0.0, 1.0, 2.0]], requires_grad=True)
    # The second row sees nothing.
    weights = torch.tensor([[0.5, 2.0, 0.0], [0.0, 0.0, 0.0]])
    density = attention_density(scores[None, None], weights[None, None])[0, 0]
    (gradient,) = torch.autograd.grad(density[:, 0].sum(), scores)
    visible = scores[0, :2].detach().requires_grad_()
    raw = visible.exp()
    (expected,) = torch.autograd.grad((raw / (raw * weights[0, :2]).sum())[0], visible)
    assert_close(gradient[0, :2], expected)
    assert gradient[0, 2] == 0
    assert (gradient[1] == 0).all()


def test_splitting_a_mass_over_two_equal_points_changes_nothing():
    q, k, v = qkv()
    line = domains()["masses"]
    twice = torch.tensor([0, 0, 1, 2, 3, 3, 4])
    share = torch.tensor([0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 1.0], dtype=torch.float64)
    resampled = Domain.points(line.positions[twice], measure=line.measure[:, twice] * share)
    out = attention(q, k[:, :, twice], v[:, :, twice], resampled.quadrature(line))
    assert_close(out, attention(q, k, v, line.quadrature()))
    counted = attention(
        q, k[:, :, twice], v[:, :, twice], Domain.line(7, dtype=torch.float64).quadrature(line)
    )
    assert (counted - out).abs().max() > 1e-3


def test_the_measure_gradient_equals_the_densitys_at_zero_masses():
    q, k, v = (x.detach() for x in qkv())
    mass = domains()["zero masses"].measure.clone().requires_grad_()
    quadrature = domains()["uniform"].with_masses(mass).quadrature()
    direction = torch.randn(B, H, N, D, dtype=torch.float64)
    (actual,) = torch.autograd.grad(attention(q, k, v, quadrature), mass, direction)
    dense = attention_naive(q, k, v, quadrature.weights(), quadrature.visible())
    (expected,) = torch.autograd.grad(dense, mass, direction)
    assert actual.isfinite().all()
    assert actual.abs().max() > 0
    assert_close(actual, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_operator_is_multihead_attention_with_the_same_weights(causal, padded):
    dim, heads = 12, 3
    operator = SoftmaxAttention(dim, heads).double()
    for parameter in operator.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    twin = torch.nn.MultiheadAttention(dim, heads, batch_first=True).double()
    kernel = operator.kernel
    state = {
        "in_proj_weight": torch.cat([kernel.query.weight, kernel.key.weight, kernel.value.weight]),
        "in_proj_bias": torch.cat([kernel.query.bias, kernel.key.bias, kernel.value.bias]),
        "out_proj.weight": operator.projection.weight, "out_proj.bias": operator.projection.bias,
    }  # fmt: skip
    twin.load_state_dict(state)
    u = torch.randn(2, N, dim, dtype=torch.float64)
    valid = torch.tensor([[True] * N, [True, True, True, False, False]]) if padded else None
    mask = torch.ones(N, N).triu(1).bool() if causal else None
    expected, weights = twin(
        u,
        u,
        u,
        attn_mask=mask,
        key_padding_mask=None if valid is None else ~valid,
        average_attn_weights=False,
    )
    domain = Domain.points(torch.rand(N, 1, dtype=torch.float64), valid=valid, causal=causal)
    real = torch.ones(2, N).bool() if valid is None else valid
    assert_close(operator(u, domain)[real], expected[real])
    of_real = real[:, None].expand(2, heads, N)
    assert_close(operator.weights(u, domain)[of_real], weights[of_real], "attention probabilities")
