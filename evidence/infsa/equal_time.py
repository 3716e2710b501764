"""Accuracy at equal time on canvases of 256 to 4,096 small patches.

The same canvases are cut into finer and finer patches: 64 x 64 pixels in patches of 4, of 2, and of
single pixels. The learning rate of each model is chosen on validation. Then fresh seeds are trained
with equal time, and with equal steps where the quadratic models can afford it. Two controls tell
what a lead at 1,024 patches is worth: the linear models with the few steps of softmax, and softmax
with larger patches and the same time.
``infsa-equal-time.json`` grows by paces, tried rates and runs, and none of them is computed twice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from torch import Generator, Tensor, nn
from torch.nn import functional

from fredholm import data
from fredholm.lab.training.grid import Cell, Report
from fredholm.models import create_model

from ..kit.answers import pack
from ..kit.contest import (
    EQUAL_STEPS,
    EQUAL_TIME,
    all_tried,
    equal_time_steps,
    own_cell,
    pace_rows,
    parameters,
    step_seconds,
    train,
)
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.subject import Options
from ..kit.task import beside, validation_of

FILE = "infsa-equal-time.json"
PACES = Table(FILE, ("patches", "variant"), ("paces",))
TUNING = Table(FILE, ("patches", "variant", "rate"), ("tuning",))
RUNS = Table(FILE, ("patches", "variant", "budget", "seed"))
loss_of = partial(validation_of, name="loss")

SIDE, CLUTTER, CLASSES = 64, 6, 10
CANVASES = {"train": 12_000, "val": 500, "test": 2_000}
PARAMETERS, DEPTH, BATCH, WEIGHT_DECAY = 20_000, 2, 16, 0.025
WARMUP = 0.1
"""Share of the steps in which the rate rises."""
RATES = (1e-3, 3e-3, 1e-2)
LADDER = (1e-4, 3e-4, *RATES, 3e-2, 1e-1)
"""Rates of a search. It goes on until the best rate lies between two others or is an end of this."""
# Named on 1 December 2026, after the runs of the first seed at 1,024 patches.
SOFTMAX_STEPS, LONG_TIME = "steps of softmax", "time of 1,024 patches"
# Named on 29 November 2026 before the first run; seed 0 chooses the rates.
SEEDS = (200, 201, 202, 203, 204)
ROUNDS = 5


class Size(NamedTuple):
    """A number of patches.

    Attributes:
        steps: training steps of the fastest model; their time is that of all models.
        tried: its steps when rates are tried.
        tested, validated: canvases of the test and of validation, which the quadratic models need
            most of their time for.
        paced: steps per round when the paces are measured.
        budgets: what is equal in the runs.
        ladder: rates that may be tried, in their order; the first ones alone are no search.
    """

    steps: int
    tried: int
    tested: int
    validated: int
    paced: int
    budgets: tuple[str, ...] = (EQUAL_TIME,)
    ladder: tuple[float, ...] = RATES


# On 1 December 2026, after the runs at 256 patches and before those at 1,024, the steps at 1,024 became
# 6,000 instead of 1,200, also when rates are tried: see ``LONGER`` in ``contests.py``. The best of
# ``RATES`` was the first or the last one for every model there. So the search was added, also before
# those runs.
SIZES = {
    256: Size(1_200, 600, 2_000, 500, 20, (EQUAL_TIME, EQUAL_STEPS, LONG_TIME)),
    1_024: Size(6_000, 6_000, 2_000, 500, 4, (EQUAL_TIME, SOFTMAX_STEPS), LADDER),
    4_096: Size(400, 200, 400, 150, 1),
}


class Kind(NamedTuple):
    """A model's operator, its heads, and further options of the body."""

    operator: str
    heads: int
    body: dict[str, Any]


# The released code's rule for the depth, as in the runs on all canvases.
CONSTANT = {"depth_rule": "constant", "decay": 0.95}
BIASES = {"operator_options": {"bias": True}}
# Few heads suit the quadratic models, whose time grows with them. Linear InfSA has four times as
# many, as in the paper, since each head has a single response for all queries.
KINDS = {
    "linear InfSA": Kind("linear_infsa", 8, CONSTANT | BIASES),
    "pure InfSA": Kind("infsa", 2, CONSTANT | BIASES),
    "softmax": Kind("softmax", 2, BIASES),
    "linear attention": Kind("linear_attention", 2, {}),
}
NAMES = tuple(KINDS)


# --- data and models ------------------------------------------------------------------------------


