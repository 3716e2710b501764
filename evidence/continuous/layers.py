"""One set of weights at several numbers of steps, beside models trained for each number.

These are encoders of 2 and 4 layers, and the early exit of the deeper one.

The seeds and the claims were named on 28 November 2026, before the first run.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fredholm.families.continuous.splitting import Substep
from fredholm.lab.training.grid import Cell
from fredholm.models import Model, read_out

from ..kit.answers import pack
from ..kit.claims import Claim, Sample, claims_tables, primary_texts
from ..kit.grid import Row, Section, run_sections, sections
from ..kit.page import load, spread, table
from ..kit.statistics import Rows, differences
from ..kit.subject import Options
from .evidence import SMALL, right_answers, trained_model
from .plateau import DRAWN, PLATEAU, RATES

FILE = "continuous-layers.json"
SHALLOW, DEEP = 2, 4
DRAWN_NAME = "steps drawn from 2 to 8"
NORM = "model.body.norm=pre"
VARIANTS = {
    f"{SHALLOW} layers": (NORM, f"model.body.depth={SHALLOW}"),
    f"{DEEP} layers": (NORM, f"model.body.depth={DEEP}"),
    DRAWN_NAME: (NORM, f"model.body.depth={DEEP}", DRAWN, "model.body.control=linear"),
}
SECTIONS = {
    "reviews": Section(
        "Sentences from movie reviews",
        "continuous-reviews",
        (*SMALL[:2], "training.epochs=25", *PLATEAU),
        VARIANTS,
        seeds=5,
        first=100,
        choices=dict.fromkeys(VARIANTS, RATES),
    )
}


@torch.no_grad()
def exit_early(model: Model, inputs: Tensor, steps: int) -> Tensor:
    """Return the logits of the stream after ``steps`` of a model's steps."""
    evolution: Any = model.body.evolution
    streams: list[Tensor] = []

    def record(substep: Substep) -> None:
        if substep.step == steps - 1:
            streams.append(substep.after)

    u, domain = model.encoder(inputs)
    evolution(u, domain, observer=record)
    stream = streams[-1]
    if evolution.norm is not None:
        stream = evolution.norm(stream)
    return model.head(read_out(stream, domain, model.pool))


def at_steps(cell: Cell) -> Row:
    """Measure the test accuracy at both numbers of steps and at an early exit."""
    model, parts = trained_model(cell)
    right: dict[str, list[float]] = {}
    for count in (SHALLOW, DEEP):
        right[f"{count} steps"] = right_answers(lambda _, x, n=count: model(x, steps=n), parts)
    right["exit"] = right_answers(lambda _, x: exit_early(model, x, SHALLOW), parts)
    return {
        "at": {name: fmean(values) for name, values in right.items()},
        "answers": {name: pack(values) for name, values in right.items()},
    }


def run(options: Options) -> None:
    """Train the missing runs of the section."""
    first = primary_texts(CLAIMS)
    run_sections(SECTIONS, FILE, replace(options, primary=first), also=at_steps)


def less(variant: str, at: str, other: str, other_at: str, section: str = "reviews") -> Sample:
    """Return a sample: accuracy of a variant in one evaluation minus that of another, per seed."""

    def rows(found: dict[str, Rows], name: str, way: str) -> dict[int, Row]:
        by_seed: dict[int, Row] = {}
        for row in found.get(section, []):
            if row["variant"] == name:
                answers = {"accuracy": row["answers"][way]}
                by_seed[row["seed"]] = {"accuracy": row["at"][way], "answers": answers}
        return by_seed

    def sample(found: dict[str, Rows]) -> list[float]:
        one, two = rows(found, variant, at), rows(found, other, other_at)
        return differences([(one[seed], two[seed]) for seed in one if seed in two], "accuracy")

    return sample


CLAIMS = [
    Claim(text, "no number", sample, digits=1)
    for text, sample in (
        (
            "Sentences: at 2 steps, drawn steps are ahead of an encoder of 2 layers",
            less(DRAWN_NAME, f"{SHALLOW} steps", f"{SHALLOW} layers", f"{SHALLOW} steps"),
        ),
        (
            "Sentences: at 4 steps, drawn steps are ahead of an encoder of 4 layers",
            less(DRAWN_NAME, f"{DEEP} steps", f"{DEEP} layers", f"{DEEP} steps"),
        ),
        (
            "Sentences: at 2 steps, drawn steps are ahead of the early exit of 4 layers",
            less(DRAWN_NAME, f"{SHALLOW} steps", f"{DEEP} layers", "exit"),
        ),
    )
]


def section() -> str:
    """Return the part of docs/results/continuous-transformer.md."""
    found = sections(FILE)
    command = "`python -m evidence run continuous layers`"
    if not found:
        return f"Not run: {command}."
    lines = []
    for variant, rows in SECTIONS["reviews"].by_variant(found.get("reviews", [])).items():
        ways = (f"{SHALLOW} steps", f"{DEEP} steps", "exit")
        cells = [spread(row["at"][way] for row in rows) for way in ways]
        # The choice is the last override.
        lines.append((variant, *cells, len(rows), f"`{rows[0]['overrides'][-1]}`"))
    heads = (
        "model",
        f"{SHALLOW} steps",
        f"{DEEP} steps",
        f"exit after {SHALLOW} steps",
        "seeds",
        "chosen",
    )
    ends = SECTIONS["reviews"].at_an_end(found.get("reviews", []))
    parts = command, table(heads, lines), ends, claims_tables(CLAIMS, found, load(FILE))
    return "\n\n".join(filter(None, parts))
