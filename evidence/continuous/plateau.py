"""The continuous transformer trained to its plateau, on sentences and on pictures of digits.

The learning rate is chosen per model. Some models draw their number of steps in training, which
should make depth a numerical choice. The claims were named before the first run.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from fredholm.lab.training.grid import Cell

from ..kit.answers import pack
from ..kit.claims import Claim, Sample, claims_tables, primary_texts
from ..kit.grid import Row, Section, run_sections, sections
from ..kit.page import load, spread, table
from ..kit.statistics import Rows, differences, paired
from ..kit.subject import Options
from .evidence import SMALL, right_answers, trained_model

FILE = "continuous-plateau.json"
OWN, COUNTS = 4, (2, 4, 8, 16)
DRAWN = "model.body.train_steps=[2, 8]"
NORMS = ("post", "pre", "soft")
VARIANTS: dict[str, tuple[str, ...]] = {}
for _norm in NORMS:
    VARIANTS[_norm] = (f"model.body.norm={_norm}",)
for _norm in NORMS:
    VARIANTS[f"{_norm}, drawn"] = (*VARIANTS[_norm], DRAWN, "model.body.control=linear")
RATES = tuple(f"optimizer.lr={rate}" for rate in (1e-3, 3e-3))
PLATEAU = ("schedule={name: plateau, factor: 0.2, patience: 3}",)
SECTIONS = {
    "reviews": Section(
        "Sentences from movie reviews",
        "continuous-reviews",
        (*SMALL[:2], "training.epochs=25", *PLATEAU),
        VARIANTS,
        seeds=5,
        choices=dict.fromkeys(VARIANTS, RATES),
    ),
    "pictures": Section(
        "Digits, 8 x 8 pixels in patches of 2",
        "digits",
        (
            "operator=softmax",
            "model=continuous_text_micro",
            "model.encoder.kind=image",
            "model.encoder.patch=2",
            "model.body.depth=4",
            "model.body.dim=32",
            "training.epochs=60",
            "training.ema_decay=null",
            *PLATEAU,
        ),
        VARIANTS,
        seeds=5,
        choices=dict.fromkeys(VARIANTS, RATES),
    ),
}


def at_steps(cell: Cell) -> Row:
    """Measure the test accuracy at every number of steps."""
    model, parts = trained_model(cell)
    right = {
        str(count): right_answers(lambda _, x, n=count: model(x, steps=n), parts)
        for count in COUNTS
    }
    return {
        "steps": {count: fmean(values) for count, values in right.items()},
        "answers": {f"steps {count}": pack(values) for count, values in right.items()},
    }


def run(options: Options) -> None:
    """Train the missing runs of the sections of ``--only``, or of both."""
    first = primary_texts(CLAIMS)
    run_sections(SECTIONS, FILE, replace(options, primary=first), also=at_steps)


def lost(section: str, variant: str, count: int) -> Sample:
    """Return a sample: accuracy at the training's number of steps minus that at another one."""

    def sample(found: dict[str, Rows]) -> list[float]:
        rows = [row for row in found.get(section, []) if row["variant"] == variant]
        return differences([(at(row, OWN), at(row, count)) for row in rows], "accuracy")

    def at(row: Row, steps: int) -> Row:
        found: Row = {"accuracy": row["steps"][str(steps)]}
        answers = row.get("answers", {}).get(f"steps {steps}")
        if answers is not None:
            found["answers"] = {"accuracy": answers}
        return found

    return sample


def cost(section: str, norm: str) -> Sample:
    """Return a sample: accuracy with a fixed number of steps minus that with drawn ones."""
    return lambda found: paired(found.get(section, []), norm, f"{norm}, drawn")


CLAIMS = [
    *(
        Claim(
            f"{title}: trained with 2 to 8 steps, {count} instead of {OWN} cost the {norm}-norm "
            "model little",
            "no number",
            lost(section, f"{norm}, drawn", count),
            below=0.01,
            primary=(norm, section) == ("pre", "reviews") or (norm, count) == ("soft", 16),
            digits=1,
        )
        for section, title in (("reviews", "Sentences"), ("pictures", "Pictures"))
        for norm in ("pre", "soft")
        for count in (2, 16)
    ),
    Claim(
        "Sentences: drawing the steps costs the pre-norm model little",
        "no number",
        cost("reviews", "pre"),
        below=0.01,
        primary=True,
        digits=1,
    ),
]


def section() -> str:
    """Return the part of docs/results/continuous-transformer.md."""
    found = sections(FILE)
    command = "`python -m evidence run continuous plateau`"
    if not found:
        return f"Not measured yet: {command}."
    parts = [command]
    for name, one in SECTIONS.items():
        lines = []
        for variant, rows in one.by_variant(found.get(name, [])).items():
            cells = [spread(row["steps"][str(n)] for row in rows) for n in COUNTS]
            # The choice is the last override.
            lines.append((variant, *cells, len(rows), f"`{rows[0]['overrides'][-1]}`"))
        if lines:
            heads = "model", *(f"{n} steps" for n in COUNTS), "seeds", "chosen"
            parts.append(f"**{one.title}**\n\n{table(heads, lines)}")
            parts.append(one.at_an_end(found[name]))
    return "\n\n".join([*filter(None, parts), claims_tables(CLAIMS, found, load(FILE))])
