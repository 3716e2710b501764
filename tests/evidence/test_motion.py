"""Bodies of unknown mass: laws, integrator, models, errors and the page of their results."""

from __future__ import annotations

import math

import pytest
import torch
from evidence.datasets import bodies
from evidence.datasets.bodies import LAWS, make_motions, solve_masses
from evidence.kit.answers import pack
from evidence.kit.contest import parameters
from evidence.physics import motion, motion_claims, motion_page, rollouts
from evidence.physics.models import ALL_NAMES, RELATIVE_ITNET

from ..tolerances import assert_close

DISPLACED = [RELATIVE_ITNET, "softmax, relative", "interaction network", "egnn"]


def model(name):
    torch.manual_seed(0)
    return motion.make({"variant": name, "sigma": 0.5}).double()


def some(points=5):
    known = make_motions("gravity", 2, points, frames=3, seed=0)
    frames = known.positions[:, 0], known.accelerations[:, 0], known.positions[:, 2]
    return [each.double() for each in frames]


@pytest.fixture
def one_size(monkeypatch):
    monkeypatch.setattr(rollouts, "TESTED", (8,))


def test_accelerations_are_sums_over_the_others():
    positions = torch.tensor([[0.1, 0.2], [0.5, 0.9], [0.8, 0.3]])
    masses = torch.tensor([[0.5], [2.0], [1.5]])
    attracted, pulled = torch.zeros(2), torch.zeros(2)
    for other in (1, 2):
        r = positions[other] - positions[0]
        square = float(r.square().sum())
        softened = square + bodies.GRAVITY_SOFTENING**2
        attracted += bodies.GRAVITY * masses[other] * r / softened**1.5
        length = math.sqrt(square + bodies.SPRING_SOFTENING**2)
        pulled += bodies.STIFFNESS * r * (1 - bodies.REST_LENGTH / length) / masses[0]
    assert_close(bodies.accelerations("gravity", positions, masses)[0], attracted)
    assert_close(bodies.accelerations("springs", positions, masses)[0], pulled)


@pytest.mark.parametrize("law", LAWS)
def test_momentum_stays_zero_and_frames_follow_the_integrator(law):
    known = make_motions(law, 3, 8, frames=5, seed=0)
    momentum = (known.masses[:, None] * known.velocities).sum(2)
    assert float(momentum.abs().max()) < 1e-4
    moved = known.positions[:, :-1] + bodies.STEP * known.velocities[:, 1:]
    assert_close(known.positions[:, 1:], moved)
    exact = bodies.accelerations(law, known.positions[:, :-1], known.masses[:, None])
    assert_close(known.accelerations, exact)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("points", rollouts.TESTED)
def test_two_frames_determine_the_masses(law, points):
    known = make_motions(law, 20, points, frames=2, seed=1)
    found = solve_masses(law, known.positions[:, 0], known.accelerations[:, 0])
    assert float((found / known.masses - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("name", ALL_NAMES)
def test_models_have_their_size_and_are_permutation_equivariant(name):
    one = model(name)
    assert abs(parameters(one) / motion.PARAMETERS - 1) < 0.05
    frames = some()
    order = torch.randperm(frames[0].shape[1])
    assert_close(one(*(each[:, order] for each in frames)), one(*frames)[:, order])


@pytest.mark.parametrize("name", DISPLACED)
def test_models_of_displacements_are_translation_invariant(name):
    one = model(name)
    observed, acceleration, positions = some()
    moved = one(observed + 3.0, acceleration, positions + 3.0)
    assert_close(moved, one(observed, acceleration, positions))


def test_egnn_is_rotation_equivariant():
    one, frames = model("egnn"), some()
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    assert_close(one(*(each @ turn for each in frames)), one(*frames) @ turn)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_predictions_depend_on_both_frames(name):
    one = model(name)
    frames = [each.requires_grad_() for each in some()]
    one(*frames).square().sum().backward()
    assert all(float(each.grad.abs().max()) > 0 for each in frames)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_with_solved_masses_makes_no_error(law, one_size):
    found = rollouts.measured(rollouts.begin_control(rollouts.SOLVED, law), law)
    assert max(found["one step 8"], found["rollout 8 at 10"], found["rollout 8 at 50"]) < 1e-6
    equal = rollouts.measured(rollouts.begin_control(rollouts.MEAN_MASS, law), law)
    assert 0.05 < equal["one step 8"] < 0.5


@pytest.mark.parametrize("value", [1e9, math.nan])
def test_a_diverged_rollout_counts_as_one(value, one_size):
    def begin(observed, acceleration):
        return lambda positions: torch.full_like(positions, value)

    found = rollouts.measured(begin, "gravity")
    for step in rollouts.REPORTED:
        name = rollouts.rollout_metric(8, step)
        assert found[name] == found["median"][name] == found["diverged"][name] == 1.0


def test_the_error_of_a_zero_prediction_is_one():
    known = rollouts.motions("gravity", "val")
    each = rollouts.one_step(lambda *_: torch.zeros_like, known)
    assert sum(each) / len(each) == pytest.approx(1.0)


def test_a_batch_teaches_the_accelerations_of_later_frames():
    exact = {}

    class Recorder(torch.nn.Module):
        def forward(self, observed, acceleration, positions):
            exact["moved"] = float((positions - observed).abs().max())
            return torch.zeros_like(positions)

    loss = motion.batch_loss(Recorder(), torch.Generator().manual_seed(0), "springs")
    assert exact["moved"] > 0.1
    assert 0 < float(loss) < 10


def test_claims_are_positive_where_itnet_errs_less():
    rows = [
        {
            "variant": name,
            "seed": seed,
            "one step 8": error,
            "answers": {"one step 8": pack(values)},
        }
        for seed in (0, 1)
        for name, error, values in (
            (RELATIVE_ITNET, 0.25, [0.2, 0.3]),
            ("interaction network", 0.75, [0.5, 1.0]),
        )
    ]
    first = motion_claims.CLAIMS[0]
    found = first.sample({"gravity, equal steps": rows})
    assert found == [0.5, 0.5]
    assert found.samples.shape == (2, 2)


def test_laws_have_the_same_claims_and_five_are_primary():
    claims = motion_claims.CLAIMS
    by_law = [
        {
            claim.text.partition(", ")[2]
            for claim in claims
            if claim.text.startswith(law.capitalize())
        }
        for law in LAWS
    ]
    assert by_law[0] == by_law[1]
    assert sum(claim.primary for claim in claims) == 5


def test_a_table_of_rollouts_shows_what_diverged():
    keys = [
        rollouts.rollout_metric(points, step)
        for points in rollouts.TESTED
        for step in rollouts.REPORTED
    ]
    row = {"variant": "egnn", "median": dict.fromkeys(keys, 0.5)}
    row["diverged"] = dict.fromkeys(keys, 0.0) | {keys[-1]: 0.25}
    text = motion_page.rollout_table(("egnn",), [row])
    assert text.endswith("| egnn | 50.00 | 50.00 | 50.00 | 50.00 | 50.00 | 50.00; 25.0% diverged |")
