"""Theorems 4 and 5 at small sizes, the witnesses, and the committed pages."""

from __future__ import annotations

import pytest
import torch
from evidence.__main__ import main
from evidence.kit.page import load, save_picture
from evidence.kit.statistics import slope
from evidence.theorems import theorem4, theorem5, witnesses
from evidence.unification import FLOAT32, FLOAT64, configurations, witnesses_recurrence

from fredholm import Domain, IntegralOperator
from fredholm.operators import ITNetOperator


def test_every_configuration_was_measured():
    found = load("unification.json")
    measured = {(row["family"], row["label"]) for row in found["configurations"]}
    missing = [str(c) for c in configurations() if (c.family, c.label) not in measured]
    assert missing == [], "run python -m evidence run unification"
    for row in found["configurations"]:
        if "float64" in row:
            assert max(row["float64"].values()) <= FLOAT64, row
            assert max(row["float32"].values()) <= FLOAT32, row


# --- Theorem 4 ------------------------------------------------------------------------------------


def test_the_averaged_network_is_the_closed_form_in_the_mean():
    """Barron's construction is unbiased: many units approach the bilateral kernel pair by pair."""
    generator = torch.Generator().manual_seed(0)
    x, y, ux, uy = 0.3 * torch.randn(4, 1, 1, 6, 1, 1, generator=generator, dtype=torch.float64)
    kernel = theorem4.network("averaged", 40_000, 0).kernel
    found = kernel.hidden(x, y, ux, uy) @ kernel.weight2[0, 0, 0]
    expected = theorem4.BilateralKernel()(x, y, ux, uy)[..., 0, 0]
    assert expected.max() > 0.1
    assert (found - expected).abs().max() < 5 * 40_000**-0.5


def test_error_against_points_has_the_orders_of_its_rules():
    found = theorem4.against_points([16, 32, 64], 2, fine=512, number=4)
    assert found["centres"]["rate"] == pytest.approx(-2, abs=0.1)
    assert found["left"]["rate"] == pytest.approx(-1, abs=0.05)
    assert found["random"]["rms"][2]["mean"] > found["left"]["rms"][2]["mean"]


def test_fitted_readouts_beat_averaged_ones_and_depth_is_needed():
    width = theorem4.against_width([8, 64], 2, points=16, number=24)
    assert width["averaged"]["rms"][1]["mean"] > 5 * width["fitted"]["rms"][1]["mean"]
    depth = theorem4.against_depth([16], 2, points=12, number=64)
    assert depth["layers 1"]["rms"][0]["mean"] > 20 * depth["layers 2"]["rms"][0]["mean"]


def test_one_layer_is_additive_over_pieces_and_the_square_is_not():
    """Seen from a point where the signal is zero, of any kernel: no single layer is u -> (∫u)²."""
    torch.manual_seed(0)
    domain = Domain.grid(12, dtype=torch.float64)
    layer = ITNetOperator(1, 1, width=16).double()
    with torch.no_grad():
        layer.kernel.weight2.normal_()
    pieces = torch.zeros(2, 12, 1, dtype=torch.float64)
    pieces[0, :4], pieces[1, 4:8] = torch.rand(2, 4, 1, dtype=torch.float64) + 0.5

    def seen(u):
        return (layer(u, domain) - layer(torch.zeros_like(u), domain))[:, 8:]

    apart, both = seen(pieces), seen(pieces.sum(0, keepdim=True))
    assert apart.abs().min() > 1e-3
    assert (apart.sum(0) - both[0]).abs().max() < 1e-12
    squares, square = pieces.mean(1) ** 2, pieces.sum(0).mean() ** 2
    assert square > 1.5 * squares.sum()


def test_slope_is_the_exponent_of_a_power():
    assert slope([1, 2, 4], [3.0, 3.0 / 4, 3.0 / 16]) == pytest.approx(-2)


# --- Theorem 5 ------------------------------------------------------------------------------------


