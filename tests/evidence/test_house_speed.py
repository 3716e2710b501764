"""Two trees are timed in turn, and the slower one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence.house import speed, timed

from fredholm.errors import ShapeError


class FakeTree:
    """A tree with a chosen answer and time."""

    def __init__(self, answer: float, seconds: float):
        self.answer = answer
        self.seconds = seconds
        self.asked = []

    def ask(self, **request):
        self.asked.append(request)
        if "case" in request:
            return {"sum": self.answer, "size": 10.0}
        return {"seconds": self.seconds}


@pytest.mark.parametrize(
    ("causal", "direction"), [(False, "forward"), (True, "both"), (True, "step")]
)
def test_a_case_is_built_and_answers(causal, direction):
    (case,) = [
        case
        for _, case in speed.cases(["softmax"], small=True)
        if case["causal"] == causal and case["direction"] == direction
    ]
    call = timed.build(case)
    assert call().equal(timed.build(case)()), "two trees begin with the same numbers"
    assert timed.seconds(call, 1) > 0


def test_names_of_cases_are_unique():
    names = [name for name, _ in speed.cases([])]
    assert len(set(names)) == len(names)


def test_a_tree_that_became_slower_is_named():
    slow = speed.timed("a case", {}, FakeTree(1.0, 0.1), FakeTree(1.0, 0.12), 7)
    same = speed.timed("another", {}, FakeTree(1.0, 0.1), FakeTree(1.0, 0.1), 7)
    assert len(slow.ratios) == 7
    assert slow.ratio == pytest.approx(1.2)
    text = speed.report([slow, same])
    assert "Slower by more than 10%: a case." in text
    assert "Geometric mean over 2 cases: 1.10." in text


def test_differing_answers_are_refused():
    with pytest.raises(ShapeError, match="a case: expected the checkout's answer"):
        speed.timed("a case", {}, FakeTree(1.0, 0.1), FakeTree(1.1, 0.1), 7)


def test_a_folder_without_the_package_is_refused(tmp_path: Path):
    with pytest.raises(SystemExit, match="expected a checkout with src/fredholm"):
        speed.Tree(tmp_path)
