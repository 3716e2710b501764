"""Models from fields to fields, their contest, and the page of its results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from evidence.fields import claims, darcy, models, page
from evidence.kit.answers import pack
from evidence.kit.contest import EQUAL_STEPS, parameters
from evidence.kit.grid import Row
from evidence.kit.subject import Options
from evidence.kit.task import run_task
from evidence.performance.peers import row_means

from ..tolerances import assert_close

OURS = ("itnet", "softmax")


@pytest.fixture
def tiny(monkeypatch):
    """Fields of 4 × 4 whose pressure is twice the medium."""

    def load_pairs(split, resolution=claims.TRAINED):
        generator = torch.Generator().manual_seed(resolution)
        media = torch.randn(6, 1, 4, 4, generator=generator)
        return darcy.Pairs(media, 2 * media)

    monkeypatch.setattr(darcy, "load_pairs", load_pairs)


def started(name: str) -> Row:
    return darcy.TASK.row_of(name, darcy.TASK.settings[name][0])


@pytest.mark.parametrize("name", darcy.TASK.models)
def test_models_have_their_size_and_read_finer_grids(name):
    if name not in OURS and not models.available():
        pytest.skip("neuraloperator is not installed")
    row = started(name)
    model = darcy.make(row)
    target = darcy.WIDE_PARAMETERS if name == models.WIDE else darcy.PARAMETERS
    # One channel of FNO more has many parameters more.
    assert abs(parameters(model) / target - 1) < 0.1
    for side in (8, 12):
        assert model(torch.randn(2, 1, side, side)).shape == (2, 1, side, side)


@pytest.mark.parametrize("name", darcy.TASK.models)
def test_every_start_lies_on_its_ladders(name):
    for start in darcy.TASK.settings[name]:
        row = darcy.TASK.row_of(name, start)
        for knob in darcy.KNOBS:
            assert row[knob] in darcy.LADDERS[name].get(knob, (None,))


@pytest.mark.parametrize("radius", [0.3, 0.6, 1.6])
@pytest.mark.parametrize("edges", [False, True])
def test_points_within_a_radius_have_the_weights_of_a_mean(radius, edges):
    domain = models.neighbourhoods((4, 4), radius, edges=edges)
    near = torch.cdist(models.nodes(4, 4), models.nodes(4, 4)) <= radius
    problem = models.interaction(started("itnet"), 6).problem(torch.randn(1, 16, 6), domain)
    weights = problem.quadrature.weights().expand(1, 1, 16, 16)
    assert_close(weights[0, 0], near / near.sum(1, keepdim=True))


def test_itnet_without_features_reads_positions_alone():
    row = started("itnet") | {"reads": models.POSITIONS_ALONE}
    assert models.interaction(row, 8).kernel.groups == models.POSITIONS


@pytest.mark.parametrize(("name", "linear"), [("gno", True), (models.GNO_OF_VALUES, False)])
def test_a_graph_operator_of_values_is_not_linear_in_the_field(name, linear):
    if not models.available():
        pytest.skip("neuraloperator is not installed")
    operator = models.interaction(started(name), 8)
    domain = models.neighbourhoods((4, 4), 0.4, edges=False)
    u = torch.randn(1, 16, 8)
    zero = operator(0 * u, domain)
    same = torch.allclose(
        operator(2 * u, domain) - zero, 2 * (operator(u, domain) - zero), atol=1e-5
    )
    assert same == linear


def test_a_complex_parameter_counts_twice():
    module = torch.nn.Linear(2, 3, dtype=torch.complex64)
    assert parameters(module) == 18


def test_row_means_are_those_of_every_row():
    values = torch.randn(2, 6, 3)
    splits = torch.tensor([0, 2, 2, 6])
    expected = torch.stack([values[:, :2].mean(1), torch.zeros(2, 3), values[:, 2:].mean(1)], 1)
    assert_close(row_means(values, splits), expected)
    assert_close(row_means(values, splits.repeat(2, 1)), expected)


def test_errors_are_relative_to_each_sample():
    true = torch.ones(2, 1, 2, 2) * torch.tensor([1.0, 10.0])[:, None, None, None]
    assert_close(darcy.relative_errors(1.5 * true, true), torch.tensor([0.5, 0.5]))


def test_the_error_of_an_exact_model_is_zero(tiny):
    assert darcy.errors(Twice(), "val") == [0.0] * 6


def test_the_control_answers_the_mean_pressure(tiny):
    found = darcy.control_errors()
    pairs = darcy.load_pairs("train")
    expected = darcy.relative_errors(pairs.pressures.mean(0, keepdim=True), pairs.pressures)
    assert found[claims.TRAINED] == pytest.approx(expected.tolist())


def test_the_control_is_interpolated_between_the_nodes(monkeypatch):
    places = {side: models.nodes(side, side).unflatten(0, (side, side)) for side in claims.TESTED}

    def load_pairs(split, resolution=claims.TRAINED):
        # Linear between nodes, and zero at the far boundary.
        pressure = (1 - places[resolution]).amin(-1).expand(2, 1, -1, -1)
        return darcy.Pairs(pressure, pressure)

    monkeypatch.setattr(darcy, "load_pairs", load_pairs)
    found = darcy.control_errors()
    assert found[16] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert max(found[32]) < 0.03


def test_finer_grids_have_the_coarser_nodes():
    fine = models.nodes(8, 8).unflatten(0, (8, 8))
    assert_close(fine[::2, ::2].flatten(0, 1), models.nodes(4, 4))


def test_a_contest_stores_every_answer(tiny, tmp_path):
    settings = {name: darcy.TASK.settings[name] for name in OURS}
    task = replace(darcy.TASK, settings=settings)
    options = Options(results=tmp_path, runs=tmp_path / "runs", small=True)
    run_task(task, options)
    rows = task.runs_table.rows(tmp_path)
    assert {(row["variant"], row["budget"]) for row in rows} == {
        (name, budget) for name in OURS for budget in ("equal steps", "equal time")
    }
    assert all(set(row["answers"]) == {"error 16", "error 32"} for row in rows)


def test_some_models_alone_are_not_compared_at_equal_time(tiny, tmp_path, capsys):
    settings = {name: darcy.TASK.settings[name] for name in OURS}
    task = replace(darcy.TASK, settings=settings)
    options = Options(results=tmp_path, runs=tmp_path / "runs", small=True, only=("softmax",))
    run_task(task, options)
    assert {row["budget"] for row in task.runs_table.rows(tmp_path)} == {EQUAL_STEPS}
    assert "without --only" in capsys.readouterr().out


def test_a_claim_is_positive_where_itnet_errs_less():
    rows = [
        {"variant": name, "seed": seed, "error 16": error, "answers": {"error 16": pack(values)}}
        for seed in (0, 1)
        for name, error, values in (("itnet", 0.25, [0.2, 0.3]), ("gno", 0.75, [0.5, 1.0]))
    ]
    found = claims.ahead(EQUAL_STEPS, "gno", 16)({EQUAL_STEPS: rows})
    assert found == [0.5, 0.5]


def test_the_page_shows_settings_from_the_best_to_the_worst():
    rows = [started("fno") | {"validation": error} for error in (0.2, 0.1)]
    shown = page.tries(rows, chosen=True)
    assert shown.index("10.00") < shown.index("20.00")
    assert "fno | 1 | rate 0.01, depth 4, norm none, modes 8, padding 0.0" in shown


def test_settings_with_one_change_are_shown_beside_the_best():
    best = started("itnet") | {"validation": 0.1}
    near = best | {"reads": models.POSITIONS_ALONE, "validation": 0.2}
    far = near | {"depth": 6, "validation": 0.3}
    shown = page.one_change([far, near, best, started("fno") | {"validation": 0.05}], "itnet")
    lines = shown.splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == ["10.00 |", "20.00 |"]
    assert lines[1].startswith("| reads positions |")


class Twice(torch.nn.Module):
    def forward(self, fields):
        return 2 * fields
