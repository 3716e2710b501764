"""A recommended method on disk predicts as it did when it was fitted, also for users' files."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.preprocessing import StandardScaler

from fredholm.errors import CheckpointError, DataError, OptionError, TrustError
from fredholm.lab.cli.main import main
from fredholm.lab.compare import starts
from fredholm.lab.compare.fitted import Linear, Logistic, rebuild
from fredholm.lab.compare.plain import BOOSTING, MINIROCKET, PLAIN, WORDS
from fredholm.lab.compare.saved import (
    Pick,
    drop_pick,
    keep_pick,
    load_pick,
    save_pick,
)
from fredholm.lab.compare.splits import Splits
from fredholm.lab.compare.starts import STARTS, Start
from fredholm.lab.compare.terms import Terms
from fredholm.lab.compare.trees import Trees
from fredholm.tensor_files import write_tensors
from fredholm.training import evaluate, load_recipe, predict

from .test_minirocket import waves
from .test_starts import pictures, said

RNG = np.random.default_rng(0)


@pytest.fixture
def backbones(monkeypatch):
    """Replace fetched backbones by one-line functions."""
    monkeypatch.setattr(starts, "describe", lambda name: {"fetched": True})
    read = {
        "minilm": lambda texts: torch.tensor([[float("FINE" in t), 1.0 / len(t)] for t in texts]),
        "vit-s": lambda images: images.mean((2, 3)),
    }
    for name, features in read.items():
        real = STARTS[name]
        made = Start(real.title, real.weights, real.worded, lambda folder, f=features: f)
        monkeypatch.setitem(STARTS, name, made)
        method = PLAIN[name]
        options = {"fit": made.fit, "view": made.view, "start": made}
        monkeypatch.setitem(PLAIN, name, type(method)(**{**vars(method), **options}))


DATA = {
    MINIROCKET: [waves, lambda: waves(timed=True), lambda: waves("regression")],
    BOOSTING: [waves, lambda: waves("regression"), said, pictures],
    WORDS: [said],
    "minilm": [said, lambda: said("regression")],
    "vit-s": [pictures, lambda: pictures(20, 3)],
}


@pytest.mark.parametrize(
    ("name", "make"), [(name, make) for name, every in DATA.items() for make in every]
)
def test_a_saved_method_predicts_as_the_fitted_one(name, make, tmp_path, backbones):
    data = make()
    fitted = PLAIN[name].fit(data, 0)
    facts = json.loads(json.dumps(data.describe()))
    save_pick(tmp_path, Pick(name, fitted, facts, data.encoder(), 1.5, "some"))
    assert not list((tmp_path / "method").glob("*.tmp"))
    found = load_pick(tmp_path)
    assert (found.method, found.temperature, found.facts) == (name, 1.5, facts)
    inputs = PLAIN[name].view(data).batch(torch.arange(20))[0]
    texts = inputs if isinstance(inputs, list) else None
    fresh = fitted(inputs)
    assert fresh.shape == (20, len(data.classes) if data.task == "classification" else 1)
    assert torch.equal(found(data.batch(torch.arange(20))[0], texts), fresh.float())


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trees_equal_scikit_learns(classes):
    rows = RNG.normal(size=(300, 4))
    rows[RNG.random(rows.shape) < 0.1] = np.nan
    score = np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 1]) * np.isnan(rows[:, 2])
    options = {"max_iter": 7, "early_stopping": False, "max_leaf_nodes": 9}
    if classes:
        labels = np.digitize(score, [-0.3, 0.8][: classes - 1])
        model = HistGradientBoostingClassifier(**options).fit(rows, labels)
        expected = model._raw_predict(rows)
    else:
        model = HistGradientBoostingRegressor(**options).fit(rows, score)
        expected = model.predict(rows)[:, None]
    np.testing.assert_array_equal(Trees.of(model)(rows).numpy(), expected)


@pytest.mark.parametrize("pairs", [False, True])
def test_term_frequencies_equal_scikit_learns(pairs):
    texts = torch.from_numpy(RNG.integers(0, 9, (40, 12)))
    texts[0] = 0  # a text without words
    read, new = texts[:25], texts[[0, *range(25, 40)]]
    lines = [" ".join(f"t{n}" for n in row if n) or "t0" for row in texts.tolist()]
    options = {"ngram_range": (1, 1 + pairs), "token_pattern": r"\S+", "sublinear_tf": True}
    theirs = TfidfVectorizer(**options).fit(lines[:25])
    found = Terms.fit(read, pairs)
    names = theirs.vocabulary_
    order = []
    for code in found.codes.tolist():
        first, second = code >> 32, code & 0xFFFFFFFF
        order.append(names[f"t{first}" if not second else f"t{first} t{second - 1}"])
    assert sorted(order) == list(range(len(names)))
    expected = theirs.transform([lines[0], *lines[25:]]).toarray()[:, order]
    np.testing.assert_allclose(found(new).toarray(), expected, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_models_equal_scikit_learns(classes):
    rows = RNG.normal(3.0, 2.0, size=(60, 5))
    scaler = StandardScaler().fit(rows)
    labels = np.digitize(rows[:, 0], [2.0, 4.0][: classes - 1])
    model = LogisticRegression().fit(scaler.transform(rows), labels)
    found = Logistic.of(model, classes + 1, scaler)(torch.from_numpy(rows)).exp()
    expected = model.predict_proba(scaler.transform(rows))
    np.testing.assert_allclose(found[:, :classes], expected, atol=1e-6)
    assert found[:, classes].max() < 1e-6  # a class that nothing was trained on
    ridge = RidgeCV().fit(scaler.transform(rows), rows[:, :classes] ** 2)
    found = Linear.of(ridge, scaler)(torch.from_numpy(rows))
    np.testing.assert_allclose(found, ridge.predict(scaler.transform(rows)), rtol=1e-9)


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Write small tables of series, of rows with a numeric label, and of texts."""
    place = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    lines = ["id,time,hip,gait"]
    for walk in range(40):
        gait = ("slow", "brisk")[walk % 2]
        values = np.sin((1 + 2 * (walk % 2)) * np.arange(12) / 4) + 0.1 * rng.normal(size=12)
        lines += [f"w{walk},{time},{value:.3f},{gait}" for time, value in enumerate(values)]
    (place / "walks.csv").write_text("\n".join(lines) + "\n")
    lines = [f"{n},{'ab'[n % 2]},{1000 + 5 * n + 40 * (n % 2)}" for n in range(40)]
    (place / "rows.csv").write_text("\n".join(["size,colour,price", *lines]) + "\n")
    lines = [f"{'a FINE' if n % 2 else 'a dull'} film {n},{'ny'[n % 2]}" for n in range(40)]
    (place / "films.csv").write_text("\n".join(["text,liked", *lines]) + "\n")
    for number in range(20):
        folder = place / "pictures" / ("dark", "light")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        grey = rng.integers(0, 80, (10, 8, 3)) + 150 * (number % 2)
        Image.fromarray(grey.astype(np.uint8)).save(folder / f"{number}.png")
    points = rng.normal(size=(40, 12, 3)) * np.where(np.arange(40) % 2, [[1]], [[3]]).T[..., None]
    points[::2, :, 0] = 0  # flat ones
    np.savez(place / "clouds.npz", points=points, label=np.array(["flat", "round"] * 20))
    return place


