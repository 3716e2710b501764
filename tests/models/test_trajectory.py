"""Trajectories of continuous models against single steps of the evolution."""

from __future__ import annotations

import pytest
import torch

from fredholm.models.trajectory import trajectory

from ..tolerances import assert_close
from .test_continuous import TEXT, text_model


@pytest.mark.parametrize("steps", [None, 6])
def test_a_trajectory_equals_single_steps(steps):
    model = text_model(dropout=0.3).train()
    found = trajectory(model, TEXT, steps)
    assert model.training
    model.eval()
    count = steps or 3
    assert found["time"] == pytest.approx([3.0 * (n + 1) / count for n in range(count)])
    u, domain = model.body.start(*model.encoder(TEXT))
    u = torch.where(domain.valid[..., None], u, 0.0)
    noise = torch.randn(u.shape, generator=torch.Generator().manual_seed(0), dtype=u.dtype)
    noise = torch.where(domain.valid[..., None], noise, 0.0)
    v = u + noise * 0.01 * u.norm() / noise.norm()
    start = (u - v).norm()
    with torch.no_grad():
        for n in range(count):
            u, v = (
                model.body.evolution.step(x, domain, 3.0 * n / count, 3.0 / count) for x in (u, v)
            )
            per_text = (u.square().mean(-1) * domain.valid).sum(1) / domain.valid.sum(1)
            assert found["energy"][n] == pytest.approx(float(per_text.mean()) / 2)
            assert found["growth"][n] == pytest.approx(float((u - v).norm() / start))
            real = u[domain.valid]
            distance = (
                (real.mean(-1).square() + (real.std(-1, correction=0) - 1).square()).sqrt().mean()
            )
            assert found["distance"][n] == pytest.approx(float(distance))


def test_a_hard_projection_ends_on_its_set():
    assert max(trajectory(text_model(norm="post"), TEXT)["distance"]) < 1e-3
    assert max(trajectory(text_model(norm="pre"), TEXT)["distance"]) > 1e-2


def test_padding_changes_only_the_noise():
    model = text_model()
    padded = torch.nn.functional.pad(TEXT, (0, 2))
    for key in ("time", "energy", "distance"):
        assert_close(
            torch.tensor(trajectory(model, padded)[key]), torch.tensor(trajectory(model, TEXT)[key])
        )
