"""The probe: after a conversion, layer and operator are compared on a small signal."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator, register_converter
from fredholm.errors import ConversionError
from fredholm.integral import IntegralOperator
from fredholm.integral.conversion import CONVERTERS
from fredholm.layers.linear import PointwiseKernel

from ..tolerances import assert_close


class Counted(nn.Module):
    """A map with running statistics, random numbers, and a factor that the converter ignores."""

    def __init__(self, factor: float = 1.0, dropout: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = factor
        self.dropout = dropout
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, u):
        self.calls += 1
        self.mean = 0.9 * self.mean + torch.rand(3) * u.detach().mean((0, 1)).to(self.mean)
        u = nn.functional.dropout(u, self.dropout, self.training)
        return self.factor * self.linear(u)


def pointwise(layer: nn.Linear) -> IntegralOperator:
    return IntegralOperator(3, kernel=PointwiseKernel(layer), residual=False, projection=False)


@pytest.fixture
def counted():
    """Register a converter that ignores the factor."""
    name = f"{__name__}.Counted"
    register_converter(name)(lambda module: pointwise(module.linear))
    yield Counted
    CONVERTERS._entries.pop(name)


def test_an_unknown_difference_is_an_error_with_its_size(counted):
    with pytest.raises(ConversionError, match=r"Counted .*output is off by 50\.0%.*probe=False"):
        as_operator(counted(2.0))
    as_operator(counted(2.0), probe=False)


def test_a_different_gradient_is_an_error(counted):
    class Detached(counted):
        def forward(self, u):
            return self.linear(u.detach()) + 0.0 * u

    register_converter(f"{__name__}.{Detached.__qualname__}")(lambda m: pointwise(m.linear))
    with pytest.raises(ConversionError, match="gradient is off by"):
        as_operator(Detached())
    CONVERTERS._entries.pop(f"{__name__}.{Detached.__qualname__}")


def test_a_patched_class_is_refused(monkeypatch):
    """The instance shows no difference; only the probe detects it."""
    forward = nn.MultiheadAttention.forward

    def louder(self, *args, **kwargs):
        out, weights = forward(self, *args, **kwargs)
        return 1.1 * out, weights

    monkeypatch.setattr(nn.MultiheadAttention, "forward", louder)
    with pytest.raises(ConversionError, match=r"MultiheadAttention .*off by 9\.1%"):
        as_operator(nn.MultiheadAttention(8, 2))


def test_the_probe_changes_no_state_of_the_layer(counted):
    layer = counted().train()
    (layer(torch.ones(1, 2, 3)).sum()).backward()
    grads = {name: p.grad.clone() for name, p in layer.named_parameters()}
    buffers = {name: (b, b.clone()) for name, b in layer.named_buffers()}
    state = torch.get_rng_state()
    as_operator(layer)
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.training
    for name, p in layer.named_parameters():
        assert torch.equal(p.grad, grads[name])
    for name, b in layer.named_buffers():
        assert b is buffers[name][0]
        assert torch.equal(b, buffers[name][1])


def test_batch_norm_inside_keeps_its_statistics():
    class Normed(nn.Sequential):
        def forward(self, u):
            self[1](u.flatten(0, 1))
            return self[0](u)

    name = f"{__name__}.{Normed.__qualname__}"

    @register_converter(name)
    def _normed(module):
        operator = pointwise(module[0])
        operator.norm = module[1]
        return operator

    layer = Normed(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    as_operator(layer)
    CONVERTERS._entries.pop(name)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
    assert layer[1].num_batches_tracked == 0


def test_active_dropout_is_refused(counted):
    with pytest.raises(ConversionError, match="off by"):
        as_operator(counted(dropout=0.9).train())
    as_operator(counted(dropout=0.9).eval())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(2, 3, 3, stride=2),
        lambda: nn.MultiheadAttention(8, 2),
        lambda: nn.GRU(3, 4, bidirectional=True),
        lambda: nn.Linear(64, 64),
    ],
    ids=["convolution", "attention", "recurrence", "linear"],
)
def test_layers_of_every_precision_pass_the_probe(layer, dtype):
    as_operator(layer().to(dtype))


def test_the_probe_runs_under_autocast_and_inference_mode():
    with torch.no_grad(), torch.autocast("cpu"):
        as_operator(nn.GRU(3, 4))
    with torch.inference_mode():
        layer = nn.Conv1d(2, 3, 3)
        as_operator(layer)
    as_operator(layer)


def test_meta_layers_are_not_probed():
    operator = as_operator(nn.Linear(3, 3, device="meta"))
    assert operator(torch.zeros(1, 2, 3, device="meta")).shape == (1, 2, 3)


def test_non_finite_weights_are_refused():
    layer = nn.Linear(3, 3)
    nn.init.constant_(layer.weight, float("nan"))
    with pytest.raises(ConversionError, match=r"not finite.*probe=False"):
        as_operator(layer)


def test_a_registered_call_runs_layers_with_other_arguments():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, u, scale):
            return scale * self.linear(u)

    name = f"{__name__}.{Pair.__qualname__}"
    register_converter(name)(lambda m: pointwise(m.linear))
    with pytest.raises(ConversionError, match=r"missing 1 required.*register_converter.*call=f"):
        as_operator(Pair())
    CONVERTERS._entries.pop(name)
    register_converter(name, call=lambda m, u, domain: m(u, 1.0))(lambda m: pointwise(m.linear))
    as_operator(Pair())
    CONVERTERS._entries.pop(name)
    register_converter(name, call=lambda m, u, domain: m(u, 1.0).mT)(lambda m: pointwise(m.linear))
    with pytest.raises(ConversionError, match=r"gives \(2, 3, 6\) on a signal \(2, 6, 3\)"):
        as_operator(Pair())
    CONVERTERS._entries.pop(name)


def test_linearizations_and_initial_states_are_not_probed():
    layer = nn.LSTM(3, 4, batch_first=True)
    u = torch.randn(1, 9, 3)
    tangent = as_operator(layer, linearization="tangent")
    assert (tangent(u) - layer(u)[0]).abs().max() > 1e-4
    state = torch.randn(1, 4), torch.randn(1, 4)
    operator = as_operator(layer, initial_state=state)
    assert_close(operator(u), layer(u, tuple(x[:, None] for x in state))[0])


def test_the_probe_has_a_dozen_points(counted):
    """A dozen points are enough at every width of the layer."""
    sizes = []

    class Seen(counted):
        def forward(self, u):
            sizes.append(u.shape)
            return self.linear(u)

    name = f"{__name__}.{Seen.__qualname__}"
    register_converter(name)(lambda module: pointwise(module.linear))
    as_operator(Seen())
    CONVERTERS._entries.pop(name)
    assert sizes == [(2, 6, 3)]
