"""Evidence on ITNet: recipes, tables, modes, minutes."""

from __future__ import annotations

import json

import pytest
import torch
from evidence.__main__ import main
from evidence.itnet import modes as itnet_modes
from evidence.itnet import page as itnet_report
from evidence.itnet import recipes as itnet_recipes
from evidence.itnet.literal import literal
from evidence.itnet.sections import SECTIONS
from evidence.kit.grid import Section
from evidence.kit.machine import describe

from fredholm.domain import Domain
from fredholm.operators import ITNetOperator

from ..tolerances import assert_close


def rows(**scores):
    return [
        {
            "variant": v,
            "seed": s,
            "accuracy": x,
            "loss": 1 - x,
            "parameters": 5,
            "recipe": "digits",
            "overrides": [v],
        }
        for v, values in scores.items()
        for s, x in enumerate(values)
    ]


def test_every_variant_of_every_section_is_a_recipe():
    from fredholm.training import load_recipe

    for section in SECTIONS.values():
        for overrides in section.variants.values():
            load_recipe(section.recipe, [*section.common, *overrides])


def test_a_table_shows_what_was_run():
    section = Section("Tiny", "digits", (), {"a": (), "b": (), "c": ()})
    lines = itnet_report.table(section, rows(a=[0.5, 0.6], b=[0.4])).splitlines()
    assert lines[2:] == ["| a | 55.00 ± 7.07 | 2 |  | 5 |", "| b | 40.00 | 1 | -10.00 | 5 |"]


def test_rows_of_other_settings_are_not_shown():
    section = SECTIONS["text"]
    row = {"variant": "full", "seed": 0, "overrides": [*section.common, *section.variants["full"]]}
    stale = row | {"seed": 1, "overrides": ["training.epochs=1"]}
    gone = row | {"variant": "no such"}
    assert itnet_report.current({"text": [row, stale, gone]})["text"] == [row]


@pytest.mark.slow
def test_modes_are_measured_and_drawn(tmp_path):
    words = ["time", "itnet", "modes", "--small", "--only", "LR-64", "--results", str(tmp_path)]
    assert main(words) == 0
    found = json.loads((tmp_path / "itnet-modes.json").read_text())
    itnet_modes.draw(found["curves"], tmp_path / "itnet-modes.png")
    assert (tmp_path / "itnet-modes.png").stat().st_size > 10000
    assert [(c["mode"], c["direction"], len(c["rows"])) for c in found["curves"]] == [
        ("LR-64", direction, 2) for direction in itnet_modes.DIRECTIONS
    ]
    assert "| LR-64 | forward+backward | 160 |" in itnet_report.speed(found)


def test_the_literal_evaluation_equals_the_operator():
    operator = ITNetOperator(8, 2, position_dim=2, width=6, frequencies=3, sigma=1.0)
    u = torch.randn(2, 9, 8)
    domain = Domain.grid(3, 3)
    found = literal(operator, u, domain, block=2)
    assert_close(found, operator.dense(u, domain), dtype=torch.float32)


def test_the_crossover_is_where_a_mode_stays_faster():
    def curve(mode, *times):
        rows = [{"n": 2**i, "milliseconds": t} for i, t in enumerate(times)]
        return {"mode": mode, "direction": "forward", "rows": rows}

    curves = [curve("a", 1, 9, 1, 1), curve("b", 9, 9, 9, 9), curve("SDPA", 2, 2, 2, 2)]
    assert itnet_report.crossover(curves).splitlines() == [
        "- a, forward: faster than softmax attention from N = 4 on.",
        "- b, forward: slower than softmax attention at every N up to 8.",
    ]


def test_the_minutes_of_a_recipe_include_steps_and_validations():
    found = itnet_recipes.measure("digits", 0.01)
    assert found["measured"] > 0
    assert found["steps"] == 60 * (1259 // 32)
    trained = found["steps"] * found["seconds_per_step"]
    assert found["minutes"] > trained / 60
    assert f"| {found['minutes']:.1f} |" in itnet_report.minutes(
        {"machine": describe(), "rows": [found]}
    )
