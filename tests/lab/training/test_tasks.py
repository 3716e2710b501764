"""Tasks beyond one class per sample: classes at every point, and numbers."""

from __future__ import annotations

import csv
import json
import math
import warnings

import numpy as np
import pytest
import torch

from fredholm.errors import DataError, OptionError, RecipeError, ShapeError
from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.evaluation import load_run
from fredholm.lab.training.metrics import spearman
from fredholm.lab.training.tasks import IGNORED, Regression, create_task
from fredholm.training import evaluate, load_recipe, predict, sweep, train

from ...tolerances import assert_close

SMALL = (
    "data.options.train=64",
    "data.options.val=8",
    "data.options.test=8",
    "data.batch_size=16",
    "training.epochs=1",
)


def test_points_without_labels_do_not_count():
    task = create_task("steps")
    labels = torch.tensor([[0, IGNORED], [1, 2]])
    logits = torch.randn(2, 2, 3)
    expected = torch.nn.functional.cross_entropy(logits.mT, labels, ignore_index=IGNORED)
    assert_close(task.loss(logits, labels), expected)
    loss, correct, count = task.sums(logits, labels)
    assert count == 3
    assert_close(loss / count, expected)
    assert int(correct) == int((logits.argmax(-1) == labels).sum())


def test_a_regression_has_no_accuracy():
    task = create_task("regression")
    outputs = torch.randn(5, 1)
    labels = torch.randn(5)
    loss, _, count = task.sums(outputs, labels)
    assert task.metrics([float(loss), 0.0, count]) == {
        "val_loss": pytest.approx(float(task.loss(outputs, labels)))
    }
    report = task.summary([(outputs, labels)], ())
    assert report["loss"] == pytest.approx(float(task.loss(outputs, labels)))
    assert "accuracy" not in report


def test_fields_of_batches_with_other_numbers_of_points_are_evaluated():
    """Points beyond those of a sample are NaN in its labels, and do not count."""
    task = create_task("field")
    batches = []
    errors = []
    for points in (3, 5):
        outputs = torch.randn(2, points, 1)
        labels = torch.randn(2, 1, points)
        labels[1, :, -1] = torch.nan
        batches.append((outputs, labels))
        for output, label in zip(outputs[..., 0], labels[:, 0]):
            real = ~label.isnan()
            difference = output[real] - label[real]
            errors.append(float(difference.norm() / label[real].norm()))
    summary = task.summary(batches, ())
    assert summary["n"] == 4
    assert summary["loss"] == pytest.approx(sum(errors) / 4, rel=1e-6)
    assert summary["worst"] == pytest.approx(max(errors), rel=1e-6)


