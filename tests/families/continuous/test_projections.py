"""Theorem 3.1: layer normalisation is the projection on S1, and the rectifier that on S2; soft
constraints and their sign.
"""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fredholm.domain import Domain
from fredholm.errors import OptionError
from fredholm.families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    MomentConstraint,
    PositivityConstraint,
    SubstepError,
)

from ...tolerances import assert_close

DOMAIN = Domain.line(5)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def nearest(v, mean, std, start):
    """argmin ½‖u − v‖² under the two moment constraints, by an augmented Lagrangian and L-BFGS."""
    u = start.clone().requires_grad_()
    multiplier = torch.zeros(2, dtype=v.dtype)
    stiffness = 10.0

    def constraints():
        return torch.stack([u.mean() - mean, (u - mean).square().mean() - std**2]) * len(v)

    for _ in range(12):
        solver = torch.optim.LBFGS(
            [u],
            max_iter=200,
            tolerance_grad=1e-13,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )

        def closure(solver=solver, multiplier=multiplier):
            solver.zero_grad()
            c = constraints()
            value = (
                0.5 * (u - v).square().sum() + multiplier @ c + 0.5 * stiffness * c.square().sum()
            )
            value.backward()
            return value

        solver.step(closure)
        multiplier = multiplier + stiffness * constraints().detach()
    assert constraints().abs().max() < 1e-6  # the tolerance of the line search
    return u.detach()


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.4), (-1.5, 3.0)])
def test_the_projection_is_the_constrained_minimiser(mean, std):
    v = draw(7) * 2 + 1
    closed = MomentConstraint(7, affine="none", mean=mean, std=std, eps=0.0).project(v)
    found = min(
        (nearest(v, mean, std, draw(7)) for _ in range(3)), key=lambda u: float((u - v).norm())
    )
    assert (found - closed).abs().max() < 1e-6


