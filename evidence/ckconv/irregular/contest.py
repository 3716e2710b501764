"""The contest on irregular times.

For each task, the rate and the setting of each model are chosen on validation with seed 0. Then
fresh seeds are trained with equal steps, and again in equal time. ``ckconv-irregular.json`` grows by
tried settings, paces and runs, and none of them is computed twice.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fredholm.lab.training.grid import Cell, Report

from ...kit.answers import pack
from ...kit.claims import primary_texts
from ...kit.contest import (
    EQUAL_STEPS,
    EQUAL_TIME,
    all_tried,
    equal_time_steps,
    one_cycle,
    own_cell,
    pace_rows,
    parameters,
    step_seconds,
    train,
)
from ...kit.grid import Row, Table, fill, say
from ...kit.machine import describe
from ...kit.subject import Options
from ...performance.peers import peer
from ...ten_sets.run import PEER
from ..resampled import predictions
from .claims import CLAIMS
from .models import MINIROCKET, NAMES, SETTINGS, filled, gridded, last_observed, make_model, sized
from .tasks import FILE, TASKS, Series, Task

TUNING = Table(FILE, ("task", "variant", "rate", "setting"), ("tuning",))
PACES = Table(FILE, ("task", "variant"), ("paces",))
RUNS = Table(FILE, ("task", "variant", "budget", "seed"))

BATCH, WEIGHT_DECAY = 32, 1e-4
RATES = (1e-3, 3e-3, 1e-2)
# Named on 29 November 2026 before the first run; seed 0 chooses rates and settings.
SEEDS = (200, 201, 202, 203, 204)
ROUNDS, PACED = 5, 8
"""Rounds of timing, which alternate over the models, and steps per round."""
STRETCHED, ALIGNED = "stretched", "aligned"


class Chosen(NamedTuple):
    """The rate and the setting of a model with the best validation."""

    rate: float | None
    setting: str


def run(options: Options) -> None:
    """Train the models on the tasks of ``--only``, or on all.

    Raises:
        SystemExit: torchcde is not installed, without which times can't be equal.
    """
    if peer("torchcde") is None:
        raise SystemExit(
            "torchcde: expected the package of neural CDEs, got none; run python -m pip install "
            "--no-deps --target .peers -r evidence/peers.txt"
        )
    first = primary_texts(CLAIMS)
    options = replace(options, primary=first)
    variants: list[str] = [*NAMES]
    if PEER.exists():
        variants.append(MINIROCKET)
    else:
        say(f"{MINIROCKET}: not run: {PEER} does not exist, see evidence/ten_sets/run.py")
    for name in options.chosen(TASKS):
        run_task(name, variants, options)


def run_task(name: str, variants: list[str], options: Options) -> None:
    """Choose settings, measure paces and train the seeds of both tables for one task."""
    task = TASKS[name]
    steps = 5 if options.small else task.steps

    def cell(row: Row) -> Cell:
        settings = {"steps": steps} | row
        return own_cell(settings, options)

    about = {"machine": describe(), "seeds": list(SEEDS)}
    fill(TUNING, list(tries(name, variants)), validated, cell, options, **about)
    tried = TUNING.rows(options.results)
    chosen = {variant: best(tried, name, variant) for variant in variants}
    measure_paces(name, chosen, options)

    work = partial(tested, options)
    for budget in (EQUAL_STEPS, EQUAL_TIME):
        counts = steps_of(name, budget, steps, options)
        rows = [
            {"task": name, "variant": variant, "budget": budget, "seed": seed}
            | chosen[variant]._asdict()
            | {"steps": counts.get(variant)}
            for seed, variant in product(SEEDS[: options.seeds], variants)
            # MiniROCKET is not trained by steps.
            if variant in counts or budget == EQUAL_STEPS
        ]
        fill(RUNS, rows, work, cell, options)


def tries(name: str, variants: list[str]) -> list[Row]:
    """Return all settings of the models that are tried for a task."""
    found = []
    for variant in variants:
        rates: tuple[float | None, ...] = RATES
        settings: tuple[str, ...] = tuple(SETTINGS.get(variant, ()))
        if variant == MINIROCKET:
            rates = (None,)
            settings = (STRETCHED, ALIGNED)
        for rate, setting in product(rates, settings):
            found.append({"task": name, "variant": variant, "rate": rate, "setting": setting})
    return found


def best(tried: list[Row], name: str, variant: str) -> Chosen:
    """Return the rate and setting of a model with the highest accuracy in validation.

    Of equal accuracies, that with the smaller loss.

    Raises:
        SystemExit: not all of its settings were tried.
    """
    rows = [row for row in tried if (row["task"], row["variant"]) == (name, variant)]
    planned = len(tries(name, [variant]))
    all_tried(rows, planned, f"{name}, {variant}")
    row = max(rows, key=lambda one: (one["accuracy"], -one.get("loss", 0.0)))
    return Chosen(row["rate"], row["setting"])


# --- networks -------------------------------------------------------------------------------------


def built(name: str, variant: str, setting: str, seed: int) -> nn.Module:
    """Return a network of the task's size, drawn with a seed."""
    torch.manual_seed(seed)
    return make_model(sized(variant, setting, TASKS[name]))


