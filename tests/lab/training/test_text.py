"""A run on texts: train, evaluate with the saved vocabulary, predict lines; refusals of recipes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from fredholm.errors import DataError, OptionError, RecipeError
from fredholm.lab.cli.main import main
from fredholm.lab.data.catalogue.movie_reviews import FILE, place_of
from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.monitors import StepMonitor
from fredholm.models.trajectory import trajectory
from fredholm.training import evaluate, explain, load_recipe, load_run, predict, train
from tests.lab.data.fixtures import write_reviews

SMALL = [
    *(
        "training.epochs=2",
        "data.batch_size=8",
        "schedule.warmup_epochs=1",
        "optimizer.lr=1e-2",
        "data.min_count=1",
    ),
    *(
        "operator=softmax",
        "model.body.depth=1",
        "model.body.dim=16",
        "model.body.heads=2",
        "model.body.dropout=0",
        "training.ema_decay=null",
    ),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    place = write_reviews(folder / "reviews")
    lines = []
    recipe = load_recipe("reviews", [*SMALL, f"data.path={place}", "data.max_length=5"])
    return train(recipe, folder / "run", report=lines.append), folder / "run", lines


def test_the_run_reports_truncated_texts(finished):
    result, run, lines = finished
    count = len(build_dataset(load_run(run)[1].load_recipe(), "train"))
    assert lines[0] == f"{count} of {count} texts are longer than 5 tokens and lost their end"
    assert result.epochs == 2


def test_the_vocabulary_is_saved_with_the_model(finished):
    _, run, _ = finished
    saved = json.loads((run / "model" / "config.json").read_text())
    assert saved["config"]["encoder"]["kind"] == "text"
    words = saved["extra"]["vocabulary"]["words"].split()
    assert saved["config"]["encoder"]["vocabulary"] == 2 + len(words)
    assert saved["config"]["encoder"]["max_length"] == saved["extra"]["max_length"] == 5
    # Other reviews in the run's folder change the training split, but not the token numbers.
    folder = Path(load_run(run)[1].load_recipe().data.path or "")
    before = (evaluate(run)["loss"], (folder / FILE).read_bytes())
    others = b"\r\n9001\t2.0\tzebra zebra zebra\r\n9002\t2.0\tquite new zebra words"
    assert all(place_of(text) > 0.3 for text in ("zebra zebra zebra", "quite new zebra words")), (
        "they join the training split"
    )
    try:
        (folder / FILE).write_bytes(before[1] + others)
        assert evaluate(run)["loss"] == before[0]
    finally:
        (folder / FILE).write_bytes(before[1])


def test_evaluate_and_predict_agree(finished, tmp_path):
    _, run, _ = finished
    report = evaluate(run)
    assert report["n"] == sum(map(sum, report["confusion"]))
    model, place = load_run(run)
    text = "A great film ."
    file = tmp_path / "texts.txt"
    file.write_text(f"\n{text}\nan unheard word, and far too many of them\n", encoding="utf-8")
    first, second = predict(run, [file])
    assert first["file"] == f"{file}:2"
    assert (first["truncated"], second["truncated"]) == (False, True)
    words = model.extra["vocabulary"]["words"].split()
    numbers = torch.tensor([[2 + words.index(word) for word in ("a", "great", "film", ".")]])
    with torch.no_grad():
        expected = (model(numbers)[0] / place.read_temperature()).softmax(-1)
    assert list(first["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "only empty lines"), (b" \n\n", "only empty lines"), (b"\xff\xfe", "expected UTF-8")],
)
def test_files_without_texts_are_refused(finished, tmp_path, content, message):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        predict(finished[1], [tmp_path / "t.txt"])
    with pytest.raises(DataError, match="no such file"):
        predict(finished[1], [tmp_path / "none.txt"])


def test_a_trained_model_accepts_some_overrides(finished):
    _, run, _ = finished
    evaluate(run)
    changed = evaluate(run, overrides=["model.body.dropout=0.4"])
    assert changed["overrides"] == ["model.body.dropout=0.4"]
    assert json.loads((run / "evaluation-model.body.dropout=0.4.json").read_text()) == changed
    assert "overrides" not in json.loads((run / "evaluation.json").read_text())
    with pytest.raises(OptionError, match=r"got 'dropuot'; did you mean body\.dropout"):
        evaluate(run, overrides=["model.dropuot=0.4"])
    with pytest.raises(OptionError, match=r"expected model\.PART\.KEY=VALUE or operator"):
        evaluate(run, overrides=["training.epochs=3"])


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("reviews", "data.mixup=0.2", "data.mixup: .* movie-reviews holds text, got 0.2"),
        (
            "reviews",
            "data.augment.flip=true",
            "data.augment.flip: .* movie-reviews holds text, got True",
        ),
        ("reviews", "data.image_size=8", "data.image_size"),
        ("reviews", "data.tokens=letters", "or 'characters', got 'letters'"),
        (
            "reviews",
            "model.encoder.vocabulary=9",
            "model.encoder.vocabulary: expected in the data set, got 9 here",
        ),
        ("reviews", "model.encoder.max_length=9", "expected in data.max_length, got 9 here"),
        ("digits", "data.max_length=9", "data.max_length: .* digits holds images, got 9"),
    ],
)
def test_recipes_that_mix_texts_and_images_are_refused(recipe, override, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe, [override])


def test_texts_as_bytes_are_trained(tmp_path):
    place = write_reviews(tmp_path / "reviews")
    recipe = load_recipe(
        "reviews", [*SMALL, f"data.path={place}", "data.tokens=bytes", "data.min_count=null"]
    )
    train(recipe, tmp_path / "run")
    model, _ = load_run(tmp_path / "run")
    assert model.config.encoder.vocabulary == 257
    assert model.extra["vocabulary"] == {"kind": "bytes", "words": ""}


@pytest.mark.slow
def test_a_continuous_run_writes_its_trajectory_and_runs_at_other_depths(tmp_path):
    place = write_reviews(tmp_path / "reviews")
    sizes = [
        "model.body.dim=8",
        "model.body.heads=2",
        "model.body.depth=2",
        "model.body.mlp_ratio=1.0",
        "data.batch_size=8",
        "data.min_count=1",
    ]
    recipe = load_recipe(
        "continuous-reviews",
        [*sizes, "training.epochs=2", "schedule.warmup_epochs=1", f"data.path={place}"],
    )
    run = tmp_path / "run"
    train(recipe, run)
    rows = list(csv.DictReader((run / "monitors.csv").open()))
    assert [(row["epoch"], row["step"]) for row in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "1"),
        ("2", "2"),
    ]
    assert [float(row["time"]) for row in rows[:2]] == [1.0, 2.0]
    model, _ = load_run(run)
    inputs, _ = build_dataset(recipe, "val").batch(range(len(build_dataset(recipe, "val"))))
    last = trajectory(model, inputs[:64])  # two epochs: the kept model is that of the better one
    found = [
        [float(row["energy"]) for row in rows if row["epoch"] == epoch] for epoch in ("1", "2")
    ]
    assert any(energy == pytest.approx(last["energy"], rel=1e-5) for energy in found)
    twice, same = evaluate(run, overrides=["model.body.steps=4"]), evaluate(run)
    assert twice["overrides"] == ["model.body.steps=4"]
    assert twice["loss"] != same["loss"]
    with torch.no_grad():
        dataset = build_dataset(recipe, "test")
        numbers, labels = dataset.batch(range(len(dataset)))
        expected = torch.nn.functional.cross_entropy(model(numbers, steps=4), labels)
    assert twice["loss"] == pytest.approx(float(expected), rel=1e-4)
    page = explain(run)
    assert 'id="steps"' in page.read_text(encoding="utf-8")


def test_a_resumed_run_has_each_step_once(tmp_path, monkeypatch):
    place = write_reviews(tmp_path / "reviews")
    sizes = [
        "model.body.dim=8",
        "model.body.heads=2",
        "model.body.depth=1",
        "data.batch_size=8",
        f"data.path={place}",
        "data.min_count=1",
    ]
    recipe = load_recipe(
        "continuous-reviews", [*sizes, "training.epochs=2", "schedule.warmup_epochs=1"]
    )
    train(recipe, tmp_path / "whole")
    original = StepMonitor.on_validation_end

    def stop(self, trainer, module):
        original(self, trainer, module)
        if trainer.current_epoch == 1 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise RuntimeError("power cut")

    monkeypatch.setattr(StepMonitor, "on_validation_end", stop)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "run", resume=True)
    whole, again = ((tmp_path / name / "monitors.csv").read_text() for name in ("whole", "run"))
    assert whole == again


def test_trajectories_are_recorded_in_double_precision(tmp_path):
    sizes = ["model.body.dim=8", "model.body.heads=2", "data.limit=40", "data.batch_size=20"]
    double = ["training.precision=64", "training.epochs=1", "schedule.warmup_epochs=0"]
    model = ["model=continuous_vit_micro", "operator=softmax"]
    train(load_recipe("digits", [*model, *sizes, *double]), tmp_path / "run")
    assert list(csv.DictReader((tmp_path / "run" / "monitors.csv").open()))


def test_the_command_line_reads_texts_and_overrides(finished, tmp_path, capsys):
    _, run, _ = finished
    (tmp_path / "t.txt").write_text("a fine film\n", encoding="utf-8")
    assert main(["predict", str(run), str(tmp_path / "t.txt")]) == 0
    assert "t.txt:1: " in capsys.readouterr().out
    assert main(["evaluate", str(run), "model.body.dropout=0.2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overrides"] == ["model.body.dropout=0.2"]
    assert main(["evaluate", str(run), "model.body.depth=3"]) == 2
    assert "expected the weights of its configuration" in capsys.readouterr().err
