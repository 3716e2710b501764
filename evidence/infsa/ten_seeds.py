"""Pure InfSA against softmax with ten fresh seeds, on the canvases of :mod:`.canvases`.

The models, canvases and rate are those of the first test, in which validation chose the same rate
for both. Training takes 8 epochs instead of 20, with which ten seeds of both models would take five
hours of one core. The test has all 10,000 articles instead of 2,000.
"""

from __future__ import annotations

from dataclasses import replace

from ..kit.claims import Claim, better
from ..kit.grid import sections
from ..kit.page import spread, table
from . import canvases
from .canvases import CONSTANT, PURE

FILE, NAME = "infsa-ten-seeds.json", "ten seeds"
EPOCHS, TESTED = 8, 10_000
VARIANTS = {"softmax": (), "pure InfSA": (*PURE, *CONSTANT)}
FIRST = canvases.SECTIONS[canvases.NAME]
# Seeds 200 to 209 were named on 29 November 2026, before the first run.
SECTIONS = {
    NAME: replace(
        FIRST,
        title="Ten fresh seeds on all canvases",
        common=(
            *FIRST.common,
            f"data.options={{train: 58800, val: 1200, test: {TESTED}, clutter: 6}}",
            f"training.epochs={EPOCHS}",
            "optimizer.lr=0.003",
        ),
        variants=VARIANTS,
        seeds=10,
        first=200,
        choices={},
        brief=(),
    )
}
CLAIMS = [
    Claim(
        f"All canvases, ten fresh seeds, {EPOCHS} epochs: pure InfSA is more accurate than softmax",
        "85.1 over 81.5",
        better(NAME, "pure InfSA", "softmax"),
        primary=True,
    )
]


def section() -> str:
    """Return the table of accuracies, one row per model."""
    groups = SECTIONS[NAME].by_variant(sections(FILE).get(NAME, []))
    command = "`python -m evidence run infsa ten-seeds`"
    if not groups:
        return f"Not run: {command}."
    lines = []
    for variant, rows in groups.items():
        accuracy = spread((row["accuracy"] for row in rows), digits=2)
        minutes = spread((row["minutes"] for row in rows), scale=1.0)
        lines.append((variant, accuracy, len(rows), f"{rows[0]['parameters']:,}", minutes))
    heads = "model", "test accuracy (%)", "seeds", "parameters", "minutes"
    return f"{command}\n\n{table(heads, lines)}"
