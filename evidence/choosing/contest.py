"""The contest on the tasks of :mod:`.elements`.

All operators get the same number of parameters. The learning rate of each is chosen on validation;
then five seeds are trained and read the test split once. ``elements.json`` grows by sizes, tried
rates and runs, and none of them is computed twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from fredholm.lab.compare.budgets import REFERENCE, make_recipe, refusal, solve_size
from fredholm.lab.compare.tasks import ComparedTask, Contender
from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.grid import Cell, Report, recipe_cell, safe_name, trained
from fredholm.training import evaluate

from ..kit.answers import answers_of
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.subject import Options
from .elements import CLASSICAL, ELEMENTS, OURS, RATES, SEEDS, Element

FILE = "elements.json"
SIZES = Table(FILE, ("task", "operator"), ("sizes",))
TUNING = Table(FILE, ("task", "operator", "rate"), ("tuning",))
RUNS = Table(FILE, ("task", "operator", "seed"))
SMALL_SEEDS = 1


def run(options: Options) -> None:
    """Run the contest for the tasks and operators of ``--only``, or for all.

    It goes task by task, so that an interrupted run has complete rows of the decision table.

    Raises:
        SystemExit: some trainings failed; the same command tries them again.
    """
    wanted = options.chosen([*ELEMENTS, *CLASSICAL, *OURS])
    elements = [ELEMENTS[name] for name in wanted if name in ELEMENTS]
    failed: list[str] = []
    end = time.monotonic() + 60 * options.minutes
    for element in elements or ELEMENTS.values():
        operators = [name for name in element.operators if name in wanted]
        for operator in operators or element.operators:
            remaining = replace(options, minutes=(end - time.monotonic()) / 60, only=())
            if remaining.minutes <= 0:
                return
            try:
                contest(element, operator, remaining)
            except SystemExit as error:
                failed.append(str(error))
    if failed:
        raise SystemExit("\n".join(failed))


def contest(element: Element, name: str, options: Options) -> None:
    """Train one operator on one task: solve its size, choose its rate, run its seeds."""
    size = size_of(element, name, options)
    if "refused" in size:
        return
    task = task_of(element, size)
    rates, seeds = RATES, SEEDS
    if options.small:
        rates, seeds = RATES[:2], SMALL_SEEDS
    seeds = options.seeds or seeds
    about = {"machine": describe(), "rates": list(RATES)}
    row = {"task": element.name, "operator": name}

    def cell(stage: str) -> Callable[[Row], Cell]:
        return lambda row: make_cell(task, element, size, row, stage, options)

    tries = [row | {"rate": rate, "seed": 0} for rate in rates]
    fill(TUNING, tries, validated, cell("validation"), options, **about)
    rate = best_rate(TUNING.rows(options.results), element.name, name, len(rates))
    if rate is not None:
        chosen = [row | {"rate": rate, "seed": seed} for seed in range(seeds)]
        fill(RUNS, chosen, tested, cell("test"), options, **about)


def task_of(element: Element, size: Row) -> ComparedTask:
    """Return the task in the variant that an operator accepts."""
    overrides = element.task.overrides
    if size["instead"]:
        overrides = (*overrides, *element.instead)
    return replace(element.task, overrides=overrides)


def size_of(element: Element, name: str, options: Options) -> Row:
    """Return the size of an operator for a task, from the file or solved and added to it.

    The width gives the model as many parameters as with softmax attention. If the operator refuses
    all variants of the task, the row has the reason under ``refused``.
    """
    key = {"task": element.name, "operator": name}
    for row in SIZES.rows(options.results):
        if all(row[k] == v for k, v in key.items()):
            return row

    found: Row = {}
    variants = (False, True) if element.instead else (False,)
    for instead in variants:
        found = key | {"instead": instead}
        task, contender = task_of(element, found), Contender(name, name, {})
        dataset = training_set(task)
        why = refusal(task, contender, dataset, ())
        if why is None:
            size = solve_size(task, contender, dataset, "params")
            found |= {"dim": size.dim, "parameters": size.parameters, "off": size.off}
            break
        found["refused"] = why
    SIZES.add([found], options.results)
    return found


@cache
def _training_set(recipe: str, overrides: tuple[str, ...]) -> Any:
    return build_dataset(make_recipe(ComparedTask("", "", recipe, overrides), REFERENCE), "train")


def training_set(task: ComparedTask) -> Any:
    """Return the task's training split, which each process reads once."""
    return _training_set(task.recipe, task.overrides)


def make_cell(
    task: ComparedTask, element: Element, size: Row, row: Row, stage: str, options: Options
) -> Cell:
    """Return the cell of one training.

    Both stages, validation and test, share the folder, so the second reuses the first's model.
    """
    name = safe_name(f"{row['task']} {row['operator']} {row['rate']:g} {row['seed']}")
    contender = Contender(row["operator"], row["operator"], {})
    overrides = (
        f"model.body.dim={size['dim']}",
        f"optimizer.lr={row['rate']:g}",
        *options.trial,
        f"seed={row['seed']}",
        f"name={name}",
    )
    cell = recipe_cell(make_recipe(task, contender, overrides), options.runs / name)
    condition = {"stage": stage, "under": list(element.under), "checked": str(element.checked)}
    return replace(cell, settings=cell.settings | condition, given=(cell.given, element))


def validated(cell: Cell, report: Report) -> Row:
    """Train and validate under the element's condition, without reading the test split."""
    recipe, element = cell.given
    facts = trained(replace(cell, given=recipe), report)
    return facts | {"val": score_at(cell, *element.checked)}


def tested(cell: Cell, report: Report) -> Row:
    """Train, validate, and evaluate on the test split."""
    found = validated(cell, report)
    _, element = cell.given
    scores = evaluate(cell.place, "test", element.under, trust_code=True, each=True)
    answers = answers_of(scores, "score")
    return found | {"score": scores.get("accuracy", scores["loss"]), "answers": answers}


def score_at(cell: Cell, split: str, overrides: tuple[str, ...]) -> float:
    """Return the accuracy of a run, or its loss for a task without accuracy."""
    # The recipes of this folder import our own code, so it is trusted.
    found = evaluate(cell.place, split, overrides, trust_code=True)
    return found.get("accuracy", found["loss"])


def upwards(task: str) -> bool:
    """Return whether a larger score of the task is better."""
    return "accuracy" in ELEMENTS[task].shown


def best_rate(rows: list[Row], task: str, operator: str, count: int) -> float | None:
    """Return the rate with the best validation, or None if fewer than ``count`` were tried.

    Example:
        >>> rows = [{"task": "lost", "operator": "gru", "rate": r, "val": v}
        ...         for r, v in ((1e-3, 0.5), (3e-3, 0.7))]
        >>> best_rate(rows, "lost", "gru", 2), best_rate(rows, "lost", "gru", 3)
        (0.003, None)
    """
    mine = [row for row in rows if (row["task"], row["operator"]) == (task, operator)]
    if len(mine) < count:
        return None
    sign = 1 if upwards(task) else -1
    return max(mine, key=lambda row: sign * row["val"])["rate"]
