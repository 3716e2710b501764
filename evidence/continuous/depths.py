"""One set of weights at 2 to 16 steps, beside encoders of as many layers, on pictures of clothes.

The encoders are trained separately, one for each number of layers. The one set of weights has 4
knots and draws its number of steps in training. The seeds and the claims were named on 29 November
2026, before the first run; the encoder that is trained for longer was added on 1 December.
"""

from __future__ import annotations

import math
from statistics import fmean

from fredholm.lab.training.grid import Cell

from ..kit.answers import pack
from ..kit.claims import Claim
from ..kit.grid import Row, Section, sections
from ..kit.page import spread, table
from .evidence import right_answers, trained_model
from .layers import exit_early, less

FILE, NAME = "evolution.json", "depths"
COUNTS = (2, 4, 8, 16)
KNOTS, DEEPEST = 4, COUNTS[-1]
DRAWN = f"one set of weights, steps drawn from {COUNTS[0]} to {DEEPEST}"
FIRST_SEED = 200
MEAN_STEPS = fmean((COUNTS[0], DEEPEST))
EPOCHS = 15
LONGER = math.ceil(EPOCHS * MEAN_STEPS / KNOTS)
"""Epochs in which an encoder of 4 layers takes as many steps as the one set of weights in 15."""
# Pictures of 28 x 28 pixels in patches of 7: 16 tokens.
PICTURES = (
    "operator=softmax",
    "model=continuous_text_micro",
    "model.encoder.kind=image",
    "model.encoder.patch=7",
    "model.body.dim=32",
    "model.body.norm=pre",
    "data.batch_size=64",
    "data.val_fraction=0.02",
    "data.limit=8000",
    f"training.epochs={EPOCHS}",
    "training.keep=last",
    "training.ema_decay=null",
)
RATES = tuple(f"optimizer.lr={rate}" for rate in (1e-3, 3e-3, 1e-2))
BRIEF = ("training.epochs=5",)


def layers(count: int) -> str:
    """Return the name of the encoder with ``count`` layers."""
    return f"{count} layers"


def steps(count: int) -> str:
    """Return the name of an evaluation with ``count`` steps."""
    return f"{count} steps"


def early(count: int) -> str:
    """Return the name of the exit after ``count`` steps."""
    return f"exit after {count}"


VARIANTS: dict[str, tuple[str, ...]] = {}
for _count in COUNTS:
    VARIANTS[layers(_count)] = (f"model.body.depth={_count}",)
LONG = f"{layers(KNOTS)}, {LONGER} epochs"
VARIANTS[LONG] = (f"model.body.depth={KNOTS}", f"training.epochs={LONGER}")
VARIANTS[DRAWN] = (
    f"model.body.depth={KNOTS}",
    f"model.body.train_steps=[{COUNTS[0]}, {DEEPEST}]",
    "model.body.control=linear",
)
SECTIONS = {
    NAME: Section(
        "Pictures of clothes, 28 x 28 pixels in patches of 7",
        "fashion-mnist",
        PICTURES,
        VARIANTS,
        seeds=5,
        first=FIRST_SEED,
        choices=dict.fromkeys(VARIANTS, RATES),
        brief=BRIEF,
    )
}


NOT_TRIED = (
    f"With {EPOCHS} epochs, encoders of more than 4 layers are not better on these 8,000 pictures. The one of 4 layers is better with {LONGER} epochs, and then "
    "has a higher mean than the one set of weights at any number of steps. The one set of weights improves from 2 to 4 steps, and little "
    "after that. A stronger rival at 8 and 16 steps is the same set of "
    "weights trained with that number of steps alone (*Lie* in the next part): the claims below compare with it too. Not tried: "
    "deep encoders with layers dropped at random, or with exits trained at every depth."
)


def at_steps(cell: Cell) -> Row:
    """Measure the test accuracy at the numbers of steps that a model is compared at.

    An encoder runs with as many steps as it has layers, and the deepest one also with early exits.
    """
    model, parts = trained_model(cell)
    own = model.body.evolution.steps
    counts = (own,)
    if model.body.train_steps is not None:
        counts = COUNTS
    exits: tuple[int, ...] = ()
    if own == DEEPEST:
        exits = COUNTS[:-1]

    right: dict[str, list[float]] = {}
    for count in counts:
        right[steps(count)] = right_answers(lambda _, x, n=count: model(x, steps=n), parts)
    for count in exits:
        right[early(count)] = right_answers(lambda _, x, n=count: exit_early(model, x, n), parts)
    return {
        "at": {name: fmean(values) for name, values in right.items()},
        "answers": {name: pack(values) for name, values in right.items()},
    }


CLAIMS = [
    *(
        Claim(
            f"Pictures, {count} steps: one set of weights costs little beside an encoder of "
            f"{count} layers",
            "no number",
            less(layers(count), steps(count), DRAWN, steps(count), NAME),
            below=0.01,
            primary=True,
        )
        for count in COUNTS
    ),
    Claim(
        f"Pictures, {KNOTS} steps: one set of weights costs little beside an encoder of {KNOTS} layers "
        "trained for as long",
        "no number",
        less(LONG, steps(KNOTS), DRAWN, steps(KNOTS), NAME),
        below=0.01,
    ),
    *(
        Claim(
            f"Pictures, {count} steps: one set of weights is ahead of the early exit of "
            f"{DEEPEST} layers",
            "no number",
            less(DRAWN, steps(count), layers(DEEPEST), early(count), NAME),
        )
        for count in COUNTS[:-1]
    ),
]


def section() -> str:
    """Return the table of accuracies, one row per model."""
    found = SECTIONS[NAME].by_variant(sections(FILE).get(NAME, []))
    command = "`python -m evidence run continuous depths`"
    if not found:
        return f"Not run: {command}."
    lines = []
    for variant, rows in found.items():
        cells = [_scores(rows, steps(count)) for count in COUNTS]
        size = f"{rows[0]['parameters']:,}"
        # The choice is the last override.
        lines.append((variant, *cells, size, len(rows), f"`{rows[0]['overrides'][-1]}`"))
    deepest = found.get(layers(DEEPEST))
    if deepest:
        exits = [_scores(deepest, early(count)) for count in COUNTS[:-1]]
        lines.append((f"early exit of {layers(DEEPEST)}", *exits, *[""] * 4))
    heads = "model", *map(steps, COUNTS), "parameters", "seeds", "chosen"
    ends = SECTIONS[NAME].at_an_end(sections(FILE).get(NAME, []))
    return "\n\n".join([command, table(heads, lines), *filter(None, [ends]), NOT_TRIED])


def _scores(rows: list[Row], way: str) -> str:
    """Format the accuracies of one evaluation; the cell is empty where the model lacks it."""
    found = [row["at"][way] for row in rows if way in row["at"]]
    if not found:
        return ""
    return spread(found)