def test_kernels_split_orthogonally():
    matrix = torch.randn(7, 7, dtype=torch.float64)
    inside, outside = theorem5.split(matrix)
    torch.testing.assert_close(inside + outside, matrix)
    assert abs(float((inside * outside).sum())) < 1e-12
    assert torch.equal(inside.roll((1, 1), (0, 1)), inside)
    assert theorem5.ratio(inside) < 1e-12


@pytest.mark.parametrize("kind", ["table", "network"])
def test_one_matrix_answers_as_the_operator(kind):
    domain, kernel = theorem5.ring(8), theorem5.make_kernel(kind, "random", 8, 0)
    operator = IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()
    u = torch.randn(3, 8, 1, dtype=torch.float64)
    matrix = theorem5.kernel_of(operator, domain)
    torch.testing.assert_close(theorem5.respond(matrix, u, domain), operator(u, domain))
    rows = operator.kernel_matrix(u, domain, rows=[2, 5])[0, 0, :, :, 0, 0]
    torch.testing.assert_close(rows, matrix[[2, 5]])


def test_shifted_pairs_are_pairs():
    """Every shift of a pair, and each of them answered by the same shift of the answer."""
    u, y = theorem5.batch("orbit", 8, 8, torch.Generator().manual_seed(0))
    assert torch.equal(u[3], u[0].roll(3, 0))
    assert torch.equal(y[3], y[0].roll(3, 0))
    fixed, answers = theorem5.pairs(4, 8, torch.Generator().manual_seed(1))
    turned, turned_answers = theorem5.batch("shifted", 4, 8, torch.Generator().manual_seed(1))
    for row in range(4):
        by = [s for s in range(8) if torch.equal(fixed[row].roll(s, 0), turned[row])]
        assert len(by) == 1
        assert torch.equal(answers[row].roll(by[0], 0), turned_answers[row])


def test_gradients_outside_average_to_zero_on_shifted_data_alone():
    few, many = (theorem5.gradient_ratio("shifted", m, n=8, seed=0) for m in (64, 4096))
    assert many < few / 3
    assert theorem5.gradient_ratio("orbit", 64, n=8, seed=0) < 1e-12
    assert theorem5.gradient_ratio("fixed", 4096, n=8, seed=0) > 0.5


def test_a_table_stays_invariant_and_a_network_does_not():
    options = {"n": 8, "steps": 40, "every": 20, "seed": 0}
    assert max(theorem5.train("table", "zero", "orbit", **options)["ratio"]) < 1e-12
    assert theorem5.train("table", "zero", "fixed", **options)["ratio"][-1] > 0.1
    assert theorem5.train("network", "zero", "orbit", **options)["ratio"][-1] > 0.01


# --- commands, witnesses --------------------------------------------------------------------------


@pytest.mark.parametrize("theorem", [theorem4, theorem5])
def test_the_commands_run(theorem, tmp_path):
    name = theorem.__name__.rpartition(".")[2]
    assert main(["run", "theorems", name, "--small", "--results", str(tmp_path)]) == 0
    found = load(f"{name}.json", tmp_path)
    save_picture(lambda theme: theorem.draw(theme, found), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "| " in theorem.table(found)


def test_operators_compute_their_witnesses_and_other_families_do_not():
    found = witnesses.similarity()
    assert found.operator < 1e-12
    assert min(found.additive, found.equivariant, found.convolution) > 0.4
    smoothing = witnesses.smoothing()
    assert max(smoothing.operator, smoothing.attention) < 1e-12
    assert smoothing.spread > 0.1
    distance = witnesses.distance()
    assert max(distance.operator, distance.attention) < 1e-12
    assert distance.exchange > 0.5


def test_no_recurrence_reaches_what_one_operator_computes():
    found = witnesses_recurrence.two_sided_smoothing(12, steps=2)
    assert found.operator < 1e-12 < 0.5 < found.causal <= found.fitted
    memory = witnesses_recurrence.state_against_rank(3, 12, steps=3)
    assert memory.operator < 1e-12
    assert all(memory.fitted[size] >= memory.bound[size] > 0.02 for size in (1, 2))
