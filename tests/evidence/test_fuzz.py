"""The fuzzer finds no failure in 120 cases and detects a wrong answer, step or refusal."""

from __future__ import annotations

import json

import pytest
import torch

from evidence import fuzz
from fredholm.edges import Edges
from fredholm.integral import IntegralOperator


@pytest.mark.slow
def test_120_cases_have_no_failure(tmp_path, capsys):
    out = tmp_path / "fuzz.json"
    assert fuzz.main(["--cases", "120", "--seed", "42", "--out", str(out)]) == 0, (
        capsys.readouterr()
    )
    result = json.loads(out.read_text())
    assert result["cases"] == 120
    assert not result["failures"]
    for checks in result["operators"].values():
        assert list(checks) == list(fuzz.CHECKS)
        assert checks["forward"]["passed"] >= 5


def _first(names, wanted):
    """Return the first case that the operator accepts and ``wanted`` holds for."""
    for number in range(100):
        try:
            case = fuzz.make_case(number, names)
            case.operator(case.u, case.domain, query=case.query, query_domain=case.query_domain)
        except ValueError:
            continue
        if wanted(case):
            return case
    raise AssertionError("no such case")


def test_a_case_depends_on_its_number_alone():
    a = _first(["luna"], lambda case: case.query is None)
    b = fuzz.make_case(a.number, ["luna"])
    assert str(a) == str(b)
    assert torch.equal(a.u, b.u)
    assert torch.equal(a.operator(a.u, a.domain), b.operator(b.u, b.domain))


def test_the_cases_have_every_kind_of_domain_and_past():
    """Among few cases are windows, decays, edges, images, reaches, each with and without order."""
    found = set()
    for number in range(400):
        try:
            case = fuzz.make_case(number, ["luna", "softmax"])
        except ValueError:
            continue
        domain, edges = case.domain, case.domain.pairs
        order = "causal" if domain.causal else "free"
        found |= case.options.keys() & {"window", "sinks", "decay"}
        if domain.reach is not None:
            found.add(f"{order} reach")
        if isinstance(edges, Edges):
            found.add(f"{order} edges" if edges.shift is None else f"{order} images")
        if case.query_domain is not None:
            found.add(f"{order} second domain with {type(edges).__name__}")
    kinds = {f"{order} {kind}" for order in ("causal", "free") for kind in ("reach", "edges")}
    kinds |= {"causal images", "free images", "window", "sinks", "decay"}
    kinds |= {f"free second domain with {kind}" for kind in ("NoneType", "Tensor", "Edges")}
    assert kinds <= found, kinds - found


def test_a_wrong_answer_is_detected(monkeypatch):
    case = _first(["softmax"], lambda case: case.query_domain is None)
    dense = IntegralOperator.dense
    monkeypatch.setattr(IntegralOperator, "dense", lambda *a, **k: dense(*a, **k) * (1 + 1e-6))
    outcomes = {check: outcome for check, outcome, _ in fuzz.run_case(case.number, ["softmax"])}
    assert outcomes["forward"] == "failed"
    assert outcomes["gradient"] == "passed"


def test_a_wrong_step_is_detected(monkeypatch):
    case = _first(["softmax"], lambda c: c.domain.causal and c.query is None)
    advance = IntegralOperator._advance

    def wrong(self, *arguments):
        out, state = advance(self, *arguments)
        return out + 1e-6, state

    monkeypatch.setattr(IntegralOperator, "_advance", wrong)
    outcomes = {check: outcome for check, outcome, _ in fuzz.run_case(case.number, ["softmax"])}
    assert outcomes["forward"] == "passed"
    assert outcomes["step"] == "failed"


def test_a_refusal_of_forward_alone_is_detected(monkeypatch):
    case = _first(["softmax"], lambda case: "strategy" not in case.options)

    def refuse(*_, **__):
        raise fuzz.StrategyError("no")

    monkeypatch.setattr(IntegralOperator, "forward", refuse)
    (first, *_) = fuzz.run_case(case.number, ["softmax"])
    assert first[:2] == ("forward", "failed")
