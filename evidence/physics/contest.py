"""A contest of models of equal size on one task.

The learning rate and the bandwidth of each model are chosen on validation with seed 0. Then fresh
seeds are trained with equal steps, and again with equal time. A file of results grows by tried
settings, paces and runs, and none of them is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Generator, Tensor, nn

from fredholm.lab.training.grid import Cell, Report

from ..kit.contest import (
    EQUAL_STEPS,
    EQUAL_TIME,
    all_tried,
    equal_time_steps,
    one_cycle,
    own_cell,
    parameters,
    step_seconds,
    train,
)
from ..kit.grid import Row, Table, fill
from ..kit.subject import Options

BUDGETS = (EQUAL_STEPS, EQUAL_TIME)
BATCH = 32
TRIAL_STEPS = 30
"""Steps of a trial with ``--small``."""
ROUNDS, PACED = 7, 30
"""Rounds of timing, which alternate over the models, and steps per round."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
SIGMAS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
"""Ladders of rates and bandwidths, on which a search moves."""

Setting = tuple[float, float]
"""A learning rate and the bandwidth of the Fourier features."""


@dataclass(frozen=True)
class Task:
    """A task, its models and the settings to try.

    Attributes:
        name: of the task, which is also part of the names of the runs' folders.
        file: name of the file of results.
        part: keys from the file's root to the task's tables.
        models: names of the models.
        make: maps a name and a bandwidth to a model.
        loss: maps a model and a generator to the loss of a batch that is drawn with it.
        validate: maps a trained model to its error in validation.
        test: maps a trained model to the fields of a row, with the answers to all test samples.
        steps: of training, at equal steps.
        seeds: of the tables.
        settings: rates and bandwidths that are tried first.
        search: whether the neighbours of the best setting are tried until none of them is better.
    """

    name: str
    file: str
    part: tuple[str, ...]
    models: tuple[str, ...]
    make: Callable[[str, float], nn.Module]
    loss: Callable[[nn.Module, Generator], Tensor]
    validate: Callable[[nn.Module], float]
    test: Callable[[nn.Module], Row]
    steps: int
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    search: bool = False

    @property
    def tuning(self) -> Table:
        """The tried settings."""
        return Table(self.file, ("variant", "rate", "sigma"), (*self.part, "tuning"))

    @property
    def paces(self) -> Table:
        """The seconds of a step of each model."""
        return Table(self.file, ("variant",), (*self.part, "paces"))

    @property
    def runs(self) -> Table:
        """The runs of both budgets."""
        return Table(self.file, ("variant", "budget", "seed"), (*self.part, "runs"))

    def built(self, row: Row, seed: int) -> nn.Module:
        """Return the model of a row, drawn with a seed."""
        torch.manual_seed(seed)
        return self.make(row["variant"], row["sigma"])

    def fit(self, model: nn.Module, rate: float, seed: int, steps: int) -> float:
        """Train by Adam with one cycle of the rate; return the CPU seconds it took."""
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        schedule = one_cycle(optimizer, rate, steps)
        loss = partial(self.loss, model)
        return train(model, optimizer, schedule, loss, seed=seed, steps=steps)

    def validated(self, cell: Cell, report: Report) -> Row:
        """Train with seed 0 and validate."""
        found, model = self._trained(cell, 0)
        return found | {"validation": self.validate(model)}

    def tested(self, cell: Cell, report: Report) -> Row:
        """Train and test."""
        found, model = self._trained(cell, cell.settings["seed"])
        return found | self.test(model)

    def _trained(self, cell: Cell, seed: int) -> tuple[Row, nn.Module]:
        """Train the model of a cell; return its cost and the model."""
        cell.place.mkdir(parents=True, exist_ok=True)
        settings = cell.settings
        model = self.built(settings, seed)
        seconds = self.fit(model, settings["rate"], seed, settings["steps"])
        return {"seconds": round(seconds, 2), "parameters": parameters(model)}, model


