"""Every claim of the papers has a verdict, a command or hours, and numbers from committed files."""

from __future__ import annotations

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest
from evidence.__main__ import parse
from evidence.ckconv.equal_time import FILE as PLANNED_FILE
from evidence.ckconv.equal_time import SECTIONS as PLANNED
from evidence.claims import rows
from evidence.claims.page import VERDICTS, paper_table
from evidence.kit.claims import (
    CONTRADICTED,
    FEW_SEEDS,
    NO_TEST,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
    UNTESTABLE,
    Claim,
    judge,
)
from evidence.kit.subject import find_subject

from fredholm.training import list_recipes

ROOT = Path(__file__).parents[2]
PAPERS = rows.papers()
ENTRIES = [entry for paper in PAPERS for entry in paper["rows"]]
ALLOWED = {
    "claim", "where", "paper", "judged", "result", "test", "untestable", "least", "most", "trained",
    "extrapolated", "scale", "digits", "command", "hours", "drawn", "refuted",
}  # fmt: skip


def test_no_row_lacks_verdict_command_or_hours():
    assert len(ENTRIES) > 100
    for entry in ENTRIES:
        row = rows.answer(entry)
        assert row.verdict in VERDICTS, entry["claim"]
        assert row.here, entry["claim"]
        assert entry.get("command") or "hours" in entry, entry["claim"]
        assert all(entry[key] for key in ("claim", "where", "paper")), entry


def test_our_numbers_come_from_result_files():
    for entry in ENTRIES:
        assert set(entry) <= ALLOWED, f"{entry['claim']}: {sorted(set(entry) - ALLOWED)}"
        ways = {"judged", "result", "test", "refuted", "untestable"} & set(entry)
        assert not {"untestable", "refuted"} & ways or len(ways) == 1, entry["claim"]
        decided = {"least", "most", "trained", "extrapolated"} & set(entry)
        assert len(decided) == ("result" in entry), entry["claim"]


def test_every_claim_of_every_page_is_a_row():
    named = [entry["judged"] for entry in ENTRIES if "judged" in entry]
    covered = [name for paper in PAPERS for name in paper.get("covered", [])]
    assert sorted(named + covered) == sorted(rows.judged())


def test_primary_claims_of_a_page_are_judged_together(monkeypatch):
    claim = Claim("a", sample=lambda found: [1.0, 2.0], primary=True)
    other = Claim("b", sample=lambda found: [1.0, 2.0], primary=True)
    for page, right in (("two", True), ("one", False)):
        sets = [
            rows.ClaimSet("one", "first", [claim], {}),
            rows.ClaimSet(page, "second", [other], {}),
        ]
        monkeypatch.setattr(rows, "_sets", lambda sets=sets: iter(sets))
        rows.judged.cache_clear()
        with nullcontext() if right else pytest.raises(ValueError, match="in first and in second"):
            rows.judged()
    rows.judged.cache_clear()


def test_a_conclusion_says_whether_it_is_over_seeds_alone():
    claim = Claim("a", sample=list, primary=True)
    (judged,) = judge([claim], [0.1, 0.11, 0.12, 0.1, 0.11])
    assert rows.JudgedClaim(judged, 5).limits == "over seeds alone"
    undecided = judged._replace(verdict=UNDECIDED)
    assert rows.JudgedClaim(undecided, 5).limits == ""

    entry = {"claim": "a", "where": "Table 1", "paper": "1"}
    row = rows.Row(entry, "+1", 5, REPRODUCED, limits="over seeds alone")
    assert "| reproduced (over seeds alone) |" in paper_table([row])


def test_every_drawn_claim_has_its_picture_on_its_page():
    drawn = [entry for entry in ENTRIES if "drawn" in entry]
    assert drawn
    for entry in drawn:
        assert "![" in (ROOT / "docs" / "results" / entry["drawn"]).read_text(), entry["claim"]
        assert rows.answer(entry).verdict == NO_TEST, entry["claim"]


def test_commands_and_tests_of_claims_exist():
    for entry in ENTRIES:
        words = shlex.split(entry.get("command", ""))
        if words[:3] == ["python", "-m", "evidence"]:
            args = parse(words[3:])
            subject = find_subject(args.name)
            parts = {"run": subject.runs, "time": subject.times, "page": {}}[args.what]
            assert set(args.parts) <= set(parts), entry["command"]
            assert args.what == "page" or parts, entry["command"]
            assert not args.only or args.parts or len(parts) == 1, entry["command"]
        elif words[:2] == ["fredholm", "train"]:
            assert words[2] in list_recipes(), entry["command"]
        elif words[:1] == ["pytest"]:
            assert all((ROOT / word).exists() for word in words[1:]), entry["command"]
        else:
            assert words[:1] in ([], ["fredholm"]), entry["command"]
        file, _, name = entry.get("test", entry.get("refuted", "")).partition("::")
        assert not name or re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
        assert not file or (ROOT / file).is_file()


