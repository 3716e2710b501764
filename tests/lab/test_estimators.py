"""Estimators: every kind of samples, scikit-learn's checks and tools, saved folders."""

from __future__ import annotations

import itertools
import json
import warnings
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fredholm.errors import CheckpointError, OptionError, ShapeError
from fredholm.estimators import FredholmClassifier, FredholmRegressor
from fredholm.lab.compare import memory
from fredholm.lab.compare.clock import Clock
from fredholm.lab.compare.memory import choose_for
from fredholm.lab.estimators import base

TINY: dict[str, Any] = {"dim": 8, "depth": 1, "heads": 2, "epochs": 1, "random_state": 0}


def blobs(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    return rng.normal(size=(n, 3)) + 4 * y[:, None], y


def waves(n: int = 12, channels: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    t = np.linspace(0, 6, 10)
    X = np.sin((1 + y)[:, None, None] * t[:, None]) + 0.1 * rng.normal(size=(n, 10, channels))
    return X, y


# --- kinds of samples -----------------------------------------------------------------------------


def samples() -> dict[str, tuple[Any, str | None]]:
    """Return twelve samples of every kind, and the kind that must be declared."""
    rng = np.random.default_rng(0)
    series, _ = waves()
    ragged = [row[: 6 + i % 4] for i, row in enumerate(series)]
    times = [np.sort(rng.uniform(0, 5, len(row))) for row in ragged]
    gaps = series.copy()
    gaps[0, 2:4] = np.nan
    return {
        "rows": (rng.normal(size=(12, 4)), None),
        "series": (series, None),
        "gaps": (gaps, None),
        "ragged": (ragged, None),
        "one channel": ([row[:, 0] for row in ragged], None),
        "timed": (list(zip(times, ragged)), None),
        "clouds": ([rng.normal(size=(9 + i % 3, 3)) for i in range(12)], "clouds"),
        "images": (rng.integers(0, 255, size=(12, 8, 8, 3), dtype=np.uint8), None),
        "grey images": (rng.uniform(size=(12, 8, 8)), "images"),
        "texts": (["a fine film", "a dull film"] * 6, None),
    }


@pytest.mark.parametrize("name", samples())
def test_a_classifier_accepts_every_kind_of_samples(name):
    X, kind = samples()[name]
    y = np.array(["no", "yes"] * 6)
    model = FredholmClassifier(kind=kind, **TINY).fit(X, y)
    shares = model.predict_proba(X)
    assert shares.shape == (12, 2)
    assert set(model.predict(X)) <= {"no", "yes"}
    # Padding and batches change nothing.
    alone = np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(alone, shares[:3], atol=1e-5)


@pytest.mark.parametrize("axes", [3, 4])
def test_fields_on_a_grid_are_learned(axes, tmp_path):
    X = np.random.default_rng(0).normal(size=(10, 1, 6, 5)).astype(np.float32)
    X = X[:, 0] if axes == 3 else X
    model = FredholmRegressor(**TINY | {"epochs": 15, "lr": 0.02}).fit(X, 5 * X)
    assert model.kind_ == "fields"
    assert model.predict(X).shape == X.shape
    assert model.score(X, 5 * X) > 0.3
    again = FredholmRegressor.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_fields_far_from_zero_are_learned_as_well():
    fields = np.random.default_rng(0).normal(size=(40, 8, 8)).astype(np.float32)
    near, far = (
        FredholmRegressor(dim=16, epochs=8, random_state=0)
        .fit(fields, 2 * fields + shift)
        .score(fields, 2 * fields + shift)
        for shift in (0, 300)
    )
    assert near > 0.4
    assert far == pytest.approx(near, abs=0.1)


def test_fields_are_scored_with_sample_weights():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 4, 4))
    model = FredholmRegressor(**TINY).fit(X, 2 * X)
    only = np.zeros(8)
    only[3] = 2.0
    assert model.score(X, 2 * X, sample_weight=only) == pytest.approx(
        model.score(X[[3]], 2 * X[[3]])
    )
    assert model.score(X, 2 * X, np.ones(8)) == pytest.approx(model.score(X, 2 * X))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.score(X, 2 * X, np.ones(7))
    places = [rng.uniform(size=(5 + i % 3, 2)) for i in range(8)]
    ragged = [(p, p[:, :1]) for p in places]
    y = [p[:, 0] for p in places]
    model = FredholmRegressor(kind="fields", **TINY).fit(ragged, y)
    assert model.score(ragged, y, only) == pytest.approx(model.score(ragged[3:4], y[3:4]))


