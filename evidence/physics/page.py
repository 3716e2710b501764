"""docs/results/physics.md: forces between charges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

from ..datasets.charges import LEAST, MOST, SOFTENING
from ..kit.claims import claims_tables
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME, paced_on, score_table
from ..kit.grid import Row
from ..kit.page import at_an_end, head, listed, load
from ..kit.task import at_ladder_ends
from .charges import (
    AGAIN,
    BATCH,
    FILE,
    FRESH_SEEDS,
    PARAMETERS,
    RATES,
    SECOND_TASK,
    SEEDS,
    SIGMAS,
    STEPS,
    SYSTEMS,
    TESTED,
    TRAINED,
    TRIED_RATES,
    TRIED_SIGMAS,
    metric,
)
from .claims import CLAIMS, results
from .models import (
    BLOCKS,
    FREQUENCIES,
    HEADS,
    KERNEL_WIDTH,
    LAYERS,
    RELATIVE_ITNET,
    RELATIVE_KERNEL,
)

COMMAND = "python -m evidence run physics charges"
SETTINGS = {"rate": itemgetter("rate"), "bandwidth": itemgetter("sigma")}
"""The last columns of the tables."""
TEXT = """{head}The force on a particle is a sum over all other particles of a function of both: an integral operator whose kernel depends on both ends.
Does ITNet, whose kernel is learned, fit such forces better than other models of the same size? `{command}`

**Data.** {charged} charges lie in a unit square. Each is positive or negative, of size {least} to {most}, and the force between two of
them at a displacement r is their product times r / (|r|² + {softening}²)^(3/2). A model receives positions and charges and predicts the
force on every charge. It is trained on {train:,} systems of {charged} charges, and tested on {test:,} systems of {tested}.
The error is the mean squared error divided by the mean squared force.

**Models.** All models have {blocks} residual blocks and about {parameters:,} parameters. ITNet, softmax attention and InfSA are the library's
operators with {heads} heads. They receive positions as {frequencies} Fourier features of every particle; ITNet's kernel
({width} hidden units, sums instead of means) also receives those of every displacement. *softmax, relative* adds a network of the displacement to keys and
values. The *interaction network* sums messages, each a network of both particles and their displacement. *egnn* weights
displacements by a network of both particles and their distance, so that its forces rotate with the system. The learning rate
(from {rates}) and the bandwidth of the Fourier features (from {sigmas}) are chosen for each model on {val:,} systems, with seed 0. The seeds
of the tables ({seeds}) and the primary claims were named before the first run.

## At equal steps

Every model is trained for {steps:,} steps of {batch} systems. {edge} *CPU seconds* are those of one thread, on a machine that was shared with other work.

{equal_steps}

## At equal time

Every model is trained for as long as the fastest model needs for {steps:,} steps. The number of steps follows from the CPU seconds per step, medians of rounds that alternate between the models. The settings are those chosen for equal steps.
{machine}

{equal_time}

## Larger rates

In the contest above all models chose the largest rate and the smaller bandwidth. A second, exploratory contest starts from that setting. It tries the neighbours of a model's best
setting on two ladders ({ladder} for the rate, {sigma_ladder} for the bandwidth) until none of them is better in validation.
{ends} The seeds of its tables ({fresh}) were named before its first run.

It has one more model: *itnet, relative* receives no absolute positions, like the models that are ahead of ITNet above, and its kernel has {layers} hidden layers of {relative_width} units. Ten designs of
ITNet were tried with seed 0 in validation, at a rate of 0.01; this one, with two units more, was the best of them. No designs were searched for the other models; in [a contest with fresh seeds](physics-designs.md) they are. `{command}`

### Equal steps

{again_steps}

### Equal time

{again_time}

## Claims

The difference is the other model's error minus ITNet's, in points of the mean squared force. It is positive where ITNet is better. Behind it stand both errors, ITNet's first.
*ITNet of displacements* is *itnet, relative*. Claims that name larger rates belong to the second contest, which runs with the same command.

{claims}

Springs and gravity with unknown masses, and rollouts of 50 steps, have [a page of their own](motion.md).
"""


def page() -> str:
    """Return the text of the page."""
    title = head("Results: forces between particles", "physics", FILE)
    found = load(FILE) or {}
    if not found.get("runs"):
        return f"{title}Not measured yet: `{COMMAND}`.\n"
    runs = results()
    again = {budget: runs[f"{AGAIN}, {budget}"] for budget in (EQUAL_STEPS, EQUAL_TIME)}
    chosen = {row["variant"]: row["rate"] for row in runs[EQUAL_STEPS]}
    return TEXT.format(
        head=title,
        command=COMMAND,
        charged=TRAINED,
        least=LEAST,
        most=MOST,
        softening=SOFTENING,
        tested=listed(TESTED),
        blocks=BLOCKS,
        parameters=PARAMETERS,
        heads=HEADS,
        frequencies=FREQUENCIES,
        width=KERNEL_WIDTH,
        rates=listed(TRIED_RATES),
        sigmas=listed(TRIED_SIGMAS),
        seeds=listed(SEEDS),
        steps=STEPS,
        batch=BATCH,
        machine=paced_on(found.get("paces", []), found["machine"]),
        edge=at_an_end(chosen, dict.fromkeys(chosen, TRIED_RATES)),
        equal_steps=scores(runs[EQUAL_STEPS]),
        equal_time=scores(runs[EQUAL_TIME]),
        ladder=listed(RATES),
        sigma_ladder=listed(SIGMAS),
        ends=at_ladder_ends(SECOND_TASK, again[EQUAL_STEPS]),
        fresh=listed(FRESH_SEEDS),
        layers=LAYERS[RELATIVE_ITNET],
        relative_width=RELATIVE_KERNEL["width"],
        again_steps=scores(again[EQUAL_STEPS]),
        again_time=scores(again[EQUAL_TIME]),
        claims=claims_tables(CLAIMS, runs, found),
        **SYSTEMS,
    )


def scores(
    rows: list[Row],
    models: Iterable[str] = SECOND_TASK.models,
    settings: Mapping[str, Callable[[Row], object]] = SETTINGS,
) -> str:
    """Return a table with one row per model: errors in percent, cost and settings."""
    columns = {f"error at {points} particles (%)": metric(points) for points in TESTED}
    return score_table(models, rows, columns, settings)
