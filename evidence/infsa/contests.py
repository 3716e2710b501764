"""Page docs/results/infsa-contests.md: InfSA at equal time, and with ten fresh seeds.

Both contests are judged together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from ..kit.claims import Claim, Sample, claims_tables, judge, primary_texts
from ..kit.contest import by_model, equal_time_steps, paced_on
from ..kit.grid import Row, run_sections, sections
from ..kit.page import at_an_end, head, listed, load, spread, table
from ..kit.statistics import Rows, Scores, paired
from ..kit.subject import Options
from . import canvases, equal_time, ten_seeds
from .equal_time import (
    BATCH,
    CANVASES,
    CLASSES,
    CLUTTER,
    CONSTANT,
    DEPTH,
    EQUAL_STEPS,
    EQUAL_TIME,
    KINDS,
    LONG_TIME,
    NAMES,
    PARAMETERS,
    RATES,
    SEEDS,
    SIDE,
    SIZES,
    SOFTMAX_STEPS,
    loss_of,
)

LINEAR, PURE, SOFTMAX, CONTROL = NAMES
PLANNED = len(NAMES) * len(SEEDS)
"""Runs of a size with equal time."""
NO_GAIN = 0.01
"""A loss that is less than this below that of guesses, in nats, is one of guesses."""
Results = dict[str, Rows]
"""Runs of each budget of the contest at equal time, and of the section with ten seeds."""


def results() -> Results:
    """Return the runs of both contests."""
    found: Results = {EQUAL_TIME: [], EQUAL_STEPS: [], SOFTMAX_STEPS: [], LONG_TIME: []}
    for row in (load(equal_time.FILE) or {}).get("runs", []):
        found[row["budget"]].append(row)
    # Softmax has its own steps at equal time.
    found[SOFTMAX_STEPS] += of_model(at(found[EQUAL_TIME], 1_024), SOFTMAX)
    return found | sections(ten_seeds.FILE)


def at(rows: Rows, patches: int) -> Rows:
    """Return the rows with a number of patches."""
    return [row for row in rows if row["patches"] == patches]


def of_model(rows: Rows, name: str) -> Rows:
    """Return the rows of a model."""
    return [row for row in rows if row["variant"] == name]


def ahead(a: str, b: str, patches: int, budget: str = EQUAL_TIME) -> Sample:
    """Return a sample: accuracy of model ``a`` minus ``b``, per seed."""
    return lambda found: paired(at(found[budget], patches), a, b)


def claim(
    a: str, b: str, patches: int, budget: str = EQUAL_TIME, *, primary: bool = False
) -> Claim:
    """Return the claim that model ``a`` is more accurate than ``b``."""
    text = f"{patches:,} patches, {budget}: {a} is more accurate than {b}"
    return Claim(text, "no number", ahead(a, b, patches, budget), primary=primary, digits=1)


def small_patches_ahead(found: Results) -> Scores:
    """Return the accuracy of linear InfSA on small patches minus softmax's on larger ones."""
    small = of_model(at(found[EQUAL_TIME], 1_024), LINEAR)
    large = of_model(at(found[LONG_TIME], 256), SOFTMAX)
    return paired([*small, *large], LINEAR, SOFTMAX)