def test_fields_on_points_are_learned():
    rng = np.random.default_rng(0)
    places = [rng.uniform(size=(5 + i % 3, 2)) for i in range(10)]
    X = [(p, p[:, :1] * 2) for p in places]
    y = [p[:, 0] for p in places]
    model = FredholmRegressor(kind="fields", **TINY).fit(X, y)
    assert [field.shape for field in model.predict(X)] == [field.shape for field in y]
    assert np.isfinite(model.score(X, y))


# --- training -------------------------------------------------------------------------------------


def test_series_are_learned_and_saved(tmp_path):
    X, y = waves(24)
    names = np.array(["slow", "fast"])[y]
    model = FredholmClassifier(**TINY | {"epochs": 15, "lr": 0.02}).fit(X, names)
    assert model.score(X, names) == 1
    assert model.n_features_in_ == 2
    assert model.classes_.tolist() == ["fast", "slow"]
    folder = model.save(tmp_path / "model")
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    again = FredholmClassifier.load(folder)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.predict(X[:3]).tolist() == names[:3].tolist()
    assert again.get_params() == model.get_params()
    with pytest.raises(CheckpointError, match="expected a FredholmRegressor, got FredholmC"):
        FredholmRegressor.load(folder)


def test_a_regression_predicts_in_the_units_of_its_targets(tmp_path):
    X, _ = blobs(40)
    y = 1000 + 50 * X[:, 0]
    model = FredholmRegressor(**TINY | {"epochs": 20, "lr": 0.02}).fit(X, y)
    assert model.score(X, y) > 0.5
    again = FredholmRegressor.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.n_features_in_ == 3


def test_equal_seeds_give_equal_models_and_keep_the_callers_generators():
    X, y = blobs()
    np.random.seed(3)
    torch.manual_seed(3)
    shares = [FredholmClassifier(**TINY).fit(X, y).predict_proba(X) for _ in range(2)]
    np.testing.assert_array_equal(*shares)
    drawn = np.random.random(), torch.rand(()).item()
    np.random.seed(3)
    torch.manual_seed(3)
    assert drawn == (np.random.random(), torch.rand(()).item())


def test_patience_ends_a_training_and_none_uses_all_samples():
    X, y = blobs()
    noise = np.random.default_rng(0).integers(0, 2, len(X))
    options = TINY | {"epochs": 30, "lr": 0.1, "validation_fraction": 0.5}
    stopped = FredholmClassifier(patience=2, **options).fit(X, noise)
    assert stopped.n_iter_ < 30
    with pytest.raises(OptionError, match="expected held-out samples"):
        FredholmClassifier(validation_fraction=0, patience=2, **TINY).fit(X, y)
    whole = FredholmClassifier(validation_fraction=None, **TINY).fit(X, y)
    assert "val_loss" not in whole.history_[0]
    assert whole.temperature_ == 1


def test_the_default_dtype_of_the_caller_changes_nothing(tmp_path):
    for X in (
        blobs()[0],
        waves()[0],
        [(np.cumsum(0.1 + row[:, 0] ** 2), row) for row in waves()[0]],
    ):
        y = np.arange(len(X)) % 2
        shares = FredholmClassifier(**TINY).fit(X, y).predict_proba(X)
        torch.set_default_dtype(torch.float64)
        try:
            model = FredholmClassifier(**TINY).fit(X, y)
            np.testing.assert_array_equal(model.predict_proba(X), shares)
            again = FredholmClassifier.load(model.save(tmp_path / "model"))
            np.testing.assert_array_equal(again.predict_proba(X), shares)
            assert torch.get_default_dtype() == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("stop", [OptionError, KeyboardInterrupt])
