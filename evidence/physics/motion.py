"""The contests on bodies of unknown mass: springs and gravity.

A model receives two observed frames and predicts accelerations at later positions.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache, partial
from typing import cast

import torch
from torch import Generator, Tensor, nn

from ..datasets.bodies import LAWS
from ..kit.claims import primary_texts
from ..kit.grid import Row, Table
from ..kit.machine import describe
from ..kit.page import load
from ..kit.subject import Options
from ..kit.task import Task, run_task
from .charges import BATCH, KNOBS, LADDERS
from .models import ALL_NAMES, sized
from .motion_claims import CLAIMS, FILE
from .moving_models import MovingModel, make_moving
from .rollouts import (
    CONTROLS,
    SYSTEMS,
    Begin,
    Predict,
    begin_control,
    measured,
    motions,
    one_step,
    scale,
)

PARAMETERS, STEPS = 26_000, 1_000
# Named on 29 November 2026 before the first run; seed 0 chooses rates and bandwidths.
SEEDS = (200, 201, 202, 203, 204)


def make(row: Row) -> nn.Module:
    """Return the model of a row, of the contest's size."""
    return make_moving(sized(row["variant"], row["sigma"], PARAMETERS, make_moving))


@cache
def train_targets(law: str) -> Tensor:
    """Return the accelerations of all frames of training, (S, T - 1, N, 2), divided by the unit."""
    return motions(law, "train").accelerations / scale(law)


def batch_loss(model: nn.Module, generator: Generator, law: str) -> Tensor:
    """Return the mean squared error of a batch, one later frame per system."""
    train, targets = motions(law, "train"), train_targets(law)
    some = torch.randint(len(targets), (BATCH,), generator=generator)
    frames = torch.randint(1, targets.shape[1], (BATCH,), generator=generator)
    answer = model(train.positions[some, 0], targets[some, 0], train.positions[some, frames])
    return (answer - targets[some, frames]).square().mean()


def begin_model(model: nn.Module, law: str) -> Begin:
    """Return the prediction of a model, which infers once."""
    moving = cast(MovingModel, model)
    unit = scale(law)

    def begin(observed: Tensor, acceleration: Tensor) -> Predict:
        code = moving.infer(observed, acceleration / unit)
        return lambda positions: unit * moving.predict(code, positions)

    return begin


@torch.no_grad()
def validate(model: nn.Module, law: str) -> float:
    """Return the relative squared error of one step in validation."""
    return statistics.fmean(one_step(begin_model(model, law), motions(law, "val")))


def test(model: nn.Module, law: str) -> Row:
    """Return the errors of a model at every number of bodies."""
    return measured(begin_model(model, law), law)


def measure_controls(law: str, options: Options) -> None:
    """Measure the predictions without training, once."""
    controls = Table(FILE, ("variant",), (law, "controls"))
    if controls.rows(options.results):
        return
    about = {}
    # A new file gets the names of the primary claims, which are thereby named before any run.
    if load(FILE, options.results) is None:
        about = {"primary": list(options.primary)}
    rows = [{"variant": name} | measured(begin_control(name, law), law) for name in CONTROLS]
    controls.add(rows, options.results, **about)


def task_of(law: str) -> Task:
    """Return the contest of a law."""
    return Task(
        law,
        FILE,
        (law,),
        KNOBS,
        make,
        partial(batch_loss, law=law),
        partial(validate, law=law),
        partial(test, law=law),
        STEPS,
        SEEDS,
        # The setting that all models chose on charges.
        settings=dict.fromkeys(ALL_NAMES, ((1e-2, 0.5),)),
        ladders=LADDERS,
    )


TASKS = {law: task_of(law) for law in LAWS}


def run(law: str, options: Options) -> None:
    """Run the contest of a law."""
    first = primary_texts(CLAIMS)
    options = replace(options, primary=first)
    measure_controls(law, options)
    run_task(TASKS[law], options, machine=describe(), systems=SYSTEMS, seeds=list(SEEDS))


def run_springs(options: Options) -> None:
    """Run the contest on springs."""
    run("springs", options)


def run_gravity(options: Options) -> None:
    """Run the contest on gravity."""
    run("gravity", options)
