"""Weights of samples and classes in estimators, and columns of words."""

from __future__ import annotations

import datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import cross_entropy

from fredholm.data import create_dataset
from fredholm.errors import OptionError, ShapeError
from fredholm.estimators import FredholmClassifier, FredholmRegressor
from fredholm.lab.training.tasks import Tally, create_task
from fredholm.lab.training.weights import WeightedSamples, WeightedTask

TINY: dict[str, Any] = {"dim": 8, "depth": 1, "heads": 2, "epochs": 2, "random_state": 0}
KEPT = np.array([0, 1, 2, 3, 5, 6, 8, 9, 10, 11])


def samples() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "rows": rng.normal(size=(12, 3)),
        "series": list(rng.normal(size=(12, 9, 2))),
        "images": rng.integers(0, 255, size=(12, 8, 8, 1), dtype=np.uint8),
        "clouds": [rng.normal(size=(7 + i % 3, 3)) for i in range(12)],
        "texts": ["a fine film", "a dull film"] * 6,
    }


def taken(X: Any, chosen: np.ndarray) -> Any:
    return [X[i] for i in chosen] if isinstance(X, list) else X[chosen]


# --- weights of samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", samples())
def test_a_sample_of_weight_zero_is_ignored(kind: str):
    X = samples()[kind]
    y = np.arange(12) % 2
    weights = np.arange(1.0, 13)
    weights[[4, 7]] = 0
    whole = FredholmClassifier(kind=kind, **TINY).fit(X, y, sample_weight=weights)
    part = FredholmClassifier(kind=kind, **TINY).fit(taken(X, KEPT), y[KEPT], weights[KEPT])
    np.testing.assert_array_equal(whole.predict_proba(X), part.predict_proba(X))
    equal = FredholmClassifier(kind=kind, **TINY).fit(taken(X, KEPT), y[KEPT])
    assert (equal.predict_proba(X) != part.predict_proba(X)).any()
    zeros = FredholmClassifier(kind=kind, **TINY).fit(X, y, 3.0 * (weights > 0))
    np.testing.assert_array_equal(zeros.predict_proba(X), equal.predict_proba(X))


def test_fields_and_regressions_accept_weights():
    rng = np.random.default_rng(0)
    weights = np.where(np.isin(np.arange(12), KEPT), 1.0 + np.arange(12), 0.0)
    places = [rng.uniform(size=(5 + i % 3, 2)) for i in range(12)]
    cases: list[tuple[str, Any, Any]] = [
        ("rows", rng.normal(size=(12, 3)), rng.normal(size=12)),
        ("fields", rng.normal(size=(12, 4, 4)), rng.normal(size=(12, 4, 4))),
        ("fields", [(p, p[:, :1]) for p in places], [p[:, 0] for p in places]),
    ]
    for kind, X, y in cases:
        whole = FredholmRegressor(kind=kind, **TINY).fit(X, y, sample_weight=weights)
        part = FredholmRegressor(kind=kind, **TINY)
        part.fit(taken(X, KEPT), taken(y, KEPT), weights[KEPT])
        equal = FredholmRegressor(kind=kind, **TINY).fit(taken(X, KEPT), taken(y, KEPT))
        found, expected, other = (
            np.concatenate(m.predict(X)) if isinstance(X, list) else m.predict(X)
            for m in (whole, part, equal)
        )
        np.testing.assert_array_equal(found, expected)
        assert (found != other).any()


@pytest.mark.parametrize("name", ["classification", "regression", "field"])
def test_the_loss_is_the_weighted_mean(name: str):
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.5, 1.5, 0.25, 1.75])
    outputs = torch.randn(4, 3, generator=generator)
    labels = torch.tensor([0, 2, 1, 1])
    if name == "regression":
        outputs = outputs[:, :1]
        labels = torch.randn(4, generator=generator)
    if name == "field":
        outputs = torch.randn(4, 6, 2, generator=generator)
        labels = torch.randn(4, 2, 2, 3, generator=generator)
    plain = create_task(name)
    each = torch.stack([plain.loss(outputs[[i]], labels[[i]]) for i in range(4)])
    held = create_dataset("digits", "train")
    carried = WeightedSamples(held, weights)._with_weights(labels, range(4))
    task = WeightedTask(create_task(name))
    torch.testing.assert_close(task.loss(outputs, carried), (weights * each).mean())
    tally = Tally(task)
    for rows in ([0, 1, 2], [3]):
        tally.add(outputs[rows], carried[rows])
    expected = float((weights * each).sum() / weights.sum())
    assert tally.metrics()["val_loss"] == pytest.approx(expected, rel=1e-6)
    if name == "classification":
        right = (weights * (outputs.argmax(1) == labels)).sum() / weights.sum()
        assert tally.metrics()["val_accuracy"] == pytest.approx(float(right))


