"""The page of a comparison, in a browser."""

from __future__ import annotations

import pytest

from fredholm.lab.report.comparison import comparison_page

from .chromium import BROWSER, open_page

ROW = {
    "metric": "accuracy", "direction": "max", "sd": 0.01, "n": 2, "failed": 0, "dim": 16, "parameters": 9000, "off": 0.01, "flops": 10**6, "epochs": 3,
    "minutes": 0.1, "refused": None,
}  # fmt: skip
NAMES = ["softmax", "<luna>", "convolution"]


def results():
    runs = [{"seed": s, "accuracy": 0.9, "curve": [0.5, 0.7, 0.9]} for s in (0, 1)]
    task = {
        "name": "digits",
        "title": "digits & more",
        "points": 16,
        "samples": 100,
        "metric": "accuracy",
        "measure": "accuracy",
    }
    task["rows"] = [
        {"operator": name, "runs": runs if name != "convolution" else []} for name in NAMES
    ]
    other = {
        **task,
        "name": "adding",
        "metric": "loss",
        "measure": "mean squared error",
        "rows": [{"operator": "softmax", "runs": runs}],
    }
    rows = [
        {**ROW, "task": "digits", "operator": name, "mean": 0.9 - 0.1 * i}
        for i, name in enumerate(NAMES)
    ]
    rows[2] |= {"mean": None, "sd": None, "n": 0, "refused": "needs a grid <b>"}
    row = {**ROW, "metric": "loss", "direction": "min", "mean": 0.02}
    rows.append({**row, "task": "adding", "operator": "softmax"})
    return {
        "setting": {"budget": "params", "minutes": None, "changes": []},
        "tasks": [task, other],
    }, rows


@pytest.fixture
def page(tmp_path):
    found, rows = results()
    path = tmp_path / "index.html"
    path.write_text(comparison_page(found, rows), encoding="utf-8")
    return path


def test_the_page_has_the_results_of_the_comparison(page):
    text = page.read_text()
    assert "&lt;luna&gt;" in text
    assert "<luna>" not in text
    assert "needs a grid &lt;b&gt;" in text
    assert "does not serve" in text
    assert "MFLOPs per sample" in text
    assert text.count("<figure") == 4
    assert "90.0 ± 1.0" in text
    assert "0.02 ± 0.01" in text


@pytest.mark.chromium
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize("view", [{}, {"width": 500, "dark": True}], ids=["wide", "narrow-dark"])
def test_the_page_renders_in_a_browser(page, tmp_path, view):
    found, console = open_page(page, tmp_path, **view)
    assert console == []
    assert found["drawn"] == found["pictures"] == "4"
    assert found["requests"] == "0"
    assert found["overflow"] == "false"
