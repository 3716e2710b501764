"""A run and its files: schedule, averaged weights, early stopping, saved model, evaluation,
prediction.
"""

from __future__ import annotations

import csv
import json
import shutil
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator
from torch import nn
from torch.optim.swa_utils import AveragedModel

from fredholm.errors import (
    CheckpointError,
    DataError,
    FredholmError,
    OptionError,
    RecipeError,
    ShapeError,
)
from fredholm.files import MEASURED
from fredholm.lab.report.given import read_evaluation
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.callbacks import Averages, Ema
from fredholm.lab.training.checkpoints import list_checkpoints, read_checkpoint
from fredholm.lab.training.checks import check_task
from fredholm.lab.training.fit import Goal
from fredholm.lab.training.grid import recipe_cell, scores_of
from fredholm.lab.training.metrics import summarise
from fredholm.lab.training.module import RecipeLearner, judge_few
from fredholm.lab.training.recipe import EarlyStop
from fredholm.lab.training.run import _goal
from fredholm.lab.training.schedules import Schedule
from fredholm.lab.training.tasks import Classification, Regression, Tokens
from fredholm.training import TrainingFailed, evaluate, explain, load_run, predict, train


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return one finished run, shared by the tests that only read it."""
    from fredholm.training import load_recipe
    from tests.lab.training.conftest import SMALL

    folder = tmp_path_factory.mktemp("runs") / "digits"
    recipe = load_recipe("digits", [*SMALL, "training.epochs=6", "optimizer.lr=5e-3"])
    return train(recipe, folder), folder


def test_a_run_learns_and_writes_its_files(finished):
    result, folder = finished
    rows = rows_of(folder)
    assert list(rows[0]) == [
        "epoch",
        "step",
        "train_loss",
        "val_loss",
        "val_accuracy",
        "lr",
        "seconds",
    ]
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"]) - 0.1
    assert result.metrics["val_accuracy"] > 0.4
    assert result.stopped == "all epochs done"
    assert {p.name for p in folder.iterdir()} >= {
        "recipe.yaml",
        "model",
        "checkpoints",
        "metrics.csv",
        "tensorboard",
        "result.json",
    }
    assert len(list_checkpoints(folder / "checkpoints")) == 2
    assert list((folder / "tensorboard").glob("events.out.*"))


def test_the_saved_model_has_the_best_validation_score(finished):
    result, folder = finished
    best = max(rows_of(folder), key=lambda row: float(row["val_accuracy"]))
    assert result.best_epoch == int(best["epoch"])
    measured = evaluate(folder, "val")
    assert measured["accuracy"] == pytest.approx(result.metrics["val_accuracy"])
    assert measured["loss"] == pytest.approx(result.metrics["val_loss"], rel=1e-4)
    assert (folder / "evaluation-val.json").is_file()


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_warm_up_as_long_as_the_run_is_shortened_with_a_message(tmp_path, recipe, epochs):
    lines: list[str] = []
    chosen = recipe(f"training.epochs={epochs}", "schedule.warmup_epochs=2", "data.batch_size=100")
    train(chosen, tmp_path / "run", report=lines.append)
    assert lines[0] == (
        f"schedule.warmup_epochs: 2 of {epochs} training.epochs; shortened to {epochs / 2:g}"
    )
    rates = [float(row["lr"]) for row in rows_of(tmp_path / "run")]
    assert rates[-1] < 0.1 * chosen.optimizer.lr  # the cosine has come down again
    lines.clear()
    train(recipe("training.epochs=3"), tmp_path / "other", report=lines.append)
    assert not any("warmup" in line for line in lines)


def test_the_largest_seed_is_valid_for_every_generator(tmp_path, recipe):
    options = ("data.augment={shift: 1, flip: true}", "data.mixup=0.4", "data.limit=800")
    chosen = recipe(f"seed={2**63 - 1}", "model.body.dropout=0.1", *options)
    assert train(chosen, tmp_path / "run").epochs == 3


def test_an_evaluation_matches_its_confusion_matrix(finished):
    _, folder = finished
    report = evaluate(folder)
    assert json.loads((folder / "evaluation.json").read_text()) == report
    confusion = torch.tensor(report["confusion"])
    assert confusion.sum() == report["n"]
    assert confusion.diagonal().sum() / report["n"] == pytest.approx(report["accuracy"])
    assert all(e["label"] != e["prediction"] for e in report["wrong"])
    assert all(e["label"] == e["prediction"] for e in report["right"])
    with pytest.raises(OptionError, match="split: expected one of train, val, test, got 'dev'"):
        evaluate(folder, "dev")


@pytest.mark.slow
def test_an_evaluation_during_training_is_not_the_runs(tmp_path, recipe):
    folder = tmp_path / "cell"
    seen = []

    def watch(line):
        if line.startswith("epoch 1"):  # as from a second terminal
            seen.append(evaluate(folder))

    given = recipe("training.epochs=4", "optimizer.lr=1e-2")
    train(given, folder, report=watch)
    assert read_evaluation(folder) is None, "of other weights"
    kept = (folder / "evaluation.json").read_text()
    (folder / "evaluation.json").write_text("[]")
    with pytest.raises(FredholmError, match=r"it holds list\); run fredholm evaluate again"):
        read_evaluation(folder)
    (folder / "evaluation.json").write_text(kept)
    page = explain(folder).read_text()
    found = json.loads((folder / "evaluation.json").read_text())
    assert found["loss"] != seen[0]["loss"]
    assert f"{found['accuracy']:.2%}" in page or f"{found['accuracy']:.3f}" in page
    (folder / "evaluation.json").write_text(json.dumps(seen[0]))
    _, scores = scores_of(recipe_cell(given, folder), lambda line: None)
    assert scores == found
    del seen[0][MEASURED]  # as if somebody had written it by hand
    (folder / "evaluation.json").write_text(json.dumps(seen[0]))
    assert read_evaluation(folder) == seen[0]


def test_predict_preprocesses_image_files_as_training(finished, tmp_path):
    from PIL import Image

    _, folder = finished
    model, place = load_run(folder)
    dataset = build_dataset(place.load_recipe(), "test")
    picture = dataset.images[0, 0].numpy()
    Image.fromarray(picture).save(tmp_path / "small.png")
    Image.fromarray(picture).resize((64, 64), Image.Resampling.BICUBIC).convert("RGB").save(
        tmp_path / "large.png"
    )
    small, large = predict(folder, [tmp_path / "small.png", tmp_path / "large.png"])
    with torch.no_grad():
        logits = model(dataset[0][0][None])[0]
    expected = (logits / place.read_temperature()).softmax(-1)
    assert list(small["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-4)
    assert small["class"] == dataset.classes[int(expected.argmax())]
    assert sum(large["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(DataError, match=r"text.png: not a readable picture"):
        predict(folder, [tmp_path / "text.png"])
    with pytest.raises(DataError, match=r"none.png: no such file"):
        predict(folder, [tmp_path / "none.png"])
    with pytest.raises(CheckpointError, match="no run here"):
        predict(tmp_path, [tmp_path / "small.png"])


def test_summary_counts_rows_as_labels_and_columns_as_predictions():
    logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    report = summarise(logits, torch.tensor([0, 1, 1]), ("cat", "dog"))
    assert report["confusion"] == [[1, 0], [1, 1]]
    assert report["per_class"] == {"cat": 1.0, "dog": 0.5}
    assert [e["index"] for e in report["wrong"]] == [1]
    assert report["auc"] == 0.75
    assert "auc" not in summarise(logits, torch.tensor([1, 1, 1]), ("cat", "dog")), (
        "one class alone has no such area"
    )


def test_schedule_warms_up_linearly_and_ends_at_the_floor(tmp_path, recipe):
    train(
        recipe("training.epochs=4", "schedule.warmup_epochs=2", "schedule.min_lr_ratio=0.1"),
        tmp_path / "run",
    )
    rates = [float(row["lr"]) for row in rows_of(tmp_path / "run")]
    assert rates[1] == pytest.approx(2e-3)
    assert rates[2] < rates[1]
    assert rates[3] == pytest.approx(2e-4)
    shares = [Schedule().share(step, 4, 8, 1) for step in (0, 3, 4, 8, 9)]
    assert shares == pytest.approx([0.25, 1, 1, 0, 0])


def test_averaged_weights_are_validated_and_saved(tmp_path, recipe):
    train(recipe("training.ema_decay=0.9", "training.keep=last"), tmp_path / "run")
    state = read_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[0])
    kept = load_run(tmp_path / "run")[0].state_dict()
    averaged = {k.removeprefix("model."): v for k, v in state["state_dict"].items()}
    current = {k.removeprefix("model."): v for k, v in state["current_model_state"].items()}
    assert all(torch.equal(kept[key], averaged[key]) for key in kept)
    assert any(not torch.equal(kept[key], current[key]) for key in kept)


def test_the_moving_average_follows_its_formula():
    """The decay of update n is min(decay, (1 + n) / (10 + n)); the reference is the recursion."""
    average = Ema(0.5)._kwargs["multi_avg_fn"]
    mean = torch.tensor(0.0)
    expected = 0.0
    for count, value in enumerate([1.0, 4.0, 2.0, 8.0, 3.0, 7.0, 5.0, 9.0, 6.0, 0.0], start=1):
        decay = min(0.5, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * value
        average([mean], [torch.tensor(value)], torch.tensor(count))
    assert float(mean) == pytest.approx(expected)


def test_averaged_weights_equal_torchs_with_buffers_in_any_dtype():
    """Tensors that are collected once per fit give bitwise the result of torch's update, also after
    weights moved in memory and a buffer was replaced.
    """
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2).double())
    rule = Ema(0.9)._kwargs["multi_avg_fn"]
    theirs = AveragedModel(model, multi_avg_fn=rule, use_buffers=False)
    ours = Averages(model, rule)
    ours.begin(model)
    for step in range(6):
        for parameter in model.parameters():
            parameter.data = parameter.data + torch.randn_like(parameter)
        model[1].running_mean = torch.randn(5)
        model[1].num_batches_tracked.fill_(step)
        theirs.update_parameters(model)
        ours.update_parameters(model)
    expected, found = theirs.state_dict(), ours.state_dict()
    assert list(expected) == list(found)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert int(found["n_averaged"]) == 6


def test_the_curve_of_losses_has_every_tenth_step(finished):
    _, folder = finished
    file = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    file.Reload()
    steps = int(rows_of(folder)[-1]["step"])
    points = file.Scalars("train_loss_step")
    assert [point.step for point in points] == list(range(9, steps, 10)) != []


def test_early_stopping_ends_a_run_that_does_not_improve(tmp_path, recipe, monkeypatch):
    scores = [0.5, 0.7, 0.6, 0.7, 0.9]

    def pretend(self):
        self.metrics = {"val_loss": 1.0, "val_accuracy": scores[self.current_epoch]}
        self.log_dict(self.metrics)

    monkeypatch.setattr(RecipeLearner, "on_validation_epoch_end", pretend)
    chosen = recipe("training.epochs=5", "training.early_stop={metric: val_accuracy, patience: 2}")
    result = train(chosen, tmp_path / "run")
    assert result.epochs == 4
    assert result.stopped == "no more improvement"
    assert result.best_epoch == 2


def test_early_stopping_follows_a_metric_of_the_task():
    """The default metric is that of the saved weights; an accuracy of a regression is refused."""
    patient = EarlyStop(patience=2)
    assert _goal(None, Regression()) is None
    assert _goal(patient, Classification()) == Goal("val_accuracy", "max", 2)
    assert _goal(patient, Regression()) == Goal("val_loss", "min", 2)
    assert _goal(patient, Tokens()) == Goal("val_loss", "min", 2)
    own = type("Own", (Regression,), {"metric": ("val_hits", "max")})()
    assert _goal(patient, own) == Goal("val_hits", "max", 2)
    assert _goal(EarlyStop(metric="train_loss", patience=3), Tokens()) == Goal(
        "train_loss", "min", 3
    )
    with pytest.raises(RecipeError, match="expected 'min' for val_loss, got 'max'"):
        _goal(EarlyStop(mode="max"), Regression())


def test_a_time_limit_ends_a_run(tmp_path, recipe):
    result = train(recipe("training.epochs=500", "training.max_minutes=0.01"), tmp_path / "run")
    assert result.stopped == "time is up"
    assert 1 <= result.epochs < 500
    assert result.minutes < 0.5


def test_too_little_time_for_an_epoch_is_reported(tmp_path, recipe):
    for length in ("training.epochs=1", "training.steps=4"):
        with pytest.raises(
            TrainingFailed, match=r"max_minutes: expected .*, got 1e-09; raise it; no"
        ):
            train(recipe(length, "training.max_minutes=1e-9"), tmp_path / "run", overwrite=True)
        assert not (tmp_path / "run" / "model").exists(), "of weights that have learned nothing"


def test_gradients_are_clipped_and_weight_decay_follows_the_groups(tmp_path, recipe, monkeypatch):
    norms, groups = [], []

    def watch(self, optimizer):
        norms.append(
            float(
                nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
            )
        )
        groups.extend(optimizer.param_groups if not groups else [])

    monkeypatch.setattr(RecipeLearner, "on_before_optimizer_step", watch)
    before = RecipeLearner.configure_gradient_clipping

    def after(self, optimizer, *args, **kwargs):
        before(self, optimizer, *args, **kwargs)
        norms[-1] = float(
            nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        )

    monkeypatch.setattr(RecipeLearner, "configure_gradient_clipping", after)
    train(
        recipe("training.clip_norm=0.01", "training.epochs=2", "optimizer.weight_decay=0.3"),
        tmp_path / "run",
    )
    assert max(norms) <= 0.01 * (1 + 1e-4)
    assert {group["weight_decay"] for group in groups} == {0.0, 0.3}


def test_mixed_labels_reach_the_loss(tmp_path, recipe, monkeypatch):
    seen = []
    original = RecipeLearner.__init__

    def wrapped(self, model, chosen, classes, mixer=None, task=None, mesh=None):
        def spy(images, labels, generator):
            out = mixer(images, labels, generator)
            seen.append(out[1])
            return out

        original(self, model, chosen, classes, spy, task, mesh)

    monkeypatch.setattr(RecipeLearner, "__init__", wrapped)
    train(recipe("data.mixup=0.8", "data.cutmix=1.0", "training.epochs=2"), tmp_path / "run")
    labels = torch.cat(seen)
    assert labels.shape[1] == 10
    assert torch.allclose(labels.sum(1), torch.ones(len(labels)))
    assert ((labels > 0).sum(1) == 2).any()


def test_too_little_memory_is_reported(tmp_path, recipe, monkeypatch):
    def loss(self, inputs, labels):
        return torch.empty(1 << 60)

    monkeypatch.setattr(RecipeLearner, "loss", loss)
    with pytest.raises(TrainingFailed, match=r"out of memory: .* MB more, .* parallel.domain=4"):
        train(recipe(), tmp_path / "run")


def test_bf16_trains_with_float32_weights(tmp_path, recipe):
    train(recipe("training.precision=bf16", "training.epochs=2"), tmp_path / "run")
    state = read_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[0])
    assert {value.dtype for value in state["state_dict"].values() if value.is_floating_point()} == {
        torch.float32
    }


def test_random_frequencies_follow_the_run_s_seed(recipe):
    def matrices(seed: int) -> list[torch.Tensor]:
        chosen = recipe("operator=itnet", "model.body.depth=2", f"seed={seed}")
        state = build_model(chosen, dataset).state_dict()
        return [value for key, value in state.items() if key.endswith("fourier.matrix")]

    dataset = build_dataset(recipe(), "val")
    first, again, other = matrices(0), matrices(0), matrices(1)
    assert len(first) == 3, "of the encoder and of two layers"
    assert all(a.equal(b) for a, b in zip(first, again))
    assert not any(a.equal(b) for a, b in zip(first, other))
    assert other[1].equal(other[2]), "layers share one B"


def test_invalid_models_are_refused_before_a_folder_is_created(tmp_path, recipe):
    with pytest.raises(RecipeError, match=r"data.batch_size: expected at most the .*, got 100000"):
        train(recipe("data.batch_size=100000"), tmp_path / "run")
    with pytest.raises(RecipeError, match=r"operator: got {'widht': 3}"):
        train(recipe("operator.widht=3"), tmp_path / "run")
    with pytest.raises(RecipeError, match=r"expected heads that divide dim"):
        train(recipe("model.body.heads=3"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unsupported_metrics_are_refused_before_a_folder_is_created(tmp_path, recipe):
    from fredholm.training import load_recipe

    counts = "data.options={length: 8, train: 8, val: 4, test: 4}"
    refused = {
        "training.early_stop={metric: val_accuracy}": "early_stop.metric: expected one of train",
        "schedule={name: plateau, metric: val_accuracy}": "expected one of train_loss, val_loss",
        "model.head.pool=every": "one number per sample .* leave out model.head.pool=every",
    }
    for change, message in refused.items():
        chosen = load_recipe("ckcnn-adding", [counts, "data.batch_size=4", change])
        with pytest.raises((RecipeError, ShapeError), match=message):
            train(chosen, tmp_path / "run")
    with pytest.raises(ShapeError, match=r"got \(2, 4, 10\); leave out model.head.pool=every"):
        train(recipe("model.head.pool=every"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match=r"data.mixup: .* got 0.3 with labels of regression"):
        check_task(recipe("data.mixup=0.3"), Regression())


def test_evaluating_a_few_samples_does_not_change_random_states(recipe):
    chosen = recipe("data.mixup=0.3", "data.cutmix=1.0", "model.body.dropout=0.1")
    dataset = build_dataset(chosen, "train")
    model = build_model(chosen, dataset)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.register_forward_pre_hook(lambda *_: print(torch.rand(1)))  # as sampled keys are
    drawn = torch.get_rng_state()
    judge_few(model, chosen, dataset)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert drawn.equal(torch.get_rng_state())
    assert all(module.training for module in model.modules())


def test_public_names_are_not_shadowed_by_modules():
    """Importing a module of the package binds its name there, so no public name may equal one."""
    from pathlib import Path

    from fredholm.lab import training

    modules = {path.stem for path in Path(training.__file__).parent.glob("*.py")}
    assert not modules & set(training.__all__)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_without_a_model_names_its_last_epoch(epochs, recipe, tmp_path):
    """The last weights are written at the end, so a killed run has none, whatever its epochs."""
    folder = tmp_path / "run"
    train(recipe("training.keep=last", f"training.epochs={epochs}"), folder)
    shutil.rmtree(folder / "model")
    with pytest.raises(CheckpointError, match=r"expected the weights of the run, .*restore it"):
        load_run(folder)
    (folder / "result.json").unlink()
    count = "2 finished epochs" if epochs == 2 else "one finished epoch"
    with pytest.raises(CheckpointError, match=rf"after {count} .*training.keep=last.*--resume"):
        load_run(folder)
    (folder / "metrics.csv").unlink()
    with pytest.raises(CheckpointError, match="the run has not come to the end of an epoch"):
        load_run(folder)
