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

TEXT = """{head}The force on a particle is a sum over all other particles of a function of both: an integral operator whose kernel depends on both ends.
Does ITNet, whose kernel is learned, fit such forces better than other models of the same size? `python -m evidence run physics charges`

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

Every model is trained for {steps:,} steps of {batch} systems.{edge} *CPU seconds* are those of one thread, on a machine that was shared with other work.

{equal_steps}

## At equal time

Every model is trained for as long as the fastest model needs for {steps:,} steps. The number of steps follows from the CPU seconds per step, medians of rounds that alternate between the models.
{machine}

{equal_time}

## Claims

The difference is the other model's error minus ITNet's, in points of the mean squared force. It is positive where ITNet is better.

{claims}

## Not run

Springs and gravity with unknown masses, and rollouts of 50 steps, have not been run.
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
