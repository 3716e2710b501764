"""The text of a search's recommendation, from a saved state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fredholm.lab.compare import report

FINISHED = Path(__file__).parents[2] / "fixtures/formats/comparisons/finished/choice.json"


@pytest.fixture
def state():
    """Return a search with one seed, whose pick is not an operator."""
    return json.loads(FINISHED.read_text("utf-8"))


def test_differences_are_printed_in_points_with_an_interval(state):
    sure = dict(report.recommendation(state))["how sure"]
    assert "+39.6 points, 95% interval +33.1 to +46.0 over" in sure


def test_the_training_command_is_named_after_its_operator(state):
    assert "train best operator" in dict(report.recommendation(state))
    operator = state["verdict"]["operator"]
    state["verdict"]["pick"] = operator
    assert "train in full" in dict(report.recommendation(state))


def test_a_tie_names_the_faster_method(state):
    state["verdict"]["ties"] = ["linear_attention"]
    tie = dict(report.recommendation(state))["tie"]
    assert tie.startswith("with linear_attention: at most one validation sample apart; the recomm")


def test_slow_steps_are_printed_with_thousands_separators(state):
    state["sizes"]["softmax"]["step"] = 1.786
    row = next(row for row in report.rungs_table(state).rows if row[0] == "softmax")
    assert row[3] == "1,786"


def test_the_page_mentions_seeds_only_if_there_are_several(state, tmp_path):
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