def test_a_failed_fit_changes_nothing(stop, monkeypatch):
    X, y = blobs()
    model = FredholmClassifier(**TINY).fit(X, np.array(["no", "yes"])[y])
    answers = model.predict(X)
    fresh = clone(model)
    monkeypatch.setattr(base, "build_model", Mock(side_effect=stop("no")))
    with pytest.raises(stop):
        model.fit(X[:, :2], np.array(["a", "b"])[y])
    np.testing.assert_array_equal(model.predict(X), answers)
    with pytest.raises(stop):
        fresh.fit(X, y)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_an_operator_is_selected_by_name():
    X, y = waves()
    for name, operator in ((None, "luna"), ("softmax", "softmax"), ("gru", "gru")):
        model = FredholmClassifier(name, **TINY).fit(X, y)
        assert model.model_.config.body.operator == operator
    with pytest.raises(ValueError, match="softmax"):
        FredholmClassifier("sofmax", **TINY).fit(X, y)


def test_auto_compares_operators_before_fitting(tmp_path, monkeypatch):
    X, y = waves(n=40)
    ticks = itertools.count(step=0.01)  # seconds independent of the machine
    monkeypatch.setattr(
        memory, "Clock", lambda minutes, timer: Clock(minutes, timer=ticks.__next__)
    )
    few = partial(choose_for, operators="softmax,luna")
    monkeypatch.setattr(base, "choose_for", few)
    options = TINY | {"dim": None, "minutes": 0.1, "validation_fraction": 0.25}
    model = FredholmClassifier("auto", **options).fit(X, y)
    assert model.operator_["name"] in ("softmax", "luna")
    assert model.model_.config.body.operator == model.operator_["name"]
    again = FredholmClassifier.load(model.save(tmp_path / "saved"))
    assert again.operator_ == model.operator_
    assert (again.predict(X) == model.predict(X)).all()
    with pytest.raises(OptionError, match="expected held-out samples to compare on"):
        FredholmClassifier("auto", **options | {"validation_fraction": None}).fit(X, y)


# --- scikit-learn's tools -------------------------------------------------------------------------


def test_a_pipeline_runs_in_cross_validation():
    X, y = blobs()
    model = make_pipeline(StandardScaler(), FredholmClassifier(**TINY | {"epochs": 8, "lr": 0.05}))
    assert cross_val_score(model, X, y, cv=2).mean() > 0.8


def test_a_grid_search_over_operators_runs_on_ragged_series():
    X, y = waves(16)
    ragged = [row[: 8 + i % 3] for i, row in enumerate(X)]
    search = GridSearchCV(FredholmClassifier(**TINY), {"operator": ["luna", "softmax"]}, cv=2)
    search.fit(ragged, y)
    assert search.best_params_["operator"] in ("luna", "softmax")
    assert search.predict(ragged).shape == (16,)


def test_a_clone_has_only_the_parameters():
    X, y = blobs()
    model = FredholmClassifier(**TINY).fit(X, y)
    copy = clone(model).set_params(dim=16)
    assert copy.get_params() == model.get_params() | {"dim": 16}
    assert not hasattr(copy, "model_")


ROUNDING = "float32: outputs of a sample differ in the last digits with the size of its batch"
REPEATED = "a sample that comes twice is twice in batches and in the split; one of weight two once"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": REPEATED,
    "check_methods_subset_invariance": ROUNDING,
    "check_methods_sample_order_invariance": ROUNDING,
}


@pytest.mark.slow
@parametrize_with_checks(
    [
        FredholmClassifier(**TINY | {"epochs": 10, "lr": 0.02, "batch_size": 16}),
        FredholmRegressor(**TINY | {"epochs": 15, "lr": 0.02, "batch_size": 16}),
    ],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_estimators_pass_scikit_learns_checks(estimator, check):
    check(estimator)


# --- refusals -------------------------------------------------------------------------------------


def test_mismatched_samples_are_named():
    X, y = waves()
    model = FredholmClassifier(**TINY)
    with pytest.raises(ShapeError, match=r"X, sample 1: expected \(points, 2\) .*, got \(10, 1\)"):
        model.fit([X[0], X[1][:, :1]], y[:2])
    with pytest.raises(OptionError, match="sample 0: expected times that increase"):
        model.fit([(np.arange(10)[::-1], row) for row in X], y)
    with pytest.raises(OptionError, match=r"sample 2: expected finite numbers .*, got inf"):
        model.fit(np.where(np.arange(12)[:, None, None] == 2, np.inf, X), y)
    with pytest.raises(OptionError, match="y: expected two classes or more, got"):
        model.fit(X, np.zeros(12))
    with pytest.raises(OptionError, match="X, sample 2: expected a finite answer"):
        model.fit(X, y).predict(np.where(np.arange(12)[:, None, None] == 2, 3e38, X))
    with pytest.raises(ShapeError, match="y: expected an array per sample for kind='fields'"):
        FredholmRegressor(kind="series", **TINY).fit(X, X)
    with pytest.raises(OptionError, match="device: expected one of auto, cpu, cuda, got 'tpu'"):
        model.set_params(device="tpu").fit(X, y)


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("epochs", 0, "a positive whole number"),
        ("epochs", "3", "a positive whole number"),
        ("dim", 2.5, "a positive whole number"),
        ("patience", -1, "a positive whole number"),
        ("lr", -1.0, "a positive number"),
        ("validation_fraction", 1.0, "a share of the samples"),
        ("operator", 5, "the name of one"),
    ],
)
def test_wrong_options_of_training_are_named(name, value, needed):
    X, y = blobs()
    model = FredholmClassifier(**TINY | {name: value})
    with pytest.raises(OptionError, match=f"^{name}: expected {needed}.*, got {value!r}"):
        model.fit(X, y)


