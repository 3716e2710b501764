"""Terms, schemes, controls and the evolution: formulas, equivalences, masks, and what is refused."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fredholm.depth import (
    Evolution,
    FeedForwardTerm,
    Hybrid,
    Lie,
    LinearTerm,
    OperatorTerm,
    Parallel,
    PositivityConstraint,
    Relaxed,
    Strang,
    SubstepError,
    encoder_terms,
)
from fredholm.depth.splitting import Constant, Linear, Scheme, Term, resolve_scheme
from fredholm.domain import Domain
from fredholm.errors import OptionError, ShapeError
from fredholm.operators import create_operator

from ..tolerances import assert_close

D, N = 4, 3
DOMAIN = Domain.line(N)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def spread(module, std=0.4):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module.double()


def make(knots=2, **options):
    """Attention and network with a soft constraint: every scheme serves it."""
    groups = [
        [OperatorTerm.of("softmax", D, 2), FeedForwardTerm(D, 6, activation="tanh"), PositivityConstraint(penalty=0.5)]
        for _ in range(knots)
    ]
    return spread(Evolution(groups, **options))


# --- terms ------------------------------------------------------------------------------------------------------------------


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
    assert_close(plain(u, DOMAIN, h, "implicit") @ (torch.eye(D, dtype=u.dtype) - h * plain.weight).T, u)


def test_a_rectified_layer_is_explicit_then_projected():
    term, u = spread(LinearTerm(D, rectify=True)), draw(2, N, D)
    v = u + 0.5 * F.linear(u, term.weight, term.bias)
    out = term(u, DOMAIN, 0.5, term.resolve(1))
    assert_close(out, F.relu(v))
    assert_close(out, PositivityConstraint().project(v))


def test_the_papers_square_layers():
    """Eq. 42, 43 with J = 2: two layers I + W, the first rectified, are a network of their own under Lie at Δt = 1."""
    evolution, u = spread(Evolution([LinearTerm(D, rectify=True), LinearTerm(D)])), draw(2, N, D)
    one, two = evolution.terms
    eye = torch.eye(D, dtype=torch.float64)
    assert_close(evolution(u), F.linear(F.relu(F.linear(u, eye + one.weight, one.bias)), eye + two.weight, two.bias))


def test_deep_networks_activations_and_norms():
    u = draw(2, N, D)
    term = spread(FeedForwardTerm(D, (6, 5), activation=nn.Softplus(), bias=False, norm=nn.LayerNorm(D)))
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
    assert [name for name, _ in Evolution(encoder_terms(D, 2, 6)).named_parameters() if name.endswith("bias")]


# --- schemes ----------------------------------------------------------------------------------------------------------------


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
        return (a(u, DOMAIN, 3 * dt, "euler") + b(u, DOMAIN, 3 * dt, "euler") + c(u, DOMAIN, 3 * dt, "implicit")) / 3

    def hybrid(u):
        both = (a(u, DOMAIN, 2 * dt, "euler") + c(u, DOMAIN, 2 * dt, "implicit")) / 2
        return b(both, DOMAIN, dt, "euler")

    groups = Hybrid(((0, 2), (1,)))
    for scheme, step in ((Lie(), lie), (Strang(), strang), (Parallel(), parallel), (groups, hybrid)):
        assert_close(evolution(u, DOMAIN, steps=2, scheme=scheme), step(step(u)), str(scheme))
    assert_close(evolution(u, DOMAIN, scheme=Hybrid(((0,), (1,), (2,)))), evolution(u, DOMAIN, scheme="lie"))
    assert_close(evolution(u, DOMAIN, scheme=Hybrid(((0, 1, 2),))), evolution(u, DOMAIN, scheme="parallel"))


def test_relaxed_is_the_papers_sequence_of_substeps():
    evolution, u = spread(Evolution([encoder_terms(D, 2, 6) for _ in range(2)], scheme=Relaxed())), draw(2, N, D)
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


# --- controls ---------------------------------------------------------------------------------------------------------------


def test_piecewise_constant_controls():
    where = [Constant().locate(t, 3.0, 3)[0] for t in (0.0, 0.99, 1.0, 2.5, 3.0)]
    assert where == [0, 0, 1, 2, 2]
    assert [Constant().locate(t, 3.0, 3, before=True)[0] for t in (0.0, 1.0, 1.01, 3.0)] == [0, 0, 1, 2]
    assert Constant().locate(0.7, 0.9, 1) == (0, 0, 0.0)


def test_linear_controls():
    for t, expected in ((0.0, 0.0), (0.5, 0.0), (1.0, 0.5), (1.25, 0.75), (1.5, 1.0), (2.5, 2.0), (3.0, 2.0)):
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
        for p, a, b in zip(between.parameters(), evolution.knots[0].parameters(), evolution.knots[1].parameters()):
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


# --- evolution --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["lie", "strang", "parallel"])
def test_padding_is_invisible(scheme):
    evolution = spread(Evolution([encoder_terms(D, 2, 6) for _ in range(2)], scheme=scheme))
    u = draw(2, 5, D)
    domain = Domain.line(5, dtype=torch.float64)
    valid = torch.tensor([[True, True, True, False, False], [True] * 5])
    filled = torch.where(valid[..., None], u, torch.nan).requires_grad_()
    out = evolution(filled, domain.replace(valid=valid))
    assert (out[0, 3:] == 0).all()
    assert_close(out[0, :3], evolution(u[:1, :3], domain[:3])[0])
    assert_close(out[1], evolution(u[1:], domain)[0])
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in evolution.parameters())
    assert (filled.grad[0, 3:] == 0).all()


def test_causal_domains_keep_the_future_out():
    evolution, u = make(), draw(1, 5, D)
    domain = Domain.line(5, causal=True)
    changed = u.clone()
    changed[:, 3:] += 1.0
    for scheme in ("lie", "strang", "parallel"):
        out, other = evolution(u, domain, scheme=scheme), evolution(changed, domain, scheme=scheme)
        assert out[:, :3].equal(other[:, :3])
        assert not out[:, 3:].equal(other[:, 3:])


def test_gradients():
    evolution, u = make(knots=2, controls="linear"), draw(1, N, D).requires_grad_()
    for scheme in ("strang", "parallel"):
        assert torch.autograd.gradcheck(lambda v, s=scheme: evolution(v, DOMAIN, steps=3, scheme=s), (u,))


def test_every_parameter_receives_a_gradient():
    evolution = spread(Evolution([encoder_terms(D, 2, 6, norm="pre") for _ in range(2)], norm=nn.LayerNorm(D)))
    evolution(draw(2, N, D)).square().sum().backward()
    for name, parameter in evolution.named_parameters():
        if "kernel.key.bias" not in name:  # cancels in the softmax
            assert parameter.grad.abs().max() > 0, name


def test_one_step_at_a_time_and_the_final_norm():
    evolution, u = make(knots=2, norm=nn.LayerNorm(D)), draw(1, N, D)
    v = evolution.step(evolution.step(u, DOMAIN, 0.0, 1.0), DOMAIN, 1.0, 1.0)
    assert_close(evolution(u, DOMAIN), evolution.norm(v))


def test_the_whole_rate_and_unsplit_methods():
    evolution, u = make(knots=1, horizon=0.4), draw(1, N, D)
    rate = sum(term.rate(u, DOMAIN) for term in evolution.terms)
    assert_close(evolution.rate(u, DOMAIN, 0.1), rate)
    assert_close(evolution.integrate(u, DOMAIN, steps=1, method="euler"), u + 0.4 * rate)
    with pytest.raises(SubstepError, match="'dopri5'"):
        evolution.integrate(u, DOMAIN, steps=1, method="dopri5")


def test_observers_see_every_substep():
    evolution, u, seen = make(knots=2), draw(1, N, D), []
    evolution(u, DOMAIN, scheme="strang", observer=seen.append)
    assert [s.index for s in seen] == 2 * [0, 1, 2, 1, 0]
    assert [s.step for s in seen] == 5 * [0] + 5 * [1]
    assert [s.time for s in seen[:5]] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert [s.length for s in seen[:5]] == [0.5, 0.5, 1.0, 0.5, 0.5]
    assert seen[5].term is evolution.knots[1][0]
    for a, b in pairwise(seen):
        assert a.after is b.before


def test_copies_pickles_and_state_dicts():
    evolution, u = make(controls="linear", scheme=Strang()), draw(1, N, D)
    expected = evolution(u, DOMAIN)
    for other in (copy.deepcopy(evolution), pickle.loads(pickle.dumps(evolution))):
        assert other(u, DOMAIN).equal(expected)
    fresh = make(controls="linear", scheme=Strang())
    fresh.load_state_dict(evolution.state_dict(), strict=True)
    assert fresh(u, DOMAIN).equal(expected)
    assert "scheme=Strang(), controls=Linear(), horizon=2, steps=2" in repr(evolution)


# --- what is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, -1, True])
def test_steps_are_whole_and_positive(steps):
    evolution = make()
    for call in (
        lambda: evolution(draw(1, N, D), steps=steps),
        lambda: evolution.integrate(draw(1, N, D), steps=steps),
    ):
        with pytest.raises(OptionError, match=f"at least 1, got {steps}"):
            call()
    with pytest.raises(OptionError, match="at least 1"):
        make(steps=steps)


@pytest.mark.parametrize("dt", [0.0, -0.5, float("nan")])
def test_steps_go_forward(dt):
    with pytest.raises(OptionError, match=f"dt > 0, got {dt}"):
        make().step(draw(1, N, D), DOMAIN, 0.0, dt)


def test_times_lie_in_the_horizon():
    for horizon in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="horizon T is a positive time"):
            make(horizon=horizon)
    for t, dt in ((1.5, 1.0), (-0.5, 1.0)):
        with pytest.raises(OptionError, match=r"lies in \[0, 2\]"):
            make().step(draw(1, N, D), DOMAIN, t, dt)


@pytest.mark.parametrize("substep", ["implicit", "trapezoid", "exact"])
def test_implicit_attention_is_refused_by_name(substep):
    with pytest.raises(
        SubstepError, match=f"OperatorTerm cannot serve substep='{substep}': .*couples all tokens; it serves euler"
    ):
        OperatorTerm.of("softmax", D, 2, substep=substep)
    term = OperatorTerm.of("softmax", D, 2)
    with pytest.raises(SubstepError, match="couples all tokens"):
        term(torch.randn(1, N, D), DOMAIN, 0.1, substep)
    term.substep = substep
    with pytest.raises(SubstepError, match="couples all tokens"):
        Evolution([term])
    with pytest.raises(SubstepError, match="a LinearTerm has a closed form"):
        FeedForwardTerm(D, 6, substep=substep)


def test_unknown_and_unfit_substeps():
    with pytest.raises(SubstepError, match="did you mean 'midpoint'"):
        LinearTerm(D, substep="midpont")
    with pytest.raises(SubstepError, match="rectify=True cannot serve substep='euler'; it serves semi-implicit"):
        LinearTerm(D, rectify=True, substep="euler")
    with pytest.raises(SubstepError, match="rectify=False cannot serve substep='semi-implicit'"):
        LinearTerm(D, substep="semi-implicit")
    with pytest.raises(SubstepError, match="serves semi-implicit"):
        LinearTerm(D, rectify=True).rate(torch.randn(1, N, D), DOMAIN)
    with pytest.raises(SubstepError, match=r"over 0\.5.*belongs to a step of 1"):
        FeedForwardTerm(D, 6)(torch.randn(1, N, D), DOMAIN, 0.5, "relaxed")


def test_relaxed_takes_steps_of_one():
    evolution = Evolution([encoder_terms(D, 2, 6)], scheme="relaxed")
    with pytest.raises(OptionError, match=r"steps of 1, got 0\.5; for other steps use Lie"):
        evolution(torch.randn(1, N, D), steps=2)
    with pytest.raises(OptionError, match="steps of 1, got 3"):
        Evolution([encoder_terms(D, 2, 6)], scheme="relaxed", horizon=3.0, steps=1)


def test_terms_share_one_width():
    with pytest.raises(OptionError, match="share one width, got OperatorTerm 4, FeedForwardTerm 6"):
        Evolution([OperatorTerm.of("softmax", 4, 2), PositivityConstraint(), FeedForwardTerm(6, 8)])
    with pytest.raises(OptionError, match="does not say its width"):
        OperatorTerm(nn.Identity())


def test_knots_hold_the_same_terms():
    with pytest.raises(OptionError, match="knot 1 differs"):
        Evolution([[FeedForwardTerm(D, 6)], [FeedForwardTerm(D, 8)]])
    with pytest.raises(OptionError, match="knot 1 differs"):
        Evolution([[FeedForwardTerm(D, 6)], [LinearTerm(D)]])
    with pytest.raises(OptionError, match="at least one knot"):
        Evolution([])
    with pytest.raises(OptionError, match="at least one knot"):
        Evolution([[]])
    with pytest.raises(OptionError, match="knots hold terms, got Linear; wrap"):
        Evolution([[nn.Linear(D, D)]])


def test_schemes_that_do_not_fit():
    for groups in (((0,), (1,)), ((0, 1), (1, 2)), ((0, 1, 2), ())):
        with pytest.raises(OptionError, match="terms 0 to 2 once"):
            make(scheme=Hybrid(groups))
    with pytest.raises(OptionError, match="did you mean 'strang'"):
        make(scheme="strangs")
    with pytest.raises(OptionError, match="unknown controls 'cubic'"):
        make(controls="cubic")
    assert resolve_scheme("relaxed") == Relaxed()
    with pytest.raises(OptionError, match="'post', 'pre' or 'none', got 'both'"):
        encoder_terms(D, 2, 6, norm="both")
    with pytest.raises(OptionError, match=r"unknown activation 'rely'.*'relu'"):
        FeedForwardTerm(D, 6, activation="rely")
    with pytest.raises(OptionError, match=r"positive, got \(4, 0, 4\)"):
        FeedForwardTerm(D, 0)


def test_shapes_are_checked():
    with pytest.raises(ShapeError, match=r"\(B, N, 4\), got \(1, 3, 5\)"):
        make()(draw(1, 3, 5))
    with pytest.raises(ShapeError, match="3 points and its domain 4"):
        make()(draw(1, 3, 4), Domain.line(4))


def test_a_term_says_what_it_must_define():
    class Empty(Term):
        pass

    with pytest.raises(NotImplementedError, match="Empty must define rate"):
        Evolution([Empty(D)])(draw(1, N, D), DOMAIN)
