"""Attention of timm: options that are refused by name, and a layer of a vision transformer."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from evidence.unification.attention import timm_layers
from torch import nn

from fredholm.convert import as_operator
from fredholm.errors import ConversionError

from ..tolerances import assert_close

if importlib.util.find_spec("timm") is None:
    pytest.skip("timm is not installed", allow_module_level=True)
layers = timm_layers()
DIM, HEADS = 8, 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gated": True}, "gated=True"),
        ({"scale_norm": True, "norm_layer": nn.LayerNorm}, "scale_norm=True"),
        (
            {"qk_norm": True, "norm_layer": nn.BatchNorm1d},
            "q_norm=torch.nn.modules.batchnorm.BatchNorm1d",
        ),
    ],
)
def test_unsupported_options_are_refused(options, message):
    with pytest.raises(ConversionError, match=message):
        as_operator(layers.Attention(DIM, HEADS, **options).eval())


def test_another_scale_and_active_dropout_are_refused():
    layer = layers.Attention(DIM, HEADS, attn_drop=0.1).eval()
    operator = as_operator(layer)
    with pytest.raises(ConversionError, match=r"dropout=0.1 in training mode"):
        as_operator(layer.train())
    with pytest.raises(ConversionError, match=r"got dropout=0\.1; it is active"):
        operator.train()(torch.randn(1, 3, DIM))
    layer.eval().scale = 1.0
    with pytest.raises(ConversionError, match=r"scale=1.0"):
        as_operator(layer)


def test_a_layer_of_a_vision_transformer_equals_its_operator():
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1).double().eval()
    layer = model.blocks[0].attn
    u = torch.randn(1, 5, 192, dtype=torch.float64)
    assert_close(as_operator(layer)(u), layer(u))


def test_other_attentions_are_refused():
    with pytest.raises(
        ConversionError, match="AttentionRope is not understood; did you mean 'Attention'"
    ):
        as_operator(layers.AttentionRope(DIM, HEADS, norm_layer=nn.LayerNorm))
