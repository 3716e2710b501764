"""Files that change between two calls are detected."""

from __future__ import annotations

import csv
import random
from types import SimpleNamespace

import pytest

from fredholm.errors import DataError, OptionError, RecipeError
from fredholm.lab import training
from fredholm.lab.compare.search import open_search
from fredholm.lab.training.evaluation import check_unchanged

SMALL = [
    "model.body.dim=8",
    "model.body.depth=1",
    "training.epochs=3",
    "data.batch_size=8",
]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "label"], *rows])
    return path


@pytest.fixture
def rows():
    rng = random.Random(0)
    return [[round(rng.gauss(0, 1), 3), i, "xy"[i % 2]] for i in range(60)]


class _Stop(Exception):
    pass


def stop(line):
    if line.startswith("epoch 2"):
        raise _Stop(line)


def test_a_run_is_not_resumed_on_other_samples(tmp_path, rows):
    file = write(tmp_path / "data.csv", rows)
    recipe = training.load_recipe(file, SMALL)
    with pytest.raises(_Stop):
        training.train(recipe, tmp_path / "run", report=stop)
    write(file, rows[::-1])
    with pytest.raises(
        DataError, match=r"data.csv: the files have changed since the run was trained"
    ):
        training.train(recipe, tmp_path / "run", resume=True)
    write(file, rows)
    assert training.train(recipe, tmp_path / "run", resume=True).epochs == 3


def test_a_resume_does_not_reuse_measurements_of_other_files(tmp_path, rows):
    file = write(tmp_path / "data.csv", rows)
    recipe = training.load_recipe(file, [*SMALL, "training.keep=best"])
    with pytest.raises(_Stop):
        training.train(recipe, tmp_path / "run", report=stop)
    training.evaluate(tmp_path / "run")
    place = tmp_path / "run" / "evaluation.json"
    assert place.exists()
    training.train(recipe, tmp_path / "run", resume=True)
    assert not place.exists()


def test_a_sweep_retrains_on_changed_files(tmp_path, rows):
    file = write(tmp_path / "data.csv", rows)
    lines = []
    given = {"overrides": [*SMALL, "seed=0"], "folder": tmp_path / "sweep"}
    (before,), _ = training.sweep(file, **given)
    (again,), _ = training.sweep(file, **given, report=lines.append)
    assert again == before
    assert not [line for line in lines if line.startswith("epoch")], "the result was read"
    write(file, [[*row[:2], "x"] for row in rows[:30]] + [[*row[:2], "y"] for row in rows[30:]])
    (after,), _ = training.sweep(file, **given, report=lines.append)
    assert [line for line in lines if "epoch 2" in line], "trained on the new labels"
    assert after["loss"] != before["loss"]


def test_a_comparison_is_not_resumed_on_changed_files(tmp_path, rows):
    file = write(tmp_path / "data.csv", rows)
    given = {"minutes": 1.0, "operators": "softmax", "out": tmp_path / "compare"}
    search = open_search(str(file), **given)
    search._save()
    write(file, rows[::-1])
    with pytest.raises(DataError, match=r"expected the files of the comparison .* have changed"):
        open_search(str(file), **given)


def test_a_comparison_is_not_resumed_with_a_changed_recipe(tmp_path):
    recipe, code = tmp_path / "mine.yaml", tmp_path / "mine.py"

    def edit(lr, said=""):
        code.write_text(f"word = {said!r}")
        recipe.write_text(
            f"import: mine.py\ndata: {{name: digits}}\nmodel: {{name: backbone_nano}}\n"
            f"# a comment\noptimizer: {{lr: {lr}}}\n"
        )

    def go_on(**given):
        given = {"operators": "softmax", "out": tmp_path / "compare"} | given
        return open_search(str(recipe), 1.0, **given)

    edit(1e-3)
    go_on()._save()
    edit("1.0e-3")
    assert go_on().state["lr"] == 1e-3
    for changed in ((2e-3,), (1e-3, "other")):
        edit(*changed)
        with pytest.raises(RecipeError, match=r"mine.yaml: expected the recipe .* has changed"):
            go_on()
    differing = r"comparison with changes \['seed=3'\], got one with changes \[\]; choose"
    with pytest.raises(OptionError, match=differing):
        go_on(changes=["seed=3"])


def test_unsuitable_options_of_files_are_refused_or_reported(tmp_path, rows):
    file = write(tmp_path / "data.csv", rows)
    phases = ["training.phases=[{steps: 2, max_length: 2}, {steps: 2}]", "training.steps=4"]
    for options, message in (
        (["data.mixup=0.5"], "data.mixup: .*remove it"),
        (phases, "no max_length"),
    ):
        with pytest.raises(RecipeError, match=message):
            training.train(training.load_recipe(file, [*SMALL, *options]), tmp_path / "run")
    numbers = write(tmp_path / "numbers.csv", [[*row[:2], row[0] * 2.5] for row in rows])
    recipe = training.load_recipe(numbers, [*SMALL, "training.label_smoothing=0.1"])
    lines = []
    training.train(recipe, tmp_path / "run", report=lines.append)
    assert "training.label_smoothing: without effect, since the labels are regression" in lines


def test_another_scaling_of_a_catalogue_set_is_named():
    """Sets of the catalogue have a scaling but no path and no files."""
    before, now = ({"scaling": {"mean": [mean], "std": [1.0]}} for mean in (0.0, 5.0))
    dataset = SimpleNamespace(name="stays", source=now)
    check_unchanged({"source": now}, dataset)
    with pytest.raises(
        DataError, match=r"^stays: expected the mean and .* in column 1 of the model's"
    ):
        check_unchanged({"source": before}, dataset)


def test_other_words_of_an_earlier_version_are_named():
    """Earlier versions also gave words of the test rows columns, which such a model has."""
    before, now = ({"words": {"zone": words}} for words in (["A", "B", "G"], ["A", "B"]))
    dataset = SimpleNamespace(name="zones", source=now)
    check_unchanged({"source": now}, dataset)
    with pytest.raises(DataError, match=r"^zones: expected the words of each column as in train"):
        check_unchanged({"source": before}, dataset)
