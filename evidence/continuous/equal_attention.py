"""Strang's scheme beside Lie's at equal evaluations of attention.

A step of Lie's scheme evaluates attention once. A step of Strang's has two half steps of attention,
each a midpoint step with two evaluations, so it evaluates attention four times: n steps of Strang's
are compared with 4n of Lie's. All models have the same four knots, with a control that is linear
between them, and thereby equal parameters.

The seeds and the claims were named on 29 November 2026, before the first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fredholm.lab.training.grid import Cell

from ..kit.claims import Claim, better
from ..kit.grid import Row, Section, sections
from ..kit.page import spread, table
from .depths import BRIEF, FILE, FIRST_SEED, KNOTS, PICTURES, RATES
from .evidence import FINE, SAMPLES, SMALL, operator_calls, trained_model

PER_STEP = {"lie": 1, "strang": 4}
"""Evaluations of attention per step."""
TITLES = {"lie": "Lie", "strang": "Strang"}
SOLVED = (8, 16, 32, 64)
"""Evaluations of attention with which the equation of every trained model is solved again."""
COMMON = ("model.body.norm=pre", f"model.body.depth={KNOTS}", "model.body.control=linear")


class Pair(NamedTuple):
    """The names of both models with the same number of evaluations."""

    strang: str
    lie: str


def name_of(scheme: str, evaluations: int) -> str:
    """Return the name of a variant.

    Example:
        >>> name_of("strang", 8), name_of("lie", 8)
        ('Strang, 2 steps', 'Lie, 8 steps')
    """
    return f"{TITLES[scheme]}, {evaluations // PER_STEP[scheme]} steps"


def pair(evaluations: int) -> Pair:
    """Return the pair with a number of evaluations."""
    return Pair(name_of("strang", evaluations), name_of("lie", evaluations))


def variants(budgets: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """Return the variants of both schemes at every number of evaluations."""
    found: dict[str, tuple[str, ...]] = {}
    for evaluations in budgets:
        for scheme, per_step in PER_STEP.items():
            overrides = f"model.body.scheme={scheme}", f"model.body.steps={evaluations // per_step}"
            found[name_of(scheme, evaluations)] = overrides
    return found


BUDGETS = {"pictures": (8, 16), "sentences": (8,)}
"""Evaluations of attention of a forward pass."""
VARIANTS = {name: variants(budgets) for name, budgets in BUDGETS.items()}
SECTIONS = {
    "pictures": Section(
        "Pictures of clothes, 28 x 28 pixels in patches of 7",
        "fashion-mnist",
        (*PICTURES, *COMMON),
        VARIANTS["pictures"],
        seeds=5,
        first=FIRST_SEED,
        choices=dict.fromkeys(VARIANTS["pictures"], RATES),
        brief=BRIEF,
    ),
    "sentences": Section(
        "Sentences from movie reviews",
        "continuous-reviews",
        (*SMALL[:2], *COMMON, "training.epochs=10"),
        VARIANTS["sentences"],
        seeds=5,
        first=FIRST_SEED,
        choices=dict.fromkeys(VARIANTS["sentences"], RATES),
        brief=BRIEF,
    ),
}


@torch.inference_mode()
def solved(cell: Cell) -> Row:
    """Count a model's evaluations of attention, and solve its equation again with both schemes.

    The errors are those of u(T), relative to a fine solution by Strang's scheme.
    """
    model, parts = trained_model(cell)
    evolution, inputs = model.body.evolution, parts[0].inputs[:SAMPLES]
    start, domain = model.body.start(*model.encoder(inputs))
    reference = evolution(start, domain, steps=FINE, scheme="strang")

    errors: dict[str, dict[str, float]] = {}
    for scheme, per_step in PER_STEP.items():
        errors[scheme] = {}
        for evaluations in SOLVED:
            steps = evaluations // per_step
            difference = evolution(start, domain, steps=steps, scheme=scheme) - reference
            errors[scheme][str(evaluations)] = float(difference.norm() / reference.norm())
    calls = operator_calls(model, inputs, evolution.steps)
    return {"calls": calls, "errors": errors}


def ahead(section: str, evaluations: int, *, primary: bool = False) -> Claim:
    """Return the claim that Strang's scheme is more accurate at a number of evaluations."""
    one = pair(evaluations)
    text = (
        f"{section.capitalize()}, {evaluations} evaluations of attention: {one.strang}, is ahead of "
        f"{one.lie}"
    )
    return Claim(text, "no number", better(section, *one), primary=primary)


CLAIMS = [
    ahead("pictures", 8, primary=True),
    ahead("pictures", 16),
    ahead("sentences", 8),
]


def section() -> str:
    """Return the tables of accuracies and of errors, one row per model."""
    found = sections(FILE)
    parts = ["`python -m evidence run continuous equal-attention`"]
    for name, one in SECTIONS.items():
        groups = one.by_variant(found.get(name, []))
        if not groups:
            parts.append(f"**{one.title}**: not run.")
            continue
        lines = []
        for variant, rows in groups.items():
            first = rows[0]
            accuracy = spread(row["accuracy"] for row in rows)
            minutes = spread((row["minutes"] for row in rows), scale=1.0)
            size = f"{first['parameters']:,}"
            # The choice is the last override.
            chosen = f"`{first['overrides'][-1]}`"
            lines.append((variant, first["calls"], accuracy, len(rows), size, minutes, chosen))
        heads = (
            "model",
            "evaluations of attention",
            "test accuracy (%)",
            "seeds",
            "parameters",
            "minutes",
            "chosen",
        )
        parts.append(f"**{one.title}**\n\n{table(heads, lines)}")
        parts += filter(None, [one.at_an_end(found[name])])
        parts.append(error_table(groups))
    return "\n\n".join(parts)


def error_table(groups: dict[str, list[Row]]) -> str:
    """Return the table of the errors of u(T), one row per trained model and scheme of solving."""
    lines = []
    for variant, rows in groups.items():
        for scheme, title in TITLES.items():
            cells = []
            for evaluations in SOLVED:
                values = (row["errors"][scheme][str(evaluations)] for row in rows)
                cells.append(spread(values))
            lines.append((variant, title, *cells))
    return table(("trained with", "solved by", *(f"{n} evaluations" for n in SOLVED)), lines)