def kept(path, name, place):
    """Save the pick of a comparison that recommends a method; return it and the table's samples."""
    splits = Splits(load_recipe(str(path)))
    state = {"setting": {"source": str(path), "changes": []}}
    state["verdict"] = {"pick": name, "train": None}
    (place / "choice.json").write_text(json.dumps(state))
    rows = [{"operator": name, "temperature": t} for t in (0.5, 2.0)] if name != "none" else []
    return keep_pick(place, splits, name, rows), splits


@pytest.mark.parametrize(
    ("name", "table"),
    [(MINIROCKET, "walks.csv"), (BOOSTING, "walks.csv"), (BOOSTING, "films.csv"),
     (WORDS, "films.csv"), ("minilm", "films.csv"), ("vit-s", "pictures"),
     (BOOSTING, "pictures"), (BOOSTING, "clouds.npz")],
)  # fmt: skip
def test_files_are_predicted_as_the_data_set(name, table, tables, tmp_path, backbones):
    pick, splits = kept(tables / table, name, tmp_path)
    assert pick.samples == "training and validation samples"
    assert pick.temperature == pytest.approx(1.0)
    answers = predict(tmp_path, [tables / table], batch_size=7)
    source = splits._source
    count = len(source.collection)
    whole = PLAIN[name].view(source.subset("train", np.arange(count)))
    logits = pick.fitted(whole.batch(torch.arange(count))[0]).double()
    found = [list(answer["probabilities"].values()) for answer in answers]
    np.testing.assert_allclose(found, logits.softmax(1), atol=1e-5)
    names, codes = source.collection.labels.names, source.collection.labels.codes
    right = np.array([a["class"] == names[c] for a, c in zip(answers, codes, strict=True)])
    assert right[source.parts == 2].mean() > 0.9
    result = evaluate(tmp_path)
    assert result["accuracy"] == pytest.approx(right[source.parts == 2].mean())
    assert json.loads((tmp_path / "evaluation.json").read_text()) == result


