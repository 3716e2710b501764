"""Time of a step of ``fredholm train`` beside a plain PyTorch loop on the same batches."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.nn.functional as F

from fredholm.lab.training.build import build_dataset, build_loaders, build_mixer, build_model
from fredholm.lab.training.fit import Limits, Saving, fit
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.tasks import task_of
from fredholm.training import load_recipe

from .kit.check import theirs_first
from .kit.clock import median_and_spread
from .kit.machine import describe, machine_line
from .kit.page import PAGES, head, load, save, table
from .kit.subject import Options, Subject

FILE = "training-step.json"
SUBJECT = Subject(
    __name__,
    times={"steps": ":time_steps"},
    pages={PAGES / "training-step.md": ":page"},
    cases=":timed",
    ratios=":committed",
)
RECIPES = ("digits", "fashion-mnist", "reviews")
STEPS, ROUNDS, WARM = 30, 3, 5
GOAL = 1.05
TEXT = """{head}How much time does `fredholm train` add to a training step? It is compared with a plain PyTorch loop with the same batches, prepared
beforehand, and the same model, loss, clipping and optimiser. `fredholm train` also includes its loader with augmentation, Lightning's loop, the table of metrics and, in some recipes,
the average of weights. Times are medians of {steps} steps in {rounds} alternating rounds, followed in brackets by half the interquartile range. The goal is a ratio of at most {goal}; brackets of three rounds say little.

Machine: {machine} Command: `python -m evidence time training-step`.

{rows}
"""


class Ticks(pl.Callback):
    """Record the time at which every step begins."""

    def __init__(self):
        self.times: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


def time_steps(options: Options) -> None:
    save({"machine": describe(), "rows": list(timed(options))}, FILE, options.results)


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time the recipes and yield a row per recipe and way."""
    for name in options.chosen(RECIPES):
        recipe = load_recipe(name)
        data = Data(build_dataset(recipe, "train"), build_dataset(recipe, "val"))
        steps = min(STEPS, len(data.train) // recipe.data.batch_size)
        found: dict[str, list[float]] = {"plain loop": [], "fredholm train": []}
        for _ in range(1 if options.small else ROUNDS):
            found["plain loop"].append(plain(recipe, data, steps))
            found["fredholm train"].append(ours(recipe, data, steps))
        first = median(found["plain loop"])
        for way, seconds in found.items():
            middle, spread = median_and_spread(seconds)
            row = {"case": name, "way": way, "ratio": middle / first}
            print(f"{name:16} {way:16} {row['ratio']:5.2f} {1e3 * middle:8.2f} ms", flush=True)
            yield row | {"milliseconds": 1e3 * middle, "spread": 1e3 * spread}


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    return theirs_first((load(FILE) or {"rows": []})["rows"])


class Data(NamedTuple):
    """The training and the validation set of a recipe."""

    train: Any
    val: Any


def ours(recipe: Any, data: Data, steps: int) -> float:
    """Return the seconds per step of ``fredholm train``, between the beginnings of two steps."""
    model = build_model(recipe, data.train)
    loader, _ = build_loaders(recipe, data.train, data.val)
    mixer = build_mixer(recipe, len(data.train.classes))
    module = RecipeLearner(model, recipe, loader, mixer, task_of(data.train))
    ticks = Ticks()
    module.callbacks.append(ticks)
    options = recipe.training
    limits = Limits(
        epochs=None, steps=steps, clip_norm=options.clip_norm, ema_decay=options.ema_decay
    )
    with tempfile.TemporaryDirectory() as folder:
        fit(
            module,
            limits=limits,
            keep=lambda model: None,
            saving=Saving(Path(folder), tensorboard=True),
            say=lambda line: None,
        )
    return _median(ticks.times)


def plain(recipe: Any, data: Data, steps: int) -> float:
    """Return the seconds per step of a plain loop, with batches that were loaded before."""
    model = copy.deepcopy(build_model(recipe, data.train)).train()
    loader, _ = build_loaders(recipe, data.train, data.val)
    batches = [batch for batch, _ in zip(loader(0, 1), range(steps))]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.optimizer.lr, weight_decay=recipe.optimizer.weight_decay
    )
    options = recipe.training
    times: list[float] = []
    for inputs, labels in batches:
        times.append(time.perf_counter())
        loss = F.cross_entropy(model(inputs), labels, label_smoothing=options.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        if options.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        optimizer.step()
    return _median(times)


def _median(times: list[float]) -> float:
    steps = [after - before for before, after in pairwise(times)]
    return median(steps[WARM:] or steps)


def page() -> str:
    """Return the text of docs/results/training-step.md."""
    measured = load(FILE)
    start = head("A training step", "training-step", FILE)
    if measured is None:
        return start + "Not measured yet.\n"
    rows = []
    for row in measured["rows"]:
        time_of_step = f"{row['milliseconds']:.2f} ({row['spread']:.2f})"
        rows.append((row["case"], row["way"], time_of_step, f"{row['ratio']:.2f}"))
    return TEXT.format(
        head=start,
        machine=machine_line(measured["machine"]),
        steps=STEPS,
        rounds=ROUNDS,
        goal=GOAL,
        rows=table(("recipe", "way", "ms per step", "/ plain loop"), rows),
    )
