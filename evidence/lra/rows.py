"""The Long Range Arena at CPU size: four attentions on short ListOps and on bytes of movie reviews.

The rows of a table differ only in the attention. The learning rate of a recipe is the same for all
and was not tuned.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from fredholm.lab.training.grid import Cell, Report, recipe_cell, scores_of
from fredholm.training import load_recipe

from ..kit.answers import answers_of
from ..kit.claims import Claim, Sample
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.statistics import Rows, paired
from ..kit.subject import Options

TABLE = Table("lra.json", ("task", "attention", "seed"))
ATTENTIONS = {
    "softmax": "softmax",
    "luna": "luna",
    "elu + 1": "{name: linear_attention, feature_map: elu}",
    "hedgehog": "{name: linear_attention, feature_map: hedgehog, feature_options: {softmax: true}}",
}


class Task(NamedTuple):
    """A task with its recipe and overrides; ``label`` names it in claims."""

    label: str
    title: str
    recipe: str
    overrides: list[str]


TASKS = {
    "listops": Task(
        "ListOps",
        "ListOps, 10 to 50 symbols, depth 4, at most 5 arguments",
        "lra-listops",
        [
            "data.options={min_length: 10, max_length: 50, max_depth: 4, max_args: 5, train: "
            "10000, val: 500, test: 2000}",
            "data.batch_size=128",
            "training.epochs=6",
        ],
    ),
    "text": Task(
        "Text",
        "Bytes of movie reviews, the first 128 of 4,000: a stand-in for the Arena's Text task",
        "lra-text",
        ["data.max_length=128", "data.limit=4000", "training.epochs=5"],
    ),
}
PUBLISHED = {
    "softmax": 58.14,
    "Skyformer": 59.39,
    "Hedgehog": 59.66,
    "PolaFormer": 60.72,
    "LOTFormer": 62.9,
    "LUNA": 65.44,
}


def run(options: Options) -> None:
    """Train the tasks and attentions of ``--only``, or all."""
    wanted = options.chosen([*TASKS, *ATTENTIONS])
    tasks = [name for name in TASKS if name in wanted] or list(TASKS)
    attentions = [name for name in ATTENTIONS if name in wanted] or list(ATTENTIONS)
    rows = [
        {"task": task, "attention": attention, "seed": seed}
        for seed, task, attention in product(range(options.seeds or 1), tasks, attentions)
    ]

    def cell(row: Row) -> Cell:
        task = TASKS[row["task"]]
        label = f"{row['task']}-{row['attention'].replace(' ', '')}-{row['seed']}"
        operator = f"operator={ATTENTIONS[row['attention']]}"
        overrides = [operator, f"seed={row['seed']}", *task.overrides]
        recipe = load_recipe(task.recipe, [*overrides, *options.trial, f"name={label}"])
        return recipe_cell(recipe, options.runs / label)

    command = "python -m evidence run lra"
    fill(TABLE, rows, work, cell, options, machine=describe(), command=command)


def work(cell: Cell, report: Report) -> Row:
    """Train and evaluate a model."""
    facts, scores = scores_of(cell, report, each=True)
    shown = {key: scores[key] for key in ("accuracy", "loss")}
    return shown | facts | {"answers": answers_of(scores)}


def rows_of(runs: Rows, task: str) -> Rows:
    """Return the runs of a task, with the attention as the variant."""
    return [{**run, "variant": run["attention"]} for run in runs if run["task"] == task]


def ahead(task: str, other: str) -> Sample:
    """Return a sample: LUNA's accuracy minus that of another attention, per seed."""
    return lambda runs: paired(rows_of(runs, task), "luna", other)


CLAIMS = [
    Claim(
        f"{task.label}: LUNA above {other}",
        f"{PUBLISHED['LUNA']} over {published}, means of five tasks",
        ahead(name, other),
        digits=1,
    )
    for name, task in TASKS.items()
    for other, published in (("softmax", PUBLISHED["softmax"]), ("hedgehog", PUBLISHED["Hedgehog"]))
]
