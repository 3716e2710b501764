"""The recommendation of a search, in words: from the saved state of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fredholm.lab.compare import report

FINISHED = Path(__file__).parents[2] / "fixtures/formats/comparisons/finished/choice.json"


@pytest.fixture
def state():
    """A search with one seed, whose pick is not an operator."""
    return json.loads(FINISHED.read_text("utf-8"))


def test_a_difference_has_its_unit_and_one_interval_is_singular(state):
    sure = dict(report.recommendation(state))["how sure"]
    assert "+39.6 points, 95% interval +33.1 to +46.0 over" in sure


def test_the_training_command_is_called_after_what_it_trains(state):
    assert "train best operator" in dict(report.recommendation(state))
    operator = state["verdict"]["operator"]
    state["verdict"]["pick"] = operator
    assert "train in full" in dict(report.recommendation(state))


def test_a_tie_says_which_method_trains_faster(state):
    state["verdict"]["ties"] = ["linear_attention"]
    tie = dict(report.recommendation(state))["tie"]
    assert tie.startswith("with linear_attention: at most one validation sample apart; the recomm")


def test_slow_steps_have_a_separator_for_thousands(state):
    state["sizes"]["softmax"]["step"] = 1.786
    row = next(row for row in report.rungs_table(state).rows if row[0] == "softmax")
    assert row[3] == "1,786"


def test_the_page_speaks_of_seeds_only_where_there_are_several(state, tmp_path):
    report.write(tmp_path, state)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "trained anew with one seed." in page
    assert "several seeds" not in page
    assert "means over seeds" not in page

    state["verdict"]["table"][0]["seeds"] = 2
    report.write(tmp_path, state)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "trained anew with several seeds" in page
    assert "means over seeds" in page


def test_the_page_says_why_a_contender_has_no_score(state, tmp_path):
    state["left_out"]["slow"] = "100 steps take 100 s"
    failed = {"operator": "luna", "lr": 0.004, "fold": 0, "error": "the loss is <NaN>"}
    state["rungs"][0]["rows"] += [failed, failed | {"operator": "softmax"}]
    report.write(tmp_path, state)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "slow: 100 steps take 100 s" in page
    assert "luna: failed: the loss is &lt;NaN&gt;" in page
    assert "softmax: failed" not in page, "another trial has a score"


def test_a_short_training_is_made_longer_by_another_comparison(state):
    state["full_steps"] = 1000
    short = dict(report.recommendation(state))["trained for"]
    assert short.endswith("another comparison with more --minutes may order them otherwise")


def test_the_page_shows_the_command_that_predicts_as_code(state, tmp_path):
    report.write(tmp_path, state)
    page = (tmp_path / "index.html").read_text("utf-8")
    command = "fredholm predict comparisons/finished FILE..."
    assert f"<code>{command}</code> (fitted to training samples)" in page
