"""Networks of positions: initialisations that take effect, knots, random features, a learned
frequency.
"""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from fredholm.errors import OptionError, ShapeError
from fredholm.families.ckconv.position_network import ACTIVATIONS, PositionNetwork, WeightNormLinear

from ..tolerances import assert_close


def test_weight_norm_equals_a_linear_layer():
    layer = WeightNormLinear(3, 4).double()
    weight = torch.randn(4, 3, dtype=torch.float64)
    layer.set_weight(weight)
    assert_close(layer.weight, weight)
    x = torch.randn(5, 3, dtype=torch.float64)
    assert_close(layer(x), x @ weight.mT + layer.bias)
    with torch.no_grad():
        layer.direction.mul_(7.0)
    assert_close(layer.weight, weight, "the length of a direction plays no role")


@pytest.mark.parametrize("omega", [3.0, 30.0, 300.0])
def test_paper_weights_follow_the_bound_of_omega(omega):
    network = PositionNetwork(2, width=256, depth=3, omega=omega)
    for i, layer in enumerate(network.layers):
        bound = 1 / 2 if i == 0 else math.sqrt(6 / 256) / omega
        largest = float(layer.weight.detach().abs().max())
        assert 0.95 * bound < largest <= bound * (1 + 1e-5)
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        reach = (layer.bias * layer.weight.norm(dim=-1)).detach().abs().max()
        assert 0.9 * math.pi < float(reach) <= math.pi * (1 + 1e-5)


@pytest.mark.parametrize("omega", [3.0, 300.0])
def test_released_weights_follow_torchs_bound_for_every_omega(omega):
    network = PositionNetwork(1, width=256, depth=2, omega=omega, preset="released")
    bound = 1 / math.sqrt(256)  # of torch.nn.Linear
    assert 0.95 * bound < float(network.layers[1].weight.detach().abs().max()) <= bound * (1 + 1e-5)
    for layer in network.layers:
        assert 0.9 < float(layer.bias.detach().abs().max()) <= 1.0


def test_the_sine_network_equals_its_formula():
    network = PositionNetwork(2, width=5, depth=2, omega=4.0).double()
    z = torch.randn(6, 2, dtype=torch.float64)
    h = z
    for layer in network.layers:
        h = torch.sin(4.0 * (h @ layer.weight.mT + layer.bias))
    assert_close(network(z), h)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_knots_are_spread(activation):
    torch.manual_seed(3)
    network = PositionNetwork(1, width=64, depth=1, activation=activation)
    layer = network.layers[0]
    bends = (-layer.bias / layer.weight[:, 0]).detach()
    assert float(bends.abs().max()) <= 1.0
    assert float(bends.min()) < -0.8 < 0.8 < float(bends.max())
    assert (PositionNetwork(1, activation=activation, knots="zero").layers[0].bias == 0).all()


def test_random_features_depend_on_the_scale():
    network = PositionNetwork(2, width=8, activation="rff", omega=2.0)
    assert network.omega is None
    assert network.fourier.matrix.shape == (4, 2)
    assert_close(
        network.fourier.matrix * 2,
        PositionNetwork(2, width=8, activation="rff", omega=4.0).fourier.matrix,
    )
    assert network(torch.randn(3, 2)).shape == (3, 8)


def test_omega_is_a_buffer_or_learned():
    fixed, learned = PositionNetwork(width=4), PositionNetwork(width=4, learned_omega=True)
    assert "omega" in dict(fixed.named_buffers())
    learned(torch.rand(5, 1)).sum().backward()
    assert float(learned.omega.grad.abs()) > 0


@pytest.mark.parametrize(
    "options", [{}, {"learned_omega": True}, {"activation": "silu"}, {"activation": "rff"}]
)
def test_copies_compute_the_same_function(options):
    network = PositionNetwork(2, width=6, **options)
    z = torch.randn(4, 2)
    network(z).sum().backward()  # also after a backward
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert_close(twin(z), network(z))
    other = PositionNetwork(2, width=6, **options)
    other.load_state_dict(network.state_dict(), strict=True)
    assert_close(other(z), network(z))


def test_phases_are_not_rounded_under_autocast():
    network = PositionNetwork(1, width=8, omega=60.0)
    z = torch.rand(9, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = network(z)
    assert under.dtype == torch.float32
    assert_close(under, network(z))


@pytest.mark.parametrize(
    "options", [{"omega": 3.0}, {"activation": "relu"}, {"activation": "rff", "omega": 1.0}]
)
def test_inputs_of_another_precision_are_accepted(options):
    network = PositionNetwork(1, width=8, **options)
    z = torch.rand(9, 1)
    expected = network(z)
    assert_close(network(z.double()), expected, "positions finer than the parameters")
    low = copy.deepcopy(network).bfloat16()
    assert low(z).dtype == torch.float32, "phases stay in float32"


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"learned_omega": True}, {"activation": "rff"}])
def test_parameters_of_phases_are_not_rounded(options, half):
    network = PositionNetwork(1, width=8, omega=60.0, **options)
    z = torch.rand(9, 1)
    expected = network(z)
    low = copy.deepcopy(network).to(half)
    assert torch.equal(low(z), expected)
    assert {p.dtype for p in low.parameters()} == {torch.float32}
    assert {p.dtype for p in low.double().parameters()} == {torch.float64}
    assert {p.dtype for p in low.to(half).parameters()} == {torch.float32}
    low(z).sum().backward()
    assert {t.device.type for t in low.to("meta").state_dict().values()} == {"meta"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"omega": 0.0}, "omega must be positive, got 0.0"),
        ({"activation": "sin"}, "unknown activation 'sin'; did you mean 'sine'"),
        ({"preset": "papers"}, "did you mean 'paper'"),
        ({"knots": "even"}, "unknown knots 'even'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        PositionNetwork(**options)
    with pytest.raises(ShapeError, match="dimension 1, for which this network was built, got 3"):
        PositionNetwork()(torch.zeros(2, 3))


def test_omega_is_not_rounded_to_the_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        network = PositionNetwork(1, width=4, omega=31.09)
    finally:
        torch.set_default_dtype(torch.float32)
    assert float(network.omega) == pytest.approx(31.09)


def test_learning_omega_without_a_sine_is_refused():
    with pytest.raises(OptionError, match="got 'gelu', which has no ω0 to learn"):
        PositionNetwork(1, width=4, activation="gelu", learned_omega=True)