CLAIMS = [
    claim(LINEAR, SOFTMAX, 1_024, primary=True),
    claim(LINEAR, SOFTMAX, 4_096, primary=True),
    claim(LINEAR, CONTROL, 1_024, primary=True),
    claim(LINEAR, CONTROL, 4_096, primary=True),
    *ten_seeds.CLAIMS,
    claim(PURE, SOFTMAX, 1_024),
    claim(PURE, SOFTMAX, 4_096),
    claim(CONTROL, SOFTMAX, 1_024),
    claim(LINEAR, SOFTMAX, 256),
    claim(LINEAR, CONTROL, 256),
    claim(PURE, SOFTMAX, 256),
    claim(LINEAR, SOFTMAX, 256, EQUAL_STEPS),
    claim(PURE, SOFTMAX, 256, EQUAL_STEPS),
    claim(LINEAR, SOFTMAX, 1_024, SOFTMAX_STEPS),
    claim(CONTROL, SOFTMAX, 1_024, SOFTMAX_STEPS),
    Claim(
        "In the time of 1,024 patches: linear InfSA with them is more accurate than softmax with 256 patches",
        "no number",
        small_patches_ahead,
        digits=1,
    ),
]
TEXT = """{head}Linear InfSA takes time proportional to the number of patches, pure InfSA and softmax to its square. What does a model learn in a given time? The
[first runs](infsa.md) have 36 patches, where the square costs little.

## Equal time

{state}

**Data.** An article of Fashion-MNIST (28 × 28 pixels, {classes} classes) lies on a canvas of {side} × {side} pixels with noise, among {clutter} fragments of others.
The same canvases ({train:,} for training) are cut into patches of 4 × 4 pixels (256 patches), of 2 × 2 (1,024) and of single pixels
(4,096). The tests have {tested} canvases.

**Models.** All models have {depth} pre-norm blocks, a class token and about {parameters:,} parameters: their widths are chosen so. Linear InfSA has {linear_heads} heads,
because each of its heads gives the same output to every patch; the others have {heads}, because more would make pure InfSA and softmax slower. Softmax is PyTorch's fused function.
In both InfSA models every layer adds its output times the same γ = {decay}, as the released code does. *Linear attention* is the control: also of linear cost, with an output of its own for every patch.
An accuracy that it reaches too is not due to InfSA.

**Time.** Every model gets the time that the fastest one needs for {steps}, in batches of {batch}. The numbers of steps were computed
from seconds per step that were measured before (CPU seconds of one thread, medians of rounds that alternate between the models), so the seconds of the runs differ somewhat.
The runs are short, some less than one pass over the training canvases: the accuracies compare the start of training, not what the models can reach.
In such narrow models softmax and pure InfSA need most of a step at 1,024 patches for their matrices; wider ones spend more of it in their networks per token, and GPUs have other paces.
The learning rate is chosen for each model among {rates} by the loss on validation, with
seed 0 and half of its steps (at 1,024 patches, all of them).{searched} The seeds of the tables ({seeds}) and the primary claims were named before the first run.

{longer}

{equal_time}

{findings}

With equal steps, at 256 patches. The fastest model has the same runs in both tables.

{equal_steps}

{cost}

{controls}

## Ten fresh seeds

{first} Here both are trained again
with ten fresh seeds, with the same training canvases (36 patches), models and learning rate, but for {epochs} epochs instead of 20, to save time, and with a test of {tested_again:,} canvases instead of 2,000.
The seeds and the epochs were named before the first run.
This test stands by itself: it says nothing about 20 epochs, and the claim about them stays as it is.

{ten_seeds}

{second}

## Claims

{claims}
"""
CONTROLS = """### Controls at 1,024 patches

Two controls were named on 1 December 2026, after the runs of the first seed. The first gives the linear models at 1,024 patches the steps of softmax, at the rates that were
chosen for many more steps. A lead that they keep is not due to the number of steps.

{steps}

In the second, softmax has the same canvases in 256 patches and the time of the models at 1,024. Its rate is that chosen at 256 patches. It tells whether such small patches are worth their time.

{time}"""
LONGER = """The primary claims were named first, but the contest was changed on 1 December 2026, after the runs at 256 patches, where most runs of linear InfSA were at chance after {few:,} steps. Linear InfSA was then tried
for {many:,} steps with seed 0, at 256 and at 1,024 patches, and had left chance in validation at both. So the contest at 1,024 patches
has {many:,} steps instead of {few:,}: its time was chosen by a trial of linear InfSA, and of no other model. Apart from that trial, nothing had been run there before. The contest at 4,096 patches was stopped after one run of linear InfSA, which was at chance.{rest}"""


def primary(options: Options) -> Options:
    """Return options with this page's primary claims, not those of the subject's other pages."""
    return replace(options, primary=primary_texts(CLAIMS))


def run_equal_time(options: Options) -> None:
    """Train the models of the contest at equal time."""
    equal_time.run(primary(options))


def run_ten_seeds(options: Options) -> None:
    """Train pure InfSA and softmax with ten seeds."""
    run_sections(ten_seeds.SECTIONS, ten_seeds.FILE, primary(options))


def page() -> str:
    """Return the text of the page."""
    found = load(equal_time.FILE) or {}
    runs = results()
    timed, tuned = runs[EQUAL_TIME], found.get("tuning", [])
    before = {"primary": _named(found, load(ten_seeds.FILE) or {})}
    steps = [f"{size.steps:,} steps at {patches:,} patches" for patches, size in SIZES.items()]
    return TEXT.format(
        head=head("Results: InfSA in two contests", "infsa", equal_time.FILE, ten_seeds.FILE),
        classes=CLASSES,
        side=SIDE,
        clutter=CLUTTER,
        train=CANVASES["train"],
        depth=DEPTH,
        parameters=PARAMETERS,
        tested=listed(dict.fromkeys(f"{size.tested:,}" for size in SIZES.values())),
        heads=KINDS[SOFTMAX].heads,
        decay=CONSTANT["decay"],
        linear_heads=KINDS[LINEAR].heads,
        steps=listed(steps),
        batch=BATCH,
        rates=", ".join(map(str, RATES)),
        seeds=listed(SEEDS),
        searched=searched(tuned),
        longer=longer(found.get("paces", [])),
        state=state(timed),
        equal_time=scores(timed, found),
        findings=bullets(
            [*rankings(timed), guesses(runs), *misled(timed, tuned), *edges(timed, tuned)]
        ),
        equal_steps=scores(runs[EQUAL_STEPS], found),
        controls=controls(runs, found),
        cost=cost(found.get("paces", [])),
        first=first_test(),
        epochs=ten_seeds.EPOCHS,
        tested_again=ten_seeds.TESTED,
        ten_seeds=ten_seeds.section(),
        second=second_test(runs),
        claims=claims_tables(CLAIMS, runs, before),
    )