def test_truncated_texts_give_a_warning():
    long, y = "a fine film " * 30, [0, 1] * 6
    X = [*["a dull film", "a fine film"] * 5, long, long]
    with pytest.warns(UserWarning, match="X: 2 of 12 texts are longer than 64 words"):
        model = FredholmClassifier(**TINY).fit(X, y)
    with pytest.warns(UserWarning, match="X: 1 of 2 texts .* first 64 are read; shorten or div"):
        model.predict([long, X[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X[:3])


def test_options_may_be_numpy_numbers(tmp_path):
    whole = {"dim": 8, "depth": 1, "heads": 2, "epochs": 2, "batch_size": 8, "patience": 3}
    given = {name: np.int64(value) for name, value in whole.items()}
    given |= {"lr": np.float32(0.01), "validation_fraction": np.float32(0.25)}
    X, y = blobs()
    model = FredholmClassifier(**given, random_state=np.int64(0)).fit(X, y)
    model.save(tmp_path / "saved")
    again = FredholmClassifier.load(tmp_path / "saved")
    assert {name: again.get_params()[name] for name in whole} == whole
    plain = {name: value.item() for name, value in given.items()}
    other = FredholmClassifier(**plain, random_state=0).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), other.predict_proba(X))


def test_an_unavailable_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="device: expected cpu or auto, since PyTorch finds no"):
        FredholmClassifier(**TINY, device="cuda").fit(*blobs())


def test_images_with_channels_first_are_refused():
    X = np.zeros((12, 3, 8, 8), np.uint8)
    y = np.arange(12) % 2
    with pytest.raises(ShapeError, match=r"channels first; pass X\.transpose\(0, 2, 3, 1\)"):
        FredholmClassifier(**TINY).fit(X, y)
    assert FredholmClassifier(**TINY).fit(X.transpose(0, 2, 3, 1), y).n_features_in_ == 3


def test_another_number_of_channels_is_refused_when_predicting():
    X, y = waves()
    model = FredholmClassifier(**TINY).fit(X, y)
    with pytest.raises(ShapeError, match=r"expected samples of 2 channels, .* got 1"):
        model.predict(X[..., :1])


def test_points_of_clouds_with_nan_are_dropped():
    clouds = np.random.default_rng(0).normal(size=(12, 9, 3))
    y = np.arange(12) % 2
    padded = clouds.copy()
    padded[2:, 6:] = np.nan
    padded[2, 5, 1] = np.nan  # one coordinate
    fewer = [*clouds[:2], clouds[2, :5], *clouds[3:, :6]]
    model = FredholmClassifier(kind="clouds", **TINY).fit(padded, y)
    same = FredholmClassifier(kind="clouds", **TINY).fit(fewer, y)
    np.testing.assert_array_equal(model.predict_proba(padded), same.predict_proba(fewer))
    padded[4, :, 0] = np.nan
    for ask in (model.predict, lambda X: clone(model).fit(X, y)):
        with pytest.raises(ShapeError, match=r"sample 4: .* got 9 points that all have NaN"):
            ask(padded)