RESULTS = {
    "a": [{"x": 1, "y": 2.0, "z": {"mean": 0.1}}, {"x": 2, "y": 4.0, "z": {"mean": 0.3}}],
    "b": {"c": 8.0},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (["a", {"x": 2}, "y"], [4.0]),
        (["a", "y"], [2.0, 4.0]),
        (["a", "*", "z", "mean"], [0.1, 0.3]),
        (["a", -1, "y"], [4.0]),
        (["b", "*"], [8.0]),
        (["a", {"x": [1, 2]}, "y"], [2.0, 4.0]),
        (["a", {"x": [1, 3]}, "y"], [2.0]),
    ],
)
def test_a_path_selects_numbers(path, found, monkeypatch):
    monkeypatch.setattr(rows, "load", lambda file: RESULTS)
    assert rows.numbers({"file": "f", "path": path}) == found
    half = rows.numbers({"file": "f", "path": path, "over": ["a", {"x": 1}, "y"]})
    assert half == [value / 2 for value in found]
    same = {"file": "f", "path": path}
    assert rows.numbers({**same, "over": path}) == [1.0] * len(found)
    assert rows.numbers({**same, "less": path}) == [0.0] * len(found)


def test_numbers_of_different_counts_are_not_paired(monkeypatch):
    monkeypatch.setattr(rows, "load", lambda file: {**RESULTS, "c": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="zip"):
        rows.numbers({"file": "f", "path": ["a", "y"], "over": ["c", "*"]})


def test_an_unmatched_path_is_an_error(monkeypatch):
    monkeypatch.setattr(rows, "load", lambda file: RESULTS)
    for path in (["a", {"x": 3}, "y"], ["no such"]):
        with pytest.raises(KeyError):
            rows.numbers({"file": "f", "path": path})


@pytest.mark.parametrize(
    ("more", "here", "verdict"),
    [
        ({"most": 4.0}, "4 (at most 4)", REPRODUCED),
        ({"most": 3.9}, "4 (at most 3.9)", CONTRADICTED),
        ({"least": 2.0}, "2 (at least 2)", REPRODUCED),
        ({"least": 2.1}, "2 (at least 2.1)", CONTRADICTED),
        ({"trained": True, "digits": 1}, "3.0 ± 1.4", FEW_SEEDS),
    ],
)
def test_computed_numbers_are_judged_by_their_bounds(more, here, verdict, monkeypatch):
    monkeypatch.setattr(rows, "load", lambda file: RESULTS)
    entry = {"claim": "c", "where": "w", "paper": "p", "hours": 1}
    row = rows.answer({**entry, "result": {"file": "f", "path": ["a", "y"]}, **more})
    assert (row.here, row.verdict, row.seeds) == (here, verdict, 2 * ("trained" in more))


def test_claims_without_runs_are_open_or_untestable():
    entry = {"claim": "c | d", "where": "w", "paper": "p", "hours": 1000}
    row, other = rows.answer(entry), rows.answer({**entry, "untestable": "no data"})
    assert (row.here, row.verdict) == ("not run", NOT_RUN)
    assert (other.here, other.verdict) == ("no data", UNTESTABLE)
    assert paper_table([row]).endswith(
        "| c \\| d | w | p | not run |  | open: not run |  | 1,000 |"
    )
    with pytest.raises(KeyError):
        rows.answer({**entry, "judged": "itnet: no such claim"})


def test_unfinished_training_is_not_run_and_a_missing_time_is_an_error(monkeypatch):
    path = ["sections", "long", {"variant": "a"}, "loss"]
    entry = {"trained": True, "result": {"file": "some.json", "path": path}}
    row = {"variant": "a", "loss": 0.5}
    stages = (
        (None, "not run"),
        ({"tuning": {"long": [row]}}, "not run"),
        ({"sections": {"long": [row | {"variant": "b"}]}}, "not run"),
        ({"sections": {"long": [row]}}, "0.5"),
    )
    for found, here in stages:
        monkeypatch.setattr(rows, "load", lambda file, found=found: found)
        assert rows.answer(entry).here == here
    monkeypatch.setattr(rows, "load", lambda file: {"tuning": {}})
    with pytest.raises(KeyError):
        rows.answer({"least": 1, "result": entry["result"]})


def test_claims_on_equal_time_and_claims_without_runs_name_a_planned_variant():
    planned = [
        entry
        for entry in ENTRIES
        if entry.get("result", {}).get("file") == PLANNED_FILE
        or (entry.get("trained") and rows.answer(entry).here == "not run")
    ]
    assert planned
    for entry in planned:
        _, section, row, *_ = entry["result"]["path"]
        assert row["variant"] in PLANNED[section].variants, entry["claim"]
