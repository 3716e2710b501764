"""docs/results/physics.md: forces between charges."""

from __future__ import annotations

from typing import Any

from ..datasets.charges import LEAST, MOST, SOFTENING
from ..kit.claims import claims_tables
from ..kit.machine import machine_line
from ..kit.page import head, load, spread, table
from .claims import CLAIMS, results
from .contest import (
    BATCH,
    EQUAL_STEPS,
    EQUAL_TIME,
    FILE,
    PARAMETERS,
    RATES,
    SEEDS,
    SIGMAS,
    STEPS,
    SYSTEMS,
    TESTED,
    TRAINED,
    metric,
)
from .models import BLOCKS, FREQUENCIES, HEADS, KERNEL_WIDTH, NAMES

TEXT = """{head}The force on a particle is a sum over all others of a law of both: an integral operator with a kernel of both ends.
Does ITNet, whose kernel is learned, learn it better than models of the same size? `python -m evidence run physics charges`

{charged} charges lie in a unit square. Each is positive or negative, of size {least} to {most}, and the force between two of
them at a displacement r is their product times r / (|r|² + {softening}²)^(3/2). A model sees positions and charges and gives the
force on every charge. It is trained on {train:,} systems of {charged} charges, and tested on {test:,} systems of {tested}.
The error is the squared error over the mean squared force.

All models have {blocks} residual blocks and about {parameters:,} parameters. ITNet, softmax attention and InfSA are the library's
operators with {heads} heads; positions reach them as {frequencies} Fourier features of every particle, and ITNet's kernel
({width} hidden units, sums instead of means) as those of every displacement too. *softmax, relative* adds a network of the displacement to keys and
values. The *interaction network* sums messages, each a network of both particles and their displacement. *egnn* weighs
displacements by a network of both particles and their distance, so that its forces turn with the system. The learning rate
(of {rates}) and the bandwidth of the Fourier features (of {sigmas}) are chosen for each model on {val:,} systems, with seed 0. The seeds
of the tables ({seeds}) and the primary claims were named before the first run.

## At equal steps

{steps:,} steps of {batch} systems.{edge} *CPU seconds* are of one thread of a machine that other work shared.

{equal_steps}

## At equal time

As many steps as take the time of the fastest model's {steps:,}, by CPU seconds per step: medians of rounds alternated over the models.
{machine}

{equal_time}

## Claims

The difference is the other model's error less ITNet's, in points of the mean squared force: positive where ITNet is ahead.

{claims}

## Not run

Springs and gravity with unknown masses, and rollouts of 50 steps, are not run.
"""


def page() -> str:
    """Return the text of the page."""
    title = head("Results: forces between particles", "physics", FILE)
    found = load(FILE) or {}
    if not found.get("runs"):
        return f"{title}Not measured yet: `python -m evidence run physics charges`.\n"
    runs = results()
    return TEXT.format(
        head=title,
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
        rates=listed(RATES),
        sigmas=listed(SIGMAS),
        seeds=listed(SEEDS),
        steps=STEPS,
        batch=BATCH,
        machine=machine_line(found["machine"]),
        edge=edge(runs[EQUAL_STEPS]),
        equal_steps=scores(runs[EQUAL_STEPS]),
        equal_time=scores(runs[EQUAL_TIME]),
        claims=claims_tables(CLAIMS, runs, found),
        **SYSTEMS,
    )


def edge(rows: list[dict[str, Any]]) -> str:
    """Say which models chose the largest rate, beyond which nothing was tried."""
    at_edge = []
    for name in NAMES:
        rates = {row["rate"] for row in rows if row["variant"] == name}
        if rates == {max(RATES)}:
            at_edge.append(name)
    if not at_edge:
        return ""
    chosen = "All models" if len(at_edge) == len(NAMES) else listed(tuple(at_edge))
    return f" {chosen} chose the largest rate: larger ones were not tried."


def listed(values: tuple[Any, ...]) -> str:
    """Return values as a list in a sentence.

    Example:
        >>> listed((8, 12, 20))
        '8, 12 and 20'
    """
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}"


def scores(rows: list[dict[str, Any]]) -> str:
    """Return a table with one row per model: errors in percent, cost and settings."""
    lines = []
    for name in NAMES:
        runs = [row for row in rows if row["variant"] == name]
        if not runs:
            continue
        first = runs[0]
        errors = [spread((run[metric(points)] for run in runs), digits=2) for points in TESTED]
        seconds = spread((run["seconds"] for run in runs), scale=1.0)
        facts = first["steps"], seconds, len(runs), f"{first['parameters']:,}"
        lines.append((name, *errors, *facts, first["rate"], first["sigma"]))
    errors = (f"error at {points} particles (%)" for points in TESTED)
    heads = "steps", "CPU seconds", "seeds", "parameters", "rate", "bandwidth"
    if not lines:
        return "Not run yet."
    return table(("model", *errors, *heads), lines)
