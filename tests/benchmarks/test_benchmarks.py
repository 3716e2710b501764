"""The runner refuses wrong answers; the results page is what the committed results say."""

from __future__ import annotations

import pytest
import torch
from benchmarks.registry import Case, Entry

from benchmarks import hidden_first, memory, report, runner
from fredholm.domain import Domain
from fredholm.operators import ITNetOperator

from ..tolerances import assert_close


def test_a_wrong_answer_is_not_timed():
    calls = []

    def wrong():
        calls.append(1)
        return torch.ones(3) * 1.1

    case = Case("off", lambda: torch.ones(3), {"wrong": Entry(wrong)}, tolerance=1e-3)
    with pytest.raises(runner.WrongAnswer, match="refusing to time"):
        runner.run(case)
    assert len(calls) == 1
    case.entries["wrong"] = Entry(lambda: torch.full((3,), float("nan")))
    with pytest.raises(runner.WrongAnswer, match="inf"):
        runner.run(case)


def test_rows_carry_ratio_and_difference():
    case = Case(
        "sum",
        lambda: torch.ones(3),
        {"a": Entry(lambda: torch.ones(3), 10.0), "b": Entry(lambda: torch.ones(3))},
    )
    first, second = runner.run(case)
    assert first["ratio"] == 1.0
    assert second["ratio"] > 0
    assert first["difference"] == 0
    assert first["matrix_rate_share"] > 0


def test_the_literal_evaluation_is_the_operator():
    operator = ITNetOperator(8, 2, position_dim=2, width=6, frequencies=3, sigma=1.0)
    u, domain = torch.randn(2, 9, 8), Domain.grid(3, 3)
    assert_close(
        hidden_first.literal(operator, u, domain, block=2),
        operator.dense(u, domain),
        dtype=torch.float32,
    )


def test_exponent_of_a_power_law():
    rows = [{"n": n, "megabytes": 3.0 * n**1.5} for n in (16, 64, 256)]
    assert memory.exponent(rows) == pytest.approx(1.5)


def test_the_results_page_is_up_to_date():
    assert report.PAGE.read_text(encoding="utf-8") == report.page(), (
        "run python -m benchmarks.report"
    )
