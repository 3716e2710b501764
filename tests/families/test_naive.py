"""Each family's ``naive`` page has the paper's formulas in plain einsums; the operators and the
evolution equal it in values and gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.families import ckconv, continuous, itnet, softmax
from fredholm.families.ckconv import naive as ckconv_page
from fredholm.families.continuous import naive as continuous_page
from fredholm.families.continuous.splitting import Evolution, encoder_terms
from fredholm.families.itnet import naive as itnet_page
from fredholm.families.softmax import naive as softmax_page
from fredholm.kernels import FEATURE_MAPS
from fredholm.operators import SoftmaxAttention
from tests.tolerances import assert_close

BATCH, N = 2, 6


def spread(module: nn.Module) -> Any:
    """Move parameters off their initial values: no bias is zero, no matrix the identity."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.double()


def signal(dim: int) -> Tensor:
    return torch.randn(BATCH, N, dim, dtype=torch.float64, requires_grad=True)


def agree(module: nn.Module, page: Callable[[], Tensor], fast: Callable[[], Tensor], u: Tensor):
    """Compare values, and gradients of u and of every parameter."""
    actual = fast()
    expected = page()
    assert_close(actual, expected)
    direction = torch.randn_like(expected)
    named = dict(module.named_parameters()) | {"u": u}
    pair = [
        torch.autograd.grad((out * direction).sum(), list(named.values()), allow_unused=True)
        for out in (actual, expected)
    ]
    for name, one, other in zip(named, *pair):
        assert one is not None, f"{name} has no gradient in the operator"
        assert other is not None, f"{name} has no gradient on the page"
        assert_close(one, other, name)


def uniform() -> Tensor:
    return torch.full((1, N), 1 / N, dtype=torch.float64)


def past_mean() -> Tensor:
    """Return weights by which query i averages the points 0 to i."""
    past = torch.ones(N, N, dtype=torch.float64).tril()
    return past / past.sum(1, keepdim=True)


def weighted() -> tuple[Domain, Tensor]:
    """Return a cloud in the plane, and the different masses of its points."""
    mass = torch.rand(N, dtype=torch.float64) + 0.2
    mass = mass / mass.sum()
    return Domain.points(torch.rand(N, 2, dtype=torch.float64), measure=mass), mass[None]


def domains() -> dict[str, tuple[Domain, Tensor]]:
    """Return domains, each with the measure of its queries computed by hand."""
    line = Domain.line(N, causal=True, dtype=torch.float64)
    return {
        "grid": (Domain.grid(2, 3, dtype=torch.float64), uniform()),
        "cloud": weighted(),
        "past": (line, past_mean()),
    }


@pytest.mark.parametrize("kind", ["grid", "cloud", "past"])
def test_itnet_equals_its_page(kind):
    domain, measure = domains()[kind]
    op = spread(
        itnet.ITNetOperator(
            6, 2, position_dim=domain.dim, width=5, frequencies=3, sigma=1.0, out_dim=4
        )
    )
    kernel = op.kernel
    u = signal(6)
    page = lambda: itnet_page.itnet_naive(  # noqa: E731
        u,
        domain.positions,
        measure,
        network=itnet_page.Network(
            kernel.weight1[0], kernel.bias1[0], kernel.weight2, kernel.bias2
        ),
        frequencies=kernel.fourier.matrix,
        mixing=itnet_page.Mixing(op.residual.weight, op.projection.weight, op.projection.bias),
    )
    agree(op, page, lambda: op(u, domain), u)
    assert_close(op.dense(u, domain), page(), "definition")


@pytest.mark.parametrize("kind", ["grid", "cloud", "past"])
def test_low_rank_itnet_equals_its_page(kind):
    domain, measure = domains()[kind]
    op = spread(
        itnet.LowRankITNetOperator(
            6, 2, position_dim=domain.dim, rank=2, width=5, frequencies=3, sigma=1.0
        )
    )
    kernel = op.kernel
    u = signal(6)

    def factor(network) -> itnet_page.Network:
        return itnet_page.Network(network.weight1, network.bias1, network.weight2, network.bias2)

    def page():
        return itnet_page.low_rank_naive(
            u,
            domain.positions,
            measure,
            query=factor(kernel.query),
            key=factor(kernel.key),
            frequencies=kernel.fourier.matrix,
            mixing=itnet_page.Mixing(op.residual.weight, op.projection.weight, op.projection.bias),
        )

    agree(op, page, lambda: op(u, domain), u)


