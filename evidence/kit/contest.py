"""Contests of models at equal steps and at equal time: training, choice of settings, timing, tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from time import process_time
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fredholm.lab.training.grid import Cell, safe_name

from .grid import Row
from .machine import describe, machine_line
from .page import spread, table
from .subject import Options

EQUAL_STEPS, EQUAL_TIME = "equal steps", "equal time"
CLIP = 1.0
"""Largest norm of a gradient."""
DIVERGED = 10.0
"""An error of 1,000%, above which a mean over seeds says nothing."""
NOT_RUN = "Not run yet."

Train = Callable[[int, int], float]
"""Trains a model with a seed for a number of steps, and returns the CPU seconds that it took."""
Reference = Callable[[Iterable[float]], float]
"""``min`` or ``max``: chooses a time among those of all models."""


# --- training -------------------------------------------------------------------------------------


def one_cycle(optimizer: torch.optim.Optimizer, rate: float, steps: int) -> LRScheduler:
    """Return a schedule of one cycle, whose rate rises in the first tenth of the steps.

    Of three steps or more it rises in two at least: PyTorch's schedule divides by one less.
    """
    rise = 0.1
    if steps > 2:
        rise = max(rise, 2 / steps)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=rise)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler,
    loss: Callable[[Generator], Tensor],
    *,
    seed: int,
    steps: int,
) -> float:
    """Train a model; return the CPU seconds that it took.

    Args:
        model: the model; its gradients are clipped to a norm of :data:`CLIP`.
        optimizer: of its parameters.
        schedule: advances after every step.
        loss: returns the loss of a batch, which it draws with the generator.
        seed: of the generator.
        steps: number of steps.
    """
    generator = torch.Generator().manual_seed(seed)
    model.train()
    start = process_time()
    for _ in range(steps):
        found = loss(generator)
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
    return process_time() - start


def parameters(model: nn.Module) -> int:
    """Return the number of real parameters; a complex one counts twice."""
    return sum(p.numel() * (1 + p.is_complex()) for p in model.parameters())


# --- choice of settings, and rows -----------------------------------------------------------------


def all_tried(rows: Sequence[Row], planned: int, name: str, settings: str = "settings") -> None:
    """Check that the settings of a model were all tried, before the best one is chosen.

    Raises:
        SystemExit: fewer rows than planned.
    """
    if len(rows) < planned:
        raise SystemExit(
            f"{name}: expected {planned} tried {settings}, got {len(rows)}; run the same command "
            "again"
        )


def own_cell(settings: Row, options: Options) -> Cell:
    """Return the cell of a row, whose folder is named after all of its settings."""
    label = safe_name(" ".join(str(value) for value in settings.values()))
    return Cell(settings, options.runs / label)


def by_model(rows: Iterable[Row], names: Iterable[str]) -> dict[str, list[Row]]:
    """Group rows by model, in the order of ``names`` and without models that have no rows.

    Example:
        >>> by_model([{"variant": "b", "seed": 0}], ["a", "b"])
        {'b': [{'variant': 'b', 'seed': 0}]}
    """
    known = list(rows)
    groups = {name: [row for row in known if row["variant"] == name] for name in names}
    return {name: found for name, found in groups.items() if found}


# --- equal time -----------------------------------------------------------------------------------


def step_seconds(models: Mapping[str, Train], rounds: int, steps: int) -> dict[str, float]:
    """Return the CPU seconds of each model's training step, medians over rounds.

    The rounds alternate between the models, so that other work on the machine slows all of them.
    The number of a round is its seed, so that all models read the same batches in it.

    Args:
        models: a model's name to its function that trains it.
        rounds: number of rounds.
        steps: training steps of every model in a round.

    Example:
        >>> models = {"slow": lambda seed, steps: 3.0 * steps, "fast": lambda seed, steps: 1.0 * steps}
        >>> step_seconds(models, 3, 2)
        {'slow': 3.0, 'fast': 1.0}
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number, (name, train_model) in product(range(rounds), models.items()):
        seconds[name].append(train_model(number, steps) / steps)
    return {name: statistics.median(values) for name, values in seconds.items()}


def pace_rows(seconds: Mapping[str, float], **task: Any) -> list[Row]:
    """Return a row per model with the seconds of its step and the machine they were measured on.

    Args:
        seconds: per training step, by model.
        task: fields of all rows.
    """
    machine = describe()
    return [
        task | {"variant": name, "step": step, "machine": machine} for name, step in seconds.items()
    ]


def paced_on(paces: Iterable[Row], first: dict[str, Any]) -> str:
    """Format a line about each machine on which the paces were measured.

    Args:
        paces: rows of the paces; those without a machine are older than its record.
        first: the machine of the file's first run, which is that of such rows.

    Example:
        >>> old, new = ({"processor": name, "threads": 1, "torch": "2.13"} for name in "ab")
        >>> paced_on([{"step": 1.0}, {"step": 1.0, "machine": new}], old)
        'a, 1 threads, torch 2.13. b, 1 threads, torch 2.13.'
    """
    lines = [machine_line(row.get("machine", first)) for row in paces]
    return " ".join(dict.fromkeys(lines)) or machine_line(first)


def equal_time_steps(
    seconds: Mapping[str, float], steps: int, reference: Reference = min
) -> dict[str, int]:
    """Return the steps that each model can do in the time of one of them, at least two.

    Args:
        seconds: per training step, by model.
        steps: of the model whose time all get.
        reference: ``min`` if this is the fastest model, ``max`` if it is the slowest.

    Example:
        >>> equal_time_steps({"slow": 3.0, "fast": 1.0, "stuck": 1_000.0}, 30)
        {'slow': 10, 'fast': 30, 'stuck': 2}
        >>> equal_time_steps({"slow": 3.0, "fast": 1.0}, 30, reference=max)
        {'slow': 30, 'fast': 90}
    """
    allowed = reference(seconds.values())
    return {name: max(2, round(steps * allowed / pace)) for name, pace in seconds.items()}


# --- tables ---------------------------------------------------------------------------------------


def score_table(
    models: Iterable[str],
    rows: Iterable[Row],
    errors: Mapping[str, str],
    settings: Mapping[str, Callable[[Row], object]],
) -> str:
    """Return a table with one row per model: errors in percent, cost and settings.

    Args:
        models: in the order of the rows.
        rows: the runs.
        errors: heads of the errors' columns to their names in a run.
        settings: heads of the last columns to functions that read them from a run.
    """
    lines = []
    for name, runs in by_model(rows, models).items():
        first = runs[0]
        shown = [error(run[key] for run in runs) for key in errors.values()]
        seconds = spread((run["seconds"] for run in runs), scale=1.0)
        facts = first["steps"], seconds, len(runs), f"{first['parameters']:,}"
        lines.append((name, *shown, *facts, *(read(first) for read in settings.values())))
    if not lines:
        return NOT_RUN
    heads = "steps", "CPU seconds", "seeds", "parameters"
    return table(("model", *errors, *heads, *settings), lines)


def error(values: Iterable[float]) -> str:
    """Format errors of several seeds in percent; after a seed diverged, their median and range.

    Example:
        >>> error([0.01, 0.02]), error([0.01, 0.5, 4e7])
        ('1.50 ± 0.71', 'median 50.00 (1.00 to 4e+09)')
    """
    known = list(values)
    if max(known) < DIVERGED:
        return spread(known, digits=2)
    median, least, most = statistics.median(known), min(known), max(known)
    return f"median {100 * median:.2f} ({100 * least:.2f} to {100 * most:.0e})"
