"""Page docs/results/infsa-contests.md: InfSA at equal time, and with ten fresh seeds.

Both contests are judged together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..kit.claims import Claim, Sample, claims_tables, judge, primary_texts
from ..kit.contest import by_model, paced_on
from ..kit.grid import run_sections, sections
from ..kit.page import head, listed, load, spread, table
from ..kit.statistics import Rows, paired
from ..kit.subject import Options
from . import canvases, equal_time, ten_seeds
from .equal_time import (
    BATCH,
    CANVASES,
    CLASSES,
    CLUTTER,
    DEPTH,
    EQUAL_STEPS,
    EQUAL_TIME,
    KINDS,
    NAMES,
    PARAMETERS,
    RATES,
    SEEDS,
    SIDE,
    SIZES,
)

LINEAR, PURE, SOFTMAX, CONTROL = NAMES
Results = dict[str, Rows]
"""Runs of each budget of the contest at equal time, and of the section with ten seeds."""


def results() -> Results:
    """Return the runs of both contests."""
    found: Results = {EQUAL_TIME: [], EQUAL_STEPS: []}
    for row in (load(equal_time.FILE) or {}).get("runs", []):
        found[row["budget"]].append(row)
    return found | sections(ten_seeds.FILE)


def at(rows: Rows, patches: int) -> Rows:
    """Return the rows with a number of patches."""
    return [row for row in rows if row["patches"] == patches]


def ahead(a: str, b: str, patches: int, budget: str = EQUAL_TIME) -> Sample:
    """Return a sample: accuracy of model ``a`` minus ``b``, per seed."""
    return lambda found: paired(at(found[budget], patches), a, b)


def claim(
    a: str, b: str, patches: int, budget: str = EQUAL_TIME, *, primary: bool = False
) -> Claim:
    """Return the claim that model ``a`` is more accurate than ``b``."""
    text = f"{patches:,} patches, {budget}: {a} is more accurate than {b}"
    return Claim(text, "no number", ahead(a, b, patches, budget), primary=primary, digits=1)


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
]
TEXT = """{head}Linear InfSA takes time proportional to the number of patches, pure InfSA and softmax to its square. What does a model learn in a given time? The
[first runs](infsa.md) have 36 patches, where the square costs little.

## Equal time

**Data.** An article of Fashion-MNIST (28 × 28 pixels, {classes} classes) lies on a canvas of {side} × {side} pixels with noise, among {clutter} fragments of others.
The same canvases ({train:,} for training) are cut into patches of 4 × 4 pixels (256 patches), of 2 × 2 (1,024) and of single pixels
(4,096).

**Models.** All models have {depth} pre-norm blocks, a class token and about {parameters:,} parameters, by their widths. {heads} heads (linear InfSA: {linear_heads}, since
each of its heads has a single response for all queries): more would make the quadratic models slower. InfSA has the released rule for
the depth. *Linear attention* is the control: also of linear cost, with a response of its own for every query.

**Time.** Every model is trained for as long as the fastest one needs for {steps}, in batches of {batch}. The number of steps follows
from the CPU seconds per step of one thread, medians of rounds that alternate between the models. The learning rate is chosen for each model among {rates} by the loss on validation, with
seed 0 and half of its steps (at 1,024 patches, all of them). The seeds of the tables ({seeds}) and the primary claims were named before the first run.

{longer}

{equal_time}

{guesses}

With equal steps, at 256 patches, where the quadratic models can afford it:

{equal_steps}

{cost}

## Ten fresh seeds

{first} Here both are trained again
with ten fresh seeds, with the same canvases, models and learning rate, but for {epochs} epochs instead of 20 and with a test of {tested:,} canvases instead of 2,000.
It is a test of its own: the claim about 20 epochs stays as it is.

{ten_seeds}

## Claims

{claims}
"""

LONGER = """Two changes were made on 1 December 2026, after the runs at 256 patches, where linear InfSA was at chance after {few:,} steps. In
trials with seed 0, at 256 and at 1,024 patches, it had left chance after {many:,} steps. So it gets as many at 1,024 patches instead of
{few:,}; nothing had been run there before. At 4,096 patches the contest was stopped after one run of linear InfSA, which was at chance{hours}."""


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
        heads=KINDS[SOFTMAX].heads,
        linear_heads=KINDS[LINEAR].heads,
        steps=listed(steps),
        batch=BATCH,
        rates=", ".join(map(str, RATES)),
        seeds=listed(SEEDS),
        longer=longer(found.get("paces", [])),
        equal_time=scores(runs[EQUAL_TIME], found),
        guesses=guesses(runs[EQUAL_TIME]),
        equal_steps=scores(runs[EQUAL_STEPS], found),
        cost=cost(found.get("paces", [])),
        first=first_test(),
        epochs=ten_seeds.EPOCHS,
        tested=ten_seeds.TESTED,
        ten_seeds=ten_seeds.section(),
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
            facts = f"{first['parameters']:,}", first["rate"]
            lines.append(
                (f"{patches:,}", name, accuracy, len(runs), first["steps"], seconds, *facts)
            )
    command = "`python -m evidence run infsa equal-time`"
    if not lines:
        return f"Not run: {command}."
    heads = (
        "patches",
        "model",
        "test accuracy (%)",
        "seeds",
        "steps",
        "CPU seconds",
        "parameters",
        "rate",
    )
    return f"{command}. Machine: {paced_on(found.get('paces', []), found['machine'])}\n\n{table(heads, lines)}"


def longer(paces: Rows) -> str:
    """Say why the numbers of steps changed, and what the largest size would take."""
    many = SIZES[1_024].steps
    hours = ""
    seconds = equal_time.paces_at(paces, 4_096)
    if seconds:
        # All models have the time of the fastest one, in the runs and where rates are tried.
        runs = len(NAMES) * (len(SEEDS) + len(RATES))
        found = many * min(seconds.values()) * runs / 3_600
        hours = f": with {many:,} steps it would take {found:.0f} hours on a core"
    return LONGER.format(few=SIZES[256].steps, many=many, hours=hours)


def guesses(rows: Rows) -> str:
    """Say which models have seeds that are no better than guesses."""
    found = []
    for patches in SIZES:
        for name, runs in by_model(at(rows, patches), NAMES).items():
            number = sum(is_guess(row["accuracy"], row["answers"]["accuracy"]["n"]) for row in runs)
            if number:
                found.append(f"{name} at {patches:,} patches ({number} of {len(runs)})")
    if not found:
        return ""
    return (
        f"Chance is {1 / CLASSES:.0%}. No better than chance, by three standard deviations of a guess, are seeds of "
        f"{listed(found)}: such a model has not begun to learn, and its difference from another says how fast that one begins."
    )


def is_guess(accuracy: float, samples: int) -> bool:
    """Return whether an accuracy is within three standard deviations of one of guesses.

    Example:
        >>> is_guess(0.11, 2_000), is_guess(0.13, 2_000), is_guess(0.13, 400)
        (True, False, True)
    """
    chance = 1 / CLASSES
    sd = math.sqrt(chance * (1 - chance) / samples)
    return accuracy < chance + 3 * sd


def cost(paces: Rows) -> str:
    """Say what the quadratic models would need for the steps of the fastest one."""
    if not paces:
        return "Equal steps at more patches were not run."
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
        "Equal steps at more patches were not run, because of what the quadratic models cost; the "
        f"table gives it for a single run.\n\n{table(heads, lines)}"
    )