def test_regressions_predict_in_the_units_of_the_file(tables, tmp_path):
    kept(tables / "rows.csv", BOOSTING, tmp_path)
    values = [row["value"] for row in predict(tmp_path, [tables / "rows.csv"])]
    truth = [float(row["price"]) for row in csv.DictReader((tables / "rows.csv").open())]
    assert np.corrcoef(values, truth)[0, 1] > 0.9
    assert 990 < min(values) < max(values) < 1250
    assert 0 < evaluate(tmp_path)["absolute_error"] < 60


def test_test_samples_are_not_used_for_fitting(tables, tmp_path, monkeypatch):
    seen = []
    method = PLAIN[WORDS]
    watched = {"fit": lambda train, seed: seen.extend(train.texts) or method.fit(train, seed)}
    monkeypatch.setitem(PLAIN, WORDS, type(method)(**{**vars(method), **watched}))
    _, splits = kept(tables / "films.csv", WORDS, tmp_path)
    assert sorted(seen) == sorted(splits.train.texts + splits.val.texts)
    assert not set(seen) & set(splits.test.texts)
    keep_pick(tmp_path, splits, WORDS, [])  # what is there already is not fitted again
    assert len(seen) == len(splits.train) + len(splits.val)


def test_a_catalogue_set_is_fitted_on_its_training_samples():
    splits = Splits(load_recipe("digits", ["data.limit=20"]))
    train, samples = splits.samples_to_fit()
    assert (len(train), samples) == (20, "training samples")