def test_a_correlation_of_equal_answers_is_null_in_json():
    outputs = torch.ones(4, 1)
    labels = torch.arange(4.0)
    for pair in ((outputs, labels), (labels[:, None], outputs[:, 0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            report = create_task("regression").summary([pair], ())
        assert json.loads(json.dumps(report, allow_nan=False))["spearman"] is None
        assert report["pearson"] is None
        assert math.isnan(spearman(*pair)), "a conversion's score stays a number"


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("steps", (2, 3), "logits \\(2, 4, classes\\) for a class at every point, .*pool=every"),
        ("regression", (2, 4), "outputs=1"),
        (
            "classification",
            (2, 4, 3),
            "logits \\(2, classes\\) for one class per sample, .*pool=every",
        ),
    ],
)
def test_mismatched_heads_are_refused(name, shape, message):
    labels = torch.zeros((2, 4) if name == "steps" else (2,), dtype=torch.long)
    with pytest.raises(ShapeError, match=message):
        create_task(name).loss(torch.randn(shape), labels)


def test_the_recipe_of_copy_memory_trains(tmp_path):
    recipe = load_recipe("ckcnn-copy-memory", [*SMALL, "data.options.delay=5"])
    result = train(recipe, tmp_path / "run")
    assert result.parameters == 15526
    assert 0 <= result.metrics["val_accuracy"] <= 1
    assert evaluate(tmp_path / "run")["n"] == 8 * 25
    with pytest.raises(OptionError, match=r"files: expected .* got none"):
        predict(tmp_path / "run", [])
    inputs, _ = build_dataset(recipe, "test").batch([0, 1])
    np.savez(tmp_path / "new.npz", X=inputs.numpy())
    answers = predict(tmp_path / "run", [tmp_path / "new.npz"])
    assert [len(row["classes"]) for row in answers] == [25, 25]


def test_the_recipe_of_adding_trains(tmp_path):
    lines = []
    recipe = load_recipe("ckcnn-adding", [*SMALL, "data.options.length=12"])
    result = train(recipe, tmp_path / "run", report=lines.append)
    assert set(result.metrics) == {"train_loss", "val_loss"}
    assert "accuracy" not in lines[0]
    assert evaluate(tmp_path / "run")["loss"] > 0
    config = json.loads((tmp_path / "run/model/config.json").read_text())["config"]
    assert config["encoder"]["length"] == 12


def test_the_metric_of_a_task_selects_weights_and_is_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(Regression, "metric", ("val_hits", "max"))
    monkeypatch.setattr(
        Regression, "metrics", lambda self, sums: {"val_loss": sums[0] / sums[2], "val_hits": 0.5}
    )
    recipe = load_recipe("ckcnn-adding", [*SMALL, "data.options.length=12"])
    result = train(recipe, tmp_path / "run")
    assert list(result.metrics) == ["train_loss", "val_loss", "val_hits"]
    table = (tmp_path / "run/metrics.csv").read_text().splitlines()
    assert table[0] == "epoch,step,train_loss,val_loss,val_accuracy,val_hits,lr,seconds"
    assert table[1].split(",")[5] == "0.5"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.image_size=8", "data.image_size: .*copy-memory holds sequence"),
        ("data.tokens=words", "data.tokens: .*copy-memory holds sequence"),
        ("model.encoder.length=9", "model.encoder.length: expected in the data set"),
    ],
)
def test_options_of_other_data_are_refused(override, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("ckcnn-copy-memory", [override])


def test_a_regression_is_swept_by_its_loss(tmp_path):
    cells, table = sweep(
        "ckcnn-adding", [*SMALL, "data.options.length=8", "operator.omega=1.0,10.0"], tmp_path
    )
    assert [row["metric"] for row in table] == ["loss", "loss"]
    assert table[0]["mean"] == cells[0]["loss"]
    assert "| cell | test loss |" in (tmp_path / "table.md").read_text()


def test_a_batch_without_labels_has_no_loss(tmp_path):
    """Series without labels among labelled ones, one per batch; the loss of an epoch is a mean over
    points, which differ in number between series.
    """
    outputs = torch.randn(2, 3, 4, requires_grad=True)
    loss = create_task("steps").loss(outputs, torch.full((2, 3), IGNORED), smoothing=0.1)
    (given,) = torch.autograd.grad(loss, outputs)
    assert float(loss) == 0.0
    assert not given.any()
    for task in ("steps", "tokens"):
        with pytest.raises(DataError, match="no point of the split has a label"):
            create_task(task).summary([(outputs, torch.full((2, 3), IGNORED))], ())
        with pytest.raises(DataError, match="no point of the split has a label"):
            create_task(task).metrics([0.0, 0.0, 0.0])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6, 2)).astype("f4")
    y = (x[..., 0] > 0).astype(float)
    y[::3], y[1::3, 1:] = np.nan, np.nan
    np.savez(tmp_path / "s.npz", X=x, y=y)
    small = ["operator=softmax", "model.body.depth=1", "model.body.dim=8", "model.body.heads=2"]
    still = ["optimizer.lr=1e-12", "training.epochs=1", "data.batch_size=1"]
    recipe = load_recipe(str(tmp_path / "s.npz"), [*small, *still, "training.label_smoothing=0.0"])
    train(recipe, tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]
    model, _ = load_run(tmp_path / "run")
    dataset = build_dataset(recipe, "train")
    inputs, labels = dataset.batch(range(len(dataset)))
    with torch.no_grad():
        expected = create_task("steps").loss(model.train()(inputs), labels)
    assert float(rows[0]["train_loss"]) == pytest.approx(float(expected), abs=1e-4)
