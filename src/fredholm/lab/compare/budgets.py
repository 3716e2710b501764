"""Equal budgets: the width of each operator's model solved so that its parameters or FLOPs are
those of the reference.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ... import models
from ...errors import FredholmError, OptionError
from .. import data
from ..training.build import build_model
from ..training.recipe import Recipe
from ..training.recipe_files import load_recipe
from ..training.tasks import task_of
from .tasks import ComparedTask, Contender, options_of

BUDGETS = ("params", "flops", "time")
TOLERANCE = 0.05
WIDEST = 4  # times the reference's width
REFERENCE = Contender("softmax", "softmax", {})


@dataclass(frozen=True)
class Size:
    """A model of a comparison: its width, parameters, FLOPs of one sample forward, and how far the
    budget is missed (0.03: 3% over).
    """

    dim: int
    parameters: int
    flops: int
    off: float


def make_recipe(task: ComparedTask, contender: Contender, changes: tuple[str, ...] = ()) -> Recipe:
    """The recipe of one contender on a task."""
    operator = json.dumps({"name": contender.name, **options_of(task, contender)})
    source = deepcopy(task.recipe)  # overrides change plain data
    return load_recipe(source, [*task.overrides, *changes, f"operator={operator}"])


def count_points(dataset: Any, model: Any) -> int:
    """Points of one sample of full length, as a model's encoder makes them."""
    with torch.no_grad():
        return int(model.eval().encoder(dataset.example())[1].size)


def count_flops(model: torch.nn.Module, inputs: Any, *, backward: bool = False) -> int:
    """FLOPs of one pass, counted while it runs."""
    model.eval()
    # Fused attention on a CPU has no formula; its plain form is the same matrix products.
    with (
        models.counter() as counted,
        torch.set_grad_enabled(backward),
        sdpa_kernel(SDPBackend.MATH),
    ):
        out = model(inputs)
        if backward:
            out.square().sum().backward()
    return counted.get_total_flops()


def solve_size(
    task: ComparedTask,
    contender: Contender,
    dataset: Any,
    budget: str,
    changes: tuple[str, ...] = (),
) -> Size:
    """The width at which a contender's model comes nearest to the reference's budget; ``time``
    matches parameters.

    Widths are multiples of the heads, and even; the reference is softmax attention at the task's
    own width.

    Raises:
        OptionError: an unknown budget.
        RecipeError: the operator cannot be built for the task.
    """
    if budget not in BUDGETS:
        raise OptionError(f"budget: received {budget!r}; needs one of {', '.join(BUDGETS)}")
    cost = _cost(task, contender, dataset, budget, changes)
    target = _cost(task, REFERENCE, dataset, budget, changes)(None)
    model: Any = build_model(make_recipe(task, contender, changes), dataset)
    config = model.config.body
    step = config.heads * (2 if config.heads % 2 else 1)
    low, high = 1, WIDEST * config.dim // step
    while low < high:  # the cost grows with the width: the first one that is not below the target
        middle = (low + high) // 2
        low, high = (low, middle) if cost(middle * step) >= target else (middle + 1, high)
    dim = min((k * step for k in {max(1, low - 1), low}), key=lambda d: abs(cost(d) - target))
    recipe = make_recipe(task, contender, (*changes, f"model.body.dim={dim}"))
    model = build_model(recipe, dataset)
    parameters = sum(p.numel() for p in model.parameters())
    return Size(dim, parameters, count_flops(model, dataset.example()), cost(dim) / target - 1)


def _cost(
    task: ComparedTask, contender: Contender, dataset: Any, budget: str, changes: tuple[str, ...]
) -> Callable[[int | None], float]:
    known: dict[int | None, float] = {}

    def cost(dim: int | None) -> float:
        if dim not in known:
            recipe = make_recipe(
                task, contender, (*changes, *(() if dim is None else (f"model.body.dim={dim}",)))
            )
            model = build_model(recipe, dataset)
            if budget == "flops":
                known[dim] = count_flops(model, dataset.example())
            else:
                known[dim] = sum(p.numel() for p in model.parameters())
        return known[dim]

    return cost


def epochs_in(recipe: Recipe, dataset: Any, minutes: float, steps: int = 5) -> int:
    """How many epochs fit in the minutes, from the median time of a few training steps on this
    machine, now; at least one.

    Raises:
        OptionError: minutes that are not positive.
    """
    if not minutes > 0:
        raise OptionError(f"minutes: received {minutes}; needs a positive number")
    seconds = step_seconds(recipe, dataset, steps)
    return max(1, int(60 * minutes / (seconds * max(1, len(dataset) // recipe.data.batch_size))))


def step_seconds(recipe: Recipe, dataset: Any, steps: int = 5) -> float:
    """Median seconds of a training step (forward, backward, AdamW) after one that
    does not count.
    """
    model: Any = build_model(recipe, dataset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = iter(
        data.make_loader(dataset, recipe.data.batch_size, seed=0, shuffle=True, drop_last=True)
    )
    inputs, labels = next(batches)
    times, task = [], task_of(dataset)
    for _ in range(steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        task.loss(model(inputs), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return float(torch.tensor(times[1:]).median())


def refusal(
    task: ComparedTask, contender: Contender, dataset: Any, changes: tuple[str, ...]
) -> str | None:
    """Why an operator cannot serve a task, such as a convolution on points without a grid; None
    where it can.
    """
    try:
        model = build_model(make_recipe(task, contender, changes), dataset)
        with torch.no_grad():
            model.eval()(dataset.example())
    except FredholmError as error:
        return str(error)
    return None
