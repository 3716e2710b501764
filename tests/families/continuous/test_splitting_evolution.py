"""The evolution as a whole: padding, causality, gradients, precision, observers, copies."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.families.continuous.splitting import (
    Evolution,
    MomentConstraint,
    Strang,
    SubstepError,
    encoder_terms,
)

from ...tolerances import assert_close
from .splitting_cases import DOMAIN, D, N, draw, make, spread


@pytest.mark.parametrize("scheme", ["lie", "strang", "parallel"])
def test_padding_changes_no_output(scheme):
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


def test_causal_outputs_do_not_depend_on_later_points():
    evolution = make()
    u = draw(1, 5, D)
    domain = Domain.line(5, causal=True)
    changed = u.clone()
    changed[:, 3:] += 1.0
    for scheme in ("lie", "strang", "parallel"):
        out, other = evolution(u, domain, scheme=scheme), evolution(changed, domain, scheme=scheme)
        assert out[:, :3].equal(other[:, :3])
        assert not out[:, 3:].equal(other[:, 3:])


def test_gradients_pass_gradcheck():
    evolution = make(knots=2, controls="linear")
    u = draw(1, N, D).requires_grad_()
    for scheme in ("strang", "parallel"):
        assert torch.autograd.gradcheck(
            lambda v, s=scheme: evolution(v, DOMAIN, steps=3, scheme=s), (u,)
        )


def test_every_parameter_receives_a_gradient():
    evolution = spread(
        Evolution([encoder_terms(D, 2, 6, norm="pre") for _ in range(2)], norm=nn.LayerNorm(D))
    )
    evolution(draw(2, N, D)).square().sum().backward()
    for name, parameter in evolution.named_parameters():
        if "kernel.key.bias" not in name:  # cancels in the softmax
            assert parameter.grad.abs().max() > 0, name


def test_single_steps_and_the_norm_equal_the_forward():
    evolution = make(knots=2, norm=nn.LayerNorm(D))
    u = draw(1, N, D)
    v = evolution.step(evolution.step(u, DOMAIN, 0.0, 1.0), DOMAIN, 1.0, 1.0)
    assert_close(evolution(u, DOMAIN), evolution.norm(v))


def test_unsplit_methods_integrate_the_sum_of_the_rates():
    evolution = make(knots=1, horizon=0.4)
    u = draw(1, N, D)
    rate = sum(term.rate(u, DOMAIN) for term in evolution.terms)
    assert_close(evolution.rate(u, DOMAIN, 0.1), rate)
    assert_close(evolution.integrate(u, DOMAIN, steps=1, method="euler"), u + 0.4 * rate)
    with pytest.raises(SubstepError, match="'dopri5'"):
        evolution.integrate(u, DOMAIN, steps=1, method="dopri5")


def test_observers_receive_every_substep():
    evolution = make(knots=2)
    u = draw(1, N, D)
    seen = []
    evolution(u, DOMAIN, scheme="strang", observer=seen.append)
    assert [s.index for s in seen] == 2 * [0, 1, 2, 1, 0]
    assert [s.step for s in seen] == 5 * [0] + 5 * [1]
    assert [s.time for s in seen[:5]] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert [s.length for s in seen[:5]] == [0.5, 0.5, 1.0, 0.5, 0.5]
    assert seen[5].term is evolution.knots[1][0]
    for a, b in pairwise(seen):
        assert a.after is b.before


def test_copies_pickles_and_state_dicts_give_the_same_output():
    evolution = make(controls="linear", scheme=Strang())
    u = draw(1, N, D)
    expected = evolution(u, DOMAIN)
    for other in (copy.deepcopy(evolution), pickle.loads(pickle.dumps(evolution))):
        assert other(u, DOMAIN).equal(expected)
    fresh = make(controls="linear", scheme=Strang())
    fresh.load_state_dict(evolution.state_dict(), strict=True)
    assert fresh(u, DOMAIN).equal(expected)
    assert "scheme=Strang(), controls=Linear(), horizon=2, steps=2" in repr(evolution)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("scheme", ["lie", "strang", "parallel", "relaxed"])
def test_bfloat16_autocast_stays_near_float32(norm, scheme):
    terms = encoder_terms(D, 2, 6, norm=norm)
    if norm == "pre":
        terms.append(MomentConstraint(D, affine="none", penalty=1.0))
    evolution = Evolution(terms, scheme=scheme)
    u = torch.randn(2, N, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = evolution(u)
        out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in evolution.parameters())
    assert (out - evolution(u)).abs().max() < 0.1