@pytest.mark.parametrize("kind", ["training grid", "finer grid", "timestamps", "plane"])
def test_ckconv_equals_its_page(kind):
    past = torch.ones(N, N, dtype=torch.float64).tril()
    line = Domain.line(N, length=16, causal=True, measure="counting", dtype=torch.float64)
    times = torch.tensor([0.0, 0.03, 0.1, 0.4, 0.45, 0.9], dtype=torch.float64)
    steps = torch.cat([times.new_ones(1), times.diff() * 16])  # Eq. 8, in steps of training
    cases = {
        "training grid": (line, past),
        # Twice the rate of training: Eq. 5's factor of one half is the spacing.
        "finer grid": (
            line.replace(positions=line.positions / 2).with_masses(line.measure / 2),
            past / 2,
        ),
        "timestamps": (Domain.timestamps(times, step=1 / 16), past * steps),
        "plane": (Domain.grid(2, 3, measure="counting", dtype=torch.float64), past.new_ones(1, N)),
    }
    domain, measure = cases[kind]
    op = spread(
        ckconv.CKConv(3, out_dim=2, position_dim=domain.dim, length=16, width=5, learned_omega=True)
    )
    with torch.no_grad():
        op.kernel.network.omega.fill_(3.0)
    kernel = op.kernel
    u = signal(3)

    def page():
        return ckconv_page.ckconv_naive(
            u,
            domain.positions,
            measure,
            layers=[
                ckconv_page.WeightNorm(layer.direction, layer.magnitude, layer.bias)
                for layer in (*kernel.network.layers, kernel.readout_layer)
            ],
            omega=kernel.network.omega,
            extent=kernel.extent,
            bias=kernel.bias,
        )

    agree(op, page, lambda: op(u, domain), u)
    assert_close(op.dense(u, domain), page(), "definition")


def projections(op) -> softmax_page.Projections:
    kernel = op.kernel
    layers = (kernel.query, kernel.key, kernel.value, op.projection)
    return softmax_page.Projections(*(softmax_page.Layer(m.weight, m.bias) for m in layers))


@pytest.mark.parametrize("kind", ["grid", "cloud", "past"])
def test_softmax_attention_equals_its_page(kind):
    domain, measure = domains()[kind]
    op = spread(SoftmaxAttention(6, 2))
    u = signal(6)

    def page():
        return softmax_page.softmax_attention_naive(
            u, measure, projections=projections(op), heads=2
        )

    agree(op, page, lambda: op(u, domain), u)


@pytest.mark.parametrize("kind", ["grid", "cloud", "past"])
@pytest.mark.parametrize("name", ["elu", "softplus"])
def test_linear_attention_equals_its_page(kind, name):
    domain, measure = domains()[kind]
    op = spread(softmax.LinearAttention(6, 2, feature_map=name))
    u = signal(6)

    def page():
        return softmax_page.linear_attention_naive(
            u,
            measure,
            projections=projections(op),
            heads=2,
            feature_map=FEATURE_MAPS[name],
        )

    agree(op, page, lambda: op(u, domain), u)


@pytest.mark.parametrize(("scheme", "steps"), [("relaxed", 2), ("lie", 2), ("lie", 5)])
def test_the_continuous_transformer_equals_its_page(scheme, steps):
    """Two knots over T = 2: the paper's step, and the sequential scheme at any Δt."""
    evolution = spread(Evolution([encoder_terms(6, 2, 7) for _ in range(2)], scheme=scheme))
    domain, mass = weighted()
    u = signal(6)

    def layer(module) -> continuous_page.Layer:
        return continuous_page.Layer(module.weight, module.bias)

    def parts(knot) -> dict[str, Any]:
        term, first, network, second = knot
        kernel = term.operator.kernel
        query, key, value = (layer(m) for m in (kernel.query, kernel.key, kernel.value))
        output = layer(term.operator.projection)
        one, two = (
            continuous_page.Moments(norm.weight, norm.bias, norm.eps) for norm in (first, second)
        )
        return {
            "maps": continuous_page.Attention(query, key, value, output, 2),
            "first": one,
            "layers": [layer(each) for each in network.layers],
            "second": two,
        }

    def page():
        v = u
        dt = 2 / steps
        for n in range(steps):
            # A control is constant around its knot and read at the middle of the step.
            knot = evolution.knots[int((n + 0.5) * dt)]
            if scheme == "relaxed":
                v = continuous.paper_step_naive(v, mass[0], **parts(knot))
            else:
                v = continuous.lie_step_naive(v, mass[0], dt, **parts(knot))
        return v

    agree(evolution, page, lambda: evolution(u, domain, steps=steps), u)