class Canvases(NamedTuple):
    """Canvases (M, 1, 64, 64) as bytes, and their labels (M,)."""

    pixels: Tensor
    labels: Tensor


@cache
def canvases(split: str) -> Canvases:
    """Return the canvases of a split, the same for every model, seed and size of patches."""
    options = CANVASES | {"clutter": CLUTTER}
    found: Any = data.create_dataset(
        "fashion-canvas", split, image_size=(SIDE, SIDE), options=options
    )
    return Canvases(*found.raw(torch.arange(len(found))))


def images(pixels: Tensor) -> Tensor:
    """Return bytes as numbers from -1 to 1."""
    return pixels.float() / 127.5 - 1


def make_model(name: str, patches: int, dim: int) -> nn.Module:
    """Return a model of a width for canvases of that many patches."""
    kind = KINDS[name]
    body = {"dim": dim, "depth": DEPTH, "heads": kind.heads, "mlp_ratio": 2.0}
    encoder = {
        "image_size": SIDE,
        "patch": SIDE // math.isqrt(patches),
        "positions": "fourier",
        "token": "ordinary",
    }
    return create_model(
        "infvit_softmax_pico",
        encoder=encoder,
        body=body | {"operator": kind.operator, "operator_options": {}} | kind.body,
        head={"outputs": CLASSES},
    )


@cache
def width(name: str, patches: int) -> int:
    """Return the width that brings a model's number of parameters nearest to ``PARAMETERS``.

    Example:
        >>> abs(parameters(make_model("softmax", 256, width("softmax", 256))) - 20_000) < 1_000
        True
    """
    step = KINDS[name].heads
    widths = range(4 * step, 64, step)
    return min(widths, key=lambda dim: abs(parameters(make_model(name, patches, dim)) - PARAMETERS))


def built(name: str, patches: int, seed: int) -> nn.Module:
    """Return a model of the common size, drawn with a seed."""
    dim = width(name, patches)
    torch.manual_seed(seed)
    return make_model(name, patches, dim)


# --- training -------------------------------------------------------------------------------------


def rate_at(step: int, steps: int) -> float:
    """Return the share of the rate at a step: a short rise, then half a cosine.

    Runs of a handful of steps have at least one step of the rise.

    Example:
        >>> [round(rate_at(step, 20), 2) for step in (0, 1, 2, 11, 19)]
        [0.5, 1.0, 1.0, 0.5, 0.01]
    """
    rise = max(1, round(WARMUP * steps))
    if step < rise:
        return (step + 1) / rise
    # The schedule is asked once more after the last step, which may be the only one.
    fall = max(1, steps - rise)
    return (1 + math.cos(math.pi * (step - rise) / fall)) / 2