def first_test() -> str:
    """Say how the first test of pure InfSA against softmax ended."""
    first = judge(canvases.CLAIMS, sections(canvases.FILE))[0]
    found = first.found
    if found is None or first.p is None:
        return ""
    return (
        f"In the [first test](infsa.md), with {found.n} seeds on all canvases, pure InfSA was "
        f"{100 * found.mean:.1f} points ahead of softmax (p = {first.p:.3f} after the adjustment for "
        "all primary claims of that page)."
    )


def second_test(runs: Results) -> str:
    """Say how the test with ten seeds ended."""
    (found,) = (one for one in judge(CLAIMS, runs) if one.claim in ten_seeds.CLAIMS)
    if found.found is None or found.p is None:
        return ""
    return (
        f"Pure InfSA minus softmax is {100 * found.found.mean:+.2f} points (p = {found.p:.3f} after the "
        "adjustment for all primary claims of this page)."
    )


def _named(*files: dict[str, Any]) -> list[str]:
    """Return the primary claims that every file of results was begun with.

    Before the first run they are those of this module.
    """
    named = set(primary_texts(CLAIMS))
    for file in files:
        named &= set(file.get("primary", named))
    return sorted(named)


def scores(rows: Rows, found: dict[str, Any]) -> str:
    """Return a table with one row per number of patches and model."""
    lines = []
    for patches in SIZES:
        for name, runs in by_model(at(rows, patches), NAMES).items():
            first = runs[0]
            accuracy = spread(row["accuracy"] for row in runs)
            seconds = spread((row["seconds"] for row in runs), scale=1.0)
            passes = f"{first['steps'] * BATCH / CANVASES['train']:.1f}"
            facts = first["steps"], passes, seconds, f"{first['parameters']:,}", first["rate"]
            lines.append((f"{patches:,}", name, accuracy, len(runs), *facts))
    command = "`python -m evidence run infsa equal-time`"
    if not lines:
        return f"Not run: {command}."
    heads = (
        "patches",
        "model",
        "test accuracy (%)",
        "seeds",
        "steps",
        "passes over the data",
        "CPU seconds",
        "parameters",
        "rate",
    )
    return f"{command}. Machine: {paced_on(found.get('paces', []), found['machine'])}\n\n{table(heads, lines)}"


def state(rows: Rows) -> str:
    """Say which sizes were run with equal time."""
    found = []
    for patches in SIZES:
        number = len(at(rows, patches))
        amount = {0: "not run", PLANNED: "complete"}.get(number, f"{number} of {PLANNED} runs")
        found.append(f"{patches:,} patches: {amount}")
    return f"State of the contest: {'; '.join(found)}."


def longer(paces: Rows) -> str:
    """Say why the numbers of steps changed, and what the largest size would take."""
    many = SIZES[1_024].steps
    rest = ""
    seconds = equal_time.paces_at(paces, 4_096)
    if seconds:
        # All models have the time of the fastest one, in the runs and where rates are tried.
        runs = len(NAMES) * (len(SEEDS) + len(RATES))
        found = many * min(seconds.values()) * runs / 3_600
        short = equal_time_steps(seconds, SIZES[4_096].steps)[SOFTMAX]
        rest = (
            f" Softmax would have had {short} steps in that contest. All runs there ({len(NAMES)} models, {len(SEEDS)} seeds, {len(RATES)} rates) with {many:,} steps "
            f"would take {found:.0f} hours on a core."
        )
    return LONGER.format(few=SIZES[256].steps, many=many, rest=rest)


def controls(runs: Results, found: dict[str, Any]) -> str:
    """Return the tables of the two controls; empty before the first run at 1,024 patches."""
    small = at(runs[EQUAL_TIME], 1_024)
    if not small:
        return ""
    time = "Open: not run, `python -m evidence run infsa equal-time --only 256`."
    if runs[LONG_TIME]:
        time = scores([*of_model(small, LINEAR), *runs[LONG_TIME]], found)
    return CONTROLS.format(steps=scores(runs[SOFTMAX_STEPS], found), time=time)


def bullets(sentences: Iterable[str]) -> str:
    """Return sentences as a list of Markdown, without empty ones."""
    return "\n".join(f"- {one}" for one in sentences if one)


