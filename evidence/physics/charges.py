"""The contests on forces between charges.

The first tried learning rates up to 0.01, which all models chose. The second moves to larger rates
and other bandwidths as long as they are better, with fresh seeds and one model more.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache, partial
from itertools import product

import torch
from torch import Generator, Tensor, nn

from ..datasets.charges import Systems, make_systems
from ..kit.answers import pack
from ..kit.grid import Row
from ..kit.machine import describe
from ..kit.subject import Options
from ..kit.task import Task, run_task
from .models import ALL_NAMES, NAMES, make_model, sized

FILE = "physics.json"
AGAIN = "larger rates"
"""Part of the file with the second contest."""
PARAMETERS, STEPS, BATCH = 17_000, 600, 32
KNOBS = ("rate", "sigma")
"""The learning rate, and the bandwidth of the Fourier features."""
TRIED_RATES, TRIED_SIGMAS = (1e-3, 3e-3, 1e-2), (0.5, 2.0)
"""Settings of the first contest."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
SIGMAS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
LADDERS = {name: {"rate": RATES, "sigma": SIGMAS} for name in ALL_NAMES}
"""Ladders of the second contest, on which its search moves."""
TRAINED, TESTED = 8, (8, 12, 20)
"""Numbers of particles."""
SECOND_TEST = "second test"
"""A split that the first two contests do not use."""
SYSTEMS = {"train": 2_000, "val": 400, "test": 400, SECOND_TEST: 400}
DATA_SEEDS = {"train": 1_000, "val": 2_000, "test": 3_000, SECOND_TEST: 4_000}
"""Seed of each split's systems, to which the number of particles is added."""
# Named on 28 November 2026 before the first run; seed 0 chooses rates and bandwidths.
SEEDS = (100, 101, 102, 103, 104)
# Named on 29 November 2026 before the second contest.
FRESH_SEEDS = (200, 201, 202, 203, 204)


@cache
def systems(split: str, points: int = TRAINED) -> Systems:
    """Return the systems of a split, the same for every model and seed."""
    return make_systems(SYSTEMS[split], points, DATA_SEEDS[split] + points)


def scale() -> Tensor:
    """Return the root mean square of a force in training, which scales all models' outputs."""
    return systems("train").forces.square().mean().sqrt()


def make(row: Row) -> nn.Module:
    """Return the model of a row, of the contest's size."""
    return make_model(sized(row["variant"], row["sigma"], PARAMETERS))


def batch_loss(model: nn.Module, generator: Generator) -> Tensor:
    """Return the mean squared error of a batch of systems."""
    train = systems("train")
    some = torch.randint(len(train.positions), (BATCH,), generator=generator)
    answer = model(train.positions[some], train.charges[some])
    return (answer - train.forces[some] / scale()).square().mean()


@torch.inference_mode()
def errors(model: nn.Module, split: str, points: int) -> list[float]:
    """Return each system's squared error over the mean squared force of the split.

    Their mean is the relative squared error.
    """
    known = systems(split, points)
    off = model(known.positions, known.charges) * scale() - known.forces
    each = off.square().mean((1, 2)) / known.forces.square().mean()
    return each.tolist()


def validate(model: nn.Module) -> float:
    """Return the relative squared error in validation."""
    return statistics.fmean(errors(model, "val", TRAINED))


def test_on(split: str, model: nn.Module) -> Row:
    """Return the relative squared error on a split at every number of particles."""
    found: Row = {"answers": {}}
    for points in TESTED:
        each = errors(model, split, points)
        found[metric(points)] = statistics.fmean(each)
        found["answers"][metric(points)] = pack(each)
    return found


def metric(points: int) -> str:
    """Return the name of the error at a number of particles."""
    return f"error {points}"


FIRST_TASK = Task(
    "charges",
    FILE,
    (),
    KNOBS,
    make,
    batch_loss,
    validate,
    partial(test_on, "test"),
    STEPS,
    SEEDS,
    settings=dict.fromkeys(NAMES, tuple(product(TRIED_RATES, TRIED_SIGMAS))),
)
SECOND_TASK = replace(
    FIRST_TASK,
    name=f"charges, {AGAIN}",
    part=(AGAIN,),
    seeds=FRESH_SEEDS,
    # The setting that all models chose first.
    settings=dict.fromkeys(ALL_NAMES, ((1e-2, 0.5),)),
    ladders=LADDERS,
)


def run(options: Options) -> None:
    """Run both contests."""
    # The first contest does not have all models that may be selected.
    if set(options.only) <= set(NAMES):
        about = {"machine": describe(), "systems": SYSTEMS, "seeds": list(SEEDS)}
        run_task(FIRST_TASK, options, **about)
    run_task(SECOND_TASK, options)
