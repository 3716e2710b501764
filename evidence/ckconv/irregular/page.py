"""docs/results/irregular.md: series observed at irregular times."""

from __future__ import annotations

from typing import Any

from ...kit.claims import answered, claims_tables, judge, primary_texts
from ...kit.contest import EQUAL_STEPS, EQUAL_TIME, by_model, paced_on
from ...kit.page import at_an_end, head, listed, load, spread, table
from .claims import CLAIMS, results
from .contest import BATCH, RATES, SEEDS
from .models import MINIROCKET, NAMES, PARAMETERS
from .tasks import (
    CLOSE,
    FILE,
    GAP,
    LAG,
    POINTS,
    SAMPLES,
    SHARE,
    TASKS,
    VAL_FRACTION,
)

COMMAND = "`python -m evidence run ckconv irregular`"
TEXT = """{head}Observations come at irregular times, in bursts with long gaps between them. Is a network of continuous convolutions better at them than networks that were
made for such times, and than MiniROCKET on interpolated series? {command}; `--only` selects tasks.

**Primary claims.** {answer}

**Data.** In the first two sets, each channel is observed at its own ticks of a clock: {share:.0%} of the values in all, other ones for every seed.

- *JapaneseVowels*: nine speakers, 12 channels, 270 series for training and 370 for testing, of at most 29 ticks. Bursts have 3 ticks on average, gaps 7.
- *PLAID*: 11 kinds of appliances, one channel, 537 series for training and 537 for testing, of at most 672 ticks (every other sample of the files);
  a series is scaled by its observed values. Bursts have 15 ticks on average, gaps 35.
- *Lags*: at most {points} random bits in two channels, at real times: {close} apart within a burst and {gap} across a gap. Which bit, in which channel, came exactly {lag}
  before the last one? About 15 ± 6 others lie between the two, and the last one comes at a random time, so that only the time between
  the two gives the answer. {train:,} series for training and {test:,} for testing; chance is 25%. The answer is a linear convolution with a
  continuous kernel, so this task suits a CKCNN by its design.

**Models.** The networks have the same number of parameters, about {parameters:,}.

- *ckcnn*: two blocks; it reads values, zero where nothing is observed, and a mask per channel. Its convolutions weigh an observation by the time since the one before, or all of them equally.
- *gru-d* (Che et al., 2018): a GRU whose inputs and state decay with the time since the last observation of each channel.
- *ncde* (Kidger et al., 2020, by `torchcde`): a neural controlled differential equation along time, values and the number of observations so far, in one midpoint step per observation.
- *tcn*: dilated convolutions of values and masks on a grid: every tick or every other one; for the lags, cells of {coarse} or {fine}, of which each keeps its last observation.
- *minirocket*: reads series that are interpolated linearly to the finer of these grids.

The learning rate (from {rates}) and one of four settings are chosen for each network with seed 0 on {val:.0%} of the training file (of the lags, on {val_samples} further series).
The settings are how a ckcnn weighs observations (by time or equally) and its ω (3 or 10 for JapaneseVowels, else 30 or 100); the dropout of gru-d, from 0 to 0.5; the path of ncde (straight lines or cubic splines) and its
dropout (0 or 0.3); the grid and the number of levels of tcn (5 or 7). For minirocket, series are stretched to equal lengths or aligned at their ends. The runs train on the
complete training file. Their seeds ({seeds}) and the primary claims were named before the first run, after looks at validation with seed 0.

## At equal steps

Every network is trained for the same number of steps of {batch} series. *CPU seconds* are those of the training on one thread, on a machine that was shared with other work.
Settings were chosen for these steps. {ends}

{equal_steps}

## At equal time

Every network is trained for as long as the slowest one needs for its steps above. The number of steps follows from the CPU seconds per step,
medians of rounds that alternate between the networks. The settings are those above: they were not chosen again for more steps. A step of a ckcnn on lags costs many times the others' steps,
so this table, not the one above, shows what a network reaches for its cost. Paces were measured beforehand, so the seconds of the runs differ somewhat. MiniROCKET is not trained by steps: its seconds are in the table above. {machine}

{equal_time}

## Claims

*The best of* several models is chosen for each seed, by its score in the test. The grid of the TCN on lags has cells of {coarse}, of which each keeps one bit, so that it may lose some.

{claims}
"""


def page() -> str:
    """Return the text of the page."""
    title = head("Results: irregular times", "ckconv", FILE)
    # Before the first run, the claims of today are those that its file will name.
    file: dict[str, Any] = load(FILE) or {"primary": primary_texts(CLAIMS)}
    runs = results()
    machine = "Paces are not measured yet."
    if "machine" in file:
        machine = paced_on(file.get("paces", []), file["machine"])
    return TEXT.format(
        head=title,
        command=COMMAND,
        answer=answered(judge(CLAIMS, runs)),
        share=SHARE,
        lag=LAG,
        points=POINTS,
        close=between(CLOSE),
        gap=between(GAP),
        coarse=TASKS["lag"].grids[0],
        fine=TASKS["lag"].grids[1],
        train=SAMPLES["train"] + SAMPLES["val"],
        test=SAMPLES["test"],
        val_samples=SAMPLES["val"],
        parameters=PARAMETERS,
        rates=listed(RATES),
        val=VAL_FRACTION,
        seeds=listed(SEEDS),
        batch=BATCH,
        machine=machine,
        ends=ends(runs),
        equal_steps=scores(runs, EQUAL_STEPS),
        equal_time=scores(runs, EQUAL_TIME),
        claims=claims_tables(CLAIMS, runs, file),
    )


def between(limits: tuple[float, float]) -> str:
    """Return the limits of a uniform distribution in words."""
    return f"{limits[0]:g} to {limits[1]:g}"


def ends(runs: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Say which networks chose the first or the last rate of a task."""
    chosen = {}
    for (name, _), rows in runs.items():
        for row in rows:
            if row["rate"]:
                chosen[f"{row['variant']} on {TASKS[name].title}"] = row["rate"]
    return at_an_end(chosen, dict.fromkeys(chosen, RATES))


def scores(runs: dict[tuple[str, str], list[dict[str, Any]]], budget: str) -> str:
    """Return a table with one row per task and model, or say what was not run."""
    lines = []
    for name, task in TASKS.items():
        of_task = runs.get((name, budget), [])
        for variant, rows in by_model(of_task, (*NAMES, MINIROCKET)).items():
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
