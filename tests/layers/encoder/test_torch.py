"""torch.nn's encoders as evolutions and back: outputs and gradients, float64."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fredholm.errors import ConversionError, OptionError, ShapeError
from fredholm.families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    MomentConstraint,
    OperatorTerm,
    Strang,
    encoder_terms,
)
from fredholm.layers.encoder import correspondence, encoder_domain, from_encoder, to_encoder

from ...tolerances import assert_close

N, D = 5, 8

# layers, heads, hidden, options of the layer, masks
CASES = {
    "one layer": (1, 2, 16, {}, ""),
    "six layers": (6, 2, 16, {}, ""),
    "one head": (2, 1, 16, {}, ""),
    "eight heads": (2, 8, 16, {}, ""),
    "narrow network": (2, 2, 3, {}, ""),
    "gelu": (2, 2, 16, {"activation": "gelu"}, ""),
    "gelu function": (2, 2, 16, {"activation": F.gelu}, ""),
    "gelu tanh": (2, 2, 16, {"activation": nn.GELU(approximate="tanh")}, ""),
    "gelu tanh function": (2, 2, 16, {"activation": partial(F.gelu, approximate="tanh")}, ""),
    "silu module": (2, 2, 16, {"activation": nn.SiLU()}, ""),
    "hardswish module": (2, 2, 16, {"activation": nn.Hardswish()}, ""),
    "prelu module": (2, 2, 16, {"activation": nn.PReLU()}, ""),
    "pre-norm": (2, 2, 16, {"norm_first": True}, ""),
    "pre-norm gelu": (3, 4, 16, {"norm_first": True, "activation": "gelu"}, ""),
    "pre-norm causal": (2, 2, 16, {"norm_first": True}, "causal"),
    "no bias": (2, 2, 16, {"bias": False}, ""),
    "pre-norm no bias": (2, 2, 16, {"bias": False, "norm_first": True}, ""),
    "large eps": (2, 2, 16, {"layer_norm_eps": 0.3}, ""),
    "sequence first": (2, 2, 16, {"batch_first": False}, ""),
    "final norm": (2, 2, 16, {"norm_first": True}, "norm"),
    "post-norm final norm": (2, 2, 16, {}, "norm"),
    "padding": (2, 2, 16, {}, "padding"),
    "pre-norm padding": (2, 2, 16, {"norm_first": True, "activation": "gelu"}, "padding"),
    "causal": (2, 2, 16, {}, "causal"),
    "boolean mask": (2, 2, 16, {}, "boolean"),
    "additive mask": (2, 2, 16, {}, "additive"),
    "mask a head": (2, 2, 16, {}, "heads"),
    "padding and mask": (2, 2, 16, {}, "padding boolean"),
}


def make_encoder(name):
    layers, heads, hidden, options, masks = CASES[name]
    options = {"batch_first": True} | options
    layer = nn.TransformerEncoderLayer(D, heads, hidden, dropout=0.0, **options)
    norm = nn.LayerNorm(D, eps=1e-3) if "norm" in masks.split() else None
    encoder = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    return encoder


def make_masks(name, batch=3):
    """Return the arguments of the encoder, and the domain."""
    heads = CASES[name][1]
    kinds = CASES[name][4].split()
    theirs, ours = {}, {}
    if "padding" in kinds:
        ours["key_padding_mask"] = theirs["src_key_padding_mask"] = torch.arange(N) >= torch.tensor(
            [[5], [4], [2]]
        )
    if "causal" in kinds:
        theirs |= {
            "mask": nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64),
            "is_causal": True,
        }
        ours["is_causal"] = True
    if "boolean" in kinds:
        mask = torch.rand(N, N) < 0.4
        theirs["mask"] = ours["mask"] = mask & ~torch.eye(N, dtype=torch.bool)
        theirs["mask"][:, 0] = False
    if "additive" in kinds:
        theirs["mask"] = ours["mask"] = torch.randn(N, N, dtype=torch.float64)
    if "heads" in kinds:
        theirs["mask"] = torch.randn(batch * heads, N, N, dtype=torch.float64)
        ours |= {"mask": theirs["mask"], "heads": heads}
    return theirs, encoder_domain(N, dtype=torch.float64, **ours)


def gradients(encoder, evolution):
    """Yield pairs of gradients by :func:`correspondence`."""
    for source, target in correspondence(encoder):
        layer, _, name = source.partition(".")
        name, _, role = name.rstrip("]").partition("[")
        theirs = encoder.layers[int(layer)].get_parameter(name).grad
        if role:
            theirs = theirs.chunk(3)[("query", "key", "value").index(role)]
        yield source, evolution.get_parameter(target).grad, theirs


@pytest.mark.parametrize("scheme", ["lie", "relaxed"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_equal(name, scheme):
    encoder = make_encoder(name)
    if scheme == "relaxed" and encoder.layers[0].norm_first:
        with pytest.raises(ConversionError, match="pre-norm"):
            from_encoder(encoder, scheme=scheme)
        return
    evolution = from_encoder(encoder, scheme=scheme)
    masks, domain = make_masks(name)
    first = encoder.layers[0].self_attn.batch_first
    u = torch.randn(3, N, D, dtype=torch.float64, requires_grad=True)
    v = u.detach().clone().requires_grad_()
    ours = evolution(u, domain)
    theirs = encoder(v, **masks) if first else encoder(v.transpose(0, 1), **masks).transpose(0, 1)
    real = torch.ones(3, N, 1, dtype=torch.bool)
    if domain.valid is not None:
        real = domain.valid[..., None]
    # PyTorch's outputs at padding are arbitrary.
    theirs = torch.where(real, theirs, 0.0)
    assert_close(ours, theirs)
    probe = torch.randn_like(ours)
    ours.backward(probe)
    theirs.backward(probe)
    assert_close(u.grad, v.grad, "input gradient")
    for what, a, b in gradients(encoder, evolution):
        assert_close(a, b, what)
    back = to_encoder(evolution, batch_first=first)
    assert {k: tuple(t.shape) for k, t in back.state_dict().items()} == {
        k: tuple(t.shape) for k, t in encoder.state_dict().items()
    }
    for key, value in encoder.state_dict().items():
        assert back.state_dict()[key].equal(value), key
    again = back(v, **masks) if first else back(v.transpose(0, 1), **masks).transpose(0, 1)
    assert_close(torch.where(real, again, 0.0), theirs, "and back")


def test_a_single_layer_equals_one_step():
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True).double()
    evolution = from_encoder(layer)
    u = torch.randn(2, N, D, dtype=torch.float64)
    assert evolution.horizon == evolution.steps == 1
    assert_close(evolution(u), layer(u))


def test_a_repeated_layer_becomes_a_shared_knot():
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True).double()
    stack = nn.ModuleList([layer, layer, layer])
    evolution = from_encoder(stack)
    u = torch.randn(2, N, D, dtype=torch.float64)
    assert len(evolution.knots) == 1
    assert evolution.steps == 3
    expected = layer(layer(layer(u)))
    assert_close(evolution(u), expected)
    probe = torch.randn_like(expected)
    evolution(u).backward(probe)
    expected.backward(probe)
    assert_close(evolution.knots[0][2].layers[0].weight.grad, layer.linear1.weight.grad)
    back = to_encoder(evolution)
    assert len({id(part) for part in back.layers}) == 1
    assert_close(back(u), expected)
    with pytest.raises(ConversionError, match="share all of them or none"):
        from_encoder(nn.ModuleList([layer, layer, copy.deepcopy(layer)]))


def test_every_parameter_of_the_source_is_listed_once():
    encoder = make_encoder("final norm")
    rows = correspondence(encoder)
    assert len(set(rows)) == len(rows)
    named = {source.partition("[")[0] for source, _ in rows}
    assert named == {name for name, _ in encoder.layers.named_parameters()}
    evolution = from_encoder(encoder)
    assert {target for _, target in rows} == {
        name for name, _ in evolution.knots.named_parameters(prefix="knots")
    }


def test_parameters_of_a_repeated_layer_are_listed_once():
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True).eval()
    encoder = nn.ModuleList([layer] * 3)
    targets = {target for _, target in correspondence(encoder)}
    knots = from_encoder(encoder).knots
    assert targets == {name for name, _ in knots.named_parameters(prefix="knots")}


def test_training_modes_are_kept_and_active_dropout_is_refused():
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.1, batch_first=True)
    with pytest.raises(ConversionError, match=r"training mode with dropout 0\.1"):
        from_encoder(layer)
    assert not from_encoder(layer.eval()).training
    evolution = Evolution(encoder_terms(D, 2, 16, dropout=0.1))
    with pytest.raises(ConversionError, match="training mode with dropout"):
        to_encoder(evolution)
    assert not to_encoder(evolution.eval()).training


class Renamed(nn.TransformerEncoderLayer):
    pass


def _quantised(layer):
    layer.linear1 = torch.ao.nn.quantized.dynamic.Linear(D, 16)
    return layer


def _parametrised(layer):
    nn.utils.parametrizations.weight_norm(layer.linear1)
    return layer


def _hooked(layer):
    layer.linear2.register_forward_hook(lambda *_: None)
    return layer


def _other(layer, **changes):
    for name, value in changes.items():
        setattr(layer, name, value)
    return layer


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (lambda layer: Renamed(D, 2, 16), "Renamed is a subclass of TransformerEncoderLayer"),
        (_parametrised, "'linear1' has parametrised weights"),
        (_hooked, "'linear2' has hooks"),
        (lambda layer: _other(layer, norm1=nn.RMSNorm(D)), "norm1 is a .*RMSNorm, only LayerNorm"),
        (
            lambda layer: _other(layer, linear1=nn.Identity()),
            "linear1 is a .*Identity, only Linear",
        ),
        (
            lambda layer: _other(layer, activation=lambda x: x.sin()),
            "known pointwise activation, got .*lambda",
        ),
        (
            lambda layer: _other(layer, activation=nn.Identity()),
            "activation Identity, which is not understood",
        ),
        (
            lambda layer: _other(layer, self_attn=nn.MultiheadAttention(D, 2, add_bias_kv=True)),
            "bias_kv",
        ),
        (lambda layer: _other(layer, self_attn=nn.MultiheadAttention(D, 2, kdim=4)), "kdim"),
        (
            lambda layer: nn.TransformerDecoderLayer(D, 2, 16),
            "TransformerDecoderLayer is not an encoder layer",
        ),
        (lambda layer: nn.ModuleList(), "has no layers"),
        (lambda layer: nn.TransformerEncoder(layer, 1, nn.RMSNorm(D)), "final norm is a RMSNorm"),
    ],
)
def test_unsupported_layers_are_refused_by_name(source, match):
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True)
    with pytest.raises(ConversionError, match=match):
        from_encoder(source(layer))


def test_quantised_layers_are_refused():
    encoder = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True).eval()
    with pytest.raises(ConversionError, match=r"linear1 is a .*quantized.*only Linear"):
        from_encoder(_quantised(encoder))


@pytest.mark.parametrize(
    ("evolution", "match"),
    [
        (
            lambda: Evolution(encoder_terms(D, 2, 16), scheme=Strang()),
            "scheme Lie or Relaxed, not Strang",
        ),
        (lambda: Evolution(encoder_terms(D, 2, 16), horizon=2.0, steps=4), "steps of length 1"),
        (lambda: Evolution(encoder_terms(D, 2, 16, norm="none")), "a LayerNorm in each of them"),
        (
            lambda: Evolution(encoder_terms(D, 2, 16, operator="itnet")),
            "softmax attention, got ITNetOperator",
        ),
        (
            lambda: Evolution([FeedForwardTerm(D, 16), OperatorTerm.of("softmax", D, 2)]),
            "got FeedForwardTerm, OperatorTerm",
        ),
        (lambda: Evolution([t.requires_grad_() for t in _midpoint()]), "Euler"),
        (
            lambda: Evolution([*encoder_terms(D, 2, 16)[:3], MomentConstraint(D, affine="scalar")]),
            "vector-affine",
        ),
        (
            lambda: Evolution(
                [*encoder_terms(D, 2, 16)[:2], FeedForwardTerm(D, (4, 4)), MomentConstraint(D)]
            ),
            "3 layers",
        ),
        (
            lambda: Evolution([*encoder_terms(D, 2, 16)[:3], MomentConstraint(D, bias=False)]),
            "lacks those of norm2",
        ),
    ],
)
def test_evolutions_that_are_not_encoders_are_refused(evolution, match):
    with pytest.raises(ConversionError, match=match):
        to_encoder(evolution())


def test_relaxed_pre_norm_terms_are_refused():
    """PyTorch's pre-norm layer adds without the factor of one half of the relaxed scheme."""
    evolution = from_encoder(
        nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    )
    evolution.scheme = "relaxed"
    with pytest.raises(ConversionError, match="the scheme Lie for pre-norm terms, got Relaxed"):
        to_encoder(evolution)


