"""Estimates of the cost of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from fredholm.errors import DataError, OptionError
from fredholm.lab.cli import show
from fredholm.lab.cli.main import main
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.planning import _batches, _longest, _stretches
from fredholm.models import Model
from fredholm.training import load_recipe, plan_run
from tests.lab.data.test_language import write_kjv

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


def test_the_plan_counts_samples_parameters_memory_and_minutes(plan):
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


def test_a_double_precision_run_is_measured_in_float64(plan):
    double = plan_run(load_recipe("digits", [*TINY, "training.precision=64"]), steps=1)
    assert double.memory.parameters == pytest.approx(2 * plan.memory.parameters)
    assert double.memory.activations == pytest.approx(2 * plan.memory.activations, rel=0.1)


def test_weight_dropout_is_part_of_the_measured_step(plan):
    dropped = plan_run(load_recipe("digits", [*TINY, "training.weight_dropout=0.5"]), steps=1)
    assert dropped.memory.activations > plan.memory.activations, "each weight's own"


def test_saved_activations_grow_with_the_batch(plan):
    double = plan_run(load_recipe("digits", [*TINY, "data.batch_size=128"]), steps=1)
    assert double.memory.activations == pytest.approx(2 * plan.memory.activations, rel=0.1)
    # at least the input of every layer: 64 samples, 16 points, 32-bit
    width = load_recipe("digits", TINY)
    train = build_dataset(width, "train")
    model: Any = build_model(width, train)
    u, _ = model.encoder(train.example())
    assert plan.memory.activations > 64 * u[0].numel() * 4 / MEGABYTE
    assert plan.memory.total > plan.memory.activations


def test_the_earliest_limit_ends_the_run():
    few = [*TINY, "training.accumulate=4", "training.steps=3"]
    plan = plan_run(load_recipe("digits", few), steps=1)
    assert plan.steps > 12, "an epoch has more batches"
    assert (plan.epochs, plan.batches, plan.limited) == (1, 12, False)
    seconds = 12 * plan.step_seconds + plan.validation_seconds
    assert plan.minutes == pytest.approx(seconds / 60)
    plan = plan_run(load_recipe("digits", [*TINY, "training.max_minutes=1e-5"]), steps=1)
    assert (plan.epochs, plan.minutes, plan.limited) == (1, pytest.approx(1e-5), True)
    assert plan.batches < plan.steps
    assert _batches(8, 10, 4) == 28, "each epoch ends with a step of two batches"


def test_phases_are_weighted_by_their_batches(tmp_path):
    given = [f"data.path={write_kjv(tmp_path)}", "data.max_length=24", "data.batch_size=8"]
    given += ["model.body.depth=1", "training.epochs=null"]

    def planned(*phases):
        steps = sum(steps for steps, _ in phases)
        text = ", ".join(f"{{steps: {steps}, max_length: {most}}}" for steps, most in phases)
        more = [f"training.steps={steps}", f"training.phases=[{text}]"]
        return load_recipe("itnet-kjv", [*given, *more])

    recipe = planned((4, 3), (5, 24), (1, 6))
    assert _stretches(recipe, 100) == {0: 4, 4: 5, 9: 1}
    ended = recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"epochs": 1, "accumulate": 2})}
    )
    assert _stretches(ended, 11) == {0: 8, 4: 3}
    assert _longest(recipe.training.phases) == 4
    seen = []
    inner = Model.forward

    def forward(self, inputs, *rest, **given):
        seen.append(inputs.shape[-1])
        return inner(self, inputs, *rest, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "forward", forward)
        plan = plan_run(recipe, steps=1)
    assert seen[:5] == [24, 24, 3, 24, 6], "memory of the longest, then a step of each"
    assert plan.batches == 10


def test_missing_data_are_replaced_by_random_inputs_of_their_shape(tmp_path, monkeypatch):
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


def test_an_unsupported_recipe_is_refused_before_reading_data(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(OptionError, match=r"devices: expected at most the 1 GPUs .*, got 2"):
        plan_run(load_recipe("reviews", ["training.devices=2"]))


def test_the_command_prints_the_plan(plan, capsys):
    assert main(["plan", "digits", *TINY, "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == plan.parameters
    assert found["memory"]["activations"] == pytest.approx(plan.memory.activations)
    show.run_plan(plan, False)
    text = capsys.readouterr().out
    assert f"digits: {plan.parameters:,} parameters on digits\n" in text
    assert f"for 3 epochs of {plan.steps} steps of 64 samples" in text
    assert "layer 1: Exact(" in text
    show.run_plan(replace(plan, epochs=2, batches=plan.steps + 5, limited=True), False)
    text = capsys.readouterr().out
    assert f"for {plan.steps + 5} steps in 2 epochs of {plan.steps} steps of 64" in text
    assert text.splitlines()[2].endswith("s, ended by training.max_minutes")
