"""Models of forces between particles: their symmetries, sizes and the page of their results."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch
from evidence.datasets.charges import SOFTENING, law, make_systems
from evidence.kit.answers import pack
from evidence.kit.contest import EQUAL_STEPS, parameters
from evidence.kit.page import load
from evidence.kit.subject import Options
from evidence.kit.task import adjacent, at_ladder_ends, best, choose
from evidence.physics import charges, claims, designs, page
from evidence.physics.models import ALL_NAMES, LAYERS, RELATIVE_ITNET, make_model, sized

from ..tolerances import assert_close

EXAMPLE = Path(__file__).parents[2] / "examples" / "plot_charges.py"


def model(name):
    torch.manual_seed(0)
    return make_model(sized(name, 0.5, charges.PARAMETERS)).double()


def some(points=5):
    known = make_systems(2, points, seed=0)
    return known.positions.double(), known.charges.double()


def test_the_gallery_has_the_same_law():
    module = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    functions = [one for one in module.body if isinstance(one, ast.FunctionDef)]
    named = {"torch": torch}
    code = ast.Module([one for one in functions if one.name == "law"], [])
    exec(compile(code, EXAMPLE.name, "exec"), named)
    displacement = torch.randn(6, 2)
    assert_close(named["law"](displacement), law(displacement))


def test_forces_are_the_sum_over_the_others():
    known = make_systems(1, 3, seed=0)
    positions, charges = known.positions[0], known.charges[0, :, 0]
    expected = torch.zeros(2)
    for other in (1, 2):
        r = positions[0] - positions[other]
        size = math.sqrt(float(r.square().sum()) + SOFTENING**2) ** 3
        expected += charges[0] * charges[other] * r / size
    assert_close(known.forces[0, 0], expected)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_models_have_their_size_and_are_permutation_equivariant(name):
    one = model(name)
    inputs = some()
    assert abs(parameters(one) / charges.PARAMETERS - 1) < 0.05
    order = torch.randperm(inputs[0].shape[1])
    assert_close(one(*(each[:, order] for each in inputs)), one(*inputs)[:, order])


@pytest.mark.parametrize(
    "name", [RELATIVE_ITNET, "softmax, relative", "interaction network", "egnn"]
)
def test_models_of_displacements_are_translation_invariant(name):
    one = model(name)
    positions, values = some()
    assert_close(one(positions + 3.0, values), one(positions, values))


def test_egnn_is_rotation_equivariant():
    one = model("egnn")
    positions, values = some()
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    assert_close(one(positions @ turn, values), one(positions, values) @ turn)


def test_the_error_of_a_zero_prediction_is_one():
    each = charges.errors(lambda positions, charges: torch.zeros_like(positions), "test", 12)
    assert sum(each) / len(each) == pytest.approx(1.0)


def test_a_setting_is_chosen_by_validation_when_all_were_tried():
    task = charges.FIRST_TASK
    planned = task.settings["egnn"]
    tried = [
        {"variant": "egnn", "rate": rate, "sigma": sigma, "validation": rate * sigma}
        for rate, sigma in planned
    ]
    # A model that diverged is never chosen.
    tried[0]["validation"] = math.nan
    found = best(task, tried, "egnn", planned)
    assert found == {"variant": "egnn", "rate": 3e-3, "sigma": 0.5}
    with pytest.raises(SystemExit, match=r"expected . tried settings"):
        best(task, tried[1:], "egnn", planned)


def test_a_search_ends_where_no_neighbour_is_better(monkeypatch, tmp_path):
    def fill(table, rows, work, cell, options):
        new = [row for row in rows if not table.has(row, options.results)]
        off = [(math.log10(row["rate"]) + 1, math.log2(row["sigma"]) + 2) for row in new]
        table.add(
            [row | {"validation": a**2 + b**2} for row, (a, b) in zip(new, off)], options.results
        )

    monkeypatch.setattr("evidence.kit.task.fill", fill)
    task, options = charges.SECOND_TASK, Options(results=tmp_path)
    found = choose(task, ["egnn"], lambda row: None, options)
    assert found == {"egnn": {"variant": "egnn", "rate": 0.1, "sigma": 0.25}}
    tried = {task.setting_of(row) for row in task.tuning_table.rows(tmp_path)}
    assert adjacent(task, "egnn", (0.1, 0.25)) <= tried
    assert len(tried) < len(charges.RATES) * len(charges.SIGMAS) / 2


def test_the_second_contest_keeps_the_rows_of_the_first():
    first, second = charges.FIRST_TASK, charges.SECOND_TASK
    assert (first.runs_table.part, second.runs_table.part) == (("runs",), (charges.AGAIN, "runs"))
    assert not set(first.seeds) & set(second.seeds)


@pytest.mark.parametrize("name", LAYERS)
def test_searched_designs_have_their_layers_blocks_and_size(name):
    assert set(designs.STARTS) == set(LAYERS)
    sizes = {}
    for layers in (1, 3):
        for blocks in (1, 3):
            row = {"variant": name, "sigma": 0.5, "layers": layers, "blocks": blocks}
            one = designs.make(row)
            assert abs(parameters(one) / charges.PARAMETERS - 1) < 0.2
            sizes[layers, blocks] = len(list(one.parameters()))
    assert sizes[1, 1] < sizes[3, 1] < sizes[3, 3]
    assert sizes[1, 1] < sizes[1, 3]


def test_searches_of_designs_start_from_the_second_contest():
    found = load(charges.FILE)[charges.AGAIN]["runs"]
    for name, (rate, sigma, layers, blocks) in designs.STARTS.items():
        row = next(row for row in found if row["variant"] == name)
        assert (rate, sigma) == (row["rate"], row["sigma"])
        design = {"variant": name, "sigma": sigma, "layers": layers, "blocks": blocks}
        assert parameters(designs.make(design)) == row["parameters"]


def test_the_contest_of_designs_has_seeds_and_test_systems_of_its_own():
    assert not set(designs.SEEDS) & {*charges.SEEDS, *charges.FRESH_SEEDS}
    old, new = (
        task.test(lambda positions, values: positions)
        for task in (charges.FIRST_TASK, designs.TASK)
    )
    assert old["error 8"] != new["error 8"]


def test_a_claim_is_positive_where_itnet_errs_less():
    rows = [
        {"variant": name, "seed": seed, "error 8": error, "answers": {"error 8": pack(values)}}
        for seed in (0, 1)
        for name, error, values in (("itnet", 0.25, [0.2, 0.3]), ("egnn", 0.75, [0.5, 1.0]))
    ]
    found = claims.ahead(EQUAL_STEPS, "egnn", "error 8")({EQUAL_STEPS: rows})
    assert found == [0.5, 0.5]
    assert found.samples.shape == (2, 2)


def test_a_table_shows_what_was_run():
    row = {"variant": "egnn", "rate": 0.01, "sigma": 0.5, "steps": 9, "seconds": 2.0}
    row |= {"parameters": 1_234} | {charges.metric(points): 0.5 for points in charges.TESTED}
    assert "| egnn | 50.00 | 50.00 | 50.00 | 9 | 2.0 | 1 | 1,234 | 0.01 | 0.5 |" in page.scores(
        [row]
    )
    assert page.scores([]) == "Not run yet."


def test_settings_at_an_end_of_a_ladder_are_named():
    task = charges.SECOND_TASK
    inside = {"variant": "egnn", "rate": 0.01, "sigma": 0.5}
    at_end = {"variant": "itnet", "rate": 0.3, "sigma": 0.5}
    assert at_ladder_ends(task, [inside, at_end]).endswith("may lie: itnet (rate 0.3).")
    assert at_ladder_ends(task, [inside]).startswith("No setting")
