"""Dropout of weights and of embeddings, and phases of shorter and longer texts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fredholm.encoders import TextConfig, TokenConfig
from fredholm.errors import RecipeError
from fredholm.families.ckconv.position_network import WeightNormLinear
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.tasks import create_task
from fredholm.models.decay import dropped_weights
from fredholm.training import load_recipe, train

TEXTS = ["model=itnet_nano", "data.max_length=8"]


def no_loader(rank: int, world_size: int) -> None:
    raise AssertionError("nothing is loaded here")


def test_weight_dropout_drops_its_share_of_weights_per_step(recipe):
    torch.manual_seed(0)
    model = nn.Linear(40, 10)
    learner = RecipeLearner(model, recipe("training.weight_dropout=0.25"), no_loader)
    inputs = torch.randn(6, 40)
    labels = torch.arange(6)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(learner.loss(inputs, labels))
    assert losses[0] == losses[1] != losses[2]
    losses[2].backward()
    dropped = (model.weight.grad == 0).float().mean().item()
    assert dropped == pytest.approx(0.25, abs=0.06)
    assert (model.bias.grad != 0).all()
    plain = RecipeLearner(model, recipe(), no_loader).loss(inputs, labels)
    torch.manual_seed(0)
    mean = torch.stack([learner.loss(inputs, labels).detach() for _ in range(50)]).mean()
    assert plain < mean < plain + 1.0


def test_a_run_with_weight_dropout_is_reproducible(recipe, tmp_path):
    small = recipe("training.weight_dropout=0.1", "training.epochs=1", "data.limit=400")
    metrics = [train(small, tmp_path / name).metrics for name in "ab"]
    assert metrics[0] == metrics[1]
    other = recipe("training.epochs=1", "data.limit=400")
    assert train(other, tmp_path / "c").metrics != metrics[0]


@pytest.mark.parametrize("config", [TokenConfig, TextConfig])
def test_embedding_dropout_drops_every_occurrence_of_a_token(config):
    kinds = {"positions": "none"} if config is TextConfig else {}
    encoder = config(vocabulary=60, embedding_dropout=0.5, max_length=64, **kinds).build(8)
    numbers = torch.arange(1, 60).repeat(2, 1)
    torch.manual_seed(0)
    features, _ = encoder.train()(numbers)
    gone = (features == 0).all(-1)
    assert torch.equal(gone[0], gone[1])
    assert 15 < int(gone[0].sum()) < 45
    whole = encoder.eval()(numbers)[0]
    assert torch.allclose(features[~gone], 2 * whole[~gone])
    assert not (whole == 0).all(-1).any()


class Seen(nn.Module):
    """A model that records the lengths of its inputs; it has two outputs per token."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.lengths = []

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        self.lengths.append(numbers.shape[-1])
        return self.weight.expand(*numbers.shape, 2)


def test_phases_set_the_length_of_texts(monkeypatch):
    phases = "training.phases=[{steps: 3, max_length: 4}, {steps: 2}]"
    recipe = load_recipe("reviews", ["training.steps=5", "training.epochs=null", phases, *TEXTS])
    model = Seen()
    learner = RecipeLearner(model, recipe, no_loader, task=create_task("tokens"))
    for step in range(5):
        monkeypatch.setattr(RecipeLearner, "global_step", step)
        inputs, labels = learner.cut_to_phase(torch.ones(1, 8).long(), torch.zeros(1, 8).long())
        learner.loss(inputs, labels)
        assert learner.weight(labels) == inputs.shape[1]
    assert model.lengths == [4, 4, 4, 8, 8]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("reviews", ["training.steps=4"], "expected as many steps as training.steps=4, got 5"),
        (
            "reviews",
            ["training.steps=5", "data.max_length=3"],
            "expected max_length up to data.max_length=3, got",
        ),
        ("digits", ["training.steps=5"], "digits holds images, which have no max_length"),
    ],
)
def test_wrong_phases_are_refused(name, changes, message):
    phases = "training.phases=[{steps: 3, max_length: 4}, {steps: 2}]"
    with pytest.raises(RecipeError, match=message):
        load_recipe(name, [phases, "training.epochs=null", *changes])


def test_weight_dropout_refuses_sharded_weights():
    with pytest.raises(RecipeError, match=r"weight_dropout: .* got 0\.1 with strategy='fsdp2'"):
        load_recipe("digits", ["training.weight_dropout=0.1", "training.strategy=fsdp2"])


def test_weight_dropout_acts_on_weight_normalised_layers():
    torch.manual_seed(0)
    for sizes in ((1, 300), (20, 300)):
        layer = WeightNormLinear(*sizes).double()
        dropped = dropped_weights(layer, 0.25)
        assert dropped.keys() == {"direction", "magnitude"}
        with torch.no_grad():
            whole = layer.weight
            changed = functional_call(layer, dropped, (torch.eye(sizes[0]).double(),))
        changed = (changed - layer.bias).mT.detach()
        gone = changed.abs() < 1e-12
        assert gone.double().mean().item() == pytest.approx(0.25, abs=0.06)
        assert torch.allclose(changed[~gone], whole[~gone] / 0.75)
        loss = dropped["direction"].sum() + dropped["magnitude"].sum()
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [layer.direction]))