def fit(model: nn.Module, rate: float, seed: int, steps: int) -> float:
    """Train by AdamW; return the CPU seconds that it took."""
    known = canvases("train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_at, steps=steps))

    def loss(generator: Generator) -> Tensor:
        some = torch.randint(len(known.labels), (BATCH,), generator=generator)
        logits = model(images(known.pixels[some]))
        return functional.cross_entropy(logits, known.labels[some])

    return train(model, optimizer, schedule, loss, seed=seed, steps=steps)


@torch.inference_mode()
def logits_of(model: nn.Module, split: str, count: int) -> Tensor:
    """Return the logits (count, 10) of the first canvases of a split."""
    model.eval()
    pixels = canvases(split).pixels[:count]
    return torch.cat([model(images(part)) for part in pixels.split(BATCH)])


# --- runs -----------------------------------------------------------------------------------------


def run(options: Options) -> None:
    """Train the models at the numbers of patches of ``--only``, or at all of them."""
    for patches in map(int, options.chosen(map(str, SIZES))):
        size = SIZES[patches]
        if options.small:
            size = Size(2, 1, 32, 32, 1, size.budgets)
        measure_paces(patches, size, options)
        counts = step_counts(PACES.rows(options.results), patches, size)

        cell = partial(_cell, size=size, options=options)
        rates = search(patches, size, counts[EQUAL_TIME], cell, options)
        rows = [
            {
                "patches": patches,
                "variant": name,
                "budget": budget,
                "seed": seed,
                "rate": rates[name],
                "steps": steps,
            }
            for budget, seed in product(size.budgets, SEEDS[: options.seeds])
            for name, steps in counts[budget].items()
        ]
        fill(RUNS, rows, tested, cell, options)


def step_counts(paces: list[Row], patches: int, size: Size) -> dict[str, dict[str, int]]:
    """Return the steps of each model that is trained with a budget.

    The time of 1,024 patches is known, and that budget has a model, once the paces are measured
    there.
    """
    own, finer = paces_at(paces, patches), paces_at(paces, 1_024)
    timed = equal_time_steps(own, size.steps)
    longer = {}
    if finer:
        seconds = SIZES[1_024].steps * min(finer.values())
        longer = {"softmax": round(seconds / own["softmax"])}
    return {
        EQUAL_TIME: timed,
        EQUAL_STEPS: dict.fromkeys(NAMES, size.steps),
        SOFTMAX_STEPS: dict.fromkeys(("linear InfSA", "linear attention"), timed["softmax"]),
        LONG_TIME: longer,
    }


def search(
    patches: int,
    size: Size,
    steps: dict[str, int],
    cell: Callable[[Row], Cell],
    options: Options,
) -> dict[str, float]:
    """Try ``RATES``, then the neighbours of each best rate until none is new; return the best.

    Args:
        patches: of a canvas.
        size: what depends on them.
        steps: of each model's runs at equal time.
        cell: maps a row to its cell.
        options: of the command line.
    """
    about = {"machine": describe(), "canvases": CANVASES, "seeds": list(SEEDS)}
    planned = {name: set(RATES) for name in NAMES}
    while True:
        tries = [
            {
                "patches": patches,
                "variant": name,
                "rate": rate,
                "steps": max(1, steps[name] * size.tried // size.steps),
            }
            for name, rates in planned.items()
            for rate in sorted(rates)
        ]
        fill(TUNING, tries, validated, cell, options, **about)

        tried = TUNING.rows(options.results)
        best = {name: best_rate(tried, patches, name, planned[name]) for name in NAMES}
        wider = {name: planned[name] | set(beside(best[name], size.ladder)) for name in NAMES}
        if wider == planned:
            return best
        planned = wider


def _cell(row: Row, size: Size, options: Options) -> Cell:
    """Return the cell of a tried rate or of a run."""
    settings = row | {"tested": size.tested, "validated": size.validated}
    return own_cell(settings, options)


def measure_paces(patches: int, size: Size, options: Options) -> None:
    """Measure the CPU seconds of every model's step once, since they determine the tables.

    Of several processes one measures, and the others wait for its rows.
    """
    with FileLock(options.results / f".{FILE}.paces.lock"):
        if paces_at(PACES.rows(options.results), patches):
            return
        models = {name: partial(fit, built(name, patches, 0), RATES[0]) for name in NAMES}
        seconds = step_seconds(models, ROUNDS, size.paced)
        rows = pace_rows(seconds, patches=patches)
        PACES.add(rows, options.results, primary=list(options.primary))


def paces_at(rows: list[Row], patches: int) -> dict[str, float]:
    """Return the seconds of every model's step at a number of patches."""
    return {row["variant"]: row["step"] for row in rows if row["patches"] == patches}


def trained(settings: Row, seed: int) -> tuple[nn.Module, Row]:
    """Return a trained model and the facts of its training."""
    model = built(settings["variant"], settings["patches"], seed)
    seconds = fit(model, settings["rate"], seed, settings["steps"])
    return model, {"seconds": round(seconds, 2), "parameters": parameters(model)}


def validated(cell: Cell, report: Report) -> Row:
    """Train with seed 0 and validate."""
    cell.place.mkdir(parents=True, exist_ok=True)
    count = cell.settings["validated"]
    model, facts = trained(cell.settings, 0)
    labels = canvases("val").labels[:count]
    loss = functional.cross_entropy(logits_of(model, "val", count), labels)
    return {"loss": float(loss), **facts}


def tested(cell: Cell, report: Report) -> Row:
    """Train and test."""
    cell.place.mkdir(parents=True, exist_ok=True)
    count = cell.settings["tested"]
    model, facts = trained(cell.settings, cell.settings["seed"])
    labels = canvases("test").labels[:count]
    right = (logits_of(model, "test", count).argmax(-1) == labels).double().tolist()
    answers = {"accuracy": pack(right)}
    return {"accuracy": statistics.fmean(right), "answers": answers, **facts}


def best_rate(tried: list[Row], patches: int, name: str, planned: Collection[float]) -> float:
    """Return the rate of a model with the smallest loss on validation.

    Raises:
        SystemExit: not all of its planned rates were tried.
    """
    rows = [
        row
        for row in tried
        if (row["patches"], row["variant"]) == (patches, name) and row["rate"] in planned
    ]
    all_tried(rows, len(planned), f"{name}, {patches} patches", "rates")
    return min(rows, key=loss_of)["rate"]