def test_fields_on_points_need_one_finite_value_per_point():
    rng = np.random.default_rng(0)
    places = [rng.uniform(size=(5 + i % 3, 2)) for i in range(8)]
    values, y = [p[:, :1].copy() for p in places], [p[:, 0].copy() for p in places]
    model = FredholmRegressor(kind="fields", **TINY)

    def fit(places=places, values=values, y=y):
        return model.fit(list(zip(places, values)), y)

    def changed(arrays, change):
        result = [array.copy() for array in arrays]
        result[3] = change(result[3])
        return result

    def hole(array):
        array[1] = np.nan
        return array

    fitted = clone(model).fit(list(zip(places, values)), y)
    shorter, holes = partial(changed, change=lambda a: a[:-1]), partial(changed, change=hole)
    with pytest.raises(ShapeError, match=r"X, sample 3: .*, got 4 values at 5 points"):
        fit(values=shorter(values))
    with pytest.raises(ShapeError, match=r"y, sample 3: .*, got 4 values at 5 points"):
        fit(y=shorter(y))
    for wrong in ({"places": holes(places)}, {"values": holes(values)}, {"y": holes(y)}):
        name = "y" if "y" in wrong else "X"
        with pytest.raises(
            OptionError, match=f"{name}, sample 3: expected finite .* leave such points"
        ):
            fit(**wrong)
    with pytest.raises(OptionError, match="X, sample 3: expected finite numbers, got NaN"):
        fitted.predict(list(zip(holes(places), values)))
    moved = [*y[:3], np.append(y[3], y[4][0]), y[4][1:], *y[5:]]
    with pytest.raises(ShapeError, match=r"y, sample 3: expected \(5,\), .* got \(6,\)"):
        fitted.score(list(zip(places, values)), moved)


def test_fields_on_a_grid_are_predicted_on_the_same_grid():
    X = np.random.default_rng(0).normal(size=(8, 4, 6))
    model = FredholmRegressor(**TINY).fit(X, X)
    assert model.score(X, X[:, None]) == model.score(X, X)
    with pytest.raises(ShapeError, match=r"y, sample 0: expected \(4, 6\), .* got \(6, 4\)"):
        model.score(X, X.swapaxes(1, 2))
    with pytest.raises(ShapeError, match=r"y: .* the grid of X, \(4, 6\), got \(6, 4\)"):
        model.fit(X, X.swapaxes(1, 2))
    y = np.where(np.arange(8)[:, None, None] == 5, np.nan, X)
    with pytest.raises(OptionError, match="y, sample 5: expected finite numbers, got NaN"):
        model.fit(X, y)


def test_pairs_do_not_mix_with_arrays():
    X, y = waves()
    pair = (np.arange(10), X[0])
    for mixed, odd in (([pair, *X[1:]], 1), ([X[0], *[pair] * 11], 0)):
        with pytest.raises(ShapeError, match=rf"sample {odd}: expected a pair \(times, values\)"):
            FredholmClassifier(kind="series", **TINY).fit(mixed, y)
    with pytest.raises(ShapeError, match="sample 1: expected an array of numbers, got list"):
        FredholmClassifier(kind="series", **TINY).fit([X[0], [[1.0], [2.0, 3.0]]], y[:2])


def test_blank_texts_and_targets_beyond_float32_are_refused():
    X = ["a fine film", "a dull film"] * 6
    model = FredholmClassifier(**TINY)
    with pytest.raises(OptionError, match=r"X, sample 2: expected a text .*, got ' \\n'"):
        model.fit([*X[:2], " \n", *X[3:]], [0, 1] * 6)
    with pytest.raises(OptionError, match=r"X, sample 1: expected a text .*, got ''"):
        model.fit(X, [0, 1] * 6).predict([X[0], ""])
    rows, _ = blobs()
    with pytest.raises(OptionError, match=r"y, sample 3: expected finite numbers .*, got 1e\+160"):
        FredholmRegressor(**TINY).fit(rows, np.where(np.arange(24) == 3, 1e160, rows[:, 0]))
    with pytest.raises(OptionError, match="y, sample 23: expected finite numbers, got NaN"):
        FredholmRegressor(**TINY).fit(rows, ["1.5"] * 23 + ["nan"])


def test_columns_become_floats_as_in_scikit_learn():
    X, y = blobs()
    texts = X.astype(str)
    model = FredholmClassifier(**TINY).fit(texts, y)
    np.testing.assert_array_equal(model.predict_proba(texts), model.predict_proba(X))
    texts[2, 1] = "x"
    with pytest.raises(ValueError, match=r"could not convert string to float: .*x"):
        model.fit(texts, y)


