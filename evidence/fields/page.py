"""docs/results/fields.md: pressures in random media."""

from __future__ import annotations

import statistics
from typing import Any

from ..kit.claims import answered, claims_tables, judge, primary_texts
from ..kit.contest import CLIP, EQUAL_STEPS, EQUAL_TIME, NOT_RUN, by_model, paced_on, score_table
from ..kit.grid import Row
from ..kit.page import head, listed, load, table
from ..kit.task import at_ladder_ends, validation_of
from .claims import CLAIMS, CONSTANT, FILE, TESTED, TRAINED, metric, results
from .darcy import (
    BATCH,
    KNOBS,
    LADDERS,
    PARAMETERS,
    SEEDS,
    STEPS,
    TASK,
    TRIED_STEPS,
    WIDE_PARAMETERS,
)
from .models import GNO_OF_VALUES, GNO_WIDTH, KERNEL_WIDTH, WIDE

TEXT = """{head}Darcy's equation −∇·(a ∇u) = 1, with u = 0 on the boundary, maps a medium a to a pressure u, which is an integral over Green's function of that medium.
Does ITNet solve it better than its ancestor, the graph neural operator, and than the Fourier neural operator? `python -m evidence run fields darcy`

**Primary claims.** {answer}

**Data.** The fields of neuraloperator (media of two values): 1,000 samples on a grid of {trained} × {trained}, of which the last 100 validate, and the same 50 test samples on grids of {tested}, so that both errors are of the same media. No model is trained on the finer grid. Values lie at the nodes i / n.
The error of a sample is ‖found − true‖ / ‖true‖. It is also the loss.

**Models.** All have about {parameters:,} real parameters, except *{wide}*, which has {wide_parameters:,}. *itnet* and *softmax* are the library's operators, and a point sees those within a radius, of which ITNet takes the mean. ITNet has one head, whose kernel is a matrix per pair of points and has {width} hidden units. *gno* is neuraloperator's `GNOBlock`: its kernel is
a network ({gno_width} hidden units) of two positions within a radius, with one number per channel. The kernel of *{gno_of_values}* also reads the features of the point that is seen, as neuraloperator's "nonlinear" transform does. These four have the same residual blocks with a network per point, and receive Fourier features of the positions. *fno* is neuraloperator's `FNO`.

**Settings.** All models are trained by Adam with one cycle of the learning rate, and with gradients clipped to a norm of {clip:g}. The settings of each model are searched from one start, those of *itnet* and *softmax* from two (all points see each other, or those within the radius of *gno*'s start), and those of *{gno_of_values}* from *gno*'s best: those one step away on its ladders are tried until none of them is better in validation, with seed 0 and {tried_steps} steps.
Models with more settings thus have more tries. The widths of the kernels and the numbers of heads are not searched, and settings that are best after {tried_steps} steps may not be best after more.
{ends}The seeds of the tables ({seeds}) and the primary claims were named before the first recorded run. {looks}
Other pages train ITNet on such fields without such a search, and its errors are much larger there: [which operator](../choosing.md) (*field*, from 8 × 8 to 16 × 16), [ten sets](ten-sets.md) and [ITNet's recipes](itnet.md).

{ladders}

## Equal steps

Every model is trained for {steps:,} steps of {batch} samples. *CPU seconds* are those of one thread, on several machines that were shared with other work. {control}

{equal_steps}

## Equal time

Every model is trained for as long as the slowest one needs for {tried_steps} steps{slowest}.{machine}

{equal_time}

{reason}

## ITNet's setting with one change

Errors in validation after {tried_steps} steps, with seed 0, of the chosen setting and of those that differ from it in one number or word.

{one_change}

## Tried settings

{tried}

## Claims

The difference is the other model's error minus ITNet's, in points. It is positive where ITNet is better. Behind it stand errors, cost and the number of tried settings of both, ITNet's first.

{claims}
"""
LOOKS = (
    "Before, FNO had been trained once for 600 steps, with an error of 10.4% in validation, and steps of "
    "ITNet with one and with four heads had been timed: one head takes a quarter of the time. *itnet* and *softmax* had "
    "no radius at first. The best of 29 settings were behind those of *gno* and *fno* in validation, and then both got a "
    "radius, as *gno* has. The first seed of *gno*'s table was being run at that time, and no result of the tables had been read. "
    f"*{GNO_OF_VALUES}* and the claims about it were added when the search had shown that ITNet's kernel of both ends is better than one of positions, and "
    "before the seeds of ITNet were run."
)
UNFINISHED = (
    "The search of the models without a row in the table of equal steps is not finished, so nothing follows from these "
    "errors yet: the models have different numbers of tries."
)
NOT_MEASURED = "The mean pressure field of training is not measured yet."


