"""Tasks of contests: every model is tuned, then compared at equal steps and at equal time.

The settings of a model are its learning rate and others, such as a bandwidth. They are chosen by
the error in validation, with seed 0. A search tries the adjacent settings of the best one, one step
away on one of its ladders, as long as one of them is better. What it chooses thus lies inside of
what was tried, or at the end of a ladder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from filelock import FileLock
from torch import Generator, Tensor, nn

from fredholm.lab.training.grid import Cell, Report

from .contest import (
    EQUAL_STEPS,
    EQUAL_TIME,
    Reference,
    all_tried,
    by_model,
    equal_time_steps,
    one_cycle,
    own_cell,
    pace_rows,
    parameters,
    step_seconds,
    train,
)
from .grid import Row, Table, fill, say
from .page import listed
from .subject import Options

BUDGETS = (EQUAL_STEPS, EQUAL_TIME)
ROUNDS = 7
"""Rounds of timing, which alternate over the models."""

Setting = tuple[Any, ...]
"""Values of a task's knobs, in their order; None for a knob that the model does not have."""
Ladders = Mapping[str, tuple[Any, ...]]
"""A knob to its values, on which a search moves by one step."""


@dataclass(frozen=True)
class Task:
    """A task, its models and the settings to try.

    Attributes:
        name: of the task, which is also part of the names of the runs' folders.
        file: name of the file of results.
        part: keys from the file's root to the task's tables.
        knobs: fields of a row that are chosen for each model; one of them is ``rate``.
        make: maps a row with a ``variant`` and the knobs to a model.
        loss: maps a model and a generator to the loss of a batch that is drawn with it.
        validate: maps a trained model to its error in validation.
        test: maps a trained model to the fields of a row, with the answers to all test samples.
        steps: of training, at equal steps.
        seeds: of the tables.
        settings: a model's name to the settings that are tried first.
        ladders: a model's name to the ladders of its search; a model without them is not searched.
        tried_steps: of training in the runs that choose a setting; None for ``steps``.
        timed_steps: at equal time, of the model whose time all get; None for ``steps``.
        reference: ``min`` if that is the fastest model, ``max`` if it is the slowest.
        trial_steps: of training with ``--small``.
        paced: steps per round when the paces are measured.
    """

    name: str
    file: str
    part: tuple[str, ...]
    knobs: tuple[str, ...]
    make: Callable[[Row], nn.Module]
    loss: Callable[[nn.Module, Generator], Tensor]
    validate: Callable[[nn.Module], float]
    test: Callable[[nn.Module], Row]
    steps: int
    seeds: tuple[int, ...]
    settings: Mapping[str, tuple[Setting, ...]]
    ladders: Mapping[str, Ladders] = field(default_factory=dict)
    tried_steps: int | None = None
    timed_steps: int | None = None
    reference: Reference = min
    trial_steps: int = 30
    paced: int = 30

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self.settings)

    @property
    def tuning_table(self) -> Table:
        """The tried settings."""
        return Table(self.file, ("variant", *self.knobs), (*self.part, "tuning"))

    @property
    def paces_table(self) -> Table:
        """The seconds of a step of each model."""
        return Table(self.file, ("variant",), (*self.part, "paces"))

    @property
    def runs_table(self) -> Table:
        """The runs of both budgets."""
        return Table(self.file, ("variant", "budget", "seed"), (*self.part, "runs"))

    def setting_of(self, row: Row) -> Setting:
        """Return the setting of a row."""
        return tuple(row[knob] for knob in self.knobs)

    def row_of(self, name: str, setting: Setting) -> Row:
        """Return the row of a model with a setting."""
        return {"variant": name} | dict(zip(self.knobs, setting, strict=True))

    def build(self, row: Row, seed: int) -> nn.Module:
        """Return the model of a row, drawn with a seed."""
        torch.manual_seed(seed)
        return self.make(row)

    def fit(self, model: nn.Module, rate: float, seed: int, steps: int) -> float:
        """Train by Adam with one cycle of the rate; return the CPU seconds it took."""
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        schedule = one_cycle(optimizer, rate, steps)
        loss = partial(self.loss, model)
        return train(model, optimizer, schedule, loss, seed=seed, steps=steps)

    def train_and_validate(self, cell: Cell, report: Report) -> Row:
        """Train with seed 0 and validate."""
        found, model = self._trained(cell, 0)
        return found | {"validation": self.validate(model)}

    def train_and_test(self, cell: Cell, report: Report) -> Row:
        """Train and test."""
        found, model = self._trained(cell, cell.settings["seed"])
        return found | self.test(model)

    def _trained(self, cell: Cell, seed: int) -> tuple[Row, nn.Module]:
        """Train the model of a cell; return its cost and the model."""
        cell.place.mkdir(parents=True, exist_ok=True)
        settings = cell.settings
        model = self.build(settings, seed)
        seconds = self.fit(model, settings["rate"], seed, settings["steps"])
        return {"seconds": round(seconds, 2), "parameters": parameters(model)}, model


