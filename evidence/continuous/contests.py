"""Page docs/results/evolution.md: one set of weights for all depths, and two schemes.

Both contests share a file of results and are judged together.
"""

from __future__ import annotations

from dataclasses import replace

from ..kit.claims import Claim, answered, claims_tables, judge, primary_texts
from ..kit.grid import run_sections, sections
from ..kit.page import head, listed, load
from ..kit.statistics import Rows, Scores, differences
from ..kit.subject import Options
from . import depths, equal_attention
from .depths import COUNTS, DEEPEST, DRAWN, FILE, KNOTS
from .equal_attention import BUDGETS, FINE, PER_STEP, SAMPLES, name_of


def cost_of_drawing(count: int) -> Claim:
    """Return the claim that drawing the number of steps in training costs little.

    The other model is trained with ``count`` steps throughout, and has the same weights: the one set
    of weights of Lie's scheme in the second contest. The claim was named after the runs.
    """
    fixed = name_of("lie", count)

    def sample(found: dict[str, Rows]) -> Scores:
        drawn = {}
        for row in found.get(depths.NAME, []):
            if row["variant"] == DRAWN:
                way = depths.steps(count)
                answers = {"accuracy": row["answers"][way]}
                drawn[row["seed"]] = {"accuracy": row["at"][way], "answers": answers}
        pairs = []
        for row in found.get("pictures", []):
            if row["variant"] == fixed and row["seed"] in drawn:
                pairs.append((row, drawn[row["seed"]]))
        return differences(pairs, "accuracy")

    text = f"Pictures, {count} steps: one set of weights costs little beside one trained with {count} steps alone"
    return Claim(text, "no number", sample, below=0.01)


CLAIMS = [
    *depths.CLAIMS,
    *map(cost_of_drawing, BUDGETS["pictures"]),
    *equal_attention.CLAIMS,
]
TEXT = """{head}The [continuous transformer](continuous-transformer.md) says that depth is a numerical choice, and so is the scheme. Here depths are compared at equal epochs, and schemes at equal evaluations of attention.
The learning rate of every model is chosen among three on validation, with seed 0 and fewer epochs; the seeds of the tables
(from {first}) and the primary claims were named before the first run. The pictures are those of Fashion-MNIST as 16 patches of 7 × 7 pixels:
8,000 are for training, 10,000 for testing. All models are pre-norm, of width 32.

**Primary claims.** {answer}

## One set of weights at {fewest} to {most} steps

Encoders of {counts} layers are trained separately. The one set of weights (the *control* of the equation) is stored at {knots} times, its *knots*, and interpolated between them, so that any number of steps can be taken. It has as many parameters as
the encoder of {knots} layers, and draws the number of its steps from {fewest} to {most} for every optimizer step. The encoders of 8 and 16 layers have two and four times
as many parameters. The *early exit* applies the head of the deepest encoder after its first layers, where it was never trained: a weak rival.

All are trained for {epochs} epochs. A sample passes through {all_layers} layers to train the four encoders, and
on average through {mean_steps:g} steps to train the one set of weights, whose training thus takes longer than that of the encoder of {knots} layers alone. That encoder is therefore
also trained for {longer} epochs: {longer} × {knots} layers are about {epochs} × {mean_steps:g} steps.

{depths}

## Strang's scheme at equal evaluations of attention

A step of Lie's scheme evaluates attention once. One of Strang's evaluates it {dear} times: two half steps by the midpoint rule, with two evaluations each. So n steps of
Strang's scheme are compared with {dear}n of Lie's. The network is evaluated twice per step of Strang's and once per step of Lie's; at equal evaluations of attention,
Strang's scheme has half as many of the network, and is somewhat cheaper. Minutes are those of a machine that other work shared.

For the tables of errors, trained models run again, without training, with either scheme and more steps. They give the relative error of u(T), the output before the head, in percent,
against a solution by {fine} steps of Strang's scheme, over {samples} test samples.
On pictures Lie's scheme is the more accurate solver at 8 and 16 evaluations, the numbers that models are trained with, and Strang's from 32 on. On sentences neither is accurate, perhaps not even the reference; two of Strang's five models there are at chance.

{attention}

## Claims

*Costs little* allows a loss of at most one point. In these rows the number is the accuracy of the other model minus that of the one set of weights, so a negative number
means that the one set is ahead. In all other rows a positive number speaks for the claim.

{claims}
"""


PRIMARY = primary_texts(CLAIMS)


def primary(options: Options) -> Options:
    """Return options with this page's primary claims, not those of the subject's other page."""
    return replace(options, primary=PRIMARY)


def run_depths(options: Options) -> None:
    """Train the encoders and the one set of weights."""
    run_sections(depths.SECTIONS, FILE, primary(options), also=depths.at_steps)


def run_equal_attention(options: Options) -> None:
    """Train the models of both schemes, on the sections of ``--only`` or on both."""
    run_sections(equal_attention.SECTIONS, FILE, primary(options), also=equal_attention.solved)


def page() -> str:
    """Return the text of the page."""
    return TEXT.format(
        head=head("Results: depth and scheme", "continuous", FILE),
        answer=answered(judge(CLAIMS, sections(FILE))),
        first=depths.FIRST_SEED,
        fewest=COUNTS[0],
        most=DEEPEST,
        counts=listed(COUNTS),
        knots=KNOTS,
        all_layers=sum(COUNTS),
        mean_steps=depths.MEAN_STEPS,
        epochs=depths.EPOCHS,
        longer=depths.LONGER,
        depths=depths.section(),
        dear=PER_STEP["strang"],
        fine=FINE,
        samples=SAMPLES,
        attention=equal_attention.section(),
        # Before the first run the primary claims are those of this module.
        claims=claims_tables(CLAIMS, sections(FILE), load(FILE) or {"primary": PRIMARY}),
    )
