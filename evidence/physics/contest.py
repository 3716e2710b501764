"""The contest on forces between charges.

The learning rate and the bandwidth of each model are chosen on validation. Then fresh seeds are
trained with equal steps, and again with equal time. ``physics.json`` grows by tried settings, paces
and runs, and none of them is computed twice.
"""

from __future__ import annotations

import statistics
from functools import cache, partial
from itertools import product
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.lab.training.grid import Cell, Report, safe_name

from ..datasets.charges import Systems, make_systems
from ..kit.answers import pack
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.paces import equal_time_steps, step_seconds
from ..kit.subject import Options
from .models import NAMES, make_model, parameters, sized

FILE = "physics.json"
TUNING = Table(FILE, ("variant", "rate", "sigma"), ("tuning",))
PACES = Table(FILE, ("variant",), ("paces",))
RUNS = Table(FILE, ("variant", "budget", "seed"))

PARAMETERS, STEPS, BATCH, CLIP = 17_000, 600, 32, 1.0
RATES, SIGMAS = (1e-3, 3e-3, 1e-2), (0.5, 2.0)
TRAINED, TESTED = 8, (8, 12, 20)
"""Numbers of particles."""
SYSTEMS = {"train": 2_000, "val": 400, "test": 400}
DATA_SEEDS = {"train": 1_000, "val": 2_000, "test": 3_000}
"""Seed of each split's systems, to which the number of particles is added."""
# Named on 28 November 2026 before the first run; seed 0 chooses rates and bandwidths.
SEEDS = (100, 101, 102, 103, 104)
EQUAL_STEPS, EQUAL_TIME = "equal steps", "equal time"
ROUNDS, PACED = 7, 30
"""Rounds of timing, which alternate over the models, and steps per round."""


@cache
def systems(split: str, points: int = TRAINED) -> Systems:
    """Return the systems of a split, the same for every model and seed."""
    return make_systems(SYSTEMS[split], points, DATA_SEEDS[split] + points)


def scale() -> Tensor:
    """Return the root mean square of a force in training, which scales all models' outputs."""
    return systems("train").forces.square().mean().sqrt()


def fit(model: nn.Module, rate: float, seed: int, steps: int) -> float:
    """Train by Adam with one cycle of the rate; return the CPU seconds it took."""
    train, unit = systems("train"), scale()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    start = process_time()
    for _ in range(steps):
        some = torch.randint(len(train.positions), (BATCH,), generator=generator)
        answer = model(train.positions[some], train.charges[some])
        loss = (answer - train.forces[some] / unit).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
    return process_time() - start


@torch.inference_mode()
def errors(model: nn.Module, split: str, points: int) -> list[float]:
    """Return each system's squared error over the mean squared force of the split.

    Their mean is the relative squared error.
    """
    known = systems(split, points)
    off = model(known.positions, known.charges) * scale() - known.forces
    each = off.square().mean((1, 2)) / known.forces.square().mean()
    return each.tolist()


def built(row: Row, seed: int) -> nn.Module:
    """Return the model of a row, drawn with a seed."""
    torch.manual_seed(seed)
    return make_model(sized(row["variant"], row["sigma"], PARAMETERS))


def run(options: Options) -> None:
    """Train the models of ``--only``, or all: settings, paces, then the seeds of both tables."""
    names = options.chosen(NAMES)
    steps = 30 if options.small else STEPS

    def cell(row: Row) -> Cell:
        settings = row | {"steps": row.get("steps", steps)}
        label = safe_name(" ".join(str(value) for value in settings.values()))
        return Cell(settings, options.runs / label)

    tries = [
        {"variant": name, "rate": rate, "sigma": sigma}
        for name, rate, sigma in product(names, RATES, SIGMAS)
    ]
    about = {"machine": describe(), "systems": SYSTEMS, "seeds": list(SEEDS)}
    fill(TUNING, tries, validated, cell, options, **about)
    chosen = {name: best(TUNING.rows(options.results), name) for name in names}
    measure_paces(options)

    seeds = SEEDS[: options.seeds]
    for budget in (EQUAL_STEPS, EQUAL_TIME):
        counts = steps_of(budget, steps, options)
        rows = [
            chosen[name] | {"budget": budget, "seed": seed, "steps": counts[name]}
            for seed, name in product(seeds, names)
        ]
        fill(RUNS, rows, tested, cell, options)


def validated(cell: Cell, report: Report) -> Row:
    """Train with seed 0 and validate."""
    cell.place.mkdir(parents=True, exist_ok=True)
    settings = cell.settings
    model = built(settings, 0)
    seconds = fit(model, settings["rate"], 0, settings["steps"])
    error = statistics.fmean(errors(model, "val", TRAINED))
    return {"validation": error, "seconds": round(seconds, 2), "parameters": parameters(model)}


def tested(cell: Cell, report: Report) -> Row:
    """Train and test with every number of particles."""
    cell.place.mkdir(parents=True, exist_ok=True)
    settings = cell.settings
    model = built(settings, settings["seed"])
    seconds = fit(model, settings["rate"], settings["seed"], settings["steps"])
    found: Row = {"seconds": round(seconds, 2), "parameters": parameters(model), "answers": {}}
    for points in TESTED:
        each = errors(model, "test", points)
        found[metric(points)] = statistics.fmean(each)
        found["answers"][metric(points)] = pack(each)
    return found


def metric(points: int) -> str:
    """Return the name of the error at a number of particles."""
    return f"error {points}"


def best(tried: list[Row], name: str) -> dict[str, Any]:
    """Return a model's rate and bandwidth with the least error in validation.

    Raises:
        SystemExit: not all of its settings were tried.
    """
    rows = [row for row in tried if row["variant"] == name]
    planned = len(RATES) * len(SIGMAS)
    if len(rows) < planned:
        raise SystemExit(
            f"{name}: expected {planned} tried settings, got {len(rows)}; run the same command again"
        )
    row = min(rows, key=lambda one: one["validation"])
    return {key: row[key] for key in ("variant", "rate", "sigma")}


def measure_paces(options: Options) -> None:
    """Measure the CPU seconds of a training step once, since they determine the second table."""
    if PACES.rows(options.results):
        return
    models = {}
    for name in NAMES:
        model = built({"variant": name, "sigma": SIGMAS[0]}, 0)
        models[name] = partial(fit, model, RATES[0], 0)
    seconds = step_seconds(models, ROUNDS, PACED)
    rows = [{"variant": name, "step": seconds[name]} for name in NAMES]
    PACES.add(rows, options.results)


def steps_of(budget: str, steps: int, options: Options) -> dict[str, int]:
    """Return each model's steps: the same, or as many as the fastest model's time allows."""
    if budget == EQUAL_STEPS:
        return dict.fromkeys(NAMES, steps)
    paces = {row["variant"]: row["step"] for row in PACES.rows(options.results)}
    return equal_time_steps(paces, steps)