def page() -> str:
    """Return the text of the page."""
    # Before the first run the primary claims are those of the code.
    found: dict[str, Any] = load(FILE) or {"primary": primary_texts(CLAIMS)}
    part = found.get("darcy", {})
    runs = results()
    searched = {row["variant"] for row in runs[EQUAL_STEPS]} == set(TASK.models)
    machine = ""
    if "machine" in found:
        machine = f" {paced_on(part.get('paces', []), found['machine'])}"
    return TEXT.format(
        head=head("Results: pressures in random media", "fields", FILE),
        answer=answered(judge(CLAIMS, runs)),
        trained=TRAINED,
        tested=listed(tuple(f"{side} × {side}" for side in TESTED)),
        parameters=PARAMETERS,
        wide=WIDE,
        wide_parameters=WIDE_PARAMETERS,
        width=KERNEL_WIDTH,
        gno_width=GNO_WIDTH,
        gno_of_values=GNO_OF_VALUES,
        tried_steps=TRIED_STEPS,
        seeds=listed(SEEDS),
        looks=LOOKS,
        ladders=ladders(),
        ends=f"{at_ladder_ends(TASK, runs[EQUAL_STEPS])} " if searched else "",
        steps=STEPS,
        batch=BATCH,
        clip=CLIP,
        control=control(part.get("controls", [])),
        equal_steps=scores(runs[EQUAL_STEPS]),
        slowest=slowest(part.get("paces", [])),
        machine=machine,
        equal_time=scores(runs[EQUAL_TIME]),
        reason=reason(runs[EQUAL_STEPS], runs[EQUAL_TIME]),
        one_change=one_change(part.get("tuning", []), "itnet"),
        tried=tries(part.get("tuning", []), chosen=searched),
        claims=claims_tables(CLAIMS, runs, found),
    )


def ladders() -> str:
    """Return the table of every model's ladders."""
    lines = []
    for name, knobs in LADDERS.items():
        cells = [", ".join(map(str, knobs.get(knob, ()))) for knob in KNOBS]
        lines.append((name, *cells))
    return table(("model", *KNOBS), lines)


def control(rows: list[Row]) -> str:
    """Return a sentence with the errors of the control."""
    if not rows:
        return NOT_MEASURED
    shown = [f"{100 * rows[0][metric(side)]:.1f}% at {side} × {side}" for side in TESTED]
    return f"The *{CONSTANT}* field of training, for every medium, has an error of {listed(tuple(shown))}."


def slowest(rows: list[Row]) -> str:
    """Name the model whose time all get."""
    if not rows:
        return ""
    row = max(rows, key=lambda one: one["step"])
    return f", which is {row['variant']} with {row['step']:.2f} CPU seconds per step"


def reason(equal_steps: list[Row], equal_time: list[Row]) -> str:
    """Say how far ITNet's error falls after the steps of equal time, which is why it is behind."""
    means = []
    for rows in (equal_steps, equal_time):
        own = [row for row in rows if row["variant"] == "itnet"]
        if not own:
            return ""
        means.append(statistics.fmean(row[metric(TRAINED)] for row in own))
    longer, shorter = means
    return (
        f"ITNet's error still falls when its time is over: at {TRAINED} × {TRAINED} its mean is {100 * shorter:.1f}% "
        f"after {TRIED_STEPS} steps and {100 * longer:.1f}% after {STEPS}."
    )


def scores(rows: list[Row]) -> str:
    """Return a table with one row per model: errors in percent, cost and settings."""
    columns = {f"error at {side} × {side} (%)": metric(side) for side in TESTED}
    return score_table(TASK.models, rows, columns, {"setting": setting})


def tries(rows: list[Row], *, chosen: bool) -> str:
    """Return a table of all tried settings, for each model from the best to the worst.

    Args:
        rows: the tries.
        chosen: whether every model has its setting; else a sentence says that the search goes on.
    """
    lines = []
    for name, tried in by_model(rows, TASK.models).items():
        for rank, row in enumerate(sorted(tried, key=validation_of), start=1):
            lines.append((name, rank, setting(row), f"{100 * row['validation']:.2f}"))
    if not lines:
        return NOT_RUN
    found = table(("model", "rank", "setting", "error in validation (%)"), lines)
    return found if chosen else f"{UNFINISHED}\n\n{found}"


def one_change(rows: list[Row], name: str) -> str:
    """Return a table of a model's best setting and of the tried ones that differ in one knob."""
    tried = sorted((row for row in rows if row["variant"] == name), key=validation_of)
    if not tried:
        return NOT_RUN
    best = tried[0]
    lines = []
    for row in tried:
        changes = [f"{knob} {row[knob]}" for knob in KNOBS if row[knob] != best[knob]]
        if len(changes) <= 1:
            change = changes[0] if changes else f"none: {setting(best)}"
            lines.append((change, f"{100 * row['validation']:.2f}"))
    return table(("change", "error in validation (%)"), lines)


def setting(row: Row) -> str:
    """Return the setting of a row in words."""
    return ", ".join(f"{knob} {row[knob]}" for knob in KNOBS if row[knob] is not None)
