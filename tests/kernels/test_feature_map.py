"""Feature maps: positive semi-definite kernels, what each approximates, LUNA's variants, presets
and caps.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fredholm.errors import OptionError
from fredholm.families.luna import naive
from fredholm.families.luna.initial import PRESETS
from fredholm.integral.exponential import orthogonal_draws
from fredholm.integral.feature_map import build_feature_map
from fredholm.kernels import (
    FEATURE_MAPS,
    FeatureMap,
    FourierRandomFeatures,
    HedgehogFeatures,
    LinearAttentionKernel,
    LunaMap,
    PositiveRandomFeatures,
    register_feature_map,
)

from ..tolerances import assert_close

WIDTH, HEADS = 4, 2
VARIANTS = {
    "plain": {},
    "heads": {"per_head": True},
    "shared": {"shared": True},
    "smooth": {"activation": "gelu"},
    "signed": {"nonneg": False},
    "scalar envelope": {"envelope": "scalar"},
    "channel envelope": {"envelope": "channels", "per_head": True},
    "bank": {"bank": True},
    "running cap": {"cap": "running"},
    "batch cap": {"cap": "batch"},
}


def points(n=7, heads=HEADS, dtype=torch.float64):
    return torch.randn(2, heads, n, WIDTH, dtype=dtype)


def luna(**options):
    return LunaMap(
        WIDTH, HEADS, **{"directions": 3, "channels": 2, "hidden": 6, **options}
    ).double()


def literal(layer: LunaMap, x: torch.Tensor) -> torch.Tensor:
    """Return Eq. 11 head by head, without cap. Columns as the layer orders them."""
    columns = []
    for h in range(x.shape[1]):
        s = h if layer.weight.shape[0] > 1 else 0
        rows = [
            part.expand(layer.channels, -1) for part in (layer.bank.weight[s], layer.bank.bias[s])
        ]
        networks = naive.Networks(
            *rows, layer.bank.readout[s].flatten(0, 1), layer.bank.shift[s].flatten()
        )
        y = naive.feature_map(
            x[:, h : h + 1],
            layer.weight[s],
            layer.bias[s],
            networks,
            envelope=envelope(layer, x[:, h : h + 1], s),
            activation=layer.activation,
            nonneg=layer.nonneg,
        )
        y = y.unflatten(-1, (layer.directions, layer.channels))
        if layer.coefficient is not None:
            y = y * layer.coefficient.abs()
        columns.append(y.mT.flatten(-2))
    return torch.cat(columns, 1)


def envelope(layer: LunaMap, x: torch.Tensor, s: int) -> torch.Tensor | None:
    """Return h(x): a softplus (one number) or a sigmoid (one per channel) of a linear map."""
    if layer.envelope is None:
        return None
    gate = x @ layer.gate[s].T + layer.gate_bias[s]
    return nn.functional.softplus(gate) if layer.envelope == "scalar" else gate.sigmoid()


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "cap" not in v])
def test_luna_is_equation_11(variant):
    layer = luna(**VARIANTS[variant])
    x = points().requires_grad_()
    with torch.no_grad():
        for value in layer.state_dict().values():
            value.add_(0.3 * torch.randn_like(value))
    found = layer(x)
    expected = literal(layer, x)
    assert_close(found, expected)
    leaves = [x, *layer.parameters()]
    direction = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(y, leaves, direction) for y in (found, expected))):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("name", [*FEATURE_MAPS, *VARIANTS])
def test_gram_matrices_are_positive_semidefinite(name):
    phi = luna(**VARIANTS[name]) if name in VARIANTS else build_feature_map(name, WIDTH, HEADS)
    phi = phi.double() if isinstance(phi, nn.Module) else phi
    features = phi(points(9))
    values = torch.linalg.eigvalsh(features @ features.mT)
    assert values.min() > -1e-12 * values.max()
    if not isinstance(phi, FeatureMap) or phi.positive:
        assert features.min() >= 0
    if isinstance(phi, FeatureMap):
        assert features.shape[-1] == phi.features


def test_elu_plus_one_is_accurate_for_very_negative_inputs():
    """In every precision, whereas e^-30 - 1 + 1 is zero in half precision."""
    x = torch.tensor([-80.0, -30.0, -8.0, -0.5, 0.0, 0.5, 8.0], requires_grad=True)
    phi = build_feature_map("elu", WIDTH, HEADS)
    features = phi(x)
    (slope,) = torch.autograd.grad(features.sum(), x)
    double = x.detach().double()
    exact = torch.where(double > 0, double + 1, double.exp())
    assert_close(features / exact, torch.ones(7), dtype=torch.float32)
    assert_close(slope / double.clamp(max=0).exp(), torch.ones(7), dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):  # which hold these numbers exactly
        assert torch.equal(phi(x.detach().to(dtype)), features)


def test_random_features_estimate_their_kernels():
    q, k = 0.7 * torch.randn(2, 1, 1, 5, WIDTH).double()
    for kind, expected in (
        (PositiveRandomFeatures, (q @ k.mT / math.sqrt(WIDTH)).exp()),
        (
            FourierRandomFeatures,
            (-(q[..., None, :] - k[..., None, :, :]).square().sum(-1) / 2 / math.sqrt(WIDTH)).exp(),
        ),
    ):
        phi = kind(WIDTH, features=40_000).double()
        found = phi(q) @ phi(k).mT
        assert (found - expected).abs().max() < 0.05 * expected.max(), kind.__name__
        before = phi.frequencies.clone()
        phi.redraw()
        assert not torch.equal(phi.frequencies, before)


def test_draws_are_orthogonal_in_blocks_with_gaussian_norms():
    w = orthogonal_draws(4000, 4)
    gram = w[:8] @ w[:8].T
    assert gram[:4, :4].fill_diagonal_(0).abs().max() < 1e-5
    assert abs(w.square().sum(1).mean() - 4) < 0.3


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_no_channel_is_dead_at_initialisation(activation):
    torch.manual_seed(0)
    layer = LunaMap(16, channels=64, activation=activation)
    y = layer(torch.randn(1, 1, 500, 16)).unflatten(-1, (64, -1))
    assert (y.amax((0, 1, 2, 4)) > 0).all()
    plain = LunaMap(16, channels=64, init="linear")(torch.randn(1, 1, 500, 16)).unflatten(
        -1, (64, -1)
    )
    assert (plain.amax((0, 1, 2, 4)) == 0).any(), "torch's default leaves some dead"


def test_presets_match_the_sections_of_the_paper():
    made = {name: luna(preset=name) for name in PRESETS}
    rows = {name: (layer.bank.weight.shape[1], layer.envelope) for name, layer in made.items()}
    assert rows == {
        "default": (2, None),
        "exponential": (2, None),
        "paper": (2, None),
        "paper-figure": (1, None),
        "paper-equation": (2, "scalar"),
        "paper-gated": (2, "channels"),
    }
    assert luna(preset="paper-gated", envelope="none").envelope is None, (
        "options win over the preset"
    )


def test_the_exponential_preset_starts_as_hedgehog():
    layer = LunaMap(WIDTH, HEADS, preset="exponential", per_head=True).double()
    x = points().clamp(-6, 6)
    assert layer.features == 2 * WIDTH
    expected = HedgehogFeatures(WIDTH, HEADS).double()(x)
    assert ((layer(x) * math.sqrt(WIDTH) / expected).log().abs() < 1e-2).all(), (
        "64 chords on [-6, 6]"
    )
    assert (layer(1e3 * points()) >= 0).all()


@pytest.mark.parametrize("shared", [False, True])
def test_further_channels_of_the_exponential_preset_start_slower(shared):
    layer = LunaMap(
        WIDTH, directions=6, channels=5, hidden=200, preset="exponential", shared=shared
    ).double()
    rows = layer.weight[0]
    assert_close(
        rows[:WIDTH] @ rows[:WIDTH].T, torch.eye(WIDTH), "orthonormal", dtype=torch.float32
    )
    x = points(heads=1)
    x = x / x.norm(dim=-1, keepdim=True)
    found = layer(x).unflatten(-1, (5, 6))[0, 0] * math.sqrt(6)
    u = layer.scalars(x)[0, 0].mT
    for channel, rate in enumerate((1, -1, 1 / 2, -1 / 2, 1 / 3)):
        assert ((found[:, channel] / (rate * u).exp()).log().abs() < 1e-3).all()


def test_the_running_cap_follows_the_data_and_mixes_no_samples():
    layer = luna(cap="running", target=0.05)
    x = 3 * points()
    layer.eval()
    before = layer.mean_square.clone()
    assert_close(layer(x)[:1], layer(x[:1]), "no sample sees another")
    assert torch.equal(layer.mean_square, before)
    for _ in range(200):
        layer.observe(x, None)
    y = layer(x).unflatten(-1, (layer.channels, -1)) * math.sqrt(layer.directions)
    size = y.square().mean((0, 1, 2, 4)).sqrt()
    assert_close(size, torch.full_like(size, 0.05), dtype=torch.bfloat16)
    assert "mean_square" in layer.state_dict()


def test_the_batch_cap_bounds_every_channel():
    layer = luna(cap="batch", target=0.1)
    x = 3 * points()
    y = layer(x).unflatten(-1, (layer.channels, -1)) * math.sqrt(layer.directions)
    free = luna()
    free.load_state_dict(layer.state_dict())
    raw = free(x).unflatten(-1, (layer.channels, -1)) * math.sqrt(layer.directions)
    size, own = (z.square().mean((0, 1, 2, 4)).sqrt() for z in (y, raw))
    assert_close(size, own.clamp(max=0.1), dtype=torch.float32)


def test_both_caps_bound_a_channel_with_its_coefficient():
    """A channel of a bank is its coefficient times ψ."""
    x = 3 * points()
    running, batch = (luna(cap=cap, target=0.1, bank=True) for cap in ("running", "batch"))
    batch.load_state_dict(running.state_dict(), strict=False)
    with torch.no_grad():
        for layer in (running, batch):
            layer.coefficient.copy_(torch.tensor([5.0, 0.3]))
    for _ in range(300):
        running.observe(x, None)
    assert_close(running(x), batch(x), dtype=torch.float32)
    y = running(x).unflatten(-1, (running.channels, -1)) * math.sqrt(running.directions)
    assert (y.square().mean((0, 1, 2, 4)).sqrt() < 0.1 + 1e-4).all()


def test_features_are_float32_under_autocast():
    layer = LunaMap(WIDTH, HEADS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(points(dtype=torch.float32).bfloat16())
    assert out.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 0}, "at least 1"),
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"envelope": "chanels"}, "did you mean 'channels'"),
        ({"cap": "runing"}, "did you mean 'running'"),
        ({"init": "knot"}, "did you mean 'knots'"),
        ({"init": "exponential", "activation": "gelu"}, "ReLU units, got activation='gelu'"),
        ({"init": "exponential", "hidden": 1}, "at least 2 hidden units, got 1"),
    ],
)
def test_wrong_options_of_luna_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        luna(**options)


def test_maps_are_built_by_name():
    with pytest.raises(OptionError, match="has no options, got features"):
        build_feature_map("elu", WIDTH, HEADS, features=3)
    for name, option in (("hedgehog", "channels"), ("performer", "feature"), ("luna", "chanels")):
        with pytest.raises(OptionError, match=f"has no option '{option}'"):
            build_feature_map(name, WIDTH, HEADS, **{option: 3})
    with pytest.raises(OptionError, match="for 2 heads of width 4, got one for 3 of 4"):
        build_feature_map(LunaMap(WIDTH, 3), WIDTH, HEADS)
    with pytest.raises(OptionError, match="expected a multiple of 2 features"):
        build_feature_map("rff", WIDTH, HEADS, features=5)
    with pytest.raises(OptionError, match="features: expected at least one"):
        FeatureMap(WIDTH, features=0)

    class Mine(FeatureMap):
        pass

    with pytest.raises(OptionError, match="'elu' is taken by"):
        register_feature_map("elu")(Mine)
    register_feature_map("mine")(Mine)
    try:
        with pytest.raises(NotImplementedError, match="Mine must define features_of"):
            build_feature_map("mine", WIDTH, HEADS, features=2)(points())
    finally:
        del FEATURE_MAPS._entries["mine"]


def test_a_class_of_maps_is_built_for_queries_and_for_keys():
    kernel = LinearAttentionKernel(8, 2, feature_map=FEATURE_MAPS["t2r"], tied=False)
    assert type(kernel.key_map) is type(kernel.feature_map) is FEATURE_MAPS["t2r"]
    x = torch.randn(1, 2, 3, 4)
    assert kernel.key_map(x).shape == kernel.feature_map(x).shape


def test_untied_maps_differ():
    kernel = LinearAttentionKernel(8, 2, feature_map="hedgehog", tied=False)
    assert kernel.key_map is not kernel.feature_map
    given = LinearAttentionKernel(8, 2, feature_map=LunaMap(4, 2), tied=False)
    assert_close(given.key_map.weight, given.feature_map.weight)
    assert given.key_map.weight is not given.feature_map.weight


def test_mismatched_numbers_of_features_are_named():
    with pytest.raises(OptionError, match="got 5, the width of a head; give features=6"):
        build_feature_map("rff", 5, 2)
    for name in ("rff", "performer", "t2r"):
        with pytest.raises(OptionError, match="0"):
            build_feature_map(name, 4, 2, features=0)
