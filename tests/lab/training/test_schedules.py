"""Learning rates: each schedule against its formula, lengths in steps, and recipes."""

from __future__ import annotations

import math

import pytest
import torch

from fredholm.errors import OptionError, RecipeError
from fredholm.lab.training.fit import Limits, fit
from fredholm.lab.training.learner import Descent
from fredholm.lab.training.module import schedule_of
from fredholm.lab.training.schedules import Schedule
from fredholm.training import load_recipe
from tests.lab.training.test_fit import VALIDATION, Line

# Eight steps, two of them warm-up, four an epoch.
COURSES = {
    "cosine": (
        Schedule("cosine", floor=0.1),
        [0.1 + 0.9 * (1 + math.cos(math.pi * k / 6)) / 2 for k in range(6)],
    ),
    "linear": (Schedule("linear", floor=0.25), [1, 0.875, 0.75, 0.625, 0.5, 0.375]),
    "inverse_sqrt": (Schedule("inverse_sqrt"), [math.sqrt(2 / (s + 1)) for s in range(2, 8)]),
    "constant": (Schedule("constant"), [1] * 6),
    "milestones": (Schedule("step", milestones=(1, 1.5)), [1, 1, 0.1, 0.1, 0.01, 0.01]),
    "every": (Schedule("step", every=0.75, factor=0.5), [1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    "often": (Schedule("step", every=0.375, factor=0.5), [0.5, 0.25, 0.25, 0.125, 0.0625, 0.0625]),
    "floor": (Schedule("step", every=1, factor=0.1, floor=0.5), [1, 1, 0.5, 0.5, 0.5, 0.5]),
}


@pytest.mark.parametrize(("schedule", "expected"), COURSES.values(), ids=COURSES)
def test_a_course_is_its_formula(schedule, expected):
    shares = [schedule.share(step, 2, 8, 4) for step in range(8)]
    assert shares == pytest.approx([0.5, 1.0, *expected])


def rates(schedule: Schedule, limits: Limits, value: float = 1.0) -> list[float]:
    """Return the learning rate of each step of a fit, with four steps per epoch."""
    taken = []

    class Watched(Line):
        def on_before_optimizer_step(self, optimizer) -> None:
            taken.append(optimizer.param_groups[0]["lr"])

    module = Watched()
    module.descent = Descent(1.0, schedule=schedule)
    module.value = value
    fit(module, limits=limits, keep=lambda model: None, validation=VALIDATION)
    return taken


@pytest.mark.parametrize("name", ["cosine", "linear"])
@pytest.mark.parametrize("limits", [Limits(3), Limits(None, steps=12)], ids=["epochs", "steps"])
def test_a_schedule_reaches_its_end_with_the_training(name, limits):
    """Two of twelve steps are warm-up; the step after the last would be at the floor."""
    found = rates(Schedule(name, warmup_steps=2, floor=0.2), limits)
    progress = [(step - 2) / (12 - 2) for step in range(2, 12)]
    fallen = {
        "cosine": [(1 + math.cos(math.pi * p)) / 2 for p in progress],
        "linear": [1 - p for p in progress],
    }
    assert found == pytest.approx([0.5, 1.0, *(0.2 + 0.8 * share for share in fallen[name])])


def test_a_plateau_divides_the_rate_when_nothing_improves():
    halved = Schedule(
        "plateau", warmup_steps=4, metric="val_score", factor=0.5, patience=1, floor=0.2
    )
    found = rates(halved, Limits(6))  # val_score grows, and shall be least
    assert found == pytest.approx([0.25, 0.5, 0.75, 1, *[1] * 8, *[0.5] * 8, *[0.25] * 4])
    assert rates(halved, Limits(4), value=-1.0)[4:] == pytest.approx([1] * 12)
    with pytest.raises(OptionError, match=r"schedule.metric: expected one of .*, got 'val_los'"):
        rates(Schedule("plateau", metric="val_los"), Limits(1))


def test_a_length_in_steps_ends_with_a_validation():
    kept = []
    found = fit(
        Line(),
        limits=Limits(None, steps=6),
        keep=lambda model: kept.append(model),
        validation=VALIDATION,
    )
    assert [row["step"] for row in found.rows] == [4, 6]
    assert [row["val_score"] for row in found.rows] == [1.0, 2.0]
    assert found.stopped == "all steps done"
    assert rates(Schedule("linear"), Limits(None, steps=6))[-1] == pytest.approx(1 / 6)
    with pytest.raises(OptionError, match="expected epochs or steps, got neither"):
        Limits(None)


def test_adam_decays_in_the_gradient():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Descent(0.1, weight_decay=0.5, name="adam").optimizer([weight])
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == pytest.approx(1.9)  # a step of lr against the sign of the decay
    assert isinstance(Descent(0.1).optimizer([weight]), torch.optim.AdamW)


def test_steps_are_fused_where_all_parameters_are_floating_point_numbers():
    real, wave = (torch.nn.Parameter(torch.ones(2, dtype=d)) for d in (torch.float64, torch.cfloat))
    fused = Descent(0.1).optimizer([{"params": [real]}])
    assert fused.param_groups[0]["fused"]
    assert not Descent(0.1).optimizer([real, wave]).param_groups[0]["fused"]
    plain = torch.optim.AdamW(
        [other := real.detach().clone().requires_grad_()], 0.1, weight_decay=0.0
    )
    for parameter, optimizer in ((real, fused), (other, plain)):
        parameter.square().sum().backward()
        optimizer.step()
    assert torch.allclose(real, other, rtol=1e-14)


def test_a_recipe_names_its_schedule():
    chosen = load_recipe(
        "digits",
        [
            "schedule={name: plateau, patience: 3, metric: val_accuracy, warmup_steps: 9}",
            "training={steps: 40}",
            "optimizer.name=adam",
        ],
    )
    assert chosen.training.epochs is None
    expected = Schedule("plateau", of=None, patience=3, metric="val_accuracy", warmup_steps=9)
    assert schedule_of(chosen) == expected
    assert schedule_of(chosen).warmup_of(16, 4) == 9
    assert schedule_of(chosen).warmup_of(8, 4) == 4
    again = load_recipe(chosen.to_dict())
    assert again.to_dict() == chosen.to_dict()
    both = load_recipe("digits", ["training.steps=40"]).training
    assert (both.epochs, both.steps) == (60, 40)


MISTAKES = {
    "schedule.factor=0.5": (
        "schedule.factor: expected schedule.name=step or plateau, got 0.5 with 'cosine'"
    ),
    "schedule.name=step": (
        "schedule.milestones, schedule.every: expected one of them with 'step', got neither"
    ),
    "schedule={name: linear, patience: 3}": (
        "schedule.patience: expected schedule.name=plateau, got 3 with 'linear'"
    ),
    "schedule={warmup_epochs: 1, warmup_steps: 2}": (
        "schedule.warmup_steps: expected one length of the warm-up, got 2"
    ),
    "training.epochs=null": (
        "training.epochs: expected a number, got None; give it or training.steps"
    ),
    "schedule.name=polynomial": "'plateau' or 'constant', got 'polynomial'",
    "optimizer.name=sgd": "optimizer.name: expected 'adamw' or 'adam', got 'sgd'",
}


@pytest.mark.parametrize(("change", "message"), MISTAKES.items(), ids=MISTAKES)
def test_unknown_options_of_a_schedule_are_refused(change, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", [change])
    assert message in str(caught.value)