def test_the_projection_agrees_with_a_constrained_solver():
    optimize = pytest.importorskip("scipy.optimize")
    v = draw(6).numpy()
    mean = 0.3
    std = 1.7
    constraints = [
        {"type": "eq", "fun": lambda u: u.mean() - mean},
        {"type": "eq", "fun": lambda u: ((u - mean) ** 2).mean() - std**2},
    ]
    solve = optimize.minimize
    found = solve(
        lambda u: 0.5 * ((u - v) ** 2).sum(),
        v + 0.1,
        jac=lambda u: u - v,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert found.success
    closed = MomentConstraint(6, affine="none", mean=mean, std=std, eps=0.0).project(
        torch.from_numpy(v)
    )
    assert np.abs(found.x - closed.numpy()).max() < 1e-6


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_layer_normalisation_equals_its_closed_form(eps):
    v = draw(2, 5, 8)
    constraint = MomentConstraint(8, eps=eps).double()
    with torch.no_grad():
        constraint.weight.normal_()
        constraint.bias.normal_()
    out = constraint(v, DOMAIN, 0.3, "implicit")
    assert_close(out, F.layer_norm(v, (8,), constraint.weight, constraint.bias, eps))
    alpha, beta = v.mean(-1, keepdim=True), v.var(-1, correction=0, keepdim=True)
    assert_close(out, (v - alpha) / (beta + eps).sqrt() * constraint.weight + constraint.bias)
    scalar = MomentConstraint(8, affine="scalar", mean=0.5, std=2.0, eps=eps).double()
    assert_close(scalar.project(v), (v - alpha) / (beta + eps).sqrt() * 2.0 + 0.5)
    scalar.project(v).sum().backward()
    assert scalar.bias.grad.item() == pytest.approx(v.numel())


def test_normalising_half_a_sum_needs_a_quarter_of_epsilon():
    v = draw(2, 5, 8) * 0.1
    half = MomentConstraint(8, affine="none", eps=1e-3 / 4).project(v / 2)
    assert_close(half, MomentConstraint(8, affine="none", eps=1e-3).project(v))


def test_the_rectifier_is_the_nearest_non_negative_function():
    v = draw(3, 4)
    closed = PositivityConstraint().project(v)
    assert closed.equal(F.relu(v))
    candidates = torch.rand(2000, 3, 4, dtype=torch.float64) * 2
    assert ((candidates - v).square().sum((1, 2)) >= (closed - v).square().sum()).all()
    # the variational inequality ⟨v − Pv, s − Pv⟩ ≤ 0 for all s of the convex set: Pv is the
    # minimiser
    assert (((v - closed) * (candidates - closed)).sum((1, 2)) <= 1e-12).all()


def test_projections_are_idempotent_whatever_the_step():
    v = draw(2, 5, 8)
    for constraint in (MomentConstraint(8, affine="none", eps=0.0), PositivityConstraint()):
        once = constraint(v, DOMAIN, 1e-3, "implicit")
        assert once.equal(constraint(v, DOMAIN, 10.0, "exact"))
        assert_close(constraint.project(once), once)
        assert float(constraint.distance(once)) < 1e-12 < float(constraint.distance(v))


@pytest.mark.parametrize("h", [0.01, 0.3, 5.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda mu: MomentConstraint(8, affine="none", mean=0.2, std=0.5, eps=0.0, penalty=mu),
        lambda mu: PositivityConstraint(penalty=mu),
    ],
)
def test_soft_constraints_have_closed_substeps(make, h):
    mu = 0.4
    v = draw(2, 5, 8)
    soft = make(mu)
    goal = soft.project(v)
    implicit = soft(v, DOMAIN, h, "implicit")
    assert_close(implicit, (v + h / mu * goal) / (1 + h / mu))
    assert_close((implicit - v) / h, soft.rate(implicit, DOMAIN), "backward Euler")
    exact = soft(v, DOMAIN, h, "exact")
    assert_close(exact, goal + exp(-h / mu) * (v - goal))
    fine = 400
    u = v
    for _ in range(fine):
        u = soft(u, DOMAIN, h / fine, "rk4")
    assert (u - exact).abs().max() < 1e-6


def test_the_resolvent_of_the_soft_moment_constraint_is_a_minimiser():
    """It minimises ½‖u − v‖² + (h/2μ) dist(u, S1)², although S1 is not convex."""
    soft = MomentConstraint(6, affine="none", eps=0.0, penalty=0.5)
    v = draw(6)
    weight = 0.7 / 0.5
    best = soft(v[None, None], Domain.line(1), 0.7, "implicit")[0, 0]

    def value(u):
        return 0.5 * (u - v).square().sum(-1) + 0.5 * weight * (u - soft.project(u)).square().sum(
            -1
        )

    around = best + draw(5000, 6) * torch.logspace(-4, 1, 5000, dtype=torch.float64)[:, None]
    assert (value(around) >= value(best)).all()


def test_the_penalty_descends_and_the_printed_sign_diverges():
    soft = MomentConstraint(8, affine="none", penalty=0.5)
    u = draw(2, 5, 8) * 3
    evolution = Evolution([soft], horizon=5.0, steps=50)
    assert float(soft.distance(evolution(u))) < 1e-3 * float(soft.distance(u))
    wrong = u
    for _ in range(50):
        wrong = wrong - 0.1 * soft.rate(wrong, DOMAIN)
    assert float(soft.distance(wrong)) > 1e3 * float(soft.distance(u))


def test_gradients_pass_gradcheck():
    hard, soft = (
        MomentConstraint(4).double(),
        MomentConstraint(4, affine="scalar", penalty=0.3).double(),
    )
    u = draw(1, 5, 4).requires_grad_()
    for term, substep in (
        (hard, "implicit"),
        (soft, "implicit"),
        (soft, "exact"),
        (soft, "midpoint"),
    ):
        assert torch.autograd.gradcheck(lambda v, t=term, s=substep: t(v, DOMAIN, 0.5, s), (u,))


@pytest.mark.parametrize("affine", ["vector", "none"])
def test_constants_and_padding_stay_finite_without_epsilon(affine):
    constraint = MomentConstraint(4, affine=affine, eps=0.0)
    evolution = Evolution([FeedForwardTerm(4, 6, activation="tanh"), constraint]).double()
    u = draw(1, 5, 4)
    u[0, 0] = 0.0
    u.requires_grad_()
    domain = DOMAIN.replace(valid=torch.tensor([[True, True, True, False, False]]))
    assert (evolution.terms[1].project(torch.full((1, 1, 4), 2.5, dtype=torch.float64)) == 0).all()
    evolution(u, domain).square().sum().backward()
    assert u.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in evolution.parameters())


def test_constraints_refuse_wrong_options():
    for substep in ("euler", "midpoint", "rk4"):
        with pytest.raises(
            SubstepError,
            match=f"MomentConstraint cannot serve substep='{substep}': a hard constraint has no "
            "rate",
        ):
            MomentConstraint(4, substep=substep)
    with pytest.raises(SubstepError, match="no rate"):
        Evolution([PositivityConstraint()]).rate(draw(1, 2, 3), Domain.line(2), 0.0)
    with pytest.raises(OptionError, match=r"positive penalty .* got 0"):
        PositivityConstraint(penalty=0.0)
    with pytest.raises(OptionError, match="affine='scalar' or 'none'"):
        MomentConstraint(4, penalty=1.0)
    with pytest.raises(OptionError, match="'vector', 'scalar' or 'none', got 'full'"):
        MomentConstraint(4, affine="full")
    with pytest.raises(OptionError, match="0 or more, got eps=-1"):
        MomentConstraint(4, eps=-1.0)
    with pytest.raises(OptionError, match="positive standard deviation, got std=0"):
        MomentConstraint(4, affine="none", std=0.0)
