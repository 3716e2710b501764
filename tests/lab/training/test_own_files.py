"""A user's files, from a path to predictions: each kind trains, is evaluated with the user's names,
and predicts new samples.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.errors import CheckpointError, DataError, OptionError, RecipeError
from fredholm.lab.cli.main import main
from fredholm.lab.data.files import open_files
from fredholm.lab.training import usual
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.calibration import fit_temperature
from fredholm.lab.training.evaluation import check_unchanged
from fredholm.lab.training.own_files import names_files
from fredholm.lab.training.tasks import create_task
from fredholm.training import (
    evaluate,
    evaluate_files,
    load_recipe,
    predict,
    train,
    write_predictions,
)

RNG = np.random.default_rng(0)
SMALL = ["model.body.dim=8", "model.body.depth=1", "model.body.heads=2", "operator=softmax"]
SHORT = [*SMALL, "training.epochs=1", "schedule.warmup_epochs=0"]


def series(path: Path) -> None:
    rows = ["id,time,x,mood"]
    for i in range(20):
        rows += [
            f"{i},{k + (k > 2)},{i % 2 + k / 9:.3f},{'calm' if i % 2 else 'wild'}"
            for k in range(4 + i % 3)
        ]
    path.write_text("\n".join(rows) + "\n")


def rows(path: Path) -> None:
    cells = [f"{i % 7},{'ab'[i % 2]},{1000 + 50.5 * (i % 7)}" for i in range(30)]
    path.write_text("\n".join(["size,colour,price", *cells]) + "\n")


def texts(path: Path) -> None:
    cells = [
        f'"a {"fine" if i % 2 else "dull"} film number {i}",{"pos" if i % 2 else "neg"}'
        for i in range(20)
    ]
    path.write_text("\n".join(["review,sentiment", *cells]) + "\n")


def pictures(path: Path) -> None:
    for i in range(12):
        folder = path / ("dark" if i % 2 else "light")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 200 * (1 - i % 2) + i, np.uint8)).save(
            folder / f"{i}.png"
        )


def clouds(path: Path) -> None:
    np.savez(path, points=RNG.normal(size=(16, 6, 3)), label=np.array(["cup", "hat"] * 8))


def steps(path: Path) -> None:
    x = RNG.normal(size=(16, 5, 1))
    np.savez(path, X=x, y=np.where(x[..., 0] > 0, "up", "down"))


def fields(path: Path) -> None:
    a = RNG.normal(size=(12, 4, 4))
    np.savez(path, inputs=a, outputs=3 * a)


def scattered(path: Path) -> None:
    places = RNG.uniform(size=(12, 7, 2))
    np.savez(path, coordinates=places, inputs=places.sum(2), outputs=places.prod(2))


KINDS = {
    "series.csv": series,
    "rows.csv": rows,
    "texts.csv": texts,
    "pictures": pictures,
    "clouds.npz": clouds,
    "steps.npz": steps,
    "fields.npz": fields,
    "scattered.npz": scattered,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Train a run on each kind of files."""
    folder = tmp_path_factory.mktemp("own")
    for name, write in KINDS.items():
        write(folder / name)
        said: list[str] = []
        run = folder / "runs" / name
        train(load_recipe(str(folder / name), SHORT), run, report=said.append)
        assert said[0].startswith(f"{Path(name).stem}: ")
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_a_path_is_trained_evaluated_and_predicted(trained, name):
    run = trained / "runs" / name
    result = evaluate(run)
    assert result["dataset"] == Path(name).stem
    answers = predict(run, [trained / name], batch_size=5)
    kind = name.split(".")[0]
    if kind in ("series", "texts", "pictures", "clouds"):
        classes = {"series": {"calm", "wild"}, "texts": {"neg", "pos"}}.get(kind)
        classes = classes or {"pictures": {"dark", "light"}, "clouds": {"cup", "hat"}}[kind]
        assert set(answers[0]["probabilities"]) == classes == set(result["classes"])
        assert abs(sum(answers[0]["probabilities"].values()) - 1) < 1e-5
        assert 0.05 <= json.loads((run / "calibration.json").read_text())["temperature"] <= 20
    elif kind == "rows":
        values = np.array([row["value"] for row in answers])
        assert 900 < values.min() < values.max() < 1500  # in the units of the file
        assert 0 < result["absolute_error"] < 500
    elif kind == "steps":
        assert len(answers[0]["classes"]) == 5
        assert set(answers[0]["classes"]) <= {"up", "down"}
    else:
        shape = np.array(answers[0]["values"]).shape
        assert shape == {"fields": (1, 4, 4), "scattered": (7, 1)}[kind]


