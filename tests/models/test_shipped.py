"""Weights of the package: the list, their cards, and models built with them."""

from __future__ import annotations

import pytest
import torch

from fredholm.errors import CheckpointError, OptionError
from fredholm.models import create_model, from_pretrained, list_pretrained, pretrained_card
from fredholm.models.shipped import SHIPPED

NAMES = list_pretrained()
EACH, TOGETHER = 1_000_000, 4_000_000


def test_weights_for_digits_are_listed():
    assert "digits" in NAMES
    assert "digits" in list_pretrained("itnet_nano")
    assert list_pretrained("itnet_s") == []


@pytest.mark.parametrize("name", NAMES)
def test_weights_have_a_card_with_the_licence_of_their_data(name):
    card = pretrained_card(name)
    text = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    assert card["licence"]
    assert card["licence"] in text
    assert card["command"] in text
    assert str(card["score"]) in text


def test_weights_are_small():
    sizes = [path.stat().st_size for path in SHIPPED.glob("*/model/*.safetensors")]
    assert len(sizes) == len(NAMES)
    assert max(sizes) <= EACH
    assert sum(sizes) <= TOGETHER


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_equals_the_saved_run(name):
    card = pretrained_card(name)
    model = create_model(card["preset"], pretrained=name)
    saved = from_pretrained(SHIPPED / name / "model")
    assert not model.training
    assert sum(p.numel() for p in model.parameters()) == card["parameters"]
    for key, weight in saved.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], weight, rtol=0, atol=0)


def test_a_real_digit_is_recognised():
    datasets = pytest.importorskip("sklearn.datasets")
    model = create_model("itnet_nano", pretrained="digits")
    digits = datasets.load_digits()
    pictures = torch.tensor(digits.images[:100], dtype=torch.float32)[:, None] / 16
    mean, std = (torch.tensor(model.extra[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        answers = model((pictures - mean) / std).argmax(-1)
    assert (answers == torch.tensor(digits.target[:100])).float().mean() > 0.95


def test_another_head_is_initialised_on_the_same_features():
    whole = create_model("itnet_nano", pretrained="digits")
    other = create_model("itnet_nano", pretrained="digits", head={"outputs": 3})
    pictures = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        assert other(pictures).shape == (2, 3)
        torch.testing.assert_close(other.features(pictures)[0], whole.features(pictures)[0])


def test_unknown_weights_are_refused_by_name():
    with pytest.raises(OptionError, match=r"expected one of .*digits.*, got 'digit'; did you mean"):
        create_model("itnet_nano", pretrained="digit")
    with pytest.raises(
        OptionError, match=r"expected weights of itnet_micro \(kjv-characters\), got 'digits'"
    ):
        create_model("itnet_micro", pretrained="digits")
    with pytest.raises(OptionError, match=r"expected weights of itnet_s \(none\), got 'digits'"):
        create_model("itnet_s", pretrained="digits")


def test_fields_without_their_part_are_refused():
    with pytest.raises(OptionError, match=r"no option 'depth'; did you mean body\.depth\?"):
        create_model("itnet_nano", pretrained="digits", depth=3)


def test_parts_that_mismatch_the_weights_are_refused():
    with pytest.raises(CheckpointError, match="expected the weights of its configuration"):
        create_model("itnet_nano", pretrained="digits", body={"dim": 64})