def run_task(task: Task, options: Options, **about: Any) -> None:
    """Train the models of ``--only``, or all: settings, paces, then the seeds of both tables.

    ``about`` are further fields at the root of the file of results.
    """
    names = options.chosen(task.models)
    steps, seeds = task.steps, task.seeds[: options.seeds]
    if options.small:
        steps, seeds = TRIAL_STEPS, seeds[:1]

    def cell(row: Row) -> Cell:
        settings = {"task": task.name} | row | {"steps": row.get("steps", steps)}
        return own_cell(settings, options)

    chosen = choose(task, names, cell, options, **about)
    measure_paces(task, options)
    for budget in BUDGETS:
        counts = steps_of(task, budget, steps, options)
        rows = [
            chosen[name] | {"budget": budget, "seed": seed, "steps": counts[name]}
            for seed, name in product(seeds, names)
        ]
        fill(task.runs, rows, task.tested, cell, options)


# --- choosing settings ----------------------------------------------------------------------------


def choose(
    task: Task, names: list[str], cell: Callable[[Row], Cell], options: Options, **about: Any
) -> dict[str, Row]:
    """Try settings until every model has its best one; return its fields of a row by name."""
    planned = {name: set(task.settings) for name in names}
    while True:
        fill(task.tuning, tries(planned), task.validated, cell, options, **about)
        tried = task.tuning.rows(options.results)
        chosen = {name: best(tried, name, planned[name]) for name in names}
        if not task.search or options.small:
            return chosen

        wider = {name: planned[name] | neighbours(setting_of(chosen[name])) for name in names}
        if wider == planned:
            return chosen
        planned = wider


def tries(planned: dict[str, set[Setting]]) -> list[Row]:
    """Return a row per model and planned setting."""
    return [
        {"variant": name, "rate": rate, "sigma": sigma}
        for name, settings in planned.items()
        for rate, sigma in sorted(settings)
    ]


def best(tried: list[Row], name: str, planned: Iterable[Setting]) -> Row:
    """Return a model's setting with the least error in validation, as fields of a row.

    Raises:
        SystemExit: not all of its planned settings were tried.
    """
    wanted = set(planned)
    rows = [row for row in tried if row["variant"] == name and setting_of(row) in wanted]
    all_tried(rows, len(wanted), name)
    row = min(rows, key=_validation)
    return {key: row[key] for key in ("variant", "rate", "sigma")}


def _validation(row: Row) -> float:
    """Return a row's error in validation; a model that diverged has an infinite one."""
    error = row["validation"]
    return error if math.isfinite(error) else math.inf


def setting_of(row: Row) -> Setting:
    """Return the setting of a row."""
    return row["rate"], row["sigma"]


def neighbours(setting: Setting) -> set[Setting]:
    """Return the settings one step away on one of both ladders.

    Example:
        >>> sorted(neighbours((0.3, 0.5)))
        [(0.1, 0.5), (0.3, 0.25), (0.3, 1.0)]
    """
    rate, sigma = setting
    rates = {(other, sigma) for other in _beside(rate, RATES)}
    return rates | {(rate, other) for other in _beside(sigma, SIGMAS)}


def _beside(value: float, ladder: tuple[float, ...]) -> tuple[float, ...]:
    """Return the one or two values next to a value of a ladder."""
    at = ladder.index(value)
    return ladder[max(at - 1, 0) : at] + ladder[at + 1 : at + 2]


# --- equal time -----------------------------------------------------------------------------------


def measure_paces(task: Task, options: Options) -> None:
    """Measure the CPU seconds of a training step once, since they determine the second table."""
    if task.paces.rows(options.results):
        return
    rate, sigma = task.settings[0]
    models = {}
    for name in task.models:
        model = task.built({"variant": name, "sigma": sigma}, 0)
        models[name] = partial(task.fit, model, rate)
    seconds = step_seconds(models, ROUNDS, PACED)
    rows = [{"variant": name, "step": seconds[name]} for name in task.models]
    task.paces.add(rows, options.results)


def steps_of(task: Task, budget: str, steps: int, options: Options) -> dict[str, int]:
    """Return each model's steps: the same, or as many as the fastest model's time allows."""
    if budget == EQUAL_STEPS:
        return dict.fromkeys(task.models, steps)
    paces = {row["variant"]: row["step"] for row in task.paces.rows(options.results)}
    return equal_time_steps(paces, steps)
