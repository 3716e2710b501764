"""Every subject's functions exist and its pages follow from the committed results.

One more file adds a page of claims.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from evidence.__main__ import main, options_of, parse
from evidence.kit.claims import NOT_RUN, UNDECIDED, Claim, judge
from evidence.kit.page import RESULTS
from evidence.kit.subject import find_subject, subject_names

import evidence

SUBJECTS = subject_names()
PAGES = [(name, path) for name in SUBJECTS for path in find_subject(name).pages]
NEEDS = {"gpu": "triton"}


def test_subjects_include_every_paper():
    assert {"itnet", "luna", "ckconv", "infsa", "continuous", "lra", "performance"} <= set(SUBJECTS)


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_function_of_a_subject_exists(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    subject = find_subject(name)
    functions = [*subject.times.values(), *subject.runs.values(), *subject.pages.values()]
    functions += [f for f in (subject.draw, subject.cases, subject.ratios) if f]
    assert functions
    assert all(callable(subject.find(function)) for function in functions)


@pytest.mark.parametrize(("name", "path"), PAGES, ids=lambda x: getattr(x, "name", x))
def test_a_page_follows_from_the_committed_results(name, path):
    subject = find_subject(name)
    text = subject.call(subject.pages[path])
    assert path.read_text(encoding="utf-8") == text, f"run python -m evidence page {name}"


@pytest.mark.parametrize(
    "module",
    [
        "itnet.claims",
        "ckconv.claims",
        "ckconv.irregular.claims",
        "infsa.claims",
        "infsa.canvases",
        "infsa.contests",
        "continuous.claims",
        "continuous.contests",
        "continuous.plateau",
        "linearize.page",
        "lra.rows",
        "lra.image",
    ],
)
def test_pages_have_at_most_five_primary_claims_and_exploratory_ones_none(module):
    claims = importlib.import_module(f"evidence.{module}").CLAIMS
    assert all(isinstance(claim, Claim) for claim in claims)
    # These are first rounds of their pages, and claims that were named after their runs.
    explored = {"infsa.claims", "continuous.claims", "lra.rows", "ckconv.claims"}
    assert (module not in explored) <= sum(claim.primary for claim in claims) <= 5
    assert not (module in explored and any(claim.primary for claim in claims))
    assert len({claim.text for claim in claims}) == len(claims)


PAGE = '''
"""A page."""
from evidence.kit.claims import Claim, claims_section, judge
from evidence.kit.page import load, save
from evidence.kit.subject import Subject
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
SUBJECT = Subject(__name__, runs={"rows": ":run"}, pages={PAGE: ":page"})
CLAIMS = [Claim("a beats b", "1 over 0", lambda rows: rows, primary=True)]

def run(options):
    save([0.1, 0.11, 0.12, 0.1, 0.12], "mine.json", options.results)

def page():
    named_before = {"primary": ["a beats b"]}
    return claims_section(CLAIMS, load("mine.json", PAGE.parent), named_before)
'''


def test_one_file_makes_a_page_of_claims(tmp_path, monkeypatch):
    (tmp_path / "my_claims.py").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(evidence, "__path__", [*evidence.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "evidence.my_claims", raising=False)
    importlib.invalidate_caches()
    assert main(["run", "my_claims", "--results", str(tmp_path)]) == 0
    assert main(["page", "my_claims"]) == 0
    text = (tmp_path / "my_claims.md").read_text(encoding="utf-8")
    assert (
        "| a beats b | 1 over 0 | +11.00 ± 1.00 (5 seeds) | seeds alone | < 0.001 | reproduced |"
        in text
    )


def test_check_fails_where_a_ratio_fell(capsys, monkeypatch):
    subject = find_subject("lra").__class__
    rows = [{"case": "c", "way": w, "ratio": r} for w, r in (("ours", 1.0), ("theirs", 2.0))]
    slower = [rows[0], {**rows[1], "ratio": 1.5}]
    monkeypatch.setattr(subject, "call", lambda self, name, *_: rows if name == "old" else slower)
    monkeypatch.setattr(
        "evidence.__main__.find_subject", lambda name: subject("x", cases="new", ratios="old")
    )
    assert main(["check", "performance"]) == 1
    assert "c, theirs: took 2.00 times" in capsys.readouterr().out
    monkeypatch.setattr(subject, "call", lambda self, name, *_: rows)
    assert main(["check", "performance"]) == 0


def test_errors_name_unknown_subjects_and_parts(capsys):
    with pytest.raises(SystemExit, match=r"time lra: expected a subject with parts to time"):
        main(["time", "lra"])
    # Without the part, the other parts would run as well.
    with pytest.raises(SystemExit, match=r"sections, spectrum, start.*: run itnet PART --only"):
        main(["run", "itnet", "--only", "measures"])
    with pytest.raises(SystemExit, match=r"run lra: expected one of rows, image, got nothing"):
        main(["run", "lra", "nothing"])
    with pytest.raises(SystemExit, match="expected a subject with timed cases"):
        main(["check", "lra"])
    with pytest.raises(SystemExit):
        main(["time", "no-such-subject"])
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--small"], ["--set", "training.epochs=2"]])
def test_a_trial_does_not_write_to_the_committed_results(words):
    options = options_of(parse(["run", "lra", *words]))
    assert options.results == options.runs == Path("runs/lra/trial")
    assert any(change.startswith("training.epochs=") for change in options.trial)
    committed = options_of(parse(["run", "lra"]))
    assert committed.results == RESULTS
    assert committed.trial == ()


def test_fuzz_receives_its_arguments(monkeypatch):
    given = []

    class Module:
        @staticmethod
        def main(arguments):
            given.append(arguments)
            return 3

    monkeypatch.setitem(sys.modules, "evidence.fuzz", Module)
    assert main(["fuzz", "--cases", "3"]) == 3
    assert given == [["--cases", "3"]]


def test_committed_results_have_these_verdicts():
    """These are the verdicts of the present results: a change here belongs into the changelog."""
    from evidence.ckconv.irregular.claims import results
    from evidence.infsa.canvases import FILE
    from evidence.itnet.page import current
    from evidence.kit.grid import sections

    found = {
        "itnet.claims": current(sections("itnet.json")),
        "ckconv.irregular.claims": results(),
        "infsa.canvases": sections(FILE),
    }
    verdicts = {}
    for name, rows in found.items():
        claims = importlib.import_module(f"evidence.{name}").CLAIMS
        verdicts[name] = [j.verdict for j in judge(claims, rows) if j.claim.primary]
    assert verdicts == {
        "itnet.claims": [UNDECIDED, UNDECIDED, "contradicted", UNDECIDED, NOT_RUN],
        "ckconv.irregular.claims": [
            "contradicted",
            "contradicted",
            "reproduced",
            "contradicted",
            "reproduced",
        ],
        "infsa.canvases": [UNDECIDED] * 5,
    }, json.dumps(verdicts)
