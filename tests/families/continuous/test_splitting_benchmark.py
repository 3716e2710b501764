"""The benchmark of the splitting schemes: results are correct at tiny sizes, and its plot and page
show the measured numbers.
"""

from __future__ import annotations

import pytest
from evidence.kit.clock import check
from evidence.kit.page import DOCS, load

from evidence import splitting


@pytest.mark.parametrize(
    ("maker", "size", "names"),
    [
        (splitting.recovery, {"lengths": (3,)}, ["nn.TransformerEncoder", "lie", "relaxed"]),
        (splitting.strang, {"n": 3}, ["lie", "strang"] * 2),
    ],
    ids=["recovery", "strang"],
)
def test_every_benchmarked_scheme_agrees_with_a_reference(maker, size, names):
    tiny = {"dim": 8, "heads": 2, "layers": 2, "batch": 1}
    cases = list(maker(**tiny, **size))
    assert [name for case in cases for name in case.entries] == names
    for case in cases:
        assert max(check(case).values()) <= case.tolerance


def test_the_plot_names_the_measured_orders(tmp_path):
    rows = [{"scheme": "Lie", "steps": [2, 4], "errors": [0.1, 0.05], "order": 1.004}]
    for name in ("one.svg", "two.svg"):
        splitting.draw(rows, tmp_path / name)
    assert "Lie: order 1.00" in (tmp_path / "one.svg").read_text()
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_page_quotes_the_committed_orders():
    page = (DOCS / "splitting.md").read_text(encoding="utf-8")
    for row in load(splitting.FILE)["orders"]:
        assert f"| {row['scheme']} | {row['order']:.2f} |" in page


def test_the_page_states_the_measured_speed():
    page = (DOCS / "splitting.md").read_text(encoding="utf-8")
    cases = load(splitting.FILE)["cases"]
    found = {(row["case"], row["way"]): row for row in cases}
    for n in (64, 196, 512):
        ratios = [found[f"encoder N={n}", way]["ratio"] for way in ("lie", "relaxed")]
        assert f"| {n} | {ratios[0]:.2f} | {ratios[1]:.2f} |" in page
    for norm in ("post", "pre"):
        strang, lie = found[f"{norm}-norm strang", "strang"], found[f"{norm}-norm lie", "lie"]
        assert f"{strang['milliseconds'] / lie['milliseconds']:.2f} times" in page
