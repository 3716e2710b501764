"""Every operator in its element: sizes made equal, a learning rate of each chosen on validation,
then five seeds whose test split is read once.

``elements.json`` grows by sizes, tried rates and runs; what is there is not computed again.
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
    """The tasks and operators of ``--only``, or all; task by task, so that a part of them makes
    whole rows.

    Raises:
        SystemExit: some trainings failed; the same command tries them again.
    """
    wanted = options.chosen([*ELEMENTS, *CLASSICAL, *OURS])
    failed, end = [], time.monotonic() + 60 * options.minutes
    for element in [ELEMENTS[n] for n in wanted if n in ELEMENTS] or ELEMENTS.values():
        names = [n for n in element.operators if n in wanted]
        for name in names or element.operators:
            left = replace(options, minutes=(end - time.monotonic()) / 60, only=())
            if left.minutes <= 0:
                return
            try:
                contest(element, name, left)
            except SystemExit as error:
                failed.append(str(error))
    if failed:
        raise SystemExit("\n".join(failed))


def contest(element: Element, name: str, options: Options) -> None:
    """One operator on one task: its size, its rates, its seeds."""
    size = size_of(element, name, options)
    if "refused" in size:
        return
    task = task_of(element, size)
    rates = RATES[:2] if options.small else RATES
    seeds = options.seeds or (SMALL_SEEDS if options.small else SEEDS)
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
    """The task as an operator reads it."""
    own = element.instead if size["instead"] else ()
    return replace(element.task, overrides=(*element.task.overrides, *own))


def size_of(element: Element, name: str, options: Options) -> Row:
    """The width that gives an operator as many parameters as softmax attention has, or why it
    refuses the task; solved once.
    """
    key = {"task": element.name, "operator": name}
    for row in SIZES.rows(options.results):
        if all(row[k] == v for k, v in key.items()):
            return row
    found: Row = {}
    for instead in (False, True) if element.instead else (False,):
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
    """The task's training split, read once in a process."""
    return _training_set(task.recipe, task.overrides)


def make_cell(
    task: ComparedTask, element: Element, size: Row, row: Row, stage: str, options: Options
) -> Cell:
    """A training; two stages of it share its folder, and the second finds the first's model."""
    name = safe_name(f"{row['task']} {row['operator']} {row['rate']:g} {row['seed']}")
    contender = Contender(row["operator"], row["operator"], {})
    own = (
        f"model.body.dim={size['dim']}",
        f"optimizer.lr={row['rate']:g}",
        *options.trial,
        f"seed={row['seed']}",
        f"name={name}",
    )
    cell = recipe_cell(make_recipe(task, contender, own), options.runs / name)
    how = {"stage": stage, "under": list(element.under), "checked": str(element.checked)}
    return replace(cell, settings=cell.settings | how, given=(cell.given, element))


def validated(cell: Cell, report: Report) -> Row:
    """Train, and validate under the element's condition; the test split is not read."""
    recipe, element = cell.given
    facts = trained(replace(cell, given=recipe), report)
    return facts | {"val": score_at(cell, *element.checked)}


def tested(cell: Cell, report: Report) -> Row:
    """Train, validate, and read the test split."""
    found = validated(cell, report)
    scores = evaluate(cell.place, "test", cell.given[1].under, trust_code=True, each=True)
    answers = answers_of(scores, "score")
    return found | {"score": scores.get("accuracy", scores["loss"]), "answers": answers}


def score_at(cell: Cell, split: str, overrides: tuple[str, ...]) -> float:
    """Accuracy, or the loss of what has none; the code that a recipe here imports is ours."""
    found = evaluate(cell.place, split, overrides, trust_code=True)
    return found.get("accuracy", found["loss"])


def upwards(task: str) -> bool:
    """Whether more is better."""
    return "accuracy" in ELEMENTS[task].shown


def best_rate(rows: list[Row], task: str, operator: str, count: int) -> float | None:
    """The rate with the best validation; None where one of so many is missing.

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
