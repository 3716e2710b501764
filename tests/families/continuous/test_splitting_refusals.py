"""Errors of terms, schemes and evolutions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import OptionError, ShapeError
from fredholm.families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    Hybrid,
    LinearTerm,
    OperatorTerm,
    PositivityConstraint,
    Relaxed,
    SubstepError,
    Term,
    encoder_terms,
    resolve_scheme,
)

from .splitting_cases import DOMAIN, D, N, draw, make


@pytest.mark.parametrize("steps", [0, -1, True])
def test_steps_must_be_positive_integers(steps):
    evolution = make()
    for call in (
        lambda: evolution(draw(1, N, D), steps=steps),
        lambda: evolution.integrate(draw(1, N, D), steps=steps),
    ):
        with pytest.raises(OptionError, match=f"steps, 1 or more, got {steps}"):
            call()
    with pytest.raises(OptionError, match="steps, 1 or more"):
        make(steps=steps)


@pytest.mark.parametrize("dt", [0.0, -0.5, float("nan")])
def test_negative_step_sizes_are_refused(dt):
    with pytest.raises(OptionError, match=f"dt > 0, got {dt}"):
        make().step(draw(1, N, D), DOMAIN, 0.0, dt)


def test_times_outside_the_horizon_are_refused():
    for horizon in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="expected a positive horizon T"):
            make(horizon=horizon)
    for t, dt in ((1.5, 1.0), (-0.5, 1.0)):
        with pytest.raises(OptionError, match=r"step within \[0, 2\]"):
            make().step(draw(1, N, D), DOMAIN, t, dt)


@pytest.mark.parametrize("substep", ["implicit", "trapezoid", "exact"])
def test_implicit_attention_is_refused_by_name(substep):
    with pytest.raises(
        SubstepError,
        match=f"OperatorTerm cannot serve substep='{substep}': .*couples all tokens; it serves "
        "euler",
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


def test_unknown_and_unsuitable_substeps_are_refused():
    with pytest.raises(SubstepError, match="did you mean 'midpoint'"):
        LinearTerm(D, substep="midpont")
    with pytest.raises(
        SubstepError, match="rectify=True cannot serve substep='euler'; it serves semi-implicit"
    ):
        LinearTerm(D, rectify=True, substep="euler")
    with pytest.raises(SubstepError, match="rectify=False cannot serve substep='semi-implicit'"):
        LinearTerm(D, substep="semi-implicit")
    with pytest.raises(SubstepError, match="serves semi-implicit"):
        LinearTerm(D, rectify=True).rate(torch.randn(1, N, D), DOMAIN)
    with pytest.raises(SubstepError, match=r"over 0\.5.*belongs to a step of 1"):
        FeedForwardTerm(D, 6)(torch.randn(1, N, D), DOMAIN, 0.5, "relaxed")


def test_relaxed_requires_steps_of_size_one():
    evolution = Evolution([encoder_terms(D, 2, 6)], scheme="relaxed")
    with pytest.raises(OptionError, match=r"steps of 1 .*, got 0\.5; use Lie"):
        evolution(torch.randn(1, N, D), steps=2)
    with pytest.raises(OptionError, match=r"steps of 1 .*, got 3"):
        Evolution([encoder_terms(D, 2, 6)], scheme="relaxed", horizon=3.0, steps=1)


def test_terms_of_different_widths_are_refused():
    with pytest.raises(OptionError, match="one width, got OperatorTerm 4, FeedForwardTerm 6"):
        Evolution([OperatorTerm.of("softmax", 4, 2), PositivityConstraint(), FeedForwardTerm(6, 8)])
    with pytest.raises(OptionError, match="expected an operator with a width"):
        OperatorTerm(nn.Identity())


def test_knots_with_different_terms_are_refused():
    with pytest.raises(OptionError, match="knot 1 that differs"):
        Evolution([[FeedForwardTerm(D, 6)], [FeedForwardTerm(D, 8)]])
    with pytest.raises(OptionError, match="knot 1 that differs"):
        Evolution([[FeedForwardTerm(D, 6)], [LinearTerm(D)]])
    with pytest.raises(OptionError, match="at least one knot"):
        Evolution([])
    with pytest.raises(OptionError, match="at least one knot"):
        Evolution([[]])
    with pytest.raises(OptionError, match="terms in a knot, got Linear; wrap"):
        Evolution([[nn.Linear(D, D)]])


def test_unsuitable_schemes_are_refused():
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
    with pytest.raises(OptionError, match=r"positive widths of a network, got \(4, 0, 4\)"):
        FeedForwardTerm(D, 0)


def test_wrong_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"\(B, N, 4\), got \(1, 3, 5\)"):
        make()(draw(1, 3, 5))
    with pytest.raises(ShapeError, match="expected the 4 points of its domain, got 3"):
        make()(draw(1, 3, 4), Domain.line(4))
    with pytest.raises(ShapeError, match="u: expected the batch size of its domain, 3, got 2"):
        make()(draw(2, 5, 4), Domain.line(5, valid=torch.ones(3, 5, dtype=torch.bool)))
    with pytest.raises(ShapeError, match=r"domain: expected the device of u, cpu, got meta"):
        make()(draw(2, 5, 4), Domain.line(5).to("meta"))


def test_an_incomplete_term_names_the_missing_method():
    class Empty(Term):
        pass

    with pytest.raises(NotImplementedError, match="Empty must define rate"):
        Evolution([Empty(D)])(draw(1, N, D), DOMAIN)


def test_step_and_forward_refuse_the_same_scheme():
    evolution = Evolution([LinearTerm(3), LinearTerm(3)], steps=2)
    u = torch.randn(1, 2, 3)
    evolution.scheme = Hybrid(groups=((0,),))
    with pytest.raises(OptionError) as whole:
        evolution(u)
    with pytest.raises(OptionError) as one:
        evolution.step(u, None, 0.0, 0.5)
    assert str(one.value) == str(whole.value)
