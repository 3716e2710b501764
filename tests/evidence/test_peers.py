"""Peers are timed only with right answers, worse ratios are named, and pages follow from the
committed results.
"""

from __future__ import annotations

import pytest
from evidence.choosing import page as choosing_report
from evidence.kit import clock as runner
from evidence.kit.page import load
from evidence.performance import page as performance_report
from evidence.performance import peers, roofline

SMALL = [
    pytest.param(lambda: peers.attention(lengths=(12,), dim=16), id="attention"),
    pytest.param(lambda: peers.linear(lengths=(16,), dim=16), id="linear"),
    pytest.param(lambda: peers.classical(n=24, dim=8), id="classical"),
    pytest.param(lambda: peers.graph_operator(n=12, dim=4, width=8), id="graph"),
]


@pytest.mark.parametrize("cases", SMALL)
def test_answers_of_peers_are_right(cases):
    for case in cases():
        assert all(error <= case.tolerance for error in runner.check(case).values())
        assert len(case.entries) >= 2


def test_a_wrong_peer_is_not_timed(monkeypatch):
    monkeypatch.setattr(peers, "quadratic", lambda q, k, v, **_: 1.01 * v)
    with pytest.raises(runner.WrongAnswer):
        runner.check(next(iter(peers.linear(lengths=(8,), dim=8))))


def test_the_share_is_the_least_time_over_the_measured_time():
    row = {"flops": 10.0, "functions": 0.0, "bytes": 1.0, "seconds": 4.0}
    assert roofline.share(row, {"matrix_flops": 5.0, "functions": 1.0, "bytes": 1.0}) == 0.5


def test_probes_show_what_an_operator_accepts():
    assert choosing_report.accepted_probes("softmax")["points without a grid"]
    assert not choosing_report.accepted_probes("infsa")["output at other points"]
    assert choosing_report.state_growth("softmax") == "grows with N"
    assert choosing_report.state_growth("linear_attention") == "fixed"


def test_slower_cases_are_listed():
    rows = load("performance.json")["cases"]
    for row in performance_report.lost(rows):
        assert f"**{row['ratio']:.2f}** | {row['case']}" in performance_report.page()


def test_duels_compare_operators_of_one_group():
    rows = [
        {"group": group, "case": "infsa forward", "way": way, "milliseconds": ms}
        for group, way, ms in (
            ("operators", "infsa", 1.0),
            ("hidden-first", "tiled", 10.0),
            ("hidden-first", "N × N", 20.0),
        )
    ]
    duels = performance_report.duels(rows, ("hidden-first",))
    assert [(row["way"], row["ours"], row["our way"]) for row in duels] == [
        ("N × N", 10.0, "tiled")
    ]


def test_the_committed_comparison_covers_existing_operators():
    from fredholm.models import list_baselines
    from fredholm.operators import list_operators

    rows = [
        {row["operator"] for row in task["rows"] if row["runs"] or "refused" in row}
        for task in load("compare.json")["tasks"]
    ]
    compared = set().union(*rows)
    assert compared <= {*list_operators(), *list_baselines()}
    assert sum(names == compared for names in rows) >= 4


def test_operators_without_measurements_are_marked(monkeypatch):
    names = choosing_report.list_operators
    monkeypatch.setattr(choosing_report, "list_operators", lambda: ["anew", *names()])
    scores = choosing_report.accuracy_table(load("compare.json")).splitlines()
    (score,) = (line for line in scores if line.startswith("| anew |"))
    assert score.count("not measured") == len(load("compare.json")["tasks"])
    assert "| anew | not measured |" in choosing_report.flops_table()
