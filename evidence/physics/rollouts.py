"""Errors of predicted accelerations of bodies: in one step and in rollouts of 50 steps.

In a rollout the accelerations move the bodies by the integrator of the data, so that an exact
prediction makes no error.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from ..datasets.bodies import (
    OBSERVED,
    Motions,
    accelerations,
    advance,
    make_motions,
    solve_masses,
)
from ..kit.answers import pack
from ..kit.grid import Row

TRAINED, TESTED = 8, (8, 12, 20)
"""Numbers of bodies."""
SYSTEMS = {"train": 2_000, "val": 200, "test": 200}
DATA_SEEDS = {"train": 1_000, "val": 2_000, "test": 3_000}
"""Seed of each split's systems, to which the number of bodies is added."""
ROLLOUT, REPORTED = 50, (10, 50)
"""Steps of a rollout, and those after which its error is reported."""
FRAMES = OBSERVED + ROLLOUT
ASKED = (1, 11, 21, 31, 41, 50)
"""Frames at which the error of one step is measured; 0 is the observed acceleration's."""
PART = 50
"""Systems that are tested together."""
ONE_STEP = "one step"
SOLVED, MEAN_MASS, CONSTANT = "law, masses solved", "law, mean mass", "observed acceleration"
CONTROLS = (SOLVED, MEAN_MASS, CONSTANT)
"""Predictions without training: what the frames determine, and what does not need the masses."""

Predict = Callable[[Tensor], Tensor]
"""Maps present positions (S, N, 2) to accelerations."""
Begin = Callable[[Tensor, Tensor], Predict]
"""Maps observed positions and accelerations to a prediction."""


@cache
def motions(law: str, split: str, points: int = TRAINED) -> Motions:
    """Return the systems of a split, the same for every model and seed."""
    return make_motions(law, SYSTEMS[split], points, FRAMES, DATA_SEEDS[split] + points)


@cache
def scale(law: str) -> float:
    """Return the root mean square of an acceleration in training.

    It scales all models' inputs and outputs.
    """
    return float(motions(law, "train").accelerations.square().mean().sqrt())


# --- errors ---------------------------------------------------------------------------------------


def one_step(begin: Begin, known: Motions) -> list[float]:
    """Return each system's squared error of accelerations over their mean square in the split."""
    targets = known.accelerations
    squares = targets[:, ASKED].square().mean()
    each: list[float] = []
    for part in torch.arange(len(targets)).split(PART):
        predict = begin(known.positions[part, 0], targets[part, 0])
        off = [predict(known.positions[part, frame]) - targets[part, frame] for frame in ASKED]
        each += (torch.stack(off).square().mean((0, 2, 3)) / squares).tolist()
    return each


def rollouts(begin: Begin, known: Motions) -> dict[int, list[float]]:
    """Return each system's error of positions after every reported step of a rollout.

    It is the squared distance from the true positions over the mean squared distance that the
    bodies of the split moved. A rollout whose error is one or more, or not finite, has diverged,
    and its error counts as one.
    """
    first = OBSERVED - 1
    observed = known.accelerations[:, 0]
    found: dict[int, list[float]] = {step: [] for step in REPORTED}
    moved = {step: _squares(known, first + step, known.positions[:, first]) for step in REPORTED}
    for part in torch.arange(len(observed)).split(PART):
        predict = begin(known.positions[part, 0], observed[part])
        positions, velocities = known.positions[part, first], known.velocities[part, first]
        some = Motions(*(each[part] for each in known))
        for step in range(1, ROLLOUT + 1):
            positions, velocities = advance(positions, velocities, predict(positions))
            if step in REPORTED:
                error = _squares(some, first + step, positions) / moved[step].mean()
                found[step] += error.nan_to_num(1.0).clamp(max=1.0).tolist()
    return found


def _squares(known: Motions, frame: int, positions: Tensor) -> Tensor:
    """Return each system's mean squared distance of positions from those of a frame."""
    return (known.positions[:, frame] - positions).square().sum(-1).mean(-1)


@torch.no_grad()
def measured(begin: Begin, law: str) -> Row:
    """Return the errors of a prediction at every number of bodies, with those of each system."""
    found: Row = {"answers": {}, "median": {}, "diverged": {}}
    for points in TESTED:
        known = motions(law, "test", points)
        errors = {step_metric(points): one_step(begin, known)}
        for step, each in rollouts(begin, known).items():
            name = rollout_metric(points, step)
            errors[name] = each
            found["median"][name] = statistics.median(each)
            found["diverged"][name] = sum(error >= 1.0 for error in each) / len(each)
        for name, each in errors.items():
            found[name] = statistics.fmean(each)
            found["answers"][name] = pack(each)
    return found


def step_metric(points: int) -> str:
    """Return the name of the error of one step."""
    return f"{ONE_STEP} {points}"


def rollout_metric(points: int, step: int) -> str:
    """Return the name of the error after a step of a rollout."""
    return f"rollout {points} at {step}"


# --- predictions without training -----------------------------------------------------------------


def begin_control(name: str, law: str) -> Begin:
    """Return one of the predictions of ``CONTROLS``."""

    def begin(observed: Tensor, acceleration: Tensor) -> Predict:
        if name == CONSTANT:
            return lambda positions: acceleration
        masses = torch.full_like(acceleration[..., :1], mean_mass(law))
        if name == SOLVED:
            masses = solve_masses(law, observed, acceleration)
        return lambda positions: accelerations(law, positions, masses)

    return begin


@cache
def mean_mass(law: str) -> float:
    """Return the mass that all bodies would have, with the least squared error in training."""
    train = motions(law, "train")
    targets = train.accelerations
    equal = accelerations(law, train.positions[:, :-1], torch.ones_like(train.masses[:, None]))
    factor = float((equal * targets).sum() / equal.square().sum())
    return factor if law == "gravity" else 1 / factor
