"""Logits of a run are divided by its temperature wherever probabilities are reported."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from fredholm.training import evaluate, evaluate_files, load_recipe, predict, train

COURSE = ["training.epochs=2", "model.body.dim=8", "model.body.depth=1", "model.body.heads=2"]


def test_predict_divides_by_the_temperature_of_the_run(tmp_path):
    rng = np.random.default_rng(0)
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "label"])
        for number in range(40):
            writer.writerow([*rng.normal(size=2).round(3), "xy"[number % 2]])
    run = tmp_path / "run"
    train(load_recipe({"data": {"path": str(table)}}, COURSE), run)

    calibration = json.loads((run / "calibration.json").read_text())
    temperature = calibration["temperature"]
    before = predict(run, [table])
    (run / "calibration.json").write_text(
        json.dumps(calibration | {"temperature": 4 * temperature})
    )
    after = predict(run, [table])
    for one, other in zip(before, after):
        shares = np.array(list(one["probabilities"].values())) ** 0.25
        expected = dict(zip(one["probabilities"], shares / shares.sum()))
        assert other["probabilities"] == pytest.approx(expected, abs=1e-6)
        assert other["class"] == one["class"]
    assert any(one["probability"] != other["probability"] for one, other in zip(before, after))

    # The examples of an evaluation have the same probabilities.
    found = evaluate_files(run, [table])
    for example in found["wrong"] + found["right"]:
        assert example["probability"] == pytest.approx(after[example["index"]]["probability"])
    splits = [evaluate(run, split) for split in ("train", "val", "test")]
    probabilities = [row["probability"] for row in after]
    for split in splits:
        for example in split["wrong"] + split["right"]:
            assert min(abs(example["probability"] - other) for other in probabilities) < 1e-6
