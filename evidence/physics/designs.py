"""The contest on forces between charges in which the designs of all models are searched.

In the contest with larger rates only ITNet's design had been searched, by hand. Here every model that
reads displacements moves on the same four ladders: rate, bandwidth, hidden layers of the network of a
pair, and residual blocks. The claims and the seeds were named on 1 December 2026, before the first
run. The test systems are new ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import itemgetter

from torch import nn

from ..kit.claims import Claim, answered, claims_tables, judge, means, primary_texts
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME, paced_on
from ..kit.grid import Row
from ..kit.machine import describe
from ..kit.page import head, listed, load
from ..kit.subject import Options
from ..kit.task import at_ladder_ends, run_task
from .charges import (
    FIRST_TASK,
    PARAMETERS,
    RATES,
    SECOND_TEST,
    SIGMAS,
    STEPS,
    SYSTEMS,
    TESTED,
    metric,
    test_on,
)
from .claims import ATTENTION, NETWORK, RELATIVE, Results, ahead, by_budget
from .models import LAYERS, RELATIVE_ITNET, RELATIVE_KERNEL, make_model, sized
from .page import SETTINGS, scores

FILE = "physics-designs.json"
COMMAND = "python -m evidence run physics designs"
SEEDS = (300, 301, 302, 303, 304)
LADDER = {"rate": RATES, "sigma": SIGMAS, "layers": (1, 2, 3), "blocks": (1, 2, 3)}
STARTS = {
    RELATIVE_ITNET: (3e-2, 0.25, LAYERS[RELATIVE_ITNET], 2),
    RELATIVE: (1e-2, 0.5, LAYERS[RELATIVE], 2),
    NETWORK: (1e-2, 0.5, LAYERS[NETWORK], 2),
    "egnn": (3e-2, 0.5, LAYERS["egnn"], 2),
}
"""Rate, bandwidth, layers and blocks that every model had in the contest with larger rates."""
TITLES = {RELATIVE: ATTENTION, NETWORK: "an interaction network", "egnn": "EGNN"}


COLUMNS = SETTINGS | {"layers": itemgetter("layers"), "blocks": itemgetter("blocks")}
"""The last columns of the tables."""


def make(row: Row) -> nn.Module:
    """Return the model of a row, of the contest's size."""
    layers, blocks = row["layers"], row["blocks"]
    design = sized(row["variant"], row["sigma"], PARAMETERS, layers=layers, blocks=blocks)
    return make_model(design)


TASK = replace(
    FIRST_TASK,
    name="charges, designs",
    file=FILE,
    knobs=tuple(LADDER),
    make=make,
    test=partial(test_on, SECOND_TEST),
    seeds=SEEDS,
    settings={name: (start,) for name, start in STARTS.items()},
    ladders=dict.fromkeys(STARTS, LADDER),
)


def claim(other: str, points: int, budget: str = EQUAL_STEPS, *, primary: bool = False) -> Claim:
    """Return the claim that the error of ITNet of displacements is smaller than another model's."""
    suffix = "" if points == TESTED[0] else ", never seen"
    return Claim(
        f"Charges, designs searched, {points} particles{suffix}, {budget}: ITNet is ahead of {TITLES[other]}",
        "no number",
        ahead(budget, other, metric(points), RELATIVE_ITNET),
        primary=primary,
        shown=means(budget, RELATIVE_ITNET, other, metric(points)),
    )


CLAIMS = [
    claim(RELATIVE, 8, primary=True),
    claim(NETWORK, 8, primary=True),
    claim("egnn", 8, primary=True),
    claim(NETWORK, 12, primary=True),
    claim(NETWORK, 8, EQUAL_TIME, primary=True),
    claim(RELATIVE, 12),
    claim(RELATIVE, 20),
    claim(NETWORK, 20),
    claim(RELATIVE, 8, EQUAL_TIME),
    claim("egnn", 8, EQUAL_TIME),
    claim(NETWORK, 12, EQUAL_TIME),
]


def results() -> Results:
    """Return the runs by budget."""
    return by_budget(load(FILE) or {})


