"""docs/results/irregular.md: series observed at irregular times."""

from __future__ import annotations

from typing import Any

from ...kit.claims import claims_tables
from ...kit.machine import machine_line
from ...kit.page import head, load, spread, table
from ...physics.page import listed
from .claims import CLAIMS, results
from .contest import BATCH, RATES, SEEDS
from .models import MINIROCKET, NAMES, PARAMETERS
from .tasks import EQUAL_STEPS, EQUAL_TIME, FILE, LAG, SAMPLES, SHARE, TASKS, TICKS, VAL_FRACTION

COMMAND = "`python -m evidence run ckconv irregular`"
TEXT = """{head}Is a convolution with a continuous kernel better than other models at series whose observations are irregular, so that no coarser
clock makes them regular? {command}; `--only` selects tasks.

**Data.** A series lies on the ticks of a clock. Each channel is observed at its own ticks, in bursts with long gaps between them: {share:.0%} of the
values in all, other ones for every seed.

- *JapaneseVowels*: nine speakers, 12 channels, 270 series for training and 370 for testing, of at most 29 ticks. Bursts have 3 ticks on average, gaps 7.
- *PLAID*: 11 kinds of appliances, one channel, 537 series for training and 537 for testing, of at most 672 ticks (every other sample of the files);
  a series is scaled by its observed values. Bursts have 15 ticks on average, gaps 35.
- *Lags*: random bits in two channels at irregular ticks, about 50 per series. Which bit, in which channel, was observed exactly {lag} ticks before the last
  observation? The last observation comes at a random one of {ticks} ticks, and between the two are 30 ± 10 others, so that only
  the time between them gives the answer. {train:,} series for training and {test:,} for testing; chance is 25%. The answer is a linear
  convolution with a continuous kernel, so this task suits a CKCNN by its design.

**Models.** The four networks have the same number of parameters, about {parameters:,}. A *ckcnn* has two blocks and reads the values, zero where nothing
is observed, and a mask per channel. It integrates over the observed ticks, each weighed by the time since the one before, or sums over all ticks. *gru-d* (Che et al., 2018) is a GRU whose inputs
and state decay with the time since the last observation of each channel. *ncde* is a neural controlled differential
equation (Kidger et al., 2020, by `torchcde`) along time, values and the number of observations so far, in one midpoint step per observation. *tcn* is a network of dilated convolutions over all ticks, which reads
the same as a ckcnn. *minirocket* reads series that are interpolated linearly to every tick.

The learning rate (from {rates}) and a setting are chosen for each network, twelve in all, with seed 0 on {val:.0%} of the training file (of the
lags, on {val_samples} further series). The settings are: of a ckcnn, the sum (over observed or all ticks) and ω (3 or 10 for JapaneseVowels, else 30 or 100); of
gru-d, the dropout (from 0 to 0.5); of ncde, the path (straight lines or cubic splines) and the dropout (0 or 0.3); of tcn, the levels (4 to 7, a receptive field of 61 to 509 ticks); of
minirocket, series stretched to equal lengths or aligned at their ends. The runs train on the complete training file. Their seeds ({seeds}) and the primary claims were named before the first run.

## At equal steps

Every network is trained for the same number of steps of {batch} series. *CPU seconds* are those of the training on one thread, on a machine that was shared with other work.

{equal_steps}

## At equal time

Every network is trained for as long as the slowest one needs for its steps above. The number of steps follows from the CPU seconds per step,
medians of rounds that alternate between the networks. MiniROCKET is not trained by steps: its seconds are in the table above. {machine}

{equal_time}

## Claims

{claims}
"""


def page() -> str:
    """Return the text of the page."""
    title = head("Results: irregular times", "ckconv", FILE)
    # Before the first run, the claims of today are those that its file will name.
    file = load(FILE) or {"primary": [claim.text for claim in CLAIMS if claim.primary]}
    runs = results()
    machine = "Paces are not measured yet."
    if "machine" in file:
        machine = machine_line(file["machine"])
    return TEXT.format(
        head=title,
        command=COMMAND,
        share=SHARE,
        lag=LAG,
        ticks=TICKS,
        train=SAMPLES["train"] + SAMPLES["val"],
        test=SAMPLES["test"],
        val_samples=SAMPLES["val"],
        parameters=PARAMETERS,
        rates=listed(RATES),
        val=VAL_FRACTION,
        seeds=listed(SEEDS),
        batch=BATCH,
        machine=machine,
        equal_steps=scores(runs, EQUAL_STEPS),
        equal_time=scores(runs, EQUAL_TIME),
        claims=claims_tables(CLAIMS, runs, file),
    )


def scores(runs: dict[tuple[str, str], list[dict[str, Any]]], budget: str) -> str:
    """Return a table with one row per task and model, or say what was not run."""
    lines = []
    for name, task in TASKS.items():
        for variant in (*NAMES, MINIROCKET):
            rows = [row for row in runs.get((name, budget), []) if row["variant"] == variant]
            if not rows:
                continue
            first = rows[0]
            seconds = sum(row["seconds"] for row in rows) / len(rows)
            # MiniROCKET has neither steps nor trained parameters.
            size = f"{first['parameters']:,}" if first["parameters"] else ""
            steps = f"{first['steps']:,}" if first["steps"] else ""
            lines.append(
                (
                    task.title,
                    variant,
                    spread(row["accuracy"] for row in rows),
                    len(rows),
                    size,
                    steps,
                    f"{seconds:.0f}",
                    first["rate"] or "",
                    first["setting"],
                )
            )
    if not lines:
        return f"Open: not run. {COMMAND}"
    heads = (
        "task",
        "model",
        "test accuracy (%)",
        "seeds",
        "parameters",
        "steps",
        "CPU seconds",
        "rate",
        "setting",
    )
    return table(heads, lines)
