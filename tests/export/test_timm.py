"""Image models of the library in timm's registry."""

from __future__ import annotations

import pytest
import torch

from fredholm.errors import OptionError
from fredholm.models import create_model, list_models

timm = pytest.importorskip("timm")

import fredholm.timm  # noqa: E402, F401

SMALL = {"itnet_nano": (1, 28), "infvit_linear_pico": (1, 56), "infvit_softmax_pico": (1, 56)}


def make(name, **options):
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    for weight in model.get_classifier().parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


def test_every_preset_of_pictures_is_registered():
    known = timm.list_models(module="timm")
    assert {"itnet_nano", "itnet_s", "infvit_linear_53m"} <= set(known)
    assert set(known) == {
        name
        for pattern in ("infvit_*", "itnet_*")
        for name in list_models(pattern)
        if not name.startswith("itnet_pc")
    }


@pytest.mark.parametrize("name", SMALL)
def test_features_and_head_equal_the_model(name):
    channels, side = SMALL[name]
    model = make(name)
    torch.manual_seed(0)
    whole = create_model(name).eval()
    whole.load_state_dict(model.state_dict())
    x = torch.rand(2, channels, side, side)
    with torch.no_grad():
        expected = whole(x)
        torch.testing.assert_close(model(x), expected)
        features = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(features), expected)
        pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)


@pytest.mark.parametrize("name", SMALL)
def test_intermediate_features_equal_the_blocks(name):
    channels, side = SMALL[name]
    model = make(name)
    x = torch.rand(2, channels, side, side)
    depth = len(model.body.blocks)
    rows = side // model.patch[0]
    with torch.no_grad():
        last, every = model.forward_intermediates(x)
        torch.testing.assert_close(last, model.forward_features(x))
        assert [u.shape for u in every] == [(2, model.num_features, rows, rows)] * depth
        (normed,) = model.forward_intermediates(
            x, indices=[-1], norm=True, output_fmt="NLC", intermediates_only=True
        )
        torch.testing.assert_close(normed, last[:, model.num_prefix_tokens :])
        early, (first,) = model.forward_intermediates(x, indices=[0], stop_early=True)
        torch.testing.assert_close(first, every[0])
        assert early.shape == last.shape
    with pytest.raises(OptionError, match="expected NCHW or NLC, got 'NHWC'"):
        model.forward_intermediates(x, output_fmt="NHWC")


def test_features_only_returns_maps():
    model = timm.create_model("infvit_linear_pico", features_only=True, out_indices=(0, 3))
    maps = model(torch.rand(1, 1, 56, 56))
    assert model.feature_info.channels() == [64, 64]
    assert model.feature_info.reduction() == [7, 7]
    assert [u.shape for u in maps] == [(1, 64, 8, 8)] * 2
    # Without indices, of all blocks.
    every = timm.create_model("infvit_linear_pico", features_only=True, body={"depth": 3})
    assert len(every(torch.rand(1, 1, 56, 56))) == 3
    assert every.feature_info.out_indices == (0, 1, 2)


def test_options_of_timm_change_the_model():
    model = timm.create_model(
        "infvit_linear_pico", num_classes=5, in_chans=3, img_size=28, drop_path_rate=0.1
    )
    assert model(torch.rand(2, 3, 28, 28)).shape == (2, 5)
    assert model.config.body.drop_path == 0.1
    bare = timm.create_model("itnet_nano", num_classes=0)
    assert bare(torch.rand(2, 1, 28, 28)).shape == (2, bare.num_features)
    points = timm.create_model("itnet_nano", num_classes=0, global_pool="")
    assert points(torch.rand(2, 1, 28, 28)).shape == (2, 49, points.num_features)


def test_the_classifier_can_be_reset():
    model = make("infvit_softmax_pico")
    x = torch.rand(2, 1, 56, 56)
    model.reset_classifier(3)
    assert model.num_classes == 3
    assert model(x).shape == (2, 3)
    model.reset_classifier(4, "avg")
    torch.nn.init.normal_(model.head.weight)
    with torch.no_grad():
        features = model.forward_features(x)
        torch.testing.assert_close(model(x), model.forward_head(features))
        # The class token is not averaged, as in timm.
        torch.testing.assert_close(model(x), model.head(features[:, 1:].mean(1)))
    model.reset_classifier(0)
    assert model(x).shape == (2, model.num_features)
    with pytest.raises(OptionError, match="expected avg of a model without a class token"):
        make("itnet_nano").reset_classifier(2, "token")
    with pytest.raises(OptionError, match=r"global_pool: expected token, avg, .* got 'max'"):
        model.reset_classifier(2, "max")
    with pytest.raises(OptionError, match=r"global_pool: expected token, avg, .* got 'max'"):
        make("itnet_nano", global_pool="max")


def test_the_offset_of_a_head_is_added():
    offset = (100.0, -200.0)
    model = make("itnet_nano", num_classes=2, head={"offset": offset})
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        features = model.forward_features(x)
        pooled = model.forward_head(features, pre_logits=True)
        expected = model.head(pooled) + torch.tensor(offset)
        torch.testing.assert_close(model(x), expected)
        # A fresh classifier has other classes, and no offset.
        model.reset_classifier(2)
        torch.testing.assert_close(model(x), torch.zeros(2, 2))


@pytest.mark.parametrize("name", ["itnet_nano", "itnet_nano.digits"])
def test_weights_of_the_package_load(name):
    model = timm.create_model(name, pretrained=True).eval()
    expected = create_model("itnet_nano", pretrained="digits")
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected(x))
    assert model.pretrained_cfg["input_size"] == (1, 8, 8)
    other = timm.create_model(name, pretrained=True, num_classes=3)
    assert other(x).shape == (2, 3)
    with pytest.raises(OptionError, match=r"expected weights of itnet_s \(none\), got True"):
        timm.create_model("itnet_s", pretrained=True)


def test_weights_are_grouped_by_layer():
    from timm.models import group_parameters

    model = timm.create_model("infvit_linear_pico")
    groups = group_parameters(model, model.group_matcher())
    assert len(groups) == 1 + 4 + 1
    assert model.no_weight_decay() == {"encoder.table", "encoder.token"}
    with pytest.raises(OptionError, match="set_grad_checkpointing: expected False"):
        model.set_grad_checkpointing()
