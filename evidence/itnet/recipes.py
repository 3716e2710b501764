"""Duration of ITNet's recipes.

Each recipe trains for a while without changes. The duration of a run is the median time of a step
times the number of steps, plus its validations. Rows are added one at a time. The machine should be
quiet.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import warnings
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch

from fredholm.lab.training.build import build_dataset, build_loaders, build_mixer, build_model
from fredholm.lab.training.fit import Limits, fit
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.tasks import task_of
from fredholm.training import load_recipe

from ..kit.grid import Table
from ..kit.machine import describe
from ..kit.subject import Options

TABLE = Table("itnet-recipes.json", ("recipe",), ("rows",))
MINUTES = 0.4
"""Duration of a measurement."""
RECIPES = (
    "digits",
    "fashion-mnist",
    "reviews",
    "itnet-monte-carlo",
    "itnet-kicad",
    "itnet-mosaics-qa",
    "itnet-debian-graph",
    "itnet-graphs",
    "itnet-darcy",
    "itnet-kjv",
    "itnet-mlm",
    "itnet-paraphrase",
)


class Clock(pl.Callback):
    """Record the time of every training step, with loading.

    The fit ends after ``minutes``, but not before the fourth step.
    """

    def __init__(self, minutes: float) -> None:
        self.seconds, self.times = 60 * minutes, list[float]()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.times.append(perf_counter())
        late = self.times[-1] - self.times[0] >= self.seconds
        trainer.should_stop = late and len(self.times) >= 4


def measure(name: str, minutes: float) -> dict[str, Any]:
    """Measure the seconds per training step and per validation sample, and the recipe's minutes.

    Reading the data and building the model don't count.
    """
    recipe = load_recipe(name, ["init_from=null"])
    train, val = build_dataset(recipe, "train"), build_dataset(recipe, "val")
    loader, validation = build_loaders(recipe, train, val)
    model, clock = build_model(recipe, train), Clock(minutes)
    mixer = build_mixer(recipe, len(train.classes))
    module = RecipeLearner(model, recipe, loader, mixer, task_of(train))
    epochs = recipe.training.epochs
    limits = Limits(epochs, clip_norm=recipe.training.clip_norm)
    module.callbacks.append(clock)
    fit(module, limits=limits, keep=lambda model: None)
    seconds = statistics.median(b - a for a, b in itertools.pairwise(clock.times))

    begun, seen = perf_counter(), 0
    with torch.no_grad():
        for step, (inputs, _) in enumerate(validation):
            model.eval()(inputs)
            seen += len(inputs)
            if step and perf_counter() - begun > 12 * minutes:
                break
    sample = (perf_counter() - begun) / seen

    steps = epochs * (len(train) // recipe.data.batch_size)
    return {
        "recipe": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "samples": len(train),
        "epochs": epochs,
        "steps": steps,
        "measured": len(clock.times) - 1,
        "seconds_per_step": seconds,
        "validation_seconds_per_sample": sample,
        "minutes": (steps * seconds + epochs * len(val) * sample) / 60,
    }


def time(options: Options) -> None:
    """Measure the recipes of ``--only``, or all, for at most 0.4 minutes or ``--minutes`` each."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    for name in options.chosen(RECIPES):
        row = measure(name, min(options.minutes, MINUTES))
        figures = f"{row['seconds_per_step']:8.4f} s a step, {row['minutes']:6.1f} minutes"
        print(f"{name:20} {figures}", flush=True)
        TABLE.add([row], options.results, machine=describe())
