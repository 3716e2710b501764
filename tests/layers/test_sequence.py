"""A Sequential of convertible layers as one operator."""

from __future__ import annotations

import pytest
import torch
from evidence.unification.attention import LinearAttention, elu_features
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, OptionError

from ..tolerances import assert_close

LINE, GRID = (9,), (7, 6)
CASES = {
    "one linear": (lambda: nn.Sequential(nn.Linear(3, 4)), None),
    "linear maps": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 2)), None),
    "linear, attention, linear": (
        lambda: nn.Sequential(nn.Linear(3, 8), LinearAttention(elu_features), nn.Linear(8, 2)),
        None,
    ),
    "linear, recurrence": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 5, batch_first=True)),
        None,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 4, 3, padding=1, groups=1), nn.Conv1d(4, 4, 3, stride=2, groups=2)
        ),
        LINE,
    ),
    "convolution, pooling, back": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2, stride=2)
        ),
        GRID,
    ),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(2)), nn.Conv2d(4, 2, 1)
        ),
        GRID,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_gradients_and_kernel_equal_the_layers(name):
    build, shape = CASES[name]
    layers = build().double()
    operator = as_operator(layers)
    n = 6 if shape is None else torch.Size(shape).numel()
    u = torch.randn(2, n, 3).double().requires_grad_()
    if shape is None:
        expected = layers(u)
        arguments = (u,)
        expected = expected if isinstance(expected, torch.Tensor) else expected[0]
    else:
        expected = layers(u.mT.unflatten(-1, shape)).flatten(2).mT
        domain = Domain.grid(*shape, measure="counting", dtype=torch.float64)
        arguments = (u, domain)
    weights = torch.randn_like(expected)
    inputs = [u, *layers.parameters()]
    right = torch.autograd.grad(expected, inputs, weights)
    for call in (operator, operator.dense):
        out = call(*arguments)
        assert_close(out, expected)
        for g, h in zip(torch.autograd.grad(out, inputs, weights), right):
            assert_close(g, h, "gradient")
    rows = operator.kernel_matrix(*arguments, rows=[1])
    assert_close(rows, operator.kernel_matrix(*arguments)[:, :, [1]])


def test_pooling_as_first_layer_requires_its_channels():
    layers = nn.Sequential(nn.AvgPool1d(2), nn.Conv1d(3, 2, 1)).double()
    with pytest.raises(OptionError, match="dim=channels"):
        as_operator(layers)
    u = torch.randn(1, 8, 3).double()
    assert_close(as_operator(layers, dim=3)(u), layers(u.mT).mT)


def test_padding_reaches_every_layer():
    layers = nn.Sequential(nn.Linear(3, 8), LinearAttention(elu_features)).double()
    u = torch.randn(1, 6, 3).double()
    valid = torch.tensor([[True] * 4 + [False] * 2])
    domain = Domain.line(6, measure="counting", valid=valid, dtype=torch.float64)
    operator = as_operator(layers)
    assert_close(operator(u, domain)[:, :4], layers(u[:, :4]))
    assert_close(operator.dense(u, domain), operator(u, domain))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (nn.Sequential(nn.Conv1d(3, 3, 1), nn.ReLU()), "layer '1': .*ReLU is not understood"),
        (nn.Sequential(nn.Conv1d(3, 4, 1), nn.Linear(5, 5)), "Linear after Conv1d"),
        (nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(3, 1)), "called with one tensor"),
        (
            nn.Sequential(nn.LSTM(3, 3, batch_first=True), nn.Linear(3, 3)),
            "LSTM.before another layer",
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 3)), "batch_first=False"),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 3)), "4 features into 3"),
        (nn.Sequential(nn.Identity()), "no layers"),
    ],
)
def test_unsupported_layers_are_refused(layers, message):
    with pytest.raises(ConversionError, match=message):
        as_operator(layers)


def test_unsupported_domains_are_refused():
    operator = as_operator(nn.Sequential(nn.Linear(3, 3)))
    u = torch.randn(1, 4, 3)
    for domain in (
        Domain.line(4),
        Domain.line(4, measure="counting").replace(pairs=torch.eye(4) > 0),
    ):
        with pytest.raises(DomainError, match="measure='counting'"):
            operator(u, domain)
    with pytest.raises(DomainError, match=r"no causal step.*kernel\.operators"):
        operator.init_state(1, Domain.line(4, causal=True, measure="counting"))
    with pytest.raises(DomainError, match="leave query"):
        operator(u, query_domain=Domain.line(4, measure="counting"))


def test_a_changed_inner_layer_is_refused():
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layers[1].forward = lambda u: u
    with pytest.raises(ConversionError, match="Linear at '1' has its forward replaced"):
        as_operator(layers)


def test_replaced_parameters_are_followed_and_replaced_layers_refused():
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    u = torch.randn(1, 4, 3)
    operator = as_operator(layers)
    layers.load_state_dict(
        {k: torch.randn_like(v) for k, v in layers.state_dict().items()}, assign=True
    )
    assert_close(operator(u), layers(u))
    layers[1] = nn.Linear(3, 3)
    with pytest.raises(ConversionError, match="'1' was replaced"):
        operator(u)
