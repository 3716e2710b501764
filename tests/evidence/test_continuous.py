"""Measurements on continuous transformers: noise, cost and errors, on models small enough to know
the answer.
"""

from __future__ import annotations

import pytest
import torch
from evidence.continuous import claims as continuous_claims
from evidence.continuous import evidence as continuous
from evidence.continuous import page as continuous_report
from evidence.continuous.evidence import (
    Batch,
    accuracy,
    drop_tokens,
    measure_noise,
    measure_steps,
    operator_calls,
)
from evidence.continuous.layers import exit_early
from evidence.kit.page import load

from fredholm.models import create_model
from tests.parts import parts as named

NUMBERS = torch.randint(2, 20, (12, 9), generator=torch.Generator().manual_seed(0))
NUMBERS[5:, 6:] = 0


@pytest.fixture
def model():
    torch.manual_seed(0)
    built = create_model(
        "continuous_text_micro",
        **named(vocabulary=20, max_length=9, dim=8, heads=2, depth=4, frequencies=4),
    )
    torch.nn.init.normal_(built.head.weight)
    return built.eval()


def test_the_exit_after_the_last_step_equals_the_model(model):
    expected = model(NUMBERS)
    assert torch.allclose(exit_early(model, NUMBERS, 4), expected, atol=1e-6)
    assert not torch.allclose(exit_early(model, NUMBERS, 2), expected, atol=1e-3)


def parts_of(model):
    """All sentences, each labelled as the model itself does, in two batches."""
    with torch.no_grad():
        labels = model(NUMBERS).argmax(-1)
    pieces = torch.arange(12).split(7)
    return [Batch(index, NUMBERS[index], labels[index]) for index in pieces]


def test_dropped_words_depend_on_sample_and_position_alone():
    index = torch.arange(12)
    dropped = drop_tokens(index, NUMBERS, 0.4, seed=7)
    hit = dropped != NUMBERS
    assert dropped[hit].eq(1).all()
    assert not hit[NUMBERS == 0].any(), "padding stays padding"
    assert 0.2 < hit.sum() / (NUMBERS != 0).sum() < 0.6
    assert drop_tokens(index[3:5], NUMBERS[3:5, :8], 0.4, seed=7).equal(dropped[3:5, :8])
    assert drop_tokens(index, NUMBERS, 0.0, seed=7).equal(NUMBERS)
    assert drop_tokens(index, NUMBERS, 1.1, seed=7).unique().tolist() == [0, 1]


def test_accuracy_counts_samples_over_batches(model):
    parts = parts_of(model)
    assert accuracy(lambda _, x: model(x), parts) == 1.0
    parts[0] = parts[0]._replace(labels=1 - parts[0].labels)
    assert accuracy(lambda _, x: model(x), parts) == pytest.approx(5 / 12)


def test_more_noise_changes_more_answers(model, monkeypatch):
    monkeypatch.setattr(continuous, "NOISE", (0.0, 1e-6, 50.0))
    monkeypatch.setattr(continuous, "DROPPED", (0.0, 1.1))
    found = measure_noise(model, parts_of(model))
    assert found["features"][:2] == [1.0, 1.0]
    assert found["features"][2] < 1.0
    assert found["tokens"][0] == 1.0
    assert found["tokens"][1] < 1.0


@pytest.mark.parametrize(("scheme", "calls"), [("lie", 6), ("parallel", 6), ("strang", 24)])
def test_operator_calls_are_those_of_the_scheme(model, scheme, calls):
    model.body.evolution.scheme = scheme
    assert operator_calls(model, NUMBERS, 6) == calls


@pytest.mark.parametrize("control", ["constant", "linear"])
def test_errors_shrink_with_steps_and_the_model_stays_unchanged(model, monkeypatch, control):
    monkeypatch.setattr(continuous, "STEPS", (2, 4, 16))
    before = model(NUMBERS)
    controls = model.body.evolution.controls
    rows = measure_steps(model, parts_of(model), control)
    assert [row["steps"] for row in rows] == [2, 4, 16]
    assert rows[1]["accuracy"] == 1.0, "its own steps"
    assert rows[0]["error"] > rows[1]["error"] > rows[2]["error"] > 0
    assert model.body.evolution.controls is controls
    assert model(NUMBERS).equal(before)


def test_the_committed_results_are_complete():
    found = load(continuous_report.FILE)
    assert {(row["variant"], row["seed"]) for row in found["runs"]} == {
        (name, seed) for name in continuous.VARIANTS for seed in range(3)
    }


def test_the_remarks_follow_from_the_results():
    runs = continuous_report.by_variant(load(continuous_report.FILE))
    score, lost, growth = continuous_claims.score, continuous_claims.lost, continuous_claims.growth
    assert all(
        continuous_claims.error(runs, name) > 0.25 for name in ("pre", "parallel", "strang", "soft")
    ), "not resolved"
    for name in ("post", "pre"):
        assert score(runs, name) - score(runs, name, 16) < 4, "finer steps are tolerated"
        assert score(runs, name) - score(runs, name, 2) > 8, "coarser ones are not"
    assert abs(score(runs, "soft") - score(runs, "soft", 16)) < 1.5
    assert score(runs, "soft") - score(runs, "soft", 2) < 6
    for name in ("strang", "parallel"):
        assert score(runs, name) < score(runs, "pre") + 1, "no better"
        assert lost(runs, name, "tokens", 1) > lost(runs, "pre", "tokens", 1) - 1, "no more robust"
    assert growth(runs, "strang") > growth(runs, "pre")
    assert score(runs, "soft") > max(score(runs, "post"), score(runs, "pre"))
    assert max(growth(runs, "post"), growth(runs, "soft")) < growth(runs, "pre")
    assert lost(runs, "post", "tokens", 1) > lost(runs, "pre", "tokens", 1)
    assert score(runs, "shared", 2) - score(runs, "pre", 2) > 8
