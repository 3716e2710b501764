"""Terms, schemes and controls: formulas and equivalences."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fredholm.families.continuous.splitting import (
    Constant,
    Evolution,
    FeedForwardTerm,
    Hybrid,
    Lie,
    Linear,
    LinearTerm,
    OperatorTerm,
    Parallel,
    PositivityConstraint,
    Relaxed,
    Scheme,
    Strang,
    encoder_terms,
)
from fredholm.operators import create_operator

from ...tolerances import assert_close
from .splitting_cases import DOMAIN, D, N, draw, make, spread

# --- terms ----------------------------------------------------------------------------------------


def test_explicit_substeps_equal_their_formulas():
    term = spread(FeedForwardTerm(D, 6, activation="tanh"))
    u = draw(2, N, D)
    h = 0.3

    def f(v):
        return term.layers[1](torch.tanh(term.layers[0](v)))

    assert_close(term.rate(u, DOMAIN), f(u))
    assert_close(term(u, DOMAIN, h, "euler"), u + h * f(u))
    assert_close(term(u, DOMAIN, h, "midpoint"), u + h * f(u + h / 2 * f(u)))
    assert_close(term(u, DOMAIN, h, "heun"), u + h / 2 * (f(u) + f(u + h * f(u))))
    b = f(u + h / 2 * f(u))
    c = f(u + h / 2 * b)
    assert_close(term(u, DOMAIN, h, "rk4"), u + h / 6 * (f(u) + 2 * b + 2 * c + f(u + h * c)))
    assert_close(term(u, DOMAIN, 1.0, "relaxed"), (u + f(u)) / 2)


def test_linear_substeps_solve_their_equations():
    term = spread(LinearTerm(D))
    u = draw(2, N, D)
    h = 0.3
    w, b = term.weight, term.bias
    assert_close(term(u, DOMAIN, 1.0, "euler"), u @ (torch.eye(D, dtype=u.dtype) + w).T + b)
    v = term(u, DOMAIN, h, "implicit")
    assert_close(v - h * F.linear(v, w, b), u)
    v = term(u, DOMAIN, h, "trapezoid")
    assert_close(v - h / 2 * F.linear(v, w, b), u + h / 2 * F.linear(u, w, b))
    fine = u
    for _ in range(64):
        fine = term(fine, DOMAIN, h / 64, "rk4")
    assert_close(term(u, DOMAIN, h, "exact"), fine)
    plain = spread(LinearTerm(D, bias=False))
    assert_close(plain(plain(u, DOMAIN, h, "exact"), DOMAIN, -h, "exact"), u)
    assert_close(
        plain(u, DOMAIN, h, "implicit") @ (torch.eye(D, dtype=u.dtype) - h * plain.weight).T, u
    )


@pytest.mark.parametrize("substep", ["implicit", "trapezoid", "exact"])
def test_many_short_linear_substeps_lose_no_precision(substep):
    """A substep's increment is small beside the state; a matrix near I must not round it."""
    torch.manual_seed(0)
    double = spread(LinearTerm(D))
    u = draw(2, N, D)
    single = copy.deepcopy(double).float()
    steps = 512

    def flow(term, u):
        for _ in range(steps):
            u = term(u, DOMAIN, 1 / steps, substep)
        return u

    with torch.no_grad():
        expected = flow(double, u)
        assert_close(flow(single, u.float()).double(), expected, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = flow(single, u.float())
        assert rounded.dtype == torch.float32
        assert_close(rounded.double(), expected, dtype=torch.bfloat16)
        low = copy.deepcopy(single).bfloat16()
        once = double(u, DOMAIN, 0.5, substep)
        assert_close(low(u.bfloat16(), DOMAIN, 0.5, substep).double(), once, dtype=torch.bfloat16)


def test_a_rectified_layer_is_explicit_then_projected():
    term = spread(LinearTerm(D, rectify=True))
    u = draw(2, N, D)
    v = u + 0.5 * F.linear(u, term.weight, term.bias)
    out = term(u, DOMAIN, 0.5, term.resolve(1))
    assert_close(out, F.relu(v))
    assert_close(out, PositivityConstraint().project(v))


def test_lie_steps_of_two_linear_terms_are_the_papers_square_layers():
    """Eq. 42, 43 with J = 2: under Lie at Δt = 1, two layers I + W, the first rectified, are a
    feed-forward network.
    """
    evolution = spread(Evolution([LinearTerm(D, rectify=True), LinearTerm(D)]))
    u = draw(2, N, D)
    one, two = evolution.terms
    eye = torch.eye(D, dtype=torch.float64)
    assert_close(
        evolution(u),
        F.linear(F.relu(F.linear(u, eye + one.weight, one.bias)), eye + two.weight, two.bias),
    )


def test_terms_equal_their_layers_with_activation_and_norm():
    u = draw(2, N, D)
    term = spread(
        FeedForwardTerm(D, (6, 5), activation=nn.Softplus(), bias=False, norm=nn.LayerNorm(D))
    )
    first, second, third = term.layers
    expected = third(F.softplus(second(F.softplus(first(term.norm(u))))))
    assert_close(term.rate(u, DOMAIN), expected)
    assert len(term.layers) == 3
    operator = create_operator("itnet", D, 2, width=4)
    term = spread(OperatorTerm(operator, norm=nn.LayerNorm(D)))
    assert_close(term.rate(u, DOMAIN), operator(term.norm(u), DOMAIN))


def test_dropout_acts_in_training_only():
    terms = encoder_terms(D, 2, 6, norm="pre", dropout=0.5, drop_path=0.5)
    evolution = Evolution(terms)
    u = torch.randn(2, N, D)
    torch.manual_seed(1)
    first = evolution(u)
    assert not first.equal(evolution(u))
    evolution.eval()
    assert evolution(u).equal(evolution(u))
    terms[0].drop_path.rate = terms[1].drop_path.rate = 1 - 1e-9
    assert evolution.train()(u).equal(u)


def test_biases_can_be_left_out():
    names = [name for name, _ in Evolution(encoder_terms(D, 2, 6, bias=False)).named_parameters()]
    assert not [name for name in names if name.endswith("bias")]
    assert [
        name
        for name, _ in Evolution(encoder_terms(D, 2, 6)).named_parameters()
        if name.endswith("bias")
    ]


# --- schemes --------------------------------------------------------------------------------------


def test_schemes_equal_their_formulas():
    evolution = make(knots=1, horizon=0.6)
    u = draw(2, N, D)
    a, b, c = evolution.terms
    dt = 0.3

    def lie(u):
        return c(b(a(u, DOMAIN, dt, "euler"), DOMAIN, dt, "euler"), DOMAIN, dt, "implicit")

    def strang(u):
        half = b(a(u, DOMAIN, dt / 2, "midpoint"), DOMAIN, dt / 2, "midpoint")
        half = b(c(half, DOMAIN, dt, "exact"), DOMAIN, dt / 2, "midpoint")
        return a(half, DOMAIN, dt / 2, "midpoint")

    def parallel(u):
        return (
            a(u, DOMAIN, 3 * dt, "euler")
            + b(u, DOMAIN, 3 * dt, "euler")
            + c(u, DOMAIN, 3 * dt, "implicit")
        ) / 3

    def hybrid(u):
        both = (a(u, DOMAIN, 2 * dt, "euler") + c(u, DOMAIN, 2 * dt, "implicit")) / 2
        return b(both, DOMAIN, dt, "euler")

    groups = Hybrid(((0, 2), (1,)))
    for scheme, step in (
        (Lie(), lie),
        (Strang(), strang),
        (Parallel(), parallel),
        (groups, hybrid),
    ):
        assert_close(evolution(u, DOMAIN, steps=2, scheme=scheme), step(step(u)), str(scheme))
    assert_close(
        evolution(u, DOMAIN, scheme=Hybrid(((0,), (1,), (2,)))), evolution(u, DOMAIN, scheme="lie")
    )
    assert_close(
        evolution(u, DOMAIN, scheme=Hybrid(((0, 1, 2),))), evolution(u, DOMAIN, scheme="parallel")
    )


def test_relaxed_is_the_papers_sequence_of_substeps():
    evolution = spread(Evolution([encoder_terms(D, 2, 6) for _ in range(2)], scheme=Relaxed()))
    u = draw(2, N, D)
    seen = []
    out = evolution(u, DOMAIN, observer=seen.append)
    expected = u
    for attention, norm, network, last in evolution.knots:
        v = norm.project(expected + attention.operator(expected, DOMAIN))
        first = F.relu(network.layers[0](v))
        relaxed = (network.layers[1](first) + v) / 2
        expected = last.project(relaxed)
    assert_close(out, expected)
    names = [s.name for s in seen]
    assert names == 2 * [
        "OperatorTerm",
        "MomentConstraint",
        "layer 1",
        "layer 2",
        "relaxation",
        "MomentConstraint",
    ]  # M = 4 + J
    assert_close(seen[-4].after, first)
    assert_close(seen[-2].after, relaxed)
    assert_close(seen[-1].after, expected)


def test_steps_that_are_one_up_to_rounding_are_relaxed():
    horizon = 1.0 + 1e-12
    u = draw(1, N, D)
    evolution = spread(Evolution([encoder_terms(D, 2, 6)], scheme=Relaxed(), horizon=horizon))
    rounded = evolution(u, DOMAIN)
    evolution.horizon = 1.0
    assert_close(rounded, evolution(u, DOMAIN))


def test_observers_of_the_relaxation_receive_what_was_computed():
    """With dropout, and with controls between two knots."""
    knots = [encoder_terms(D, 2, 6, dropout=0.5, drop_path=0.5) for _ in range(2)]
    evolution = spread(Evolution(knots, scheme=Relaxed(), controls="linear")).train()
    seen = []
    evolution(draw(4, N, D), DOMAIN, observer=seen.append)
    of_network = [i for i, substep in enumerate(seen) if substep.name == "relaxation"]
    assert len(of_network) == 2
    for i in of_network:
        assert torch.equal(seen[i].after, seen[i + 1].before)


def test_a_user_defined_scheme_runs():
    class Backwards(Scheme):
        def step(self, flows, u, t, dt):
            return Lie().step(flows[::-1], u, t, dt)

    evolution = make(knots=1)
    u = draw(1, N, D)
    turned = Evolution(evolution.terms[::-1])
    assert_close(evolution(u, DOMAIN, scheme=Backwards()), turned(u, DOMAIN))


# --- controls -------------------------------------------------------------------------------------


def test_piecewise_constant_controls_jump_at_their_boundaries():
    where = [Constant().locate(t, 3.0, 3)[0] for t in (0.0, 0.99, 1.0, 2.5, 3.0)]
    assert where == [0, 0, 1, 2, 2]
    assert [Constant().locate(t, 3.0, 3, before=True)[0] for t in (0.0, 1.0, 1.01, 3.0)] == [
        0,
        0,
        1,
        2,
    ]
    assert Constant().locate(0.7, 0.9, 1) == (0, 0, 0.0)


def test_linear_controls_interpolate_between_knots():
    for t, expected in (
        (0.0, 0.0),
        (0.5, 0.0),
        (1.0, 0.5),
        (1.25, 0.75),
        (1.5, 1.0),
        (2.5, 2.0),
        (3.0, 2.0),
    ):
        i, j, w = Linear().locate(t, 3.0, 3)
        assert (1 - w) * i + w * j == pytest.approx(expected)
        assert 0 <= i <= j <= 2
    assert Linear().locate(0.7, 0.9, 1) == (0, 0, 0.0)


def test_with_one_step_per_knot_both_controls_equal_a_stack_of_layers():
    evolution = make(knots=3)
    u = draw(2, N, D)
    expected = u
    for group in evolution.knots:
        expected = Evolution(list(group))(expected, DOMAIN)
    assert_close(evolution(u, DOMAIN), expected)
    evolution.controls = Linear()
    assert_close(evolution(u, DOMAIN), expected)


def test_gradients_of_interpolated_parameters_are_split_between_knots():
    evolution = make(knots=2, controls="linear")
    u = draw(2, N, D)
    between = copy.deepcopy(evolution.knots[0])
    with torch.no_grad():
        for p, a, b in zip(
            between.parameters(), evolution.knots[0].parameters(), evolution.knots[1].parameters()
        ):
            p.copy_((a + b) / 2)
    one = Evolution(list(between), horizon=2.0, steps=1)
    out = evolution(u, DOMAIN, steps=1)
    expected = one(u, DOMAIN)
    assert_close(out, expected)
    probe = torch.randn_like(out)
    out.backward(probe)
    expected.backward(probe)
    for k in range(2):
        for p, q in zip(evolution.knots[k].parameters(), between.parameters()):
            assert_close(p.grad, q.grad / 2)


def test_one_shared_knot_equals_a_repeated_layer():
    terms = spread(nn.ModuleList(encoder_terms(D, 2, 6)))
    u = draw(2, N, D)
    shared, single = Evolution(list(terms), horizon=3.0), Evolution(list(terms))
    assert shared.steps == 3
    assert_close(shared(u, DOMAIN), single(single(single(u, DOMAIN), DOMAIN), DOMAIN))


def test_more_steps_approach_one_solution():
    """Half, equal, twice and four times the steps approach the same solution."""
    evolution = make(knots=4, controls="linear", horizon=1.0)
    u = draw(2, N, D)
    with torch.no_grad():
        exact = evolution.integrate(u, DOMAIN, steps=32)
        errors = [float((evolution(u, DOMAIN, steps=n) - exact).norm()) for n in (2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 5
