"""Monitors of an evolution: energy, distance to the constraints, growth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.families.continuous.splitting import (
    Evolution,
    LinearTerm,
    MomentConstraint,
    Monitor,
    Parallel,
    PositivityConstraint,
    encoder_terms,
    energy,
    growth,
)

D, N = 8, 5


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_the_energy_is_weighted_by_the_measure_and_ignores_padding():
    u = draw(2, N, D)
    assert energy(u).tolist() == pytest.approx((u.square().mean((1, 2)) / 2).tolist())
    masses = torch.rand(N, dtype=torch.float64)
    weighted = energy(u, Domain.line(N).with_masses(masses))
    assert weighted.tolist() == pytest.approx(
        ((u.square().mean(-1) * masses).sum(-1) / masses.sum() / 2).tolist()
    )
    valid = torch.arange(N) < torch.tensor([[3], [5]])
    holes = torch.where(valid[..., None], u, torch.nan)
    assert energy(holes, Domain.line(N).replace(valid=valid))[0].item() == pytest.approx(
        energy(u[:1, :3]).item()
    )


def test_the_distance_is_taken_before_the_affine():
    """With affine weights far from one the output is far from S1, but the normalised function lies
    on it up to ε.
    """
    evolution = Evolution([encoder_terms(D, 2, 16, eps=1e-6) for _ in range(2)]).double()
    for name, parameter in evolution.named_parameters():
        if name.endswith((".1.weight", ".3.weight")):
            nn.init.constant_(parameter, 3.0)
    monitor = Monitor()
    u = draw(2, N, D)
    evolution(u, observer=monitor)
    rows = monitor.rows
    assert [row["name"] for row in rows[:4]] == [
        "OperatorTerm",
        "MomentConstraint",
        "FeedForwardTerm",
        "MomentConstraint",
    ]
    assert [row["step"] for row in rows] == 4 * [0] + 4 * [1]
    assert all(
        row["distance"] < 1e-5 and row["mean"] < 1e-12
        for row in rows
        if row["name"] == "MomentConstraint"
    )
    assert all(row["distance"] > 0.1 for row in rows if row["name"] != "MomentConstraint")
    assert rows[1]["energy"] == pytest.approx(4.5, rel=1e-4)  # ½ · 3²
    off = u + evolution.terms[0].rate(u, Domain.line(N))
    assert rows[0]["variance"] == pytest.approx((off.var(-1, correction=0) - 1).abs().mean().item())


def test_soft_constraints_approach_their_set_at_every_step():
    soft = MomentConstraint(D, affine="none", mean=0.5, std=2.0, eps=0.0, penalty=0.5)
    monitor = Monitor(mean=0.5, std=2.0)
    Evolution([soft], horizon=4.0, steps=8)(draw(2, N, D), observer=monitor)
    distances = [row["distance"] for row in monitor.rows]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] == pytest.approx(distances[0] / 2**7)  # implicit: each step of ½ halves it
    assert [row["time"] for row in monitor.rows] == [0.5 * (n + 1) for n in range(8)]


def test_the_share_of_negative_values_ignores_padding():
    valid = torch.arange(N) < torch.tensor([[3], [5]])
    domain = Domain.line(N).replace(valid=valid)
    u = draw(2, N, D)
    monitor = Monitor(domain)
    Evolution([LinearTerm(D), PositivityConstraint()]).double()(u, domain, observer=monitor)
    assert monitor.rows[0]["negative"] == pytest.approx((u[valid] < 0).double().mean().item())
    assert monitor.rows[1]["negative"] == 0.0


def test_growth_distinguishes_stable_from_unstable_steps():
    evolution = Evolution(
        [LinearTerm(D, substep="euler"), LinearTerm(D, substep="euler")], horizon=10.0
    ).double()
    for term in evolution.terms:
        nn.init.eye_(term.weight)
        term.weight.data.mul_(-2.0)
    u = draw(1, N, D)
    perturbation = 1e-3 * draw(1, N, D)
    ratios = growth(evolution, u, perturbation=perturbation, steps=5)
    assert ratios == pytest.approx([9.0**n for n in range(1, 6)])  # (1 - 2·2)² a step
    ratios = growth(evolution, u, perturbation=perturbation, steps=40)
    assert ratios == pytest.approx([0.25**n for n in range(1, 41)])
    evolution.scheme = Parallel()
    assert growth(evolution, u, perturbation=perturbation, steps=40)[0] == pytest.approx(
        0.0, abs=1e-12
    )
