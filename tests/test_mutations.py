"""The twenty bugs of ``python -m tests.mutations`` can be put in, and stand for different slips."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .mutations import BUGS, ROOT, FragmentGone, put_in


def test_there_are_twenty_bugs_of_different_places():
    assert len(BUGS) == len({bug.name for bug in BUGS}) == len({(b.file, b.line) for b in BUGS})
    assert len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_put_in(bug, tmp_path):
    file = tmp_path / "fredholm" / bug.file
    file.parent.mkdir(parents=True)
    file.write_text((ROOT / "src" / "fredholm" / bug.file).read_text())
    put_in(bug, tmp_path)
    ast.parse(file.read_text())
    assert all((ROOT / test.split("::")[0]).is_file() for test in bug.tests)
    with pytest.raises(FragmentGone, match=f"{bug.name}: expected once in"):
        put_in(bug, tmp_path)


def test_the_checkout_stays_as_it_is(tmp_path):
    before = {bug.file: (ROOT / "src" / "fredholm" / bug.file).read_text() for bug in BUGS}
    for name, text in before.items():
        file = Path(tmp_path / "fredholm" / name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    put_in(BUGS[0], tmp_path)
    assert {name: (ROOT / "src" / "fredholm" / name).read_text() for name in before} == before
