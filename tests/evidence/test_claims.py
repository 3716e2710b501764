"""Every claim of the papers has a verdict and what it takes; every number is a committed one."""

from __future__ import annotations

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest
from evidence.__main__ import parse
from evidence.ckconv.equal_time import SECTIONS as TO_COME
from evidence.claims import rows
from evidence.claims.page import VERDICTS, paper_table
from evidence.kit.claims import (
    CONTRADICTED,
    FEW_SEEDS,
    NO_TEST,
    NOT_RUN,
    REPRODUCED,
    UNTESTABLE,
    Claim,
)
from evidence.kit.subject import find_subject

from fredholm.training import list_recipes

ROOT = Path(__file__).parents[2]
PAPERS = rows.papers()
GIVEN = [given for paper in PAPERS for given in paper["rows"]]
ALLOWED = {
    "claim", "where", "paper", "judged", "result", "test", "untestable", "least", "most", "trained",
    "scale", "digits", "command", "hours", "drawn", "refuted",
}  # fmt: skip


def test_no_row_lacks_verdict_command_or_hours():
    assert len(GIVEN) > 100
    for given in GIVEN:
        row = rows.answer(given)
        assert row.verdict in VERDICTS, given["claim"]
        assert row.here, given["claim"]
        assert given.get("command") or "hours" in given, given["claim"]
        assert all(given[key] for key in ("claim", "where", "paper")), given


def test_numbers_of_ours_are_read_and_not_typed():
    for given in GIVEN:
        assert set(given) <= ALLOWED, f"{given['claim']}: {sorted(set(given) - ALLOWED)}"
        ways = {"judged", "result", "test", "refuted", "untestable"} & set(given)
        assert not {"untestable", "refuted"} & ways or len(ways) == 1, given["claim"]
        bounds = {"least", "most"} & set(given)
        assert len(bounds) == ("result" in given and not given.get("trained")), given["claim"]


def test_every_claim_of_every_page_is_a_row():
    named = [given["judged"] for given in GIVEN if "judged" in given]
    covered = [name for paper in PAPERS for name in paper.get("covered", [])]
    assert sorted(named + covered) == sorted(rows.judged())


def test_primary_claims_of_a_page_are_judged_together(monkeypatch):
    claim = Claim("a", sample=lambda found: [1.0, 2.0], primary=True)
    other = Claim("b", sample=lambda found: [1.0, 2.0], primary=True)
    for page, right in (("two", True), ("one", False)):
        sets = [("one", "first", [claim], {}), (page, "second", [other], {})]
        monkeypatch.setattr(rows, "_sets", lambda sets=sets: iter(sets))
        rows.judged.cache_clear()
        with nullcontext() if right else pytest.raises(ValueError, match="in first and in second"):
            rows.judged()
    rows.judged.cache_clear()


def test_pictures_are_on_the_pages_that_are_said_to_have_them():
    drawn = [given for given in GIVEN if "drawn" in given]
    assert drawn
    for given in drawn:
        assert "![" in (ROOT / "docs" / "results" / given["drawn"]).read_text(), given["claim"]
        assert rows.answer(given).verdict == NO_TEST, given["claim"]


def test_commands_and_tests_are_there():
    for given in GIVEN:
        words = shlex.split(given.get("command", ""))
        if words[:3] == ["python", "-m", "evidence"]:
            args = parse(words[3:])
            subject = find_subject(args.name)
            parts = {"run": subject.runs, "time": subject.times, "page": {}}[args.what]
            assert set(args.parts) <= set(parts), given["command"]
            assert args.what == "page" or parts, given["command"]
            assert not args.only or args.parts or len(parts) == 1, given["command"]
        elif words[:2] == ["fredholm", "train"]:
            assert words[2] in list_recipes(), given["command"]
        elif words[:1] == ["pytest"]:
            assert all((ROOT / word).exists() for word in words[1:]), given["command"]
        else:
            assert words[:1] in ([], ["fredholm"]), given["command"]
        file, _, name = given.get("test", given.get("refuted", "")).partition("::")
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
def test_a_path_leads_to_numbers(path, found, monkeypatch):
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


def test_a_path_to_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(rows, "load", lambda file: RESULTS)
    for path in (["a", {"x": 3}, "y"], ["no such"]):
        with pytest.raises(KeyError):
            rows.numbers({"file": "f", "path": path})


@pytest.mark.parametrize(
    ("more", "here", "verdict"),
    [
        ({"most": 4.0}, "4", REPRODUCED),
        ({"most": 3.9}, "4", CONTRADICTED),
        ({"least": 2.0}, "2", REPRODUCED),
        ({"least": 2.1}, "2", CONTRADICTED),
        ({"trained": True, "digits": 1}, "3.0 ± 1.4", FEW_SEEDS),
    ],
)
def test_what_is_computed_is_judged_by_its_bound(more, here, verdict, monkeypatch):
    monkeypatch.setattr(rows, "load", lambda file: RESULTS)
    given = {"claim": "c", "where": "w", "paper": "p", "hours": 1}
    row = rows.answer({**given, "result": {"file": "f", "path": ["a", "y"]}, **more})
    assert (row.here, row.verdict, row.seeds) == (here, verdict, 2 * ("trained" in more))


def test_what_is_not_run_is_open_and_what_cannot_be_is_said():
    given = {"claim": "c | d", "where": "w", "paper": "p", "hours": 1000}
    row, other = rows.answer(given), rows.answer({**given, "untestable": "no data"})
    assert (row.here, row.verdict) == ("not run", NOT_RUN)
    assert (other.here, other.verdict) == ("no data", UNTESTABLE)
    assert paper_table([row]).endswith(
        "| c \\| d | w | p | not run |  | open: not run |  | 1,000 |"
    )
    with pytest.raises(KeyError):
        rows.answer({**given, "judged": "itnet: no such claim"})


def test_a_training_that_has_not_ended_is_not_run_and_a_missing_time_is_an_error(monkeypatch):
    path = ["sections", "long", {"variant": "a"}, "loss"]
    given = {"trained": True, "result": {"file": "some.json", "path": path}}
    row = {"variant": "a", "loss": 0.5}
    stages = (
        (None, "not run"),
        ({"tuning": {"long": [row]}}, "not run"),
        ({"sections": {"long": [row | {"variant": "b"}]}}, "not run"),
        ({"sections": {"long": [row]}}, "0.5"),
    )
    for found, here in stages:
        monkeypatch.setattr(rows, "load", lambda file, found=found: found)
        assert rows.answer(given).here == here
    monkeypatch.setattr(rows, "load", lambda file: {"tuning": {}})
    with pytest.raises(KeyError):
        rows.answer({"least": 1, "result": given["result"]})


def test_what_is_still_to_be_trained_is_a_variant_of_a_section():
    for given in GIVEN:
        if given.get("trained") and rows.answer(given).here == "not run":
            _, section, row, *_ = given["result"]["path"]
            assert row["variant"] in TO_COME[section].variants, given["claim"]
