"""Terms, schemes and controls: their formulas, and which of them are equivalent."""

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


def test_explicit_substeps_are_their_formulas():
    term, u, h = spread(FeedForwardTerm(D, 6, activation="tanh")), draw(2, N, D), 0.3

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
    term, u, h = spread(LinearTerm(D)), draw(2, N, D), 0.3
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
def test_many_short_linear_substeps_lose_nothing(substep):
    """What a substep adds is small beside the state, which no matrix near I should round."""
    torch.manual_seed(0)
    double, u = spread(LinearTerm(D)), draw(2, N, D)
    single, steps = copy.deepcopy(double).float(), 512

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
        low, once = copy.deepcopy(single).bfloat16(), double(u, DOMAIN, 0.5, substep)
        assert_close(low(u.bfloat16(), DOMAIN, 0.5, substep).double(), once, dtype=torch.bfloat16)


def test_a_rectified_layer_is_explicit_then_projected():
    term, u = spread(LinearTerm(D, rectify=True)), draw(2, N, D)
    v = u + 0.5 * F.linear(u, term.weight, term.bias)
    out = term(u, DOMAIN, 0.5, term.resolve(1))
    assert_close(out, F.relu(v))
    assert_close(out, PositivityConstraint().project(v))


def test_the_papers_square_layers():
    """Eq. 42, 43 with J = 2: two layers I + W, the first rectified, are a network of their own
    under Lie at Δt = 1.
    """
    evolution, u = spread(Evolution([LinearTerm(D, rectify=True), LinearTerm(D)])), draw(2, N, D)
    one, two = evolution.terms
    eye = torch.eye(D, dtype=torch.float64)
    assert_close(
        evolution(u),
        F.linear(F.relu(F.linear(u, eye + one.weight, one.bias)), eye + two.weight, two.bias),
    )


def test_deep_networks_activations_and_norms():
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


def test_drop_rates_act_in_training_only():
    terms = encoder_terms(D, 2, 6, norm="pre", dropout=0.5, drop_path=0.5)
    evolution, u = Evolution(terms), torch.randn(2, N, D)
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


def test_schemes_are_their_formulas():
    evolution, u = make(knots=1, horizon=0.6), draw(2, N, D)
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
    evolution, u = (
        spread(Evolution([encoder_terms(D, 2, 6) for _ in range(2)], scheme=Relaxed())),
        draw(2, N, D),
    )
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


def test_a_scheme_of_ones_own():
    class Backwards(Scheme):
        def step(self, flows, u, t, dt):
            return Lie().step(flows[::-1], u, t, dt)

    evolution, u = make(knots=1), draw(1, N, D)
    turned = Evolution(evolution.terms[::-1])
    assert_close(evolution(u, DOMAIN, scheme=Backwards()), turned(u, DOMAIN))


# --- controls -------------------------------------------------------------------------------------


def test_piecewise_constant_controls():
    where = [Constant().locate(t, 3.0, 3)[0] for t in (0.0, 0.99, 1.0, 2.5, 3.0)]
    assert where == [0, 0, 1, 2, 2]
    assert [Constant().locate(t, 3.0, 3, before=True)[0] for t in (0.0, 1.0, 1.01, 3.0)] == [
        0,
        0,
        1,
        2,
    ]
    assert Constant().locate(0.7, 0.9, 1) == (0, 0, 0.0)


def test_linear_controls():
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


def test_at_one_step_a_knot_both_controls_are_a_stack_of_layers():
    evolution, u = make(knots=3), draw(2, N, D)
    expected = u
    for group in evolution.knots:
        expected = Evolution(list(group))(expected, DOMAIN)
    assert_close(evolution(u, DOMAIN), expected)
    evolution.controls = Linear()
    assert_close(evolution(u, DOMAIN), expected)


def test_interpolated_parameters_and_their_gradients():
    evolution, u = make(knots=2, controls="linear"), draw(2, N, D)
    between = copy.deepcopy(evolution.knots[0])
    with torch.no_grad():
        for p, a, b in zip(
            between.parameters(), evolution.knots[0].parameters(), evolution.knots[1].parameters()
        ):
            p.copy_((a + b) / 2)
    one = Evolution(list(between), horizon=2.0, steps=1)
    out, expected = evolution(u, DOMAIN, steps=1), one(u, DOMAIN)
    assert_close(out, expected)
    probe = torch.randn_like(out)
    out.backward(probe)
    expected.backward(probe)
    for k in range(2):
        for p, q in zip(evolution.knots[k].parameters(), between.parameters()):
            assert_close(p.grad, q.grad / 2)


def test_a_shared_control_is_one_layer_repeated():
    terms, u = spread(nn.ModuleList(encoder_terms(D, 2, 6))), draw(2, N, D)
    shared, single = Evolution(list(terms), horizon=3.0), Evolution(list(terms))
    assert shared.steps == 3
    assert_close(shared(u, DOMAIN), single(single(single(u, DOMAIN), DOMAIN), DOMAIN))


def test_depth_is_a_choice_of_the_run():
    """Half, equal, twice and four times the steps approach one solution."""
    evolution, u = make(knots=4, controls="linear", horizon=1.0), draw(2, N, D)
    with torch.no_grad():
        exact = evolution.integrate(u, DOMAIN, steps=32)
        errors = [float((evolution(u, DOMAIN, steps=n) - exact).norm()) for n in (2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 5