def test_times_between_the_steps_of_training_are_refused():
    X, y = waves()
    times = 0.1 * np.arange(10)
    model = FredholmClassifier(**TINY).fit([(times, row) for row in X], y)
    shares = model.predict_proba([(7 + times, row) for row in X])
    np.testing.assert_allclose(shares, model.predict_proba(X), atol=1e-6)
    slower = model.predict_proba([(3 * times, row) for row in X])
    assert np.abs(slower - shares).max() > 1e-4
    with pytest.raises(
        OptionError, match=r"X, sample 0: expected equal steps .* got a point every 0\.05;"
    ):
        model.predict([(0.5 * times, row) for row in X])
    with pytest.raises(OptionError, match=r"X, sample 0: .* got a point after"):
        model.predict([(times + times**2, row) for row in X])


def test_images_of_any_integer_type_are_equal(tmp_path):
    X = np.random.default_rng(0).integers(0, 256, size=(12, 4, 4, 3), dtype=np.uint8)
    y = np.arange(12) % 2
    model = FredholmClassifier(**TINY).fit(X, y)
    shares = model.predict_proba(X)
    for same in (X.astype(np.int64), X.astype(np.uint16), X / 255):
        np.testing.assert_allclose(model.predict_proba(same), shares, atol=1e-6)
    with pytest.raises(OptionError, match="got images of int32 from 0 to 765; give numbers"):
        model.predict(3 * X.astype(np.int32))
    with pytest.raises(
        OptionError, match=r"expected whole numbers .* fitted, got floats from 0 to 255"
    ):
        FredholmClassifier.load(model.save(tmp_path / "model")).predict(X.astype(float))
    other = FredholmClassifier(**TINY).fit(X.astype(float), y)
    assert other.facts_["source"]["pixels"] == "numbers"
    assert other.predict_proba(X.astype(float)).shape == (12, 2)
    with pytest.raises(OptionError, match=r"expected floats .* \(means up to 1"):
        other.predict(X)
    del other.facts_["source"]["pixels"]  # saved by an earlier version
    with pytest.raises(OptionError, match="expected floats on the scale on which"):
        other.predict(X)


def test_a_generator_is_not_saved(tmp_path):
    X, y = blobs()
    model = FredholmClassifier(**TINY | {"random_state": np.random.RandomState(0)}).fit(X, y)
    with pytest.raises(OptionError, match="expected a number or None to save"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("unit", ["D", "us", "ns"])
def test_dates_are_saved_as_classes(unit, tmp_path):
    X, y = blobs()
    days = np.array(["2024-01-01", "2024-02-01"], f"datetime64[{unit}]")
    model = FredholmClassifier(**TINY).fit(X, days[y])
    again = FredholmClassifier.load(model.save(tmp_path / "model"))
    assert again.classes_.dtype == days.dtype
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    model.classes_ = days.astype("datetime64[us]").astype(object)
    with pytest.raises(OptionError, match=r"classes_: expected .*, got datetime\.datetime\(2024"):
        model.save(tmp_path / "other")


def test_a_saved_folder_is_plain_data(tmp_path):
    X, y = blobs()
    folder = FredholmClassifier(**TINY).fit(X, y.astype(bool)).save(tmp_path / "model")
    saved = json.loads((folder / "config.json").read_text())["extra"]["estimator"]
    assert saved["class"] == "FredholmClassifier"
    assert FredholmClassifier.load(folder).classes_.dtype == bool


def test_a_single_text_is_refused():
    model = FredholmClassifier(**TINY)
    with pytest.raises(ShapeError, match=r"expected a list of texts, got one text, 'great'"):
        model.fit("great", [0, 1, 0, 1, 0])
    model.fit(["a fine film", "a dull film"] * 8, [1, 0] * 8)
    with pytest.raises(ShapeError, match="got one text"):
        model.predict("great")


def test_non_numeric_options_are_refused():
    X, y = blobs()
    with pytest.raises(OptionError, match="minutes: expected a positive number, got None"):
        FredholmClassifier("auto", minutes=None).fit(X, y)
    for share in (0.95, 0.99):
        with pytest.raises(OptionError, match=r"validation_fraction: .* got 0.9.*smaller"):
            FredholmRegressor(**TINY, validation_fraction=share).fit(X[:4], y[:4])
