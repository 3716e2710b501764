"""Conversion of recurrences: refusals and shared parameters; the memory of a converted LSTM."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator, convertible
from fredholm.domain import Domain
from fredholm.errors import ConversionError, OptionError, ShapeError
from fredholm.layers import memory_profile

from ..tolerances import assert_close


def test_recurrences_are_listed_as_convertible():
    assert {f"torch.nn.modules.rnn.{name}" for name in ("RNN", "LSTM", "GRU")} <= set(convertible())


class Doubled(nn.LSTM):
    def forward(self, *args):
        out, state = super().forward(*args)
        return 2 * out, state


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.LSTM(2, 3, num_layers=2, dropout=0.5), r"LSTM\(dropout=0\.5 in training mode\) cannot"),
        (Doubled(2, 3), "overrides forward of LSTM"),
        (
            nn.utils.parametrizations.weight_norm(nn.GRU(2, 3), "weight_ih_l0"),
            "parametrised weights",
        ),
    ],
)
def test_unsupported_layers_are_refused_by_name(layer, message):
    with pytest.raises(ConversionError, match=message):
        as_operator(layer)


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_a_quantised_layer_is_refused():
    with pytest.raises(ConversionError, match="quantised"):
        as_operator(torch.ao.nn.quantized.dynamic.LSTM(2, 3))


def test_inactive_dropout_is_accepted():
    with pytest.warns(UserWarning, match="num_layers"):
        single = nn.GRU(2, 3, dropout=0.5)
    u = torch.randn(1, 4, 2)
    assert_close(as_operator(single)(u), single(u.transpose(0, 1))[0].transpose(0, 1))
    op = as_operator(nn.GRU(2, 3, num_layers=2, dropout=0.5).eval())
    assert_close(op(u), op.dense(u))
    with pytest.raises(ConversionError, match=r"dropout=0\.5"):
        op.train()(u)


def test_unknown_options_are_refused_with_a_suggestion():
    with pytest.raises(OptionError, match="did you mean 'initial_state'"):
        as_operator(nn.GRU(2, 3), initial_states=None)
    with pytest.raises(OptionError, match="did you mean 'tangent'"):
        as_operator(nn.GRU(2, 3), linearization="tangents")


def test_shared_parameters_train_with_the_layer_and_copies_do_not():
    layer = nn.LSTM(2, 3)
    u = torch.randn(1, 4, 2)
    shared, copied = as_operator(layer), as_operator(layer, parameters="copied")
    before = copied(u)
    assert shared.kernel.layer is layer
    assert len(list(shared.parameters())) == len(list(layer.parameters()))
    torch.optim.SGD(shared.parameters(), 0.5).zero_grad()
    shared.dense(u).square().sum().backward()
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter -= 0.5 * parameter.grad
    assert_close(shared(u), layer(u.transpose(0, 1))[0].transpose(0, 1))
    assert (shared(u) - before).abs().max() > 1e-3
    assert_close(copied(u), before)


def test_frozen_parameters_stay_frozen():
    layer = nn.GRU(2, 3).requires_grad_(False)
    u = torch.randn(1, 4, 2, requires_grad=True)
    op = as_operator(layer)
    op.dense(u).sum().backward()
    assert u.grad is not None
    assert not any(p.requires_grad for p in op.parameters())


def test_the_default_domain_follows_the_direction():
    op, both = as_operator(nn.RNN(2, 3)), as_operator(nn.RNN(2, 3, bidirectional=True))
    domain = op.kernel.default_domain(4, device=torch.device("cpu"), dtype=torch.float32)
    assert (domain.causal, domain.kind, domain.measure.tolist()) == (True, "counting", [1.0] * 4)
    assert "own form" in str(op.plan(domain))
    assert not both.kernel.default_domain(4, device=torch.device("cpu"), dtype=torch.float32).causal
    assert both.out_dim == 6


def test_rows_of_a_long_signal_do_not_depend_on_later_points():
    op = as_operator(nn.LSTM(2, 3).double())
    u = torch.randn(1, 300, 2, dtype=torch.float64)
    row = op.kernel_matrix(u, rows=[150])[0, 0, 0]
    assert row[151:].abs().max() == 0
    domain = Domain.line(300, causal=True, measure="counting")
    short = op.kernel_matrix(u[:, :151], domain[:151], rows=[150])[0, 0, 0]
    assert_close(row[:151], short, "the future changes no row")


def test_the_memory_profile_follows_the_forget_gate():
    """An open forget gate remembers, a closed one forgets."""
    torch.manual_seed(0)
    layer = nn.LSTM(2, 4).double()
    u = torch.randn(3, 30, 2, dtype=torch.float64)
    op = as_operator(layer)
    profiles = {}
    for bias in (3.0, -3.0):
        with torch.no_grad():
            layer.bias_ih_l0[4:8] = bias
        profiles[bias] = memory_profile(op, u, rows=[20, 29])
    assert profiles[3.0].shape == (21,)
    assert profiles[3.0][20] > 0.1 * profiles[3.0][0]
    assert profiles[-3.0][20] < 1e-6 * profiles[-3.0][0]
    expected = torch.linalg.matrix_norm(op.kernel_matrix(u))[:, 0]
    lags = torch.stack(
        [(expected[:, 20, 20 - k] + expected[:, 29, 29 - k]).mean() / 2 for k in range(21)]
    )
    assert_close(profiles[-3.0], lags)
    for rows in ([], [30], [-1]):
        with pytest.raises(ShapeError, match="0 to 29"):
            memory_profile(op, u, rows=rows)