def test_a_scheme_set_by_name_converts_to_an_encoder():
    evolution = Evolution(encoder_terms(D, 2, 16), scheme="strang")
    u = torch.randn(2, N, D)
    evolution.scheme = "relaxed"
    assert_close(to_encoder(evolution)(u), evolution(u))
    evolution.scheme = "strang"
    with pytest.raises(ConversionError, match="not Strang"):
        to_encoder(evolution)


def _midpoint():
    terms = encoder_terms(D, 2, 16)
    terms[0].substep = "midpoint"
    return terms


def test_wrong_options_and_masks_are_refused():
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0)
    with pytest.raises(OptionError, match="'lie' or 'relaxed', got 'strang'"):
        from_encoder(layer, scheme="strang")
    with pytest.raises(OptionError, match="brings its own"):
        from_encoder(nn.TransformerEncoder(layer, 1, nn.LayerNorm(D)), norm=nn.LayerNorm(D))
    with pytest.raises(ShapeError, match="boolean"):
        encoder_domain(3, key_padding_mask=torch.zeros(2, 3))
    with pytest.raises(OptionError, match="a multiple of 2 slices for 2 heads, got 3"):
        encoder_domain(3, mask=torch.zeros(3, 3, 3), heads=2)


def test_a_converted_encoder_runs_at_other_depths():
    """Twice the steps halve the distance to the solution of the equation."""
    layer = nn.TransformerEncoderLayer(
        D, 2, 16, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
    )
    evolution = from_encoder(
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), controls="linear"
    ).double()
    u = torch.randn(2, N, D, dtype=torch.float64)
    exact = evolution.integrate(u, steps=128)
    errors = [(evolution(u, steps=steps) - exact).norm() for steps in (4, 8, 16)]
    assert errors[1] < 0.65 * errors[0]
    assert errors[2] < 0.6 * errors[1]


@pytest.mark.parametrize("activation", ["gelu_tanh", nn.GELU(approximate="tanh")])
def test_tanh_gelu_agrees_without_gradients_and_survives_the_round_trip(activation):
    """Under no_grad, PyTorch's layer has a fused path that computes every nn.GELU as exact."""
    evolution = Evolution(encoder_terms(D, 2, 16, activation=activation)).double().eval()
    for parameter in evolution.parameters():
        nn.init.normal_(parameter, std=0.4)
    u = torch.randn(3, N, D, dtype=torch.float64)
    encoder = pickle.loads(pickle.dumps(to_encoder(evolution)))
    with torch.no_grad():
        assert_close(encoder(u), evolution(u))
    back = from_encoder(encoder)
    assert back.terms[2].activation == "gelu_tanh"
    assert_close(back(u), evolution(u))


def test_an_activation_with_parameters_is_copied_to_the_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation=nn.PReLU(), batch_first=True)
    evolution = from_encoder(nn.TransformerEncoder(layer, 1).eval())
    u = torch.randn(1, 4, 8)
    with torch.no_grad():
        before = evolution(u)
        for parameter in to_encoder(evolution).parameters():
            parameter.zero_()
        assert torch.equal(evolution(u), before)