def test_the_command_line_predicts(tables, tmp_path, capsys):
    kept(tables / "walks.csv", MINIROCKET, tmp_path)
    out = tmp_path / "gaits.csv"
    assert main(["predict", str(tmp_path), str(tables / "walks.csv"), "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 40
    assert list(rows[0]) == ["file", "row", "id", "class", "probability", "p(brisk)", "p(slow)"]
    assert sum(row["class"] == ("slow", "brisk")[n % 2] for n, row in enumerate(rows)) > 36
    (tmp_path / "method" / "method.json").unlink()
    assert main(["predict", str(tmp_path), str(tables / "walks.csv")]) == 2
    assert "is missing; run the same `fredholm compare` again" in capsys.readouterr().err


def test_the_command_line_evaluates(tables, tmp_path, capsys):
    kept(tables / "walks.csv", MINIROCKET, tmp_path)
    assert main(["evaluate", str(tmp_path)]) == 0
    assert "walks test: accuracy 1.0000, cross-entropy 0." in capsys.readouterr().out
    with pytest.raises(OptionError, match=r"a method .* no options, got model.body.steps=3; leave"):
        evaluate(tmp_path, overrides=["model.body.steps=3"])


def test_files_that_changed_since_fitting_are_not_evaluated(tables, tmp_path):
    path = tmp_path / "films.csv"
    path.write_text((tables / "films.csv").read_text())
    kept(path, WORDS, tmp_path)
    path.write_text(path.read_text() + "a FINE film 41,y\n")
    with pytest.raises(DataError, match="the files have changed since"):
        evaluate(tmp_path)


def test_code_of_a_recipe_runs_only_with_trust(tables, tmp_path, capsys):
    log, own, recipe = (tmp_path / name for name in ("ran.txt", "own.py", "own.yaml"))
    text = f"import: own.py\ndata: {{path: {tables / 'films.csv'}}}\n"
    recipe.write_text(text)
    own.write_text("")
    kept(recipe, WORDS, tmp_path)
    own.write_text(f"open({str(log)!r}, 'w').close()")
    assert len(predict(tmp_path, [tables / "films.csv"])) == 40
    with pytest.raises(TrustError, match=r"own\.py.*add --trust-code"):
        evaluate(tmp_path)
    assert not log.exists()
    assert main(["evaluate", str(tmp_path), "--trust-code"]) == 0
    assert f"--trust-code: executing {str(own)!r}" in capsys.readouterr().err
    assert log.exists()


# --- unusable folders -----------------------------------------------------------------------------


def test_damaged_folders_are_named(tables, tmp_path):
    kept(tables / "films.csv", WORDS, tmp_path)
    for name in ("arrays.safetensors", "method.json"):
        path = tmp_path / "method" / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError, match=rf"{name} is corrupt or truncated.*fredholm"):
            load_pick(tmp_path)
        path.write_bytes(whole)
    path = tmp_path / "method" / "method.json"
    path.write_text(path.read_text().replace('"temperature": 1.0', '"temperature": 2.0'))
    with pytest.raises(CheckpointError, match="does not match its"):
        load_pick(tmp_path)
    path.write_bytes(whole)
    write_tensors(tmp_path / "method" / "arrays.safetensors", {"other": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="do not belong together"):
        load_pick(tmp_path)


def test_parts_of_other_versions_are_refused():
    with pytest.raises(CheckpointError, match=r"part: expected one of .*Linear, .*, got 'Rocket2'"):
        rebuild({"part": "Rocket2"}, {})
    with pytest.raises(CheckpointError, match=r"Linear: expected the fields .*, got .*'bias'"):
        rebuild({"part": "Linear"}, {"weights": torch.zeros(1, 2)})


def test_a_comparison_without_a_method_names_the_next_command(tmp_path):
    verdict = {"pick": "luna", "train": "fredholm train x.csv operator=luna"}
    for state, words in (
        ({}, "not finished; the same `fredholm compare` continues it"),
        ({"verdict": verdict}, r"operator luna; .* fredholm train x.csv operator=luna; then name"),
    ):
        (tmp_path / "choice.json").write_text(json.dumps(state))
        with pytest.raises(CheckpointError, match=words):
            predict(tmp_path, ["x.csv"])
    drop_pick(tmp_path)  # nothing there: nothing happens


def test_commands_that_need_an_operator_refuse_a_method(tables, tmp_path, capsys):
    for name in ("words", "luna"):
        (tmp_path / name).mkdir()
    kept(tables / "films.csv", WORDS, tmp_path / "words")
    verdict = {"pick": "luna", "train": "fredholm train x.csv operator=luna"}
    (tmp_path / "luna" / "choice.json").write_text(json.dumps({"verdict": verdict}))
    for name, way in (("words", "train a run"), ("luna", verdict["train"])):
        assert main(["explain", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert f"got a comparison (its page is {tmp_path / name / 'index.html'})" in said
        assert f"; {way}" in said


def test_starts_with_linear_attention_are_refused_by_name(tables, tmp_path):
    """Earlier versions had them."""
    words = "got 'minilm-linear'.* run `fredholm compare` .* `fredholm linearize`"
    (tmp_path / "choice.json").write_text(json.dumps({"verdict": {"pick": "minilm-linear"}}))
    with pytest.raises(CheckpointError, match=words):
        predict(tmp_path, ["x.csv"])

    pick, _ = kept(tables / "films.csv", WORDS, tmp_path)
    save_pick(tmp_path, replace(pick, method="minilm-linear"))
    with pytest.raises(CheckpointError, match=words):
        predict(tmp_path, ["x.csv"])


def test_a_start_without_its_weights_is_named(tables, tmp_path, backbones, monkeypatch):
    kept(tables / "films.csv", "minilm", tmp_path)
    monkeypatch.setattr(starts, "describe", lambda name: {"fetched": False})
    with pytest.raises(OptionError, match="fredholm data fetch minilm"):
        load_pick(tmp_path)
