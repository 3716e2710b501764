"""What a run will cost, before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fredholm.cli import show
from fredholm.cli.main import main
from fredholm.errors import DataError, OptionError
from fredholm.training import load_recipe, plan_run
from fredholm.training.build import build_dataset, build_model

TINY = [
    "model.body.depth=1",
    "operator=softmax",
    "data.batch_size=64",
    "training.epochs=3",
    "training.ema_decay=null",
]
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def plan():
    return plan_run(load_recipe("digits", TINY), steps=1)


def test_what_can_be_counted_is_counted(plan):
    recipe = load_recipe("digits", TINY)
    train = build_dataset(recipe, "train")
    model = build_model(recipe, train)
    assert plan.data == "real"
    assert plan.samples["train"] == len(train)
    assert (plan.steps, plan.epochs) == (len(train) // 64, 3)
    assert plan.parameters == sum(p.numel() for p in model.parameters())
    assert plan.memory.parameters == pytest.approx(4 * plan.parameters / MEGABYTE)
    assert plan.memory.optimizer == pytest.approx(2 * plan.memory.parameters)
    seconds = plan.epochs * (plan.steps * plan.step_seconds + plan.validation_seconds)
    assert plan.minutes == pytest.approx(seconds / 60)
    assert list(plan.operators) == ["1"]
    assert plan.operators["1"].startswith("Exact(")


def test_what_the_forward_keeps_grows_with_the_batch(plan):
    double = plan_run(load_recipe("digits", [*TINY, "data.batch_size=128"]), steps=1)
    assert double.memory.activations == pytest.approx(2 * plan.memory.activations, rel=0.1)
    # at least the input of every layer: 64 samples, 16 points, 32-bit
    width = load_recipe("digits", TINY)
    train = build_dataset(width, "train")
    model: Any = build_model(width, train)
    u, _ = model.encoder(train.example())
    assert plan.memory.activations > 64 * u[0].numel() * 4 / MEGABYTE
    assert plan.memory.total > plan.memory.activations


def test_without_the_data_pixels_of_their_shape_stand_in(tmp_path, monkeypatch):
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path))
    small = [*TINY, "model.encoder.patch=7", "data.limit=1000", "training.ema_decay=0.9"]
    plan = plan_run(load_recipe("mnist", small), steps=1)
    assert plan.data == "random"
    assert plan.samples == {"train": 1000, "val": 1000}
    assert plan.steps == 1000 // 64
    assert plan.memory.optimizer == pytest.approx(3 * plan.memory.parameters)
    assert not any(tmp_path.iterdir()), "nothing is written"
    with pytest.raises(DataError, match="fredholm data fetch movie-reviews"):
        plan_run(load_recipe("reviews"))


def test_a_recipe_that_cannot_run_here_is_refused_before_the_data(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(OptionError, match=r"training\.devices: received 2; this machine has 1"):
        plan_run(load_recipe("reviews", ["training.devices=2"]))


def test_the_command(plan, capsys):
    assert main(["plan", "digits", *TINY, "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == plan.parameters
    assert found["memory"]["activations"] == pytest.approx(plan.memory.activations)
    show.run_plan(plan, False)
    text = capsys.readouterr().out
    assert f"digits: {plan.parameters:,} parameters on digits\n" in text
    assert f"for 3 epochs of {plan.steps} steps of 64 samples" in text
    assert "layer 1: Exact(" in text