def test_predictions_match_the_evaluation(trained):
    """Predictions of the single rows of the test set give the score of the evaluation."""
    for name in ("series.csv", "pictures", "clouds.npz"):
        run = trained / "runs" / name
        source = open_files(trained / name)
        answers = predict(run, [trained / name])
        names, codes = source.collection.labels.names, source.collection.labels.codes
        test = np.flatnonzero(source.parts == 2)
        right = np.mean([answers[i]["class"] == names[codes[i]] for i in test])
        assert right == pytest.approx(evaluate(run)["accuracy"])


def test_predictions_have_the_digits_of_float32(trained):
    (first, *_) = predict(trained / "runs" / "series.csv", [trained / "series.csv"])
    shares = [first["probability"], *first["probabilities"].values()]
    assert all(repr(share) == str(np.float32(share)) for share in shares)
    prices = [
        row["value"] for row in predict(trained / "runs" / "rows.csv", [trained / "rows.csv"])
    ]
    # Their deviation is nearly 100.
    assert all(price == round(price, 5) for price in prices)


def test_what_training_noted_on_the_files_is_not_repeated(tmp_path):
    """It names flags of `fredholm train`, which evaluate does not have."""
    path = tmp_path / "visits.csv"
    cells = [f"p{i % 10},{i % 7},{'ab'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["patient,size,colour", *cells]) + "\n")
    said: list[str] = []
    train(load_recipe(str(path), SHORT), tmp_path / "run", report=said.append)
    assert any("--group patient" in line for line in said)
    assert "notes" not in evaluate(tmp_path / "run")


def test_predictions_are_written_as_csv_json_and_arrays(trained, tmp_path):
    answers = predict(trained / "runs" / "series.csv", [trained / "series.csv"])
    lines = write_predictions(answers, tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "file,row,id,class,probability,p(calm),p(wild)"
    assert len(lines) == 21
    assert json.loads(write_predictions(answers, tmp_path / "a.json").read_text()) == answers
    mixed = [{"file": "a", "value": 1.0}, {"file": "b", "row": 2, "value": 2.0}]
    lines = write_predictions(mixed, tmp_path / "mixed.csv").read_text().splitlines()
    assert lines == ["file,value,row", "a,1.0,", "b,2.0,2"]
    arrays = np.load(write_predictions(mixed, tmp_path / "mixed.npz"))
    np.testing.assert_array_equal(arrays["row"], [np.nan, 2.0])
    named = [{"file": "a", "id": "s1", "value": 1.0}, {"file": "b", "value": 2.0}]
    for some, ids in ((named, ["s1", ""]), (named[::-1], ["", "s1"])):
        arrays = np.load(write_predictions(some, tmp_path / "named.npz"))
        assert arrays["id"].tolist() == ids
    arrays = np.load(write_predictions(answers, tmp_path / "a.npz"))
    assert arrays["probabilities"].shape == (20, 2)
    points = predict(trained / "runs" / "steps.npz", [trained / "steps.npz"])
    assert len(write_predictions(points, tmp_path / "s.csv").read_text().splitlines()) == 1 + 16 * 5
    field = predict(trained / "runs" / "fields.npz", [trained / "fields.npz"])
    assert np.load(write_predictions(field, tmp_path / "f.npz"))["values"].shape == (12, 1, 4, 4)
    with pytest.raises(OptionError, match=r"out: expected \.npz or \.json for fields"):
        write_predictions(field, tmp_path / "f.csv")
    with pytest.raises(OptionError, match=r"out: expected a file .*, got 'a.txt'"):
        write_predictions(answers, tmp_path / "a.txt")


def test_fields_on_several_grids_are_predicted_together(trained, tmp_path):
    run = trained / "runs" / "fields.npz"
    files = []
    for name, size in (("a", 4), ("b", 6), ("c", 4)):
        files.append(tmp_path / f"{name}.npz")
        np.savez(files[-1], inputs=RNG.normal(size=(3, size, size + 1)))
    together = predict(run, files, out=tmp_path / "out.npz")
    for answer, alone in zip(together, [row for file in files for row in predict(run, [file])]):
        assert answer["file"] == alone["file"]
        np.testing.assert_allclose(answer["values"], alone["values"], atol=1e-6)
    values = np.load(tmp_path / "out.npz")["values"]
    assert values.shape == (9, 1, 6, 7)
    assert np.isfinite(values).sum((1, 2, 3)).tolist() == [20] * 3 + [42] * 3 + [20] * 3


def test_standard_input_is_read_as_a_file(trained, monkeypatch, capsys):
    class Stdin:
        buffer = io.BytesIO(b"size,colour\n3,a\n4,b\n")

    monkeypatch.setattr("sys.stdin", Stdin)
    assert main(["predict", str(trained / "runs" / "rows.csv"), "-", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = predict(trained / "runs" / "rows.csv", [trained / "rows.csv"])
    assert [row["value"] for row in found] == pytest.approx(
        [expected[i]["value"] for i in (10, 11)]
    )
    monkeypatch.setattr("sys.stdin", type("Lines", (), {"buffer": io.BytesIO(b"a fine film\n")}))
    assert main(["predict", str(trained / "runs" / "texts.csv"), "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["class"] in ("neg", "pos")


def test_errors_name_standard_input(trained, monkeypatch):
    monkeypatch.setattr(
        "sys.stdin", type("Rows", (), {"buffer": io.BytesIO(b"size,colour\n3,a\n")})
    )
    assert predict(trained / "runs" / "rows.csv", ["-"])[0]["file"] == "standard input"
    broken = io.BytesIO(b"size,colour\n3,a\n4,b,c\n")
    monkeypatch.setattr("sys.stdin", type("Rows", (), {"buffer": broken}))
    with pytest.raises(DataError, match=r"^standard input, row 3: expected .* cells, .* got 3"):
        predict(trained / "runs" / "rows.csv", ["-"])


def test_files_of_another_kind_are_refused_by_name(trained, tmp_path):
    picture = next((trained / "pictures").rglob("*.png"))
    for run, kind in (("rows.csv", "rows"), ("series.csv", "series")):
        for place in (picture, trained / "pictures"):
            with pytest.raises(DataError, match=f"expected {kind}, .*, got pictures"):
                predict(trained / "runs" / run, [place])
    (tmp_path / "cloud.xyz").write_text("0 0 0\n1 1 1\n")
    with pytest.raises(DataError, match="expected images, as the run was trained on, got clouds"):
        predict(trained / "runs" / "pictures", [tmp_path])


def test_the_default_dtype_of_the_caller_changes_no_run(trained, tmp_path):
    recipe = load_recipe(str(trained / "rows.csv"), SHORT)
    expected = predict(trained / "runs" / "rows.csv", [trained / "rows.csv"])
    torch.set_default_dtype(torch.float64)
    try:
        train(recipe, tmp_path / "run")
        assert predict(tmp_path / "run", [trained / "rows.csv"]) == expected
        assert evaluate(tmp_path / "run")["n"] == 6
    finally:
        torch.set_default_dtype(torch.float32)


def test_files_that_changed_since_training_are_not_evaluated(trained, tmp_path):
    path = tmp_path / "rows.csv"
    rows(path)
    run = tmp_path / "run"
    train(load_recipe(str(path), SHORT), run)
    path.write_text(path.read_text() + "3,a,1100\n")
    with pytest.raises(DataError, match="the files have changed since the run was trained"):
        evaluate(run)


def test_files_split_by_an_older_rule_are_not_evaluated(tmp_path):
    rows(tmp_path / "rows.csv")
    dataset = open_files(tmp_path / "rows.csv").dataset("test")
    check_unchanged(json.loads(json.dumps(dataset.describe())), dataset)
    facts = dataset.describe()
    facts["source"] = json.loads(json.dumps(facts["source"]))
    facts["source"]["scaling"]["std"][0] = 1.0
    with pytest.raises(
        DataError,
        match=r"expected the mean and deviation .* in column 1 of the model's inputs, got",
    ):
        check_unchanged(facts, dataset)
    facts = dataset.describe()
    facts["source"] = facts["source"] | {"split": facts["source"]["split"] | {"rule": "group"}}
    with pytest.raises(
        DataError, match="could put training samples into the test split; train again"
    ):
        check_unchanged(facts, dataset)


def test_columns_are_declared_by_recipe_keys_and_flags(tmp_path, capsys):
    rows(tmp_path / "rows.csv")
    recipe = load_recipe({"data": {"path": str(tmp_path / "rows.csv"), "label": "colour"}})
    assert (recipe.name, recipe.data.name, recipe.data.label) == ("rows", "files", "colour")
    assert main(["data", "describe", str(tmp_path / "rows.csv"), "--label", "colour"]) == 0
    said = capsys.readouterr().out
    assert "kind rows, classification" in said
    assert "classes:      a 15, b 15" in said
    assert "next: fredholm train" in said
    with pytest.raises(RecipeError, match=r"data.label: .* digits defines it, got 'x'; remove it"):
        load_recipe("digits", ["data.label=x"])


@pytest.mark.parametrize(
    ("given", "epochs", "steps", "warmup"),
    [
        ([], 100, None, (10.0, None)),
        (["training.epochs=20"], 20, None, (10.0, None)),
        (["training.steps=20000"], None, 20000, (0.0, 2000)),
        (["training.steps=5"], None, 5, (0.0, None)),
        (["training.steps=70", "training.epochs=null"], None, 70, (0.0, 7)),
        (["training.steps=70", "training.epochs=3"], 3, 70, (10.0, None)),
        (["training.steps=70", "schedule.warmup_epochs=2"], None, 70, (2.0, None)),
        (["schedule.warmup_steps=100"], 100, None, (0.0, 100)),
    ],
)
def test_a_length_in_steps_replaces_the_default_epochs(tmp_path, given, epochs, steps, warmup):
    rows(tmp_path / "rows.csv")
    recipe = load_recipe(str(tmp_path / "rows.csv"), given)
    assert (recipe.training.epochs, recipe.training.steps) == (epochs, steps)
    assert (recipe.schedule.warmup_epochs, recipe.schedule.warmup_steps) == warmup


def test_a_bare_word_is_a_recipe_and_not_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert load_recipe("digits").data.name == "digits"
    assert names_files("./digits")
    assert names_files("digits/")
    assert not names_files("digits")
    with pytest.raises(DataError, match=r"expected files that can be read \(.*, got none"):
        load_recipe("./digits")


def test_the_temperature_calibrates_probabilities():
    torch.manual_seed(0)
    logits = torch.randn(4000, 3)
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert fit_temperature(logits, labels) == pytest.approx(1.0, abs=0.06)
    assert fit_temperature(4 * logits, labels) == pytest.approx(4.0, abs=0.25)
    assert 0.05 < fit_temperature(torch.eye(2).repeat(5, 1), torch.tensor([0, 1] * 5)) < 1


@pytest.mark.parametrize(("points", "patch"), [(40, 1), (150, 3), (1344, 21)])
def test_long_regular_series_are_divided_into_patches(tmp_path, capsys, points, patch):
    values = RNG.normal(size=(12, points, 1)).astype(np.float32)
    np.savez(tmp_path / "waves.npz", X=values, y=np.array(["a", "b"] * 6))
    recipe = load_recipe(str(tmp_path / "waves.npz"))
    assert recipe.model.encoder.get("patch", 1) == patch
    model = build_model(recipe, build_dataset(recipe, "train"))
    assert model.encoder(torch.from_numpy(values))[1].size == -(-points // patch) <= 64
    assert main(["data", "describe", str(tmp_path / "waves.npz")]) == 0
    assert (f"patches of {patch} samples" in capsys.readouterr().out) == (patch > 1)


def test_series_of_very_different_scale_are_standardised_individually(tmp_path, capsys):
    values = RNG.normal(size=(40, 20, 1))
    sizes = np.geomspace(0.01, 100, 40)[:, None, None]
    for name, scale in (("alike", 1.0), ("uneven", sizes)):
        np.savez(tmp_path / f"{name}.npz", X=values * scale, y=np.array(["a", "b"] * 20))
        encoder = load_recipe(str(tmp_path / f"{name}.npz")).model.encoder
        assert encoder.get("standard", False) == (name == "uneven")
        assert main(["data", "describe", str(tmp_path / f"{name}.npz")]) == 0
        assert ("on its own scale" in capsys.readouterr().out) == (name == "uneven")


def test_stepwise_labels_and_timestamps_prevent_patches(tmp_path):
    values, every = RNG.normal(size=(12, 90, 1)), RNG.integers(0, 2, (12, 90))
    np.savez(tmp_path / "steps.npz", X=values, y=every)
    assert "patch" not in load_recipe(str(tmp_path / "steps.npz")).model.encoder
    times = np.cumsum(RNG.uniform(0.5, 1.5, (12, 90)), 1)
    np.savez(tmp_path / "timed.npz", X=values, times=times, y=np.arange(12) % 2)
    assert "patch" not in load_recipe(str(tmp_path / "timed.npz")).model.encoder


@pytest.mark.parametrize(
    ("size", "patch", "shown"),
    [
        ((8, 8), 2, [8, 8]),
        ((28, 28), 7, [28, 28]),
        ((30, 44), 8, [32, 48]),
        ((224, 224), 16, [224, 224]),
    ],
)
def test_pictures_have_few_patches(size, patch, shown):
    found = usual._images(SimpleNamespace(image_size=size, training=range(600)))
    assert found.model["encoder"]["patch"] == patch
    assert found.data["image_size"] == shown


@pytest.mark.parametrize(
    ("given", "size", "patch", "operator"),
    [
        ("8", [8, 8], 2, "itnet"),
        ("224", [224, 224], 16, "itnet"),
        ("100", [100, 100], 10, "itnet"),
        ("[30, 44]", [30, 44], 2, "luna"),
        ("1024", [1024, 1024], 16, "luna"),
    ],
)
def test_pictures_of_a_requested_size_are_divided_into_patches(
    trained, given, size, patch, operator
):
    small = [option for option in SMALL if option != "operator=softmax"]
    recipe = load_recipe(str(trained / "pictures"), [*small, f"data.image_size={given}"])
    assert recipe.data.image_size == size
    assert (recipe.model.encoder["patch"], recipe.operator.name) == (patch, operator)
    train = build_dataset(recipe, "train")
    assert build_model(recipe, train)(train.batch([0])[0]).shape == (1, 2)


def test_a_picture_is_never_one_patch(trained):
    recipe = load_recipe(str(trained / "pictures"), ["data.image_size=13"])
    with pytest.raises(RecipeError, match="expected a patch that divides the image of 13x13"):
        build_model(recipe, build_dataset(recipe, "train"))


def test_predictions_never_overwrite_their_input(tmp_path):
    given = tmp_path / "new.csv"
    given.write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match="one of the files to predict"):
        predict(tmp_path / "run", [tmp_path / "other.csv", given], out=tmp_path / "." / "new.csv")
    deep = tmp_path / "folder" / "deep"
    deep.mkdir(parents=True)
    (deep / "one.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match=r"is a file of the folder .*folder to predict, which"):
        predict(tmp_path / "run", [tmp_path / "folder"], out=deep / ".." / "deep" / "one.csv")
    assert given.read_text() == (deep / "one.csv").read_text() == "a,b\n1,2\n"
    with pytest.raises(CheckpointError, match="no run here"):
        predict(tmp_path / "run", [tmp_path / "folder"], out=deep / "new.csv")


def test_a_missing_output_folder_is_refused_before_reading(tmp_path):
    with pytest.raises(OptionError, match=r"a.csv'; make the folder first"):
        predict(tmp_path / "run", [tmp_path / "new.csv"], out=tmp_path / "nowhere" / "a.csv")


FAR = 3e38  # of a number that a layer norm squares


def far_series(path: Path) -> None:
    path.write_text(f"id,time,x\na,0,1\na,1,1\nb,0,{FAR}\nb,1,-{FAR}\n")


def far_rows(path: Path) -> None:
    path.write_text(f"size,colour\n3,a\n{FAR},a\n")


def far_steps(path: Path) -> None:
    np.savez(path, X=[[[1.0], [2.0]], [[FAR], [-FAR]]])


def far_fields(path: Path) -> None:
    np.savez(path, inputs=np.array([np.zeros((4, 4)), np.full((4, 4), FAR)]))


def far_scattered(path: Path) -> None:
    places = RNG.uniform(size=(2, 7, 2))
    np.savez(path, coordinates=places, inputs=np.array([np.zeros(7), np.full(7, FAR)]))


@pytest.mark.parametrize(
    ("name", "write", "place"),
    [
        ("series.csv", far_series, "row 4, id b"),
        ("rows.csv", far_rows, "row 3"),
        ("steps.npz", far_steps, "sample 1"),
        ("fields.npz", far_fields, "sample 1"),
        ("scattered.npz", far_scattered, "sample 1"),
    ],
)
def test_non_finite_predictions_are_empty(trained, tmp_path, name, write, place):
    file = tmp_path / name
    write(file)
    with pytest.raises(DataError, match=f"{place}: expected a finite prediction, got NaN"):
        predict(trained / "runs" / name, [file], out=tmp_path / "answers.npz")
    assert not (tmp_path / "answers.npz").exists()


# --- new labelled files ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_labelled_files_are_evaluated_like_splits(trained, name):
    """The loss of a file with all samples is the mean of the splits', weighted by samples."""
    run = trained / "runs" / name
    splits = [evaluate(run, split) for split in ("train", "val", "test")]
    found = evaluate_files(run, [trained / name])
    assert found["n"] == sum(one["n"] for one in splits)
    expected = sum(one["n"] * one["loss"] for one in splits) / found["n"]
    assert found["loss"] == pytest.approx(expected, rel=1e-4)
    if "confusion" in found:
        confusions = [np.array(one["confusion"]) for one in splits]
        assert found["confusion"] == sum(confusions[1:], confusions[0]).tolist()
    twice = evaluate_files(run, [trained / name, trained / name], batch_size=3)
    assert twice["n"] == 2 * found["n"]
    assert twice["loss"] == pytest.approx(expected, rel=1e-4)


def test_fields_at_another_resolution_have_a_separate_row(trained, tmp_path, capsys):
    fine = np.random.default_rng(1).normal(size=(5, 8, 8))
    np.savez(tmp_path / "fine.npz", inputs=fine, outputs=3 * fine)
    run = trained / "runs" / "fields.npz"
    files = [trained / "fields.npz", tmp_path / "fine.npz"]
    found = evaluate_files(run, files)
    alone = [evaluate_files(run, [file]) for file in files]
    assert {key: part["n"] for key, part in found["resolutions"].items()} == {
        "4 × 4": 12,
        "8 × 8": 5,
    }
    assert found["loss"] == pytest.approx((12 * alone[0]["loss"] + 5 * alone[1]["loss"]) / 17)
    assert found["worst"] == max(one["worst"] for one in alone)
    assert main(["evaluate", str(run), *map(str, files)]) == 0
    shown = capsys.readouterr().out
    assert "resolution" in shown
    assert "8 × 8" in shown


@pytest.mark.parametrize("place", ["grid", "points"])
def test_fields_of_several_scales_have_one_error(tmp_path, place):
    """New files are scored as splits are: every answered channel counts alike."""
    draws = np.random.default_rng(3)
    if place == "grid":
        inputs = draws.normal(size=(20, 1, 4, 4))
        outputs = np.concatenate([inputs, 1000 * draws.normal(size=inputs.shape)], 1)
        arrays = {}
    else:
        inputs = draws.normal(size=(20, 7, 1))
        outputs = np.concatenate([inputs, 1000 * draws.normal(size=inputs.shape)], 2)
        arrays = {"coordinates": draws.uniform(size=(20, 7, 2))}
    path = tmp_path / "fields.npz"
    np.savez(path, inputs=inputs, outputs=outputs, **arrays)
    run = tmp_path / "run"
    train(load_recipe(str(path), [*SHORT, "training.epochs=30"]), run)

    splits = [evaluate(run, split) for split in ("train", "val", "test")]
    found = evaluate_files(run, [path])
    expected = sum(one["n"] * one["loss"] for one in splits) / found["n"]
    assert found["loss"] == pytest.approx(expected, rel=1e-4)
    assert found["worst"] == pytest.approx(max(one["worst"] for one in splits), rel=1e-4)


def test_fields_with_other_numbers_of_points_are_evaluated_in_batches(trained, tmp_path):
    """Points without coordinates are missing, so that each sample has another number of points."""
    places = np.random.default_rng(2).uniform(size=(8, 15, 2))
    values = {"inputs": places.sum(2), "outputs": places.prod(2)}
    for sample in range(8):
        places[sample, 8 + sample :] = np.nan
    np.savez(tmp_path / "new.npz", coordinates=places, **values)

    run = trained / "runs" / "scattered.npz"
    found = evaluate_files(run, [tmp_path / "new.npz"], batch_size=3)
    together = evaluate_files(run, [tmp_path / "new.npz"])
    assert found["n"] == 8
    assert found["loss"] == pytest.approx(together["loss"], rel=1e-6)
    assert found["worst"] == pytest.approx(together["worst"], rel=1e-6)


def test_series_at_another_rate_have_a_separate_row(trained, tmp_path):
    lines = ["id,time,x,mood"]
    for i in range(6):
        lines += [
            f"{i},{2 * k + (k > 1)},{k / 9:.3f},{'calm' if i % 2 else 'wild'}" for k in range(4)
        ]
    (tmp_path / "slow.csv").write_text("\n".join(lines) + "\n")
    found = evaluate_files(
        trained / "runs" / "series.csv", [trained / "series.csv", tmp_path / "slow.csv"]
    )
    counts = {key: part["n"] for key, part in found["resolutions"].items()}
    assert counts == {"time: every 1": 20, "time: every 2": 6}


def test_examples_name_the_places_of_their_samples(trained, tmp_path):
    """Samples of other lengths between them are predicted apart, and are numbered in order."""
    run = trained / "runs" / "series.csv"
    files = []
    for name, lengths in (("a", (4, 6, 4, 6)), ("b", (5, 4, 6))):
        lines = ["id,time,x,mood"]
        for sample, length in enumerate(lengths):
            mood = "calm" if sample % 2 else "wild"
            lines += [f"{name}{sample},{k},{sample + k / 9:.3f},{mood}" for k in range(length)]
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text("\n".join(lines) + "\n")

    found = evaluate_files(run, files)
    predicted = predict(run, files)
    examples = found["wrong"] + found["right"]
    assert sorted(example["index"] for example in examples) == list(range(7))
    for example in examples:
        row = predicted[example["index"]]
        assert (example["file"], example["id"]) == (row["file"], row["id"])
        assert found["classes"][example["prediction"]] == row["class"]


def test_examples_of_points_name_sample_and_point(trained):
    run = trained / "runs" / "steps.npz"
    found = evaluate_files(run, [trained / "steps.npz"])
    predicted = predict(run, [trained / "steps.npz"])
    labels = np.load(trained / "steps.npz")["y"]
    for example in found["wrong"] + found["right"]:
        sample, point = example["index"], example["point"]
        assert found["classes"][example["label"]] == labels[sample, point]
        assert found["classes"][example["prediction"]] == predicted[sample]["classes"][point]
        assert example["file"] == predicted[sample]["file"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", "size,colour\n3,a\n", "no column 'price'"),
        ("texts.csv", "review,sentiment\na film,odd\nfine film,pos\n", "pos, got 'odd'"),
        ("texts.csv", "review,sentiment\na film,pos\nfine film,\n", None),
    ],
    ids=["no label", "unknown class", "one is missing"],
)
def test_unusable_labels_are_named(trained, tmp_path, name, content, message):
    (tmp_path / "new.csv").write_text(content)
    run = trained / "runs" / name
    if message is None:
        assert evaluate_files(run, [tmp_path / "new.csv"])["n"] == 1
        return
    with pytest.raises(DataError, match=message):
        evaluate_files(run, [tmp_path / "new.csv"])


def test_new_files_have_no_split_and_paths_differ_from_overrides(trained, tmp_path, capsys):
    run, file = str(trained / "runs" / "rows.csv"), str(trained / "rows.csv")
    assert main(["evaluate", run, file, "--split", "val"]) == 2
    assert "--split: expected none with new files" in capsys.readouterr().err
    assert main(["evaluate", run, file, "operator.strategy=exact", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["overrides"] == ["operator.strategy=exact"]
    assert result["n"] == 30
    assert main(["evaluate", run, str(tmp_path / "none.csv")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_text_is_predicted_from_the_command_line(trained, capsys):
    run = str(trained / "runs" / "texts.csv")
    assert main(["predict", run, "--input", "a fine film", "--input", "a dull film", "--json"]) == 0
    rows_ = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in rows_] == [1, 2]
    assert rows_[0]["probabilities"] == predict(run, [], texts=["a fine film"])[0]["probabilities"]
    assert main(["predict", str(trained / "runs" / "rows.csv"), "--input", "a film"]) == 2
    assert "input: expected a run on texts, got one on rows" in capsys.readouterr().err
    assert main(["predict", run]) == 2
    assert "files: expected files, folders, or - for standard input" in capsys.readouterr().err


def test_predictions_can_be_piped(trained, tmp_path, capsys):
    run, file = str(trained / "runs" / "rows.csv"), str(trained / "rows.csv")
    assert main(["predict", run, file, "--out", "-"]) == 0
    piped = capsys.readouterr().out
    assert main(["predict", run, file, "--out", str(tmp_path / "out.csv")]) == 0
    assert piped.splitlines() == (tmp_path / "out.csv").read_text().splitlines()
    assert (
        main(
            [
                "predict",
                str(trained / "runs" / "fields.npz"),
                str(trained / "fields.npz"),
                "--out",
                "-",
            ]
        )
        == 2
    )
    assert "expected .npz or .json for fields" in capsys.readouterr().err


def test_forecasting_is_refused_with_advice(trained, tmp_path, capsys):
    command = [
        "train",
        str(trained / "series.csv"),
        "--predict",
        "forecasting",
        "--runs",
        str(tmp_path),
    ]
    assert main(command) == 2
    assert "forecasting is not supported yet" in capsys.readouterr().err
    with pytest.raises(OptionError, match="forecasting is not supported yet"):
        create_task("forecast")
