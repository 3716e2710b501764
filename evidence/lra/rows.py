"""The Long Range Arena at CPU size: one backbone and recipe, four attentions, short ListOps and
bytes of movie reviews. Nothing but the attention differs between the rows of a table; each recipe's
learning rate is the same for all, and none was tuned.
"""

from __future__ import annotations

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
TASKS = {
    "listops": (
        "ListOps, 10 to 50 symbols, depth 4, at most 5 arguments",
        "lra-listops",
        [
            "data.options={min_length: 10, max_length: 50, max_depth: 4, max_args: 5, train: "
            "10000, val: 500, test: 2000}",
            "data.batch_size=128",
            "training.epochs=6",
        ],
    ),
    "text": (
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
    """The tasks and attentions of ``--only``, or all."""
    wanted = options.chosen([*TASKS, *ATTENTIONS])
    rows = [
        {"task": task, "attention": attention, "seed": seed}
        for seed in range(options.seeds or 1)
        for task in [name for name in TASKS if name in wanted] or TASKS
        for attention in [name for name in ATTENTIONS if name in wanted] or ATTENTIONS
    ]

    def cell(row: Row) -> Cell:
        _, recipe, own = TASKS[row["task"]]
        label = f"{row['task']}-{row['attention'].replace(' ', '')}-{row['seed']}"
        overrides = [f"operator={ATTENTIONS[row['attention']]}", f"seed={row['seed']}", *own]
        chosen = load_recipe(recipe, [*overrides, *options.trial, f"name={label}"])
        return recipe_cell(chosen, options.runs / label)

    command = "python -m evidence run lra"
    fill(TABLE, rows, work, cell, options, machine=describe(), command=command)


def work(cell: Cell, report: Report) -> Row:
    """Train and evaluate one model."""
    facts, scores = scores_of(cell, report, each=True)
    shown = {key: scores[key] for key in ("accuracy", "loss")}
    return shown | facts | {"answers": answers_of(scores)}


def rows_of(runs: Rows, task: str) -> Rows:
    """The runs of a task, their attention as the variant."""
    return [{**run, "variant": run["attention"]} for run in runs if run["task"] == task]


def ahead(task: str, other: str) -> Sample:
    """LUNA's accuracy less that of another attention."""
    return lambda runs: paired(rows_of(runs, task), "luna", other)


CLAIMS = [
    Claim(
        f"{'ListOps' if task == 'listops' else 'Text'}: LUNA above {other}",
        f"{PUBLISHED['LUNA']} over {published}, means of five tasks",
        ahead(task, other),
        digits=1,
    )
    for task in TASKS
    for other, published in (("softmax", PUBLISHED["softmax"]), ("hedgehog", PUBLISHED["Hedgehog"]))
]
