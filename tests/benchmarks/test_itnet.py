"""Evidence on ITNet: runs are added one by one and never twice, verdicts follow from the rows, and
the page is that of the results.
"""

from __future__ import annotations

import json

import pytest
from benchmarks.itnet_sections import SECTIONS
from benchmarks.machine import describe
from benchmarks.sections import Section

from benchmarks import (
    itnet_ablations,
    itnet_claims,
    itnet_modes,
    itnet_recipes,
    itnet_report,
    sections,
)

TINY = Section(
    "Tiny", "digits", ("training.epochs=1",), {"a": (), "b": ("model.depth=1",)}, seeds=2
)


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


def test_runs_are_added_one_by_one_and_not_twice(tmp_path, monkeypatch):
    done = []

    def run(name, row, runs, further):
        done.append((row["variant"], row["seed"]))
        if len(done) == 3:
            raise KeyboardInterrupt
        return row | {"accuracy": 0.5, "loss": 1.0, "parameters": 1}

    out = tmp_path / "out.json"
    monkeypatch.setattr(sections, "run", run)
    monkeypatch.setattr("sys.argv", ["x", "tiny", "--out", str(out), "--runs", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        sections.main({"tiny": TINY}, out, "tiny", None)
    assert [(row["variant"], row["seed"]) for row in sections.read(out)["tiny"]] == [
        ("a", 0),
        ("b", 0),
    ]
    sections.main({"tiny": TINY}, out, "tiny", None)
    assert done == [("a", 0), ("b", 0), ("a", 1), ("a", 1), ("b", 1)]
    assert len(sections.read(out)["tiny"]) == 4
    assert sections.read(out)["tiny"][1]["overrides"] == ["training.epochs=1", "model.depth=1"]


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.9, 0.91, 0.9], [0.8, 0.8, 0.81], "reproduced"),
        ([0.8, 0.8, 0.81], [0.9, 0.91, 0.9], "contradicted"),
        ([0.8, 0.9, 0.81], [0.82, 0.85, 0.86], "open"),
        ([0.9, 0.91], [0.8, 0.8], "open"),
        ([], [0.8], "open"),
    ],
)
def test_a_verdict_needs_three_seeds_and_two_standard_errors(a, b, verdict):
    shown, found = itnet_claims.better("digits", "a", "b")({"digits": rows(a=a, b=b)})
    assert found == verdict
    assert ("not run" in shown) == (not a)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.9, 0.91, 0.9], [0.9, 0.91, 0.898], "reproduced"),
        ([0.8, 0.8, 0.81], [0.9, 0.91, 0.9], "reproduced"),
        ([0.95, 0.951, 0.949], [0.9, 0.9, 0.9], "contradicted"),
        ([0.9, 0.95, 0.9], [0.9, 0.9, 0.92], "open"),
        ([0.9, 0.91], [0.9, 0.91], "open"),
        ([], [0.8], "open"),
    ],
)
def test_gaining_nothing_is_a_bound(a, b, verdict):
    assert itnet_claims.alike("digits", "a", "b")({"digits": rows(a=a, b=b)})[1] == verdict


def test_two_evaluations_of_the_same_runs():
    found = [
        row | {"x": row["accuracy"] - 0.1, "y": row["accuracy"]} for row in rows(a=[0.5, 0.52, 0.6])
    ]
    shown, verdict = itnet_claims.columns("digits", "a", "x", "y")({"digits": found})
    assert verdict == "contradicted"
    assert "-10.00" in shown
    assert itnet_claims.columns("digits", "a", "x", "y")({"digits": rows(a=[0.5])}) == (
        "not run",
        "open",
    )


def test_differences_are_paired_by_seed():
    found = itnet_claims.paired(rows(a=[0.5, 0.7], b=[0.4, 0.6, 0.1]), "a", "b")
    assert found is not None
    assert found.difference == pytest.approx(0.1)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.seeds == 2


def test_a_table_shows_what_was_run():
    section = Section("Tiny", "digits", (), {"a": (), "b": (), "c": ()})
    lines = itnet_report.table(section, rows(a=[0.5, 0.6], b=[0.4])).splitlines()
    assert lines[2:] == ["| a | 55.00 ± 7.07 | 2 |  | 5 |", "| b | 40.00 | 1 | -10.00 | 5 |"]


def test_the_page_is_that_of_the_committed_results():
    found = sections.read(itnet_ablations.RESULTS)
    text = itnet_ablations.RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    assert text == itnet_report.page(
        found, *(itnet_report.beside(f"itnet-{name}") for name in ("modes", "recipes"))
    )
    assert set(found) <= set(SECTIONS)


def test_rows_of_other_settings_are_not_shown():
    section = SECTIONS["text"]
    row = {"variant": "full", "seed": 0, "overrides": [*section.common, *section.variants["full"]]}
    stale = row | {"seed": 1, "overrides": ["training.epochs=1"]}
    gone = row | {"variant": "no such"}
    assert itnet_report.current({"text": [row, stale, gone]})["text"] == [row]


@pytest.mark.slow
def test_modes_are_measured_and_drawn(tmp_path, monkeypatch):
    sizes = [
        "--lengths",
        "128",
        "160",
        "--dim",
        "8",
        "--heads",
        "2",
        "--width",
        "4",
        "--repeats",
        "1",
        "--threads",
        "1",
    ]
    monkeypatch.setattr("sys.argv", ["x", *sizes, "--modes", "LR-64", "--out", str(tmp_path)])
    itnet_modes.main()
    found = json.loads((tmp_path / "itnet-modes.json").read_text())
    assert (tmp_path / "itnet-modes.png").stat().st_size > 10000
    assert [(c["mode"], c["direction"], len(c["rows"])) for c in found["curves"]] == [
        ("LR-64", direction, 2) for direction in itnet_modes.DIRECTIONS
    ]
    assert "| LR-64 | forward+backward | 160 |" in itnet_report.speed(found)


def test_the_crossover_is_where_a_mode_stays_faster():
    def curve(mode, *times):
        rows = [{"n": 2**i, "milliseconds": t} for i, t in enumerate(times)]
        return {"mode": mode, "direction": "forward", "rows": rows}

    curves = [curve("a", 1, 9, 1, 1), curve("b", 9, 9, 9, 9), curve("SDPA", 2, 2, 2, 2)]
    assert itnet_report.crossover(curves).splitlines() == [
        "- a, forward: faster from N = 4 on, against softmax attention.",
        "- b, forward: slower at every N up to 8, against softmax attention.",
    ]


def test_the_minutes_of_a_recipe_are_its_steps_and_validations():
    found = itnet_recipes.measure("digits", 0.01)
    assert found["measured"] > 0
    assert found["steps"] == 60 * (1259 // 32)
    trained = found["steps"] * found["seconds_per_step"]
    assert found["minutes"] > trained / 60
    assert f"| {found['minutes']:.1f} |" in itnet_report.minutes(
        {"machine": describe(), "rows": [found]}
    )
