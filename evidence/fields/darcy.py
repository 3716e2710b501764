"""The contest on Darcy's equation: from a medium to the pressure in it.

The fields are those of neuraloperator: media of two values, 16 × 16 in training, and tests at
16 × 16 and 32 × 32.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from fredholm import data

from ..kit.answers import pack
from ..kit.claims import primary_texts
from ..kit.grid import Row, Table
from ..kit.machine import describe
from ..kit.page import load
from ..kit.subject import Options
from ..kit.task import Setting, Task, run_task
from .claims import CLAIMS, CONSTANT, FILE, TESTED, TRAINED, metric
from .models import BOTH_ENDS, POSITIONS_ALONE, WIDE, available, make_model, sized

PARAMETERS, WIDE_PARAMETERS = 30_000, 300_000
STEPS, TRIED_STEPS, BATCH = 900, 300, 16
# Named on 29 November 2026 before the first run; seed 0 chooses all settings.
SEEDS = (200, 201, 202, 203, 204)

KNOBS = ("rate", "depth", "norm", "sigma", "frequencies", "reads", "radius", "modes")
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
DEPTHS = (1, 2, 3, 4, 6)
LADDERS = {
    "itnet": {
        "rate": RATES,
        "depth": DEPTHS,
        "norm": ("none", "layer"),
        "sigma": (0.25, 0.5, 1.0, 2.0, 4.0),
        "frequencies": (2, 4, 8, 16),
        "reads": (POSITIONS_ALONE, BOTH_ENDS),
    },
    "softmax": {
        "rate": RATES,
        "depth": DEPTHS,
        "norm": ("none", "layer"),
        "sigma": (0.25, 0.5, 1.0, 2.0, 4.0),
        "frequencies": (2, 4, 8, 16),
    },
    "gno": {
        "rate": RATES,
        "depth": DEPTHS,
        "norm": ("none", "layer"),
        "frequencies": (1, 2, 3, 4),
        "radius": (0.1, 0.2, 0.4, 0.8),
    },
    "fno": {
        "rate": RATES,
        "depth": DEPTHS,
        "norm": ("none", "instance"),
        "modes": (4, 6, 8, 12, 16),
    },
}
LADDERS[WIDE] = LADDERS["fno"]
STARTS: dict[str, Setting] = {
    "itnet": (3e-3, 2, "layer", 1.0, 8, BOTH_ENDS, None, None),
    "softmax": (3e-3, 2, "layer", 1.0, 8, None, None, None),
    "gno": (3e-3, 2, "layer", None, 3, None, 0.4, None),
    "fno": (1e-2, 4, "none", None, None, None, None, 8),
    WIDE: (1e-2, 4, "none", None, None, None, None, 12),
}


class Pairs(NamedTuple):
    """Media and pressures, (S, 1, n, n) each, divided by their deviations in training."""

    media: Tensor
    pressures: Tensor


@cache
def known(split: str, resolution: int = TRAINED) -> Pairs:
    """Return the samples of a split."""
    options = {"resolution": resolution}
    fields = data.create_dataset("darcy", split, val_fraction=0.1, options=options)
    return Pairs(*fields.batch(range(len(fields))))


def relative_errors(found: Tensor, true: Tensor) -> Tensor:
    """Return each sample's ‖found − true‖ / ‖true‖, (S,)."""
    return (found - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)


def make(row: Row) -> nn.Module:
    """Return the model of a row, of the contest's size."""
    target = WIDE_PARAMETERS if row["variant"] == WIDE else PARAMETERS
    return make_model(row, sized(row, target))


def batch_loss(model: nn.Module, generator: Generator) -> Tensor:
    """Return the mean relative error of a batch of samples."""
    pairs = known("train")
    some = torch.randint(len(pairs.media), (BATCH,), generator=generator)
    return relative_errors(model(pairs.media[some]), pairs.pressures[some]).mean()


@torch.inference_mode()
def errors(model: nn.Module, split: str, resolution: int = TRAINED) -> list[float]:
    """Return each sample's relative error."""
    model.eval()
    pairs = known(split, resolution)
    found: list[float] = []
    for media, pressures in zip(pairs.media.split(BATCH), pairs.pressures.split(BATCH)):
        found += relative_errors(model(media), pressures).tolist()
    return found


def validate(model: nn.Module) -> float:
    """Return the mean relative error in validation."""
    return statistics.fmean(errors(model, "val"))


def measured(each: dict[int, list[float]]) -> Row:
    """Return the fields of a row from each sample's error at every resolution."""
    found: Row = {"answers": {}}
    for resolution, values in each.items():
        found[metric(resolution)] = statistics.fmean(values)
        found["answers"][metric(resolution)] = pack(values)
    return found


def test(model: nn.Module) -> Row:
    """Return the mean relative error at every resolution."""
    return measured({resolution: errors(model, "test", resolution) for resolution in TESTED})


def constant_errors() -> dict[int, list[float]]:
    """Return the errors of the mean pressure field of training, interpolated to finer grids."""
    mean = known("train").pressures.mean(0, keepdim=True)
    found = {}
    for resolution in TESTED:
        true = known("test", resolution).pressures
        answer = nn.functional.interpolate(mean, size=true.shape[2:], mode="bilinear")
        found[resolution] = relative_errors(answer, true).tolist()
    return found


TASK = Task(
    "darcy",
    FILE,
    ("darcy",),
    KNOBS,
    make,
    batch_loss,
    validate,
    test,
    STEPS,
    SEEDS,
    settings={name: (start,) for name, start in STARTS.items()},
    ladders=LADDERS,
    tried_steps=TRIED_STEPS,
    timed=(max, TRIED_STEPS),
)


def run(options: Options) -> None:
    """Run the contest.

    Raises:
        SystemExit: neuraloperator is not installed.
    """
    if not available():
        raise SystemExit(
            "neuralop: expected the package neuraloperator, got none; run python -m pip install "
            "--no-deps --target .peers -r evidence/peers.txt"
        )
    options = replace(options, primary=primary_texts(CLAIMS))
    controls = Table(FILE, ("variant",), ("darcy", "controls"))
    if not controls.rows(options.results):
        about = {}
        # A new file gets the names of the primary claims, which are thereby named before any run.
        if load(FILE, options.results) is None:
            about = {"primary": list(options.primary)}
        controls.add(
            [{"variant": CONSTANT} | measured(constant_errors())], options.results, **about
        )
    run_task(TASK, options, machine=describe(), seeds=list(SEEDS))