@pytest.mark.slow
def test_probabilities_follow_the_weights():
    """Equal samples of two classes cannot be distinguished, so probabilities equal the weights."""
    X, y = np.ones((400, 2)) + np.arange(400)[:, None] // 2 % 2, np.arange(400) % 2
    weights = np.where(y == 1, 9.0, 1.0)
    options = TINY | {"epochs": 30, "lr": 0.02}
    shares = FredholmClassifier(**options).fit(X, y, weights).predict_proba(X)
    np.testing.assert_allclose(shares[:, 1], 0.9, atol=0.03)
    by_class = FredholmClassifier(**options, class_weight={1: 9.0}).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(by_class, shares)


def test_validation_samples_are_weighted():
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = (X[:, 0] > 0).astype(int)
    options = TINY | {"epochs": 3, "validation_fraction": 0.5}
    plain = FredholmClassifier(**options).fit(X, y)
    # Only weights of validation samples differ, so the gradients are equal.
    train = set(plain.facts_["source"]["split"])
    assert {"train", "val"} <= train
    weights = np.where(np.arange(40) % 4 < 2, 1.0, 5.0)
    weighted = FredholmClassifier(**options).fit(X, y, weights)
    losses = [row["val_loss"] for row in weighted.history_]
    assert losses != [row["val_loss"] for row in plain.history_]
    assert weighted.temperature_ != plain.temperature_


def test_invalid_weights_are_refused():
    X = samples()["rows"]
    y = np.arange(12) % 2
    model = FredholmClassifier(**TINY)
    for weights, match in (
        (-np.ones(12), "sample_weight: expected 0 or more, got -1 of sample 0"),
        (np.zeros(12), "sample_weight: expected a weight above zero"),
        (np.ones((12, 2)), r"sample_weight: expected one per sample, \(N,\), got \(12, 2\)"),
        (np.ones(11), "inconsistent numbers of samples"),
        (np.full(12, np.nan), "sample_weight contains NaN"),
    ):
        with pytest.raises(ValueError, match=match):
            model.fit(X, y, sample_weight=weights)
    with pytest.raises(OptionError, match="expected the name of one beside weights, got 'auto'"):
        FredholmClassifier("auto", **TINY).fit(X, y, np.arange(1, 13))


# --- weights of classes ---------------------------------------------------------------------------


def test_balanced_classes_have_equal_weight():
    X = np.random.default_rng(0).normal(size=(24, 3))
    y = np.array(["few", "many", "many", "many"] * 6)
    balanced = FredholmClassifier(**TINY, class_weight="balanced").fit(X, y)
    by_hand = FredholmClassifier(**TINY, class_weight={"few": 2.0, "many": 2 / 3}).fit(X, y)
    np.testing.assert_allclose(balanced.predict_proba(X), by_hand.predict_proba(X), atol=1e-6)
    # Sample weights enter the balance; these already make both classes equal.
    weights = np.where(y == "few", 3.0, 1.0)
    even = FredholmClassifier(**TINY, class_weight="balanced").fit(X, y, weights)
    np.testing.assert_allclose(even.predict_proba(X), balanced.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("even", "expected a mapping, 'balanced' or None, got 'even'"),
        ({2: 1.0}, "expected classes of y, got 2; take some of 0, 1"),
        ({0: -1.0}, "expected a number above zero, got -1.0 for 0"),
    ],
)
def test_wrong_class_weights_are_refused(given: Any, match: str):
    X = samples()["rows"]
    y = np.arange(12) % 2
    with pytest.raises(OptionError, match=f"class_weight: {match}"):
        FredholmClassifier(**TINY, class_weight=given).fit(X, y)


