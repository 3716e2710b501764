"""Copy memory and the adding problem at T = 3,000, in equal time.

A CKCNN, a GRU and a temporal convolutional network (TCN) have about the same number of parameters
and the same minutes of training.
"""

from __future__ import annotations

from ..datasets.copy_memory import guessing
from ..kit.grid import Section, run_sections, section_table, sections
from ..kit.page import RESULTS, load, spread, table
from ..kit.subject import Options
from .evidence import tcn

FILE = "ckconv-equal-time.json"
LENGTH = 3000
MINUTES = 45
BESIDE = {"gru": ("operator=gru",), "tcn": tcn(9)}
"""Two blocks of a GRU, and nine convolutions with a receptive field of 3,067 points."""
RATES = tuple(f"optimizer.lr={rate}" for rate in (5e-4, 2e-3))


def task(name: str, key: str, pool: str, omega: float, widths: dict[str, int]) -> Section:
    """Return the section of a task, with every model at the better of two learning rates.

    Both rates are trained in full, and validation decides: after a tenth of the minutes a CKCNN is
    still at chance. Rates are constant, since a cosine schedule needs to know the epochs.
    """
    causal = ("model.body.heads=1", "model.encoder.causal=true", f"model.head.pool={pool}")
    others: dict[str, tuple[str, ...]] = {}
    for model, overrides in BESIDE.items():
        width = f"model.body.dim={widths[model]}"
        others[model] = ("model=backbone_nano", *overrides, width, *causal)
    return Section(
        f"{name.replace('-', ' ').capitalize()}, T = {LENGTH:,}",
        f"ckcnn-{name}",
        (
            f"data.options={{{key}: {LENGTH}}}",
            "schedule={name: constant}",
            "training.epochs=1000",
            f"training.max_minutes={MINUTES}",
        ),
        {"ckcnn": (f"operator.omega={omega}",), **others},
        seeds=5,
        choices=dict.fromkeys(("ckcnn", *others), RATES),
    )


SECTIONS = {
    "copy 3000": task("copy-memory", "delay", "every", 510.0, {"gru": 25, "tcn": 12}),
    "adding 3000": task("adding", "length", "last", 54.57, {"gru": 55, "tcn": 26}),
}
"""The value of ω per point is the one that the tasks needed at T = 1,000."""


def run(options: Options) -> None:
    """Train the missing runs."""
    run_sections(SECTIONS, FILE, options)


def section() -> str:
    """Return the part of docs/results/ckconv.md."""
    found = sections(FILE)
    command = "`python -m evidence run ckconv equal-time`"
    if load(FILE) is None or not any(found.values()):
        return f"Not measured yet: {command}.\n"
    lines = []
    for name, one in SECTIONS.items():
        for variant, rows in one.by_variant(found.get(name, [])).items():
            if name.startswith("adding"):
                score = "loss " + ", ".join(f"{row['loss']:.1e}" for row in rows)
            else:
                score = f"{spread((row['accuracy'] for row in rows), digits=3)}%"
            size, epochs = f"{rows[0]['parameters']:,}", _epochs(name, variant)
            chosen = f"`{rows[0]['overrides'][-1]}`"
            lines.append((one.title, variant, score, len(rows), size, epochs, chosen))
    heads = "task", "model", "on the test split", "seeds", "parameters", "epochs", "chosen"
    return (
        f"Every model was trained for {MINUTES} minutes of wall-clock time, including validation, at each of two rates; the table "
        f"gives the epochs of both. {command}. A model that knows all blanks and guesses the ten symbols reaches "
        f"{100 * guessing(LENGTH):.3f}%.\n\n{table(heads, lines)}\n"
    )


def _epochs(name: str, variant: str) -> str:
    """Return the range of a variant's epochs over all rates that were tried."""
    tried = section_table(FILE, name, "tuning").rows(RESULTS)
    epochs = [row["epochs"] for row in tried if row["variant"] == variant]
    fewest, most = min(epochs), max(epochs)
    if fewest == most:
        return str(fewest)
    return f"{fewest} to {most}"