def run_task(task: Task, options: Options, **about: Any) -> None:
    """Tune the models of ``--only``, or all, then run all seeds at equal steps and at equal time.

    Equal time needs the paces of all models, hence their chosen settings. It is left out if
    ``--only`` selects some of them.

    ``about`` are further fields at the root of the file of results.
    """
    names = options.chosen(task.models)
    steps, seeds = task.steps, task.seeds[: options.seeds]
    if options.small:
        steps, seeds = task.trial_steps, seeds[:1]

    def cell(row: Row) -> Cell:
        settings = {"task": task.name} | row | {"steps": row.get("steps", steps)}
        return own_cell(settings, options)

    def run_budget(budget: str, chosen: dict[str, Row], counts: dict[str, int]) -> None:
        rows = [
            chosen[name] | {"budget": budget, "seed": seed, "steps": counts[name]}
            for seed, name in product(seeds, names)
        ]
        fill(task.runs_table, rows, task.train_and_test, cell, options)

    chosen = choose(task, names, cell, options, **about)
    run_budget(EQUAL_STEPS, chosen, dict.fromkeys(names, steps))
    if set(names) != set(task.models):
        say("equal time needs all models: run the same command without --only")
        return
    measure_paces(task, chosen, options)
    run_budget(EQUAL_TIME, chosen, timed_steps(task, steps, options))


# --- choosing settings ----------------------------------------------------------------------------


def choose(
    task: Task, names: list[str], cell: Callable[[Row], Cell], options: Options, **about: Any
) -> dict[str, Row]:
    """Try settings until every model has its best one; return the models' rows by name."""
    planned = {name: set(task.settings[name]) for name in names}
    while True:
        rows = tries(task, planned, options)
        fill(task.tuning_table, rows, task.train_and_validate, cell, options, **about)
        tried = task.tuning_table.rows(options.results)
        chosen = {name: best(task, tried, name, planned[name]) for name in names}
        if options.small:
            return chosen

        wider = {
            name: planned[name] | adjacent(task, name, task.setting_of(chosen[name]))
            for name in names
        }
        if wider == planned:
            return chosen
        planned = wider


def tries(task: Task, planned: dict[str, set[Setting]], options: Options) -> list[Row]:
    """Return a row per model and planned setting."""
    shorter = {}
    if task.tried_steps is not None and not options.small:
        shorter = {"steps": task.tried_steps}
    return [
        task.row_of(name, setting) | shorter
        for name, settings in planned.items()
        for setting in sorted(settings, key=str)
    ]


def best(task: Task, tried: list[Row], name: str, planned: Iterable[Setting]) -> Row:
    """Return a model's setting with the least error in validation, as fields of a row.

    Raises:
        SystemExit: not all of its planned settings were tried.
    """
    wanted = set(planned)
    rows = [row for row in tried if row["variant"] == name and task.setting_of(row) in wanted]
    all_tried(rows, len(wanted), name)
    row = min(rows, key=validation_of)
    return task.row_of(name, task.setting_of(row))


def validation_of(row: Row, name: str = "validation") -> float:
    """Return a row's error in validation, a field ``name``; infinite for a model that diverged."""
    error = row[name]
    return error if math.isfinite(error) else math.inf


def adjacent(task: Task, name: str, setting: Setting) -> set[Setting]:
    """Return the settings one step away on one of a model's ladders."""
    found = set()
    for place, (knob, value) in enumerate(zip(task.knobs, setting, strict=True)):
        for other in beside(value, task.ladders.get(name, {}).get(knob, ())):
            found.add((*setting[:place], other, *setting[place + 1 :]))
    return found


def beside(value: Any, ladder: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the one or two values next to a value of a ladder; none of an empty ladder.

    Example:
        >>> beside(3, (1, 3, 9)), beside(9, (1, 3, 9)), beside(3, ())
        ((1, 9), (3,), ())
    """
    if not ladder:
        return ()
    at = ladder.index(value)
    return ladder[max(at - 1, 0) : at] + ladder[at + 1 : at + 2]


def at_ladder_ends(task: Task, rows: Iterable[Row]) -> str:
    """Say which models chose the first or the last value of a ladder, and which value.

    A knob whose values are words is not a ladder.
    """
    ends: dict[str, list[str]] = {}
    for name, runs in by_model(rows, task.models).items():
        for knob, ladder in task.ladders.get(name, {}).items():
            chosen = runs[0][knob]
            if chosen in (ladder[0], ladder[-1]) and not isinstance(chosen, str):
                ends.setdefault(name, []).append(f"{knob} {chosen:g}")
    if not ends:
        return "No setting was chosen at the end of a ladder."
    who = "; ".join(f"{name} ({listed(values)})" for name, values in ends.items())
    return f"Chosen at the end of a ladder, beyond which a better setting may lie: {who}."


# --- equal time -----------------------------------------------------------------------------------


def measure_paces(task: Task, chosen: dict[str, Row], options: Options) -> None:
    """Measure the CPU seconds of a training step once, since they determine the second table.

    Of several processes one measures, and the others wait for its rows.
    """
    with FileLock(options.results / f".{task.file}.paces.lock"):
        if task.paces_table.rows(options.results):
            return
        models = {}
        for name, row in chosen.items():
            models[name] = partial(task.fit, task.build(row, 0), row["rate"])
        rounds, steps = ROUNDS, task.paced
        if options.small:
            rounds, steps = 1, task.trial_steps
        seconds = step_seconds(models, rounds, steps)
        task.paces_table.add(pace_rows(seconds), options.results)


def timed_steps(task: Task, steps: int, options: Options) -> dict[str, int]:
    """Return each model's steps at equal time."""
    counted = steps
    if task.timed_steps is not None and not options.small:
        counted = task.timed_steps
    paces = {row["variant"]: row["step"] for row in task.paces_table.rows(options.results)}
    return equal_time_steps(paces, counted, task.reference)
