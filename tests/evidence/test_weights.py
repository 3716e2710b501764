"""Recipes train the weights that come with the package, and their cards name the command."""

from __future__ import annotations

import shlex

import pytest
from evidence.weights import WEIGHTS, check_sizes, score_of

from fredholm.models import list_pretrained, pretrained_card
from fredholm.training import load_recipe


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_trained_by_a_recipe(name):
    chosen = WEIGHTS[name]
    assert load_recipe(chosen.recipe, chosen.overrides).model.name == chosen.preset


@pytest.mark.parametrize("name", list_pretrained())
def test_the_command_of_a_card_is_that_of_the_weights(name):
    chosen = WEIGHTS[name]
    words = shlex.split(pretrained_card(name)["command"])
    assert words == ["fredholm", "train", chosen.recipe, *chosen.overrides]


def test_a_score_is_the_first_measured():
    assert score_of({"accuracy": 0.5, "loss": 1.0}) == ("accuracy", 0.5)
    assert score_of({"accuracy": 0.5, "scores": {"bits": 2.0}}) == ("bits", 2.0)
    assert score_of({"loss_name": "relative L2 error", "loss": 0.1}) == ("relative L2 error", 0.1)


def test_large_weights_are_refused(tmp_path):
    model = tmp_path / "wide" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(bytes(1_000_001))
    with pytest.raises(SystemExit, match=r"got wide: 1,000,001 bytes; take smaller models"):
        check_sizes(tmp_path)