def run(options: Options) -> None:
    """Search the designs, then train all seeds at equal steps and at equal time."""
    options = replace(options, primary=primary_texts(CLAIMS))
    run_task(TASK, options, machine=describe(), seeds=list(SEEDS))


TEXT = """{head}In the [second contest on charges](physics.md#larger-rates) only ITNet's design had been searched. With 8 charges its errors were below those of attention with relative positions and of an interaction network, not EGNN's.
Do these two leads remain when all designs are searched on the same ladders, with fresh seeds? `{command}`

**Primary claims.** {answer}

Data, losses and errors are those of [the page on charges](physics.md): models are trained on systems of 8 charges. The models read displacements and no absolute positions. *itnet, relative*, called ITNet in the claims, is the
library's ITNet with a kernel of displacements and of the features at both ends.

**Search.** A search starts from the setting that the model had there. It tries the next value up and down on four ladders, and moves as long as the error on {validated} validation systems falls, with seed 0 and {steps} steps:
rate ({rates}), bandwidth of the Fourier features ({sigmas}), hidden layers of the network of a pair ({layers}; for ITNet this is its kernel, for attention the network of displacements), and residual blocks ({blocks}).
The width is chosen for about {parameters:,} parameters. Models with 4 heads need a multiple of 4, so that theirs differ more: those tried had {sizes}, attention the most and ITNet the fewest. {tried} {ends}
Not searched are the features that ITNet's kernel reads and its {hidden} hidden units, which had been chosen among ten designs on the same validation systems. The other models had no such search before.
The seeds of the tables ({seeds}) and the primary claims were named before the first run of this contest. The {tested} test systems of each size are new ones, which no earlier contest used.

## Equal steps

Every model is trained for {steps} steps of 32 systems. *CPU seconds* are those of one thread, on a machine that was shared with other work.

{equal_steps}

## Equal time

Every model is trained for as long as the fastest one needs for {steps} steps, with the setting chosen for equal steps. The number of steps follows from the CPU seconds per step, medians of rounds
that alternate between the models, so that the seconds of the runs differ somewhat. {machine}

{equal_time}

## Claims

The difference is the other model's error minus ITNet's, in percent of the mean squared force. It is positive where ITNet is better. Both errors follow, ITNet's first.

{claims}
"""


def page() -> str:
    """Return the text of the page."""
    title = head("Results: forces between particles, all designs searched", "physics", FILE)
    found = load(FILE)
    if found is None or not found.get("runs"):
        return f"{title}Not measured yet: `{COMMAND}`.\n"
    runs = results()
    return TEXT.format(
        head=title,
        command=COMMAND,
        answer=answered(judge(CLAIMS, runs)),
        steps=STEPS,
        rates=listed(RATES),
        sigmas=listed(SIGMAS),
        layers=listed(LADDER["layers"]),
        blocks=listed(LADDER["blocks"]),
        parameters=PARAMETERS,
        validated=SYSTEMS["val"],
        hidden=RELATIVE_KERNEL["width"],
        tried=tried(found["tuning"]),
        sizes=sizes(found["tuning"]),
        ends=at_ladder_ends(TASK, runs[EQUAL_STEPS]),
        seeds=listed(SEEDS),
        tested=SYSTEMS[SECOND_TEST],
        equal_steps=scores(runs[EQUAL_STEPS], STARTS, COLUMNS),
        machine=paced_on(found.get("paces", []), found["machine"]),
        equal_time=scores(runs[EQUAL_TIME], STARTS, COLUMNS),
        claims=claims_tables(CLAIMS, runs, found),
    )


def tried(rows: list[Row]) -> str:
    """Say how many settings of each model were tried."""
    counts = [f"{sum(row['variant'] == name for row in rows)} of {name}" for name in STARTS]
    return f"Settings tried: {listed(counts)}."


def sizes(rows: list[Row]) -> str:
    """Return the smallest and the largest number of parameters that were tried."""
    found = [row["parameters"] for row in rows]
    return f"{min(found):,} to {max(found):,}"