def rankings(rows: Rows) -> Iterator[str]:
    """Yield the order of the models at every size whose runs are complete."""
    for patches in SIZES:
        if len(at(rows, patches)) < PLANNED:
            continue
        groups = by_model(at(rows, patches), NAMES)
        means = {name: fmean(row["accuracy"] for row in runs) for name, runs in groups.items()}
        order = sorted(NAMES, key=means.__getitem__, reverse=True)
        each = ", ".join(f"{name} ({100 * means[name]:.1f}%)" for name in order)
        yield f"With equal time at {patches:,} patches the order of the means is {each}."


def guesses(runs: Results) -> str:
    """Say which models have runs that are at chance."""
    found = []
    for patches, name in product(SIZES, NAMES):
        counts = []
        for budget in (EQUAL_TIME, EQUAL_STEPS):
            rows = by_model(at(runs[budget], patches), NAMES).get(name, [])
            number = sum(map(is_guess, rows))
            if number:
                counts.append(f"{number} of {len(rows)} with {budget}")
        if counts:
            found.append(f"{name} at {patches:,} patches ({', '.join(counts)})")
    if not found:
        return ""
    return (
        f"Chance is {1 / CLASSES:.0%}. At chance, which is less than three standard errors of guessing above it, are runs of "
        f"{listed(found)}. A comparison with a model at chance says only that the other one has left it in this time."
    )


def misled(rows: Rows, tuned: Rows) -> Iterator[str]:
    """Yield which models left chance where their rate was chosen, and not in most of their runs."""
    for patches, name in product(SIZES, NAMES):
        runs = of_model(at(rows, patches), name)
        number = sum(map(is_guess, runs))
        tried = of_model(at(tuned, patches), name)
        if 2 * number > len(runs) and tried and not is_blind(tried):
            yield (
                f"At {patches:,} patches {name} left chance with the seed that chose its rate, and did not in {number} of "
                f"{len(runs)} runs. One seed was too few to choose it; another rate might be better in most runs."
            )


def edges(rows: Rows, tuned: Rows) -> Iterator[str]:
    """Yield what speaks against the choice of rates, at every size that has runs."""
    for patches in SIZES:
        chosen = {row["variant"]: row["rate"] for row in at(rows, patches)}
        tried = by_model(at(tuned, patches), NAMES)
        text = at_an_end(chosen, {name: tried_rates(group) for name, group in tried.items()})
        if text:
            yield f"Rates at {patches:,} patches: {text[0].lower()}{text[1:]}"
        blind = [name for name, group in tried.items() if is_blind(group)]
        if blind:
            yield f"At no rate did {listed(blind)} leave chance at {patches:,} patches, so that the choice means nothing."


def tried_rates(tuned: Rows) -> list[float]:
    """Return the rates that were tried, from the smallest."""
    return sorted({row["rate"] for row in tuned})


def searched(tuned: Rows) -> str:
    """Say for which models further rates were tried."""
    found = []
    for name, group in by_model(at(tuned, 1_024), NAMES).items():
        further = [f"{rate:g}" for rate in tried_rates(group) if rate not in RATES]
        if further:
            found.append(f"{listed(further)} for {name}")
    if not found:
        return ""
    return (
        " At 1,024 patches the best of these rates was the first or the last one, and before any run of the "
        f"table further rates were tried there, as long as the best one was the first or the last: {'; '.join(found)}."
    )


def is_blind(tried: Rows) -> bool:
    """Return whether a model is at chance at all of its tried rates."""
    return min(map(loss_of, tried)) > math.log(CLASSES) - NO_GAIN


def is_guess(row: Row) -> bool:
    """Return whether a run's accuracy is within three standard errors of that of guesses.

    Example:
        >>> tests = {0.11: 2_000, 0.121: 2_000, 0.13: 400}
        >>> [is_guess({"accuracy": a, "answers": {"accuracy": {"n": n}}}) for a, n in tests.items()]
        [True, False, True]
    """
    chance = 1 / CLASSES
    samples = row["answers"]["accuracy"]["n"]
    return row["accuracy"] < chance + 3 * math.sqrt(chance * (1 - chance) / samples)


def cost(paces: Rows) -> str:
    """Say what the quadratic models would need for the steps of the fastest one."""
    if not paces:
        return "Equal steps were not run at more patches."
    lines = []
    for patches, size in SIZES.items():
        seconds = equal_time.paces_at(paces, patches)
        for name in NAMES:
            if name not in seconds:
                continue
            minutes = size.steps * seconds[name] / 60
            step = f"{1_000 * seconds[name]:,.0f}"
            lines.append((f"{patches:,}", name, step, f"{size.steps:,}", f"{minutes:,.1f}"))
    heads = "patches", "model", "ms per step", "steps", "CPU minutes for equal steps"
    return (
        "Equal steps were not run at more patches, where they cost the quadratic models too much. The table "
        f"has the minutes of one run with equal steps, computed from those of a step.\n\n{table(heads, lines)}"
    )
