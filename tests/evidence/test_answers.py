"""Rows of results store the answer to every test sample, whose mean is the row's score."""

from __future__ import annotations

import json

import numpy as np
import pytest
from evidence.kit.answers import answers_in, pack, unpack
from evidence.kit.grid import Section, run_sections
from evidence.kit.subject import Options

from fredholm.training import evaluate, load_recipe, train

RNG = np.random.default_rng(0)
TINY = Section(
    "Tiny",
    "digits",
    ("training.epochs=1", "data.limit=64", "model.body.depth=1"),
    {"a": ()},
    seeds=1,
    further={"exactly": ("operator.strategy=exact",)},
)


def test_right_and_wrong_answers_are_packed_without_loss():
    values = (RNG.random(10_001) < 0.8).astype(float)
    packed = pack(values)
    assert (unpack(packed) == values).all()
    assert len(json.dumps(packed)) < 1_800


def test_errors_are_packed_to_three_digits_and_stay_finite():
    values = RNG.lognormal(size=500)
    assert unpack(pack(values)) == pytest.approx(values, rel=1e-3)
    assert np.isfinite(unpack(pack([1e9, 0.5]))).all()
    assert unpack(pack([0.5] * 2)).tolist() == [0.5, 0.5]


def test_mismatched_or_missing_answers_are_not_used():
    row = {"accuracy": 0.75, "answers": {"accuracy": pack([1, 1, 1, 0])}}
    found = answers_in(row, "accuracy")
    assert found is not None
    assert found.tolist() == [1, 1, 1, 0]
    assert answers_in(row | {"accuracy": 0.5}, "accuracy") is None
    assert answers_in(row | {"loss": 0.75}, "loss") is None
    assert answers_in({"accuracy": 0.75}, "accuracy") is None
    missing = {"loss": 1.0, "answers": {"loss": pack([1.0, float("nan")])}}
    assert answers_in(missing, "loss") is None


def test_an_evaluation_gives_a_number_for_every_sample(tmp_path):
    """Right or wrong for a class, the sample's loss for points with classes."""
    small = ["training.epochs=1", "data.limit=64", "model.body.depth=1"]
    train(load_recipe("digits", small), tmp_path / "run")
    found = evaluate(tmp_path / "run", each=True)
    assert found["each"]["measure"] == "accuracy"
    assert len(found["each"]["values"]) == found["n"]
    assert np.mean(found["each"]["values"]) == pytest.approx(found["accuracy"])
    assert "each" not in json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert "each" not in evaluate(tmp_path / "run")

    X = RNG.normal(size=(24, 5, 1))
    y = np.where(X[..., 0] > 0, "up", "down")
    np.savez(tmp_path / "steps.npz", X=X, y=y)
    body = ["model.body.dim=8", "model.body.depth=1", "model.body.heads=2"]
    short = ["operator=softmax", "training.epochs=1", "schedule.warmup_epochs=0"]
    train(load_recipe(str(tmp_path / "steps.npz"), [*body, *short]), tmp_path / "steps")
    found = evaluate(tmp_path / "steps", each=True)
    assert found["each"]["measure"] == "loss"
    assert np.mean(found["each"]["values"]) == pytest.approx(found["loss"], rel=1e-5)


def test_a_row_of_a_section_stores_its_answers(tmp_path):
    options = Options(results=tmp_path / "results", runs=tmp_path / "runs")
    run_sections({"tiny": TINY}, "tiny.json", options)
    [row] = json.loads((tmp_path / "results" / "tiny.json").read_text())["sections"]["tiny"]
    for metric in ("accuracy", "exactly"):
        values = answers_in(row, metric)
        assert values is not None
        assert len(values) == row["n"]