def test_classes_of_weight_zero_may_have_a_class_weight():
    """They are left out, as without class weights, and their names still have to be right."""
    X = samples()["rows"]
    y = np.array([0, 0, 1, 1, 2, 2] * 2)
    weights = np.where(y == 2, 0.0, 1.0)
    model = FredholmClassifier(**TINY, class_weight={0: 1, 1: 4, 2: 3}).fit(X, y, weights)
    expected = FredholmClassifier(**TINY, class_weight={1: 4}).fit(X[y < 2], y[y < 2])
    np.testing.assert_array_equal(model.classes_, [0, 1])
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    for given, match in (
        ({3: 1.0}, "expected classes of y, got 3; take some of 0, 1, 2"),
        ({2: 0.0}, "expected a number above zero, got 0.0 for 2"),
    ):
        with pytest.raises(OptionError, match=f"class_weight: {match}"):
            FredholmClassifier(**TINY, class_weight=given).fit(X, y, weights)


@pytest.mark.parametrize(
    ("unit", "day"),
    [
        ("D", datetime.date(2024, 2, 1)),
        ("us", datetime.datetime(2024, 2, 1)),
        ("ns", np.datetime64("2024-02-01", "D")),
    ],
)
def test_dates_have_class_weights(unit: str, day: Any):
    """Also by a date of another type, which equals one of y."""
    X = samples()["rows"]
    days = np.array(["2024-01-01", "2024-02-01"], f"datetime64[{unit}]")
    codes = np.arange(12) % 2
    expected = FredholmClassifier(**TINY, class_weight={1: 4.0}).fit(X, codes)
    for name in (days[1], day):
        model = FredholmClassifier(**TINY, class_weight={name: 4.0}).fit(X, days[codes])
        np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))


@pytest.mark.parametrize(
    ("classes", "weights"),
    [
        # Sorted as texts, "10" comes before "9".
        ([9, 10], {9: 1.0, 10: 2.0}),
        ([0, 1], {0: 1, 1: 5}),
        ([0, 1], dict(zip(np.arange(2), np.array([1.0, 2.0], np.float32)))),
        ([False, True], {True: 2.0}),
        (["few", "many"], {"few": 2.0}),
    ],
)
def test_class_weights_are_saved(classes: Any, weights: Any, tmp_path):
    X = samples()["rows"]
    y = np.array(classes)[np.arange(12) % 2]
    model = FredholmClassifier(**TINY, class_weight=weights).fit(X, y)
    loaded = FredholmClassifier.load(model.save(tmp_path / "model"))
    assert loaded.get_params()["class_weight"] == weights
    again: Any = clone(loaded)
    again.fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_class_weights_beyond_json_are_not_saved(tmp_path):
    X = samples()["rows"]
    days = np.array(["2024-01-01", "2024-02-01"], "datetime64[D]")
    codes = np.arange(12) % 2
    dated = FredholmClassifier(**TINY, class_weight={days[0]: 2.0}).fit(X, days[codes])
    with pytest.raises(OptionError, match=r"class_weight: .* to save, got datetime\.date\(2024"):
        dated.save(tmp_path / "model")
    shared = FredholmClassifier(**TINY, class_weight={0: Fraction(1, 2)}).fit(X, codes)
    with pytest.raises(OptionError, match=r"class_weight: .* to save, got Fraction\(1, 2\)"):
        shared.save(tmp_path / "model")


# --- columns of words -----------------------------------------------------------------------------


def arrow(columns: dict[str, list[Any]]) -> Any:
    return pyarrow.table(columns)