def fit(model: nn.Module, series: Series, rate: float, seed: int, steps: int) -> float:
    """Train by AdamW with one cycle of the rate; return the CPU seconds it took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    schedule = one_cycle(optimizer, rate, steps)

    def loss(generator: Generator) -> Tensor:
        some = torch.randint(len(series.labels), (BATCH,), generator=generator)
        times, values, labels = series.batch(some)
        return functional.cross_entropy(model(times, values), labels)

    return train(model, optimizer, schedule, loss, seed=seed, steps=steps)


@torch.inference_mode()
def logits_of(model: nn.Module, series: Series) -> Tensor:
    """Return the logits of all series, (N, classes)."""
    model.eval()
    parts = torch.arange(len(series.labels)).split(128)
    batches = [series.batch(part) for part in parts]
    return torch.cat([model(one.times, one.values) for one in batches])


def validated(cell: Cell, report: Report) -> Row:
    """Train with seed 0 on a part of the training file and validate on the rest."""
    cell.place.mkdir(parents=True, exist_ok=True)
    name, variant, rate, setting = (cell.settings[key] for key in TUNING.identity)
    task = TASKS[name]
    train, val = task.load("train", 0), task.load("val", 0)
    if variant == MINIROCKET:
        right, seconds = minirocket(task, setting, train, val, 0)
        return {"accuracy": statistics.fmean(right), "seconds": round(seconds, 2)}

    model = built(name, variant, setting, 0)
    seconds = fit(model, train, rate, 0, cell.settings["steps"])
    logits = logits_of(model, val)
    right = logits.argmax(-1) == val.labels
    return {
        "accuracy": float(right.double().mean()),
        "loss": float(functional.cross_entropy(logits, val.labels)),
        "seconds": round(seconds, 2),
        "parameters": parameters(model),
    }


def tested(options: Options, cell: Cell, report: Report) -> Row:
    """Train on the complete training file and test."""
    cell.place.mkdir(parents=True, exist_ok=True)
    settings = cell.settings
    # Where both budgets have the same steps, they are one run.
    for row in RUNS.rows(options.results):
        if all(row[key] == value for key, value in settings.items() if key != "budget"):
            return {key: row[key] for key in ("accuracy", "seconds", "parameters", "answers")}

    name, variant, seed = settings["task"], settings["variant"], settings["seed"]
    task = TASKS[name]
    train, test = task.load("full", seed), task.load("test", seed)
    size = None
    if variant == MINIROCKET:
        right, seconds = minirocket(task, settings["setting"], train, test, seed)
    else:
        model = built(name, variant, settings["setting"], seed)
        seconds = fit(model, train, settings["rate"], seed, settings["steps"])
        right = (logits_of(model, test).argmax(-1) == test.labels).double().tolist()
        size = parameters(model)
    return {
        "accuracy": statistics.fmean(right),
        "seconds": round(seconds, 2),
        "parameters": size,
        "answers": {"accuracy": pack(right)},
    }


# --- equal time -----------------------------------------------------------------------------------


def measure_paces(name: str, chosen: dict[str, Chosen], options: Options) -> None:
    """Measure the CPU seconds of a training step once, since they determine the second table."""
    if any(row["task"] == name for row in PACES.rows(options.results)):
        return
    series = TASKS[name].load("full", 0)
    models = {}
    for variant in NAMES:
        model = built(name, variant, chosen[variant].setting, 0)
        models[variant] = partial(fit, model, series, RATES[0])
    seconds = step_seconds(models, ROUNDS, PACED)
    PACES.add(pace_rows(seconds, task=name), options.results)


def steps_of(name: str, budget: str, steps: int, options: Options) -> dict[str, int]:
    """Return each network's steps: the same, or as many as the slowest one's time allows."""
    if budget == EQUAL_STEPS:
        return dict.fromkeys(NAMES, steps)
    rows = PACES.rows(options.results)
    paces = {row["variant"]: row["step"] for row in rows if row["task"] == name}
    return equal_time_steps(paces, steps, reference=max)


# --- MiniROCKET -----------------------------------------------------------------------------------


def minirocket(
    task: Task, setting: str, train: Series, test: Series, seed: int
) -> tuple[list[float], float]:
    """Fit MiniROCKET to interpolated series; return its right answers (1.0) and the CPU seconds.

    Each channel is interpolated linearly to the finer grid between its first and last observation,
    and constant beyond them. ``stretched`` series all get the same length; ``aligned`` ones keep
    the scale of time, end at the same cell and begin with their first value.
    """
    arrays = {"labels": train.labels.numpy()}
    cells = round(task.length / task.grids[-1])
    for key, series in (("train", train), ("test", test)):
        grid = on_grid(series, task.grids[-1], cells)
        if setting == ALIGNED:
            grid = aligned(grid)
        arrays[key] = grid.numpy()
    start = child_seconds()
    found = predictions(arrays, seed)["test"]
    right = (found == test.labels.numpy()).astype(np.float64)
    return right.tolist(), child_seconds() - start


def child_seconds() -> float:
    """Return the CPU seconds of finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def on_grid(series: Series, step: float, cells: int) -> Tensor:
    """Interpolate series to a grid (N, cells or more, C); NaN behind the last observation.

    Example:
        >>> values = torch.tensor([[[2.0], [torch.nan], [4.0], [torch.nan]]])
        >>> series = Series(torch.arange(4.0)[None], values, torch.tensor([0]))
        >>> on_grid(series, 1, cells=4).flatten().tolist()
        [2.0, 3.0, 4.0, nan]
    """
    found = gridded(series.times, series.values, step)
    missing = max(0, cells - found.shape[1])
    found = functional.pad(found, (0, 0, 0, missing), value=torch.nan)
    places = torch.arange(found.shape[1]).to(found.dtype)
    lines = filled(places.expand(len(found), -1), found)
    return lines.masked_fill((places > last_observed(found))[..., None], torch.nan)


def aligned(grid: Tensor) -> Tensor:
    """Move every series of a grid to its end; it begins with its first value.

    Example:
        >>> aligned(torch.tensor([[[2.0], [3.0], [4.0], [torch.nan]]])).flatten().tolist()
        [2.0, 2.0, 3.0, 4.0]
    """
    cells = grid.shape[1]
    place = torch.arange(cells) - (cells - 1 - last_observed(grid))
    return grid.gather(1, place.clamp(min=0)[..., None].expand_as(grid))
