"""The training step adds the auxiliary losses of sampled layers automatically."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from fredholm.kernels import add_proposal
from fredholm.models import create_model
from fredholm.operators import MonteCarlo
from tests.parts import parts


def test_the_training_step_trains_proposals(monkeypatch):
    from fredholm.lab.training.module import RecipeLearner
    from fredholm.lab.training.recipe import Recipe

    options = {"width": 4, "frequencies": 2, "strategy": MonteCarlo(samples=8, loss_queries=2)}
    model = create_model("itnet_nano", **parts(operator_options=options))
    add_proposal(model, position_dim=2, components=2, width=4)
    recipe = Recipe.model_validate(
        {"name": "x", "data": {"name": "digits"}, "model": {"name": "itnet_nano"}}
    )
    module = RecipeLearner(model, recipe, loader=lambda rank, size: None)
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    monkeypatch.setattr(type(module), "global_step", 0)
    sizes = {"log_every_n_steps": 10, "accumulate_grad_batches": 1, "num_training_batches": 1}
    monkeypatch.setattr(type(module), "trainer", SimpleNamespace(world_size=1, **sizes))
    batch = torch.randn(2, 1, 28, 28), torch.tensor([1, 2])
    module.training_step(batch, 0).backward()
    for name, parameter in model.named_parameters():
        if "proposal" in name and "fourier" not in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