def pandas_frame(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def pandas_categories(columns: dict[str, list[Any]]) -> Any:
    return pandas_frame(columns).astype({"colour": "category"})


MAKERS = [arrow, pandas_frame, pandas_categories]


@pytest.mark.parametrize("make", MAKERS)
def test_words_become_indicator_columns(make: Any, tmp_path):
    words = ["red", "blue", None, "green"] * 6
    sizes = [None, 2.0, 3.0, 5.5] * 6
    frame = make({"size": sizes, "colour": words})
    plain = np.array(
        [
            [
                np.nan if s is None else s,
                *((np.nan,) * 3 if w is None else (w == "blue", w == "green", w == "red")),
            ]
            for s, w in zip(sizes, words)
        ],
        float,
    )
    y = np.array([w == "red" for w in words])
    model = FredholmClassifier(**TINY).fit(frame, y)
    expected = FredholmClassifier(**TINY).fit(plain, y).predict_proba(plain)
    np.testing.assert_array_equal(model.predict_proba(frame), expected)
    assert model.n_features_in_ == 2
    assert model.feature_names_in_.tolist() == ["size", "colour"]
    again = FredholmClassifier.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(frame), expected)

    # Fewer words, and an unknown one.
    few = make({"size": [2.0, 2.0], "colour": ["red", "pink"]})
    with pytest.warns(UserWarning, match="row 1: the estimator was not fitted on 'pink'"):
        found = again.predict_proba(few)
    plain = np.array([[2.0, 0, 0, 1], [2.0, 0, 0, 0]])
    other = FredholmClassifier(**TINY).fit(
        np.array(
            [
                [
                    np.nan if s is None else s,
                    *((np.nan,) * 3 if w is None else (w == "blue", w == "green", w == "red")),
                ]
                for s, w in zip(sizes, words)
            ],
            float,
        ),
        y,
    )
    np.testing.assert_array_equal(found, other.predict_proba(plain))
    with pytest.raises(ShapeError, match="expected a data frame with the column of words 'colour'"):
        again.predict(plain)
    with pytest.raises(OptionError, match="X, column 'size', row 1: expected a number, got 'x'"):
        again.predict(make({"size": ["2", "x"], "colour": ["red", "red"]}))


def test_words_of_samples_of_weight_zero_are_ignored():
    frame = arrow({"a": [1.0, 2.0, 3.0, 4.0] * 3, "w": ["x", "y", "x", "z"] * 3})
    weights = np.array([1.0, 1.0, 1.0, 0.0] * 3)
    model = FredholmClassifier(**TINY).fit(frame, np.arange(12) % 2, weights)
    assert model.facts_["source"]["words"] == {"w": ["x", "y"]}


def test_many_words_give_a_warning_and_dates_are_refused():
    names = [f"n{i}" for i in range(24)]
    y = np.arange(24) % 2
    with pytest.warns(UserWarning, match="column 'name' has 24 words"):
        FredholmClassifier(**TINY).fit(arrow({"a": list(range(24)), "name": names}), y)
    days = np.arange("2026-01-01", "2026-01-25", dtype="datetime64[D]")
    with pytest.raises(ShapeError, match="X, column 'when': expected numbers or words, got"):
        FredholmClassifier(**TINY).fit(arrow({"a": list(range(24)), "when": days.tolist()}), y)


# --- operators ------------------------------------------------------------------------------------


def test_unknown_operators_are_refused_with_the_known_ones():
    X = samples()["rows"]
    y = np.arange(12) % 2
    for name, match in (
        ("sofmax", "unknown operator 'sofmax'; did you mean 'softmax'"),
        ("grru", "unknown operator 'grru'; did you mean 'gru'"),
        ("atuo", "unknown operator 'atuo'; did you mean 'auto'"),
        ("xyzzy", "unknown operator 'xyzzy'; known: auto, ckconv, .*gru.*softmax"),
    ):
        with pytest.raises(OptionError, match=f"^operator: {match}"):
            FredholmClassifier(name, **TINY).fit(X, y)


def test_a_temperature_follows_the_weights():
    from fredholm.lab.training.calibration import fit_temperature

    logits = torch.tensor([[8.0, 0.0]] * 40)
    labels = torch.tensor([0, 1] * 20)
    weights = torch.tensor([3.0, 1.0] * 20)
    found = fit_temperature(logits, labels, weights)
    thrice = torch.arange(40).repeat_interleave(torch.tensor([3, 1] * 20))
    losses = [float(cross_entropy(logits[thrice] / t, labels[thrice])) for t in (found, 1.0)]
    assert losses[0] < losses[1]
    assert found == pytest.approx(fit_temperature(logits[thrice], labels[thrice]), rel=0.1)
