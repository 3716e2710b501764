"""docs/architecture.md lists the files that a forward enters."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import fredholm
from fredholm import Domain, ITNetOperator, LunaAttention

ROOT = Path(fredholm.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
WALKS = {
    "itnet": (lambda: ITNetOperator(16, heads=2, position_dim=2, width=8), Domain.grid(12, 12)),
    "luna": (lambda: LunaAttention(16, heads=2), Domain.line(16)),
}


def table(name: str) -> dict[str, list[str]]:
    """Return the files of a table, and the functions that it names in each."""
    text = PAGE.read_text(encoding="utf-8").split(f"<!-- walk: {name} -->")[1]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", text.split("\n#")[0], re.MULTILINE)
    return {file: re.findall(r"`([\w.]+)`", functions) for file, functions in rows}


def crossed(operator, domain: Domain) -> dict[str, set[str]]:
    """Return the files of the package that one forward enters, in order, and the called functions,
    without those for a backward.
    """
    u = torch.randn(1, domain.size, 16)
    files = {}
    operator(u, domain)  # without the work of a first call

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT).as_posix()
            files.setdefault(name, set()).add(frame.f_code.co_qualname)

    before = sys.getprofile()
    with torch.no_grad():
        sys.setprofile(note)
        try:
            operator(u, domain)
        finally:
            sys.setprofile(before)
    return files


@pytest.mark.parametrize("name", WALKS)
def test_a_forward_crosses_the_files_that_the_page_lists(name):
    make, domain = WALKS[name]
    page = table("shared") | table(name)
    code = crossed(make(), domain)
    assert sorted(page) == sorted(code)
    for shared_or_not in ("shared", name):  # each table in the order in which files are entered
        listed = list(table(shared_or_not))
        assert [file for file in code if file in listed] == listed
    for file, functions in page.items():
        called = {
            part for qualified in code[file] for part in (qualified, qualified.split(".")[-1])
        }
        assert set(functions) <= called, file


def test_the_page_counts_its_listed_files():
    counts = [len(table("shared")) + len(table(name)) for name in WALKS]
    assert f"these walks cross {counts[0]} and {counts[1]}" in PAGE.read_text(encoding="utf-8")


def test_only_one_function_builds_a_trainer():
    code = [*ROOT.rglob("*.py"), *(PAGE.parents[1] / "evidence").rglob("*.py")]
    building = [p for p in code if re.search(r"\bTrainer\(", p.read_text(encoding="utf-8"))]
    assert building == [ROOT / "lab" / "training" / "fit.py"]
