"""Recipes train the weights that come with the package, and their cards name the command."""

from __future__ import annotations

import shlex

import pytest
from evidence.weights import WEIGHTS, card_text, check_sizes, score_of

from fredholm.lab.checkout import ROOT
from fredholm.models import list_pretrained, pretrained_card
from fredholm.models.shipped import SHIPPED
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


@pytest.mark.parametrize("name", list_pretrained())
def test_a_card_equals_the_generated_text_and_names_its_recipe(name):
    text = card_text(name, pretrained_card(name))
    assert (SHIPPED / name / "README.md").read_text(encoding="utf-8") == text

    # The package's own recipes need no place.
    recipe = f"{WEIGHTS[name].recipe}.yaml"
    in_checkout = (ROOT / "evidence" / "recipes" / recipe).is_file()
    assert (f"evidence/recipes/{recipe}" in text) == in_checkout
    assert (ROOT / "recipes" / recipe).is_file() != in_checkout


def test_the_first_measured_score_is_chosen():
    assert score_of({"accuracy": 0.5, "loss": 1.0}) == ("accuracy", 0.5)
    assert score_of({"accuracy": 0.5, "scores": {"bits": 2.0}}) == ("bits", 2.0)
    assert score_of({"loss_name": "relative L2 error", "loss": 0.1}) == ("relative L2 error", 0.1)


def test_large_weights_are_refused(tmp_path):
    model = tmp_path / "wide" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(bytes(1_000_001))
    with pytest.raises(SystemExit, match=r"got wide: 1,000,001 bytes; take smaller models"):
        check_sizes(tmp_path)
