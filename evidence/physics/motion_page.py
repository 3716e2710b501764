"""docs/results/motion.md: bodies of unknown mass under springs and gravity."""

from __future__ import annotations

from typing import Any

from ..datasets.bodies import (
    GRAVITY,
    GRAVITY_SOFTENING,
    HEAVIEST,
    LAWS,
    REST_LENGTH,
    SPRING_SOFTENING,
    STEP,
    STIFFNESS,
)
from ..kit.claims import answered, claims_tables, judge, primary_texts
from ..kit.contest import NOT_RUN, by_model, paced_on, score_table
from ..kit.page import head, listed, load, spread, table
from ..kit.task import BUDGETS, at_ladder_ends
from .charges import BATCH, RATES, SIGMAS
from .models import ALL_NAMES, HEADS
from .motion import PARAMETERS, SEEDS, STEPS, TASKS
from .motion_claims import CLAIMS, FILE, results
from .moving_models import INFERRING
from .page import SETTINGS
from .rollouts import (
    CONSTANT,
    MEAN_MASS,
    REPORTED,
    ROLLOUT,
    SOLVED,
    SYSTEMS,
    TESTED,
    TRAINED,
    rollout_metric,
    step_metric,
)

TEXT = """{head}Bodies attract each other by gravity or are joined by springs, and their masses are not known. A model infers the masses from two observed frames and predicts the motion.
Does ITNet, an integral operator with a learned kernel of both ends, do this better than other models of the same size?

**Primary claims.** {answer}

**Data.** Bodies lie in a unit square, with random velocities and a total momentum of zero. Masses lie between 1/{heaviest:g} and {heaviest:g}, with a uniform logarithm. Gravity attracts i to j at a displacement r with an acceleration of
{gravity} m_j r / (|r|² + {softening}²)^(3/2). A spring between every two bodies pulls with a force of {stiffness:g} r (1 − {rest} / √(|r|² + {spring_softening}²)), and a body's acceleration is the total force divided by its mass.
The semi-implicit Euler method with a step of {step} makes the frames: a new velocity first, then a new position from it. Models are trained on {train:,} systems of {trained} bodies, and tested on {test:,} systems of {tested}.

**What a model receives.** The positions and velocities of frames 0 and 1, and the present positions; never a mass. The velocities are given as their difference over the step, which is the acceleration in frame 0.
This makes the problem well-posed: if the law is known, the accelerations determine the masses (under springs a body's own acceleration gives its mass; under gravity the two accelerations per body are linear equations in the masses, twice as many as unknowns).
The control *{solved}* below shows that. Under gravity a body's own acceleration does not depend on its mass, so that the mass must be inferred from all others'.

**Models.** They are those of [the contest on charges](physics.md), with about {parameters:,} parameters and {heads} heads: *itnet*, *softmax* and *infsa* with absolute positions, the others with displacements; in the claims, *ITNet* is *itnet, relative*, whose design was chosen on charges. Each has {inferring} residual blocks at
the positions of frame 0, which read the observed accelerations and infer a code per body, and one block at the present positions. *egnn* has a vector per body, at first the observed acceleration, and its messages receive the scalar products of displacements and vectors.
All models learn the acceleration at a random later frame. The loss and the inputs are scaled by the root mean square of an acceleration in training.

**Settings.** From a rate of 0.01 and a bandwidth of 0.5, the neighbours of a model's best setting on two ladders ({ladder} for the rate, {sigma_ladder} for the bandwidth) are tried until none of them is better on {val:,} systems, with seed 0.
The seeds of the tables ({seeds}) and the primary claims were named before the first run; only an interaction network had been trained for 300 steps before, to try the code. After the naming, the models that read displacements
and five other designs of ITNet were looked at in validation with seed 0, at a rate of 0.01 or 0.03. No design was clearly better, and nothing was changed.

**Errors.** *One step*: the squared error of the acceleration at the true positions of a later frame, over its mean square; nothing is moved. *Rollout*: from frame 1 on, a model's accelerations move the bodies by the integrator of the data for {rollout} steps, so that an exact model makes no error.
The error of a system is its mean squared distance from the true positions, over the mean squared distance that bodies of the test set moved. A rollout that is as far off as that, or not finite, has *diverged*, and counts as 100%. The tables show the median over systems and the share of diverged rollouts in percent; the errors in the claims are means, so they are larger.

{laws}

## Claims

The difference is the other model's error minus ITNet's, in points. It is positive where ITNet is better. Behind it stand both errors, ITNet's first. Claims on springs and on gravity run with `python -m evidence run physics springs` and `python -m evidence run physics gravity`.

{claims}
"""
LAW = """## {title}

`python -m evidence run physics {law}`. {ends} Every model is trained for {steps:,} steps of {batch} systems, and at equal time, with the settings chosen for equal steps, for as long as the fastest model needs for {steps:,} steps. *CPU seconds* are those of one thread, on a machine that was shared with other work.

Without training: *{solved}* is the law with the masses that frames 0 and 1 determine; *{mean}* is the law with the same mass for all bodies, hence the error of a model that knows the law but infers nothing; *{constant}* does not change over time.

{controls}

{tables}"""


