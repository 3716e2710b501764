"""The contest of operators runs on every task, and the decision table follows from its results."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from evidence.__main__ import main
from evidence.choosing import contest, decide
from evidence.choosing.elements import CLASSICAL, ELEMENTS, OURS, RATES, ROWS, SEEDS
from evidence.choosing.places import PLACES, concluded
from evidence.kit.subject import Options

from fredholm.training import load_recipe

ELEMENT = ELEMENTS["scattered"]
NAMES = [name for name in ELEMENT.operators if name != "convolution"]


def results(scores, element=ELEMENT, refused=("convolution",)):
    """Return results with a validation and a test score for each seed of each operator."""
    sizes = [
        {"task": element.name, "operator": name, "parameters": 5}
        | ({"refused": "no grid"} if name in refused else {})
        for name in element.operators
    ]
    runs = [
        {"task": element.name, "operator": name, "seed": seed, "rate": 1e-3, "val": val}
        | {"score": score + 1e-3 * seed}
        for name, (val, score) in scores.items()
        for seed in range(SEEDS)
    ]
    return {"sizes": sizes, "runs": runs}


ALL = dict.fromkeys(NAMES, (0.5, 0.5))


def row_of(found, name="scattered"):
    return next(row for row in decide.decisions(found) if row["element"].name == name)


def test_every_task_is_a_recipe_that_accepts_the_conditions():
    for element in ELEMENTS.values():
        for own in ((), element.instead, element.under, element.checked[1]):
            load_recipe(element.task.recipe, [*element.task.overrides, *own])
    assert len(ROWS) == 6
    assert len(set(RATES)) >= 3


def test_a_row_without_results_is_marked_missing():
    table = decide.decision_table(None).splitlines()
    assert len(table) == 2 + 6
    assert all(line.count(decide.MISSING) == 5 for line in table[2:])
    some = results({name: ALL[name] for name in NAMES[1:]})
    assert row_of(some)["gap"] is None, "one operator is missing"


def test_operators_are_picked_on_validation_and_judged_on_the_test_split():
    scores = {**ALL, "luna": (0.9, 0.8), "ckconv": (0.8, 0.99), "gru": (0.7, 0.6)}
    row = row_of(results(scores))
    assert (row["theirs"], row["ours"]) == ("gru", "luna"), "not the best of the test split"
    assert row["gap"] == pytest.approx([0.2] * SEEDS)
    assert decide.take(row) == "**luna**"
    worse = row_of(results({**scores, "luna": (0.9, 0.4)}))
    assert decide.take(worse) == "**gru**"


def test_a_difference_within_chance_recommends_both():
    found = results({**ALL, "luna": (0.9, 0.5), "gru": (0.9, 0.5)})
    for run in found["runs"]:
        run["score"] += 0.1 * (-1) ** run["seed"] * (run["operator"] == "luna")
    assert decide.take(row_of(found)) == "gru or luna"


def test_the_smaller_error_wins():
    element = ELEMENTS["long"]
    scores = dict.fromkeys(element.operators, (0.5, 0.5))
    found = results({**scores, "luna": (0.01, 0.01)}, element, refused=())
    row = row_of(found, "long")
    assert row["ours"] == "luna"
    assert decide.take(row) == "**luna**"
    assert "| luna | 0.0120 ± 0.0016 | 5 | 0.001 | 5 |" in decide.element_tables(found)


def test_the_rate_is_chosen_on_validation(tmp_path, monkeypatch):
    """The best of the tried rates gets the seeds, and no other reads the test split."""
    read = []

    def train(cell, report):
        cell.place.mkdir(parents=True, exist_ok=True)
        return {"parameters": 5, "minutes": 0.0, "epochs": 1}

    def evaluate(place, split, overrides, **more):
        rate = float(load_rate(place))
        read.append((split, rate, overrides))
        each = {"measure": "accuracy", "values": [1.0, 0.0]}
        return {"accuracy": 1 - abs(rate - 3e-3), "loss": 1.0, "each": each}

    def load_rate(place):
        return next(part for part in place.name.split(",") if part in {f"{r:g}" for r in RATES})

    monkeypatch.setattr(contest, "trained", train)
    monkeypatch.setattr(contest, "evaluate", evaluate)
    size = {"task": "rate", "operator": "gru", "instead": False, "dim": 8, "parameters": 5}
    options = Options(runs=tmp_path / "runs", results=tmp_path)
    contest.SIZES.add([size], tmp_path)
    contest.contest(ELEMENTS["rate"], "gru", options)
    found = json.loads((tmp_path / contest.FILE).read_text())
    assert [row["rate"] for row in found["tuning"]] == list(RATES)
    assert [(row["seed"], row["rate"]) for row in found["runs"]] == [
        (s, 3e-3) for s in range(SEEDS)
    ]
    tests = [one for one in read if one[0] == "test"]
    assert [rate for _, rate, _ in tests] == [3e-3] * SEEDS
    assert all(overrides == ELEMENTS["rate"].under for _, _, overrides in read)
    read.clear()
    contest.contest(ELEMENTS["rate"], "gru", options)
    assert not read, "nothing is computed twice"


def test_an_operator_that_refuses_is_recorded(tmp_path):
    options = Options(runs=tmp_path / "runs", results=tmp_path)
    found = contest.size_of(ELEMENT, "convolution", options)
    assert "grid" in found["refused"]
    assert contest.size_of(ELEMENT, "convolution", options) == found
    equal = contest.size_of(ELEMENT, "luna", options)
    assert abs(equal["off"]) < 0.1


@pytest.mark.slow
def test_the_contest_runs_end_to_end(tmp_path):
    words = ["run", "choosing", "elements", "--small", "--only", "scattered", "softmax", "ckconv"]
    assert main([*words, "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]) == 0
    found = json.loads((tmp_path / contest.FILE).read_text())
    assert {row["operator"] for row in found["runs"]} == {"softmax", "ckconv"}
    assert all(0 <= row["score"] <= 1 for row in found["runs"])
    assert "| softmax |" in decide.element_tables(found)


def test_every_name_of_the_contest_is_registered():
    from fredholm.models import list_baselines
    from fredholm.operators import list_operators

    assert set(CLASSICAL) - {"softmax"} <= set(list_baselines())
    assert {"softmax", *OURS} <= set(list_operators())
    assert replace(ELEMENT, without=("gru",)).operators.count("gru") == 0


def test_sentences_are_conclusions_only_where_a_claim_has_one():
    for place in PLACES:
        sides = (
            (place.strength, place.strength_claims),
            (place.weakness, place.weakness_claims),
        )
        for words, claims in sides:
            verdicts = [concluded(name) for name in claims]
            assert bool(words.concluded) == any(verdicts), place.operator
            assert bool(words.open) or all(verdicts), place.operator
