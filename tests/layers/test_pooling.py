"""Pooling and linear layers: refusals and kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, OptionError

from ..tolerances import assert_close

LINE = Domain.line(6, measure="counting", dtype=torch.float64)
VALID = torch.tensor([[True, True, True, True, False, False]])


@pytest.mark.parametrize("layer", [nn.AvgPool1d(2), nn.AdaptiveAvgPool2d(1), nn.MaxPool3d(2)])
@pytest.mark.parametrize("options", [{}, {"dim": 0}])
def test_the_number_of_channels_is_required(layer, options):
    with pytest.raises(OptionError, match="dim=channels"):
        as_operator(layer, **options)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.MaxPool1d(2, return_indices=True), "return_indices=True"),
        (nn.LPPool1d(2, 2), "LPPool1d is not understood"),
        (nn.AdaptiveMaxPool1d(2), "AdaptiveMaxPool1d is not understood"),
        (nn.Linear(2, 2, dtype=torch.complex64), "dtype=torch.complex64"),
    ],
)
def test_unsupported_layers_are_named(layer, named):
    with pytest.raises(ConversionError, match=named):
        as_operator(layer)


@pytest.mark.parametrize(
    ("layer", "domain", "named"),
    [
        (nn.AvgPool1d(3, 1, 1), Domain.line(6, causal=True), "both directions"),
        (nn.MaxPool1d(3, 1, 1), Domain.line(6, causal=True), "both directions"),
        (nn.AvgPool1d(3, 1, 1), Domain.points(torch.rand(6, 1)), "regular grid"),
        (nn.AdaptiveAvgPool1d(2), Domain.line(6, valid=VALID), "parts of a padded axis"),
        (nn.MaxPool1d(2), Domain.line(6, valid=VALID), "count as zeros"),
        (
            nn.AvgPool1d(3, 1, 1, count_include_pad=False),
            Domain.line(6, valid=VALID),
            "other divisors",
        ),
        (nn.AvgPool1d(4, ceil_mode=True), Domain.line(6, valid=VALID), "other divisors"),
    ],
)
def test_unsupported_domains_are_refused(layer, domain, named):
    with pytest.raises(DomainError, match=named):
        as_operator(layer, dim=2)(torch.zeros(1, 6, 2), domain)


@pytest.mark.parametrize(
    "layer", [nn.AvgPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(2), nn.MaxPool1d(3, 2, 1)]
)
@pytest.mark.parametrize("pairs", [False, True])
def test_other_measures_and_pairs_equal_the_definition(layer, pairs):
    op = as_operator(layer, dim=2)
    u = torch.randn(2, 6, 2).double().requires_grad_()
    masses = (torch.rand(6).double() + 0.1).requires_grad_()
    domain = LINE.with_masses(masses)
    m = layer(u.mT).shape[-1]
    if pairs:
        domain = domain.replace(pairs=torch.randn(m, 6).double())
    fast = op(u, domain)
    dense = op.dense(u, domain)
    assert_close(fast, dense)
    direction = torch.randn_like(fast)
    for g, h in zip(*(torch.autograd.grad(y, [u, masses], direction) for y in (fast, dense))):
        assert_close(g, h, "gradient")


def test_the_kernel_of_a_maximum_selects_one_point():
    op = as_operator(nn.MaxPool1d(3, 1, 1), dim=2)
    u = torch.randn(2, 6, 2).double()
    matrix = op.kernel_matrix(u, LINE)
    assert matrix.shape == (2, 2, 6, 6, 1, 1)
    assert_close(matrix.sum(3), torch.ones(2, 2, 6, 1, 1).double())
    assert_close(op.kernel_matrix(u, LINE, rows=[4, 0]), matrix[:, :, [4, 0]])


def test_a_linear_layer_agrees_on_points_graphs_and_in_steps():
    layer = nn.Linear(3, 2).double()
    op = as_operator(layer)
    u = torch.randn(2, 5, 3).double()
    points = Domain.points(torch.rand(5, 2).double(), measure="counting")
    graph = Domain.graph(torch.tensor([[0, 1], [1, 2]]), 5, measure="counting")
    assert_close(op(u, points), layer(u))
    assert_close(op(u, graph), layer(u))
    assert "dense" in op.plan(graph).path
    masses = Domain.line(5, causal=True, measure="spacing", dtype=torch.float64)
    assert_close(op(u, masses), op.dense(u, masses))
    state = op.init_state(2, masses)
    for t in range(5):
        y, state = op.step(u[:, t], state)
        assert_close(y, op(u, masses)[:, t])
    assert_close(op.kernel_matrix(u, points, rows=[3])[0, 0, 0, 3], layer.weight)
    with pytest.raises(DomainError, match="query_domain out"):
        op(u, points, query_domain=points)
    with pytest.raises(DomainError, match="causal=False"):
        op(u, graph.replace(causal=True))
