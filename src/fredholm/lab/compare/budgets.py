"""Equal budgets: the width at which an operator's model has as many parameters, or FLOPs, as the
reference.
"""

from __future__ import annotations

import json
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ... import models
from ...errors import FredholmError, OptionError
from ..training.build import build_model
from ..training.fit import Double
from ..training.module import autocast_of
from ..training.recipe import Recipe
from ..training.recipe_files import load_recipe
from ..training.tasks import task_of
from .tasks import ComparedTask, Contender, options_of

BUDGETS = ("params", "flops", "time")

# Times the reference's width, where the search for a width ends.
WIDEST = 4

REFERENCE = Contender("softmax", "softmax", {})


@dataclass(frozen=True)
class Size:
    """Size of a model in a comparison.

    Attributes:
        dim: width of the body.
        parameters: of the model.
        flops: of one sample forward.
        off: relative distance from the budget (0.03: 3% over).
    """

    dim: int
    parameters: int
    flops: int
    off: float


def make_recipe(
    task: ComparedTask,
    contender: Contender,
    changes: tuple[str, ...] = (),
) -> Recipe:
    """Return the recipe of one contender on a task, with further overrides ``changes``."""
    operator = json.dumps({"name": contender.name, **options_of(task, contender)})
    # Overrides change plain data in place.
    source = deepcopy(task.recipe)
    overrides = [*task.overrides, *changes, f"operator={operator}"]
    return load_recipe(source, overrides)


def width_override(dim: int) -> str:
    """Return the override of a recipe that sets the width of the body."""
    return f"model.body.dim={dim}"


def count_points(dataset: Any, model: Any) -> int:
    """Return the number of points that a model's encoder makes of one sample of full length."""
    with torch.no_grad():
        _, domain = model.eval().encoder(dataset.example())
    return int(domain.size)


def count_flops(model: torch.nn.Module, inputs: Any) -> int:
    """Return the FLOPs of one forward pass, counted while it runs."""
    model.eval()
    # Fused attention on a CPU has no formula; its plain form is the same matrix products.
    with models.counter() as counted, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(inputs)
    return counted.get_total_flops()


def solve_size(
    task: ComparedTask,
    contender: Contender,
    dataset: Any,
    budget: str,
    changes: tuple[str, ...] = (),
) -> Size:
    """Find the width at which a contender's model comes nearest to the reference's budget.

    Widths are even multiples of the heads. The reference is softmax attention at the task's own
    width. Builds about log2(widths) models, and with ``flops`` runs each of them once.

    Args:
        budget: one of :data:`BUDGETS`; ``time`` matches parameters.

    Raises:
        RecipeError: the operator cannot be built for the task.
    """
    target = _cost_by_width(task, REFERENCE, dataset, budget, changes)(None)
    cost = _cost_by_width(task, contender, dataset, budget, changes)
    model: Any = build_model(make_recipe(task, contender, changes), dataset)
    config = model.config.body

    step = config.heads
    if step % 2:
        step *= 2

    # The cost grows with the width: find the first multiple that is not below the target.
    multiples = range(1, WIDEST * config.dim // step)
    first = 1 + bisect_left(multiples, target, key=lambda k: cost(k * step))
    around = (max(1, first - 1), first)
    nearest = min(around, key=lambda k: abs(cost(k * step) - target))
    dim = nearest * step

    recipe = make_recipe(task, contender, (*changes, width_override(dim)))
    model = build_model(recipe, dataset)
    flops = count_flops(model, dataset.example())
    off = cost(dim) / target - 1
    return Size(dim, _count_parameters(model), flops, off)


def _cost_by_width(
    task: ComparedTask,
    contender: Contender,
    dataset: Any,
    budget: str,
    changes: tuple[str, ...],
) -> Callable[[int | None], float]:
    """Return the cost of a contender's model as a function of its width (None: the task's own)."""

    @cache
    def cost(dim: int | None) -> float:
        overrides = changes
        if dim is not None:
            overrides = (*changes, width_override(dim))
        model = build_model(make_recipe(task, contender, overrides), dataset)
        if budget == "flops":
            return count_flops(model, dataset.example())
        return _count_parameters(model)

    return cost


def _count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def epochs_in(recipe: Recipe, dataset: Any, minutes: float, steps: int = 5) -> int:
    """Return how many epochs fit in the minutes, at least one.

    The estimate is the median time of a few batches on this machine, now.

    Raises:
        OptionError: minutes that are not positive.
    """
    if not minutes > 0:
        raise OptionError(f"minutes: expected a positive number, got {minutes}; give more time")

    # Seconds per batch. The first call of a model is slower and does not count.
    size = recipe.data.batch_size
    model = build_model(recipe, dataset)
    times = batch_times(model, recipe, dataset, size, steps + 1, time.perf_counter)
    batches_per_epoch = max(1, len(dataset) // size)
    epoch = statistics.median(times[1:]) * batches_per_epoch
    return max(1, int(60 * minutes / epoch))


def batch_times(
    model: torch.nn.Module,
    recipe: Recipe,
    dataset: Any,
    batch: int,
    repeats: int,
    timer: Callable[[], float],
) -> list[float]:
    """Return the seconds of training batches in the recipe's precision: read the batch, forward,
    backward, AdamW.

    With the precision 64 the model's weights are in float64 afterwards.
    """
    double = recipe.training.precision == "64"
    if double:
        model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    task = task_of(dataset)
    chosen = torch.arange(min(batch, len(dataset)))
    model.train()

    times = []
    for _ in range(repeats):
        start = timer()
        inputs, labels = dataset.batch(chosen)
        if double:
            inputs, labels = map(Double().convert_input, (inputs, labels))
        optimizer.zero_grad()
        with autocast_of(recipe, torch.device("cpu")):
            loss = task.loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
        times.append(timer() - start)
    return times


def refusal(
    task: ComparedTask,
    contender: Contender,
    dataset: Any,
    changes: tuple[str, ...],
) -> str | None:
    """Return why an operator cannot serve a task, such as a convolution on points without a grid,
    or None where it can.
    """
    try:
        model = build_model(make_recipe(task, contender, changes), dataset)
        with torch.no_grad():
            model.eval()(dataset.example())
    except FredholmError as error:
        return str(error)
    return None