def page() -> str:
    """Return the text of the page."""
    # Before the first run the primary claims are those of the code.
    found: dict[str, Any] = load(FILE) or {"primary": primary_texts(CLAIMS)}
    runs = results()
    laws = "\n\n".join(_law(law, found.get(law, {}), runs) for law in LAWS)
    if "machine" in found:
        paces = [row for law in LAWS for row in found.get(law, {}).get("paces", [])]
        laws += f"\n\n{paced_on(paces, found['machine'])}"
    return TEXT.format(
        head=head("Results: bodies of unknown mass", "physics", FILE),
        answer=answered(judge(CLAIMS, runs)),
        heaviest=HEAVIEST,
        gravity=GRAVITY,
        softening=GRAVITY_SOFTENING,
        stiffness=STIFFNESS,
        rest=REST_LENGTH,
        spring_softening=SPRING_SOFTENING,
        step=STEP,
        trained=TRAINED,
        tested=listed(TESTED),
        solved=SOLVED,
        parameters=PARAMETERS,
        heads=HEADS,
        inferring=INFERRING,
        ladder=listed(RATES),
        sigma_ladder=listed(SIGMAS),
        seeds=listed(SEEDS),
        rollout=ROLLOUT,
        laws=laws,
        claims=claims_tables(CLAIMS, runs, found),
        **SYSTEMS,
    )


def _law(law: str, part: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the section of a law."""
    tables = []
    for budget in BUDGETS:
        rows = runs[f"{law}, {budget}"]
        tables.append(f"### {law.capitalize()} at {budget}")
        columns = {f"one step, {points} bodies (%)": step_metric(points) for points in TESTED}
        if not rows:
            tables.append(NOT_RUN)
            continue
        tables.append(score_table(ALL_NAMES, rows, columns, SETTINGS))
        tables.append(rollout_table(ALL_NAMES, rows))
    return LAW.format(
        title=law.capitalize(),
        law=law,
        steps=STEPS,
        batch=BATCH,
        ends=at_ladder_ends(TASKS[law], runs[f"{law}, {BUDGETS[0]}"]),
        solved=SOLVED,
        mean=MEAN_MASS,
        constant=CONSTANT,
        controls=controls_table(part.get("controls", [])),
        tables="\n\n".join(tables),
    )


def rollout_table(names: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    """Return a table of the median errors of rollouts, with the share that diverged."""
    lines = []
    for name, runs in by_model(rows, names).items():
        lines.append((name, *(_rollout(runs, key) for key in _rollout_columns().values())))
    return table(("model", *_rollout_columns()), lines)


def _rollout_columns() -> dict[str, str]:
    """Return the heads of the columns of rollouts and the names of their errors."""
    return {
        f"rollout, {points} bodies, step {step} (median, %)": rollout_metric(points, step)
        for points in TESTED
        for step in REPORTED
    }


def _rollout(runs: list[dict[str, Any]], key: str) -> str:
    """Format the median errors of runs and, unless it is zero, the share that diverged."""
    text = spread((run["median"][key] for run in runs), digits=2)
    shares = [run["diverged"][key] for run in runs]
    if any(shares):
        text += f"; {100 * sum(shares) / len(shares):.1f}% diverged"
    return text


def controls_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the predictions without training."""
    if not rows:
        return NOT_RUN
    steps = {f"one step, {points} bodies (%)": step_metric(points) for points in TESTED}
    lines = []
    for row in rows:
        errors = [spread([row[key]], digits=2) for key in steps.values()]
        moving = [_rollout([row], key) for key in _rollout_columns().values()]
        lines.append((row["variant"], *errors, *moving))
    return table(("prediction", *steps, *_rollout_columns()), lines)
