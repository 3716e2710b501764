"""A sweep: the grid, its table, resuming, and a cell that fails."""

from __future__ import annotations

import csv
import json

import pytest

from fredholm.errors import RecipeError
from fredholm.lab.training.grid import safe_name
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.sweeps import expand, split_values, tabulate, to_markdown
from fredholm.training import load_recipe, sweep
from tests.lab.training.conftest import SMALL

BASE = [*SMALL, "training.epochs=2"]


def test_a_grid_has_every_combination_and_seed():
    cells = expand(["a=1,2", "b=x", "c=[1,2],[3]", "seeds=2"], 7)
    assert len(cells) == 8
    assert cells[0] == ("a=1 c=[1,2]", ["a=1", "b=x", "c=[1,2]"], 7)
    assert {seed for _, _, seed in cells} == {7, 8}
    assert split_values("'a,b',c") == ["'a,b'", "c"]
    assert expand(["operator.omega=log(1, 8, 4)"], 0)[2] == (
        "operator.omega=4",
        ["operator.omega=4"],
        0,
    )
    for wrong in ("log(1,8)", "log(0,8,4)", "log(1,8,1)", "log(a,8,2)", "log(1,inf,3)"):
        with pytest.raises(RecipeError, match=r"expected log\(FIRST,LAST,COUNT\)"):
            expand([f"operator.omega={wrong}"], 0)
    with pytest.raises(RecipeError, match="seeds: expected a count of 1 or more, got 'many'"):
        expand(["seeds=many"], 0)


def test_values_of_any_alphabet_give_different_names_of_runs():
    labels = ["data.label=größe", "data.label=grüße", "data.label=高さ", "data.label=rate"]
    names = [safe_name(label) for label in labels]
    assert len(set(names)) == len(names)
    assert names[-1] == labels[-1]
    for name in names:
        assert load_recipe("digits", [f"name={name},seed=0"]).name == f"{name},seed=0"


def test_repeated_values_give_one_cell():
    cells = expand(["operator=itnet,softmax,itnet", "seeds=2"], 0)
    assert [(label, seed) for label, _, seed in cells] == [
        (f"operator={name}", seed) for name in ("itnet", "softmax") for seed in (0, 1)
    ]


def test_a_sweep_resumes_and_tabulates(tmp_path, monkeypatch):
    cells, rows = sweep("digits", [*BASE, "optimizer.lr=1e-3,5e-3", "seeds=2"], tmp_path)
    assert [(row["cell"], row["n"], row["failed"]) for row in rows] == [
        ("optimizer.lr=1e-3", 2, 0),
        ("optimizer.lr=5e-3", 2, 0),
    ]
    assert rows[0]["mean"] == pytest.approx((cells[0]["accuracy"] + cells[1]["accuracy"]) / 2)
    assert rows[0]["sd"] == pytest.approx(abs(cells[0]["accuracy"] - cells[1]["accuracy"]) / 2**0.5)
    assert cells[0]["accuracy"] != cells[1]["accuracy"]  # seeds differ
    assert json.loads((tmp_path / "table.json").read_text()) == rows
    with (tmp_path / "table.csv").open() as file:
        assert [row["cell"] for row in csv.DictReader(file)] == [row["cell"] for row in rows]
    assert "| optimizer.lr=1e-3 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "optimizer.lr=1e-3,seed=1" / "model" / "model.safetensors").is_file()

    monkeypatch.setattr(
        RecipeLearner, "training_step", lambda *_: pytest.fail("a finished cell was trained again")
    )
    assert sweep("digits", [*BASE, "optimizer.lr=1e-3,5e-3", "seeds=2"], tmp_path) == (cells, rows)


def test_a_failed_cell_is_recorded_and_others_continue(tmp_path, monkeypatch):
    lines = []
    cells, rows = sweep("digits", [*BASE, "model.body.heads=3,2"], tmp_path, report=lines.append)
    assert "expected heads that divide dim" in cells[0]["error"]
    assert "accuracy" in cells[1]
    assert [(row["n"], row["failed"]) for row in rows] == [(0, 1), (1, 0)]
    assert any("failed" in line for line in lines)
    assert "Traceback" in (tmp_path / "model.body.heads=3,seed=0.error.txt").read_text()


def test_a_wrong_recipe_stops_a_sweep_before_it_starts(tmp_path):
    with pytest.raises(RecipeError, match=r"training.epoch: unknown key"):
        sweep("digits", ["operator=softmax,itnet", "training.epoch=1"], tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_the_table_names_missing_cells():
    rows = tabulate(
        [
            {"cell": "a", "seed": 0, "error": "no"},
            {"cell": "b", "seed": 0, "accuracy": 0.5, "parameters": 7, "minutes": 2},
        ]
    )
    assert rows[0]["mean"] is None
    assert rows[1]["sd"] is None
    assert "| a | failed | 0 (1 failed) |  |  |" in to_markdown(rows)
    assert "| b | 50.00 | 1 | 7 | 2.0 |" in to_markdown(rows)


def test_scores_of_two_metrics_are_named_in_one_table():
    one = {"seed": 0, "parameters": 5, "minutes": 1.0}
    cells = [
        {"cell": "task=sst2", "accuracy": 0.912, "loss": 0.31, **one},
        {"cell": "task=stsb", "loss": 0.55, **one},
    ]
    text = to_markdown(tabulate(cells))
    assert "| task=sst2 | 91.20 (accuracy, %) |" in text
    assert "| task=stsb | 0.55 (loss) |" in text
    assert "| cell | test accuracy (%) |" in to_markdown(tabulate(cells[:1]))
