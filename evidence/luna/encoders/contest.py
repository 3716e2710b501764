"""The contest between encoders that predict hidden words.

The learning rate of each encoder is chosen on validation. Then fresh seeds are trained with equal
steps, and again with equal time, on segments of 512 tokens, and tested on texts of up to 8,192. The
time of a forward pass is measured at the same lengths. ``luna-encoders.json`` grows by tried rates,
paces and runs, and none of them is computed twice.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from itertools import islice, product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fredholm.lab.training.grid import Cell, Report

from ...kit.answers import pack
from ...kit.clock import in_turn, median_and_spread
from ...kit.contest import (
    EQUAL_STEPS,
    EQUAL_TIME,
    all_tried,
    equal_time_steps,
    one_cycle,
    own_cell,
    pace_rows,
    parameters,
    step_seconds,
    train,
)
from ...kit.grid import Row, Table, fill
from ...kit.machine import describe
from ...kit.page import save
from ...kit.subject import Options
from ..literal import check_layer
from .model import ATTENTIONS, TextEncoder
from .texts import (
    HIDDEN,
    LENGTHS,
    TRAINED,
    Hidden,
    corpus,
    evaluation_batches,
    training_batch,
)

FILE, SPEED_FILE = "luna-encoders.json", "luna-encoders-speed.json"
TUNING = Table(FILE, ("variant", "rate"), ("tuning",))
PACES = Table(FILE, ("variant",), ("paces",))
RUNS = Table(FILE, ("variant", "budget", "seed"))

STEPS, BRIEF, BATCH = 800, 300, 16
"""Training steps of a run and of a trial of a rate, and segments per step."""
RATES = (3e-3, 1e-2, 3e-2)
# Named on 29 November 2026 before the first run; seed 0 chooses rates.
SEEDS = (200, 201, 202, 203, 204)
PACE_ROUNDS, PACED = 7, 4
"""Rounds of timing a training step, which alternate over the encoders, and steps per round."""
FORWARD_ROUNDS, FORWARD_SECONDS = 15, 6.0
"""Rounds of timing a forward pass at one length, and seconds per encoder after which they end."""


class Scores(NamedTuple):
    """The share of hidden words that are right, and the mean loss in nats, for each segment."""

    accuracy: list[float]
    loss: list[float]


def accuracy_at(length: int) -> str:
    """Return the name of the accuracy on texts of ``length`` tokens."""
    return f"accuracy {length}"


def fit(model: nn.Module, rate: float, seed: int, steps: int) -> float:
    """Train by Adam with one cycle of the rate; return the CPU seconds it took."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = one_cycle(optimizer, rate, steps)

    def loss(generator: Generator) -> Tensor:
        batch = training_batch(BATCH, generator)
        logits = model(batch.tokens, batch.places)
        return F.cross_entropy(logits.flatten(0, 1), batch.answers.flatten())

    return train(model, optimizer, schedule, loss, seed=seed, steps=steps)


@torch.inference_mode()
def scores(model: nn.Module, split: str, length: int, batches: int | None = None) -> Scores:
    """Return the scores of a split's segments when they are read in texts of ``length`` tokens.

    A trial reads the first ``batches`` alone.
    """
    model.eval()
    found = Scores([], [])
    for batch in islice(evaluation_batches(split, length), batches):
        logits = model(batch.tokens, batch.places)
        right = (logits.argmax(-1) == batch.answers).double()
        losses = F.cross_entropy(logits.mT, batch.answers, reduction="none")
        found.accuracy.extend(per_segment(right))
        found.loss.extend(per_segment(losses.double()))
    return found


def per_segment(values: Tensor) -> list[float]:
    """Return the mean over each segment's hidden words, of values per hidden word (B, P)."""
    return values.view(-1, HIDDEN).mean(1).tolist()


def built(name: str, seed: int) -> TextEncoder:
    """Return an encoder, drawn with a seed."""
    torch.manual_seed(seed)
    return TextEncoder(name, corpus().words)


def run(options: Options) -> None:
    """Train the encoders of ``--only``, or all: rates, paces, then the seeds of both tables."""
    names = options.chosen(ATTENTIONS)
    steps, brief, batches = STEPS, BRIEF, None
    if options.small:
        steps, brief, batches = 2, 1, 1

    def cell(row: Row) -> Cell:
        settings = {"steps": brief, "batches": batches} | row
        return own_cell(settings, options)

    tries = [{"variant": name, "rate": rate} for name, rate in product(names, RATES)]
    fill(TUNING, tries, validated, cell, options, machine=describe(), seeds=list(SEEDS))
    rates = {name: best_rate(TUNING.rows(options.results), name) for name in names}
    measure_paces(options)

    seeds = SEEDS[: options.seeds]
    for budget in (EQUAL_STEPS, EQUAL_TIME):
        counts = steps_of(budget, steps, options)
        rows = [
            {
                "variant": name,
                "rate": rates[name],
                "budget": budget,
                "seed": seed,
                "steps": counts[name],
            }
            for seed, name in product(seeds, names)
        ]
        fill(RUNS, rows, tested, cell, options)


def validated(cell: Cell, report: Report) -> Row:
    """Train briefly with seed 0 and validate."""
    cell.place.mkdir(parents=True, exist_ok=True)
    settings = cell.settings
    model = built(settings["variant"], 0)
    seconds = fit(model, settings["rate"], 0, settings["steps"])
    found = scores(model, "val", TRAINED, settings["batches"])
    return {
        "validation": statistics.fmean(found.loss),
        "accuracy": statistics.fmean(found.accuracy),
        "seconds": round(seconds, 2),
        "parameters": parameters(model),
    }


def tested(cell: Cell, report: Report) -> Row:
    """Train and test on texts of every length."""
    cell.place.mkdir(parents=True, exist_ok=True)
    settings = cell.settings
    model = built(settings["variant"], settings["seed"])
    seconds = fit(model, settings["rate"], settings["seed"], settings["steps"])
    found: Row = {"seconds": round(seconds, 2), "parameters": parameters(model), "answers": {}}
    for length in LENGTHS:
        each = scores(model, "test", length, settings["batches"])
        found[accuracy_at(length)] = statistics.fmean(each.accuracy)
        found[f"loss {length}"] = statistics.fmean(each.loss)
        found["answers"][accuracy_at(length)] = pack(each.accuracy)
    return found


def best_rate(tried: list[Row], name: str) -> float:
    """Return an encoder's rate with the least loss in validation.

    Raises:
        SystemExit: not all rates were tried.
    """
    rows = [row for row in tried if row["variant"] == name]
    all_tried(rows, len(RATES), name, "rates")
    return min(rows, key=lambda row: row["validation"])["rate"]


def measure_paces(options: Options) -> None:
    """Measure the CPU seconds of a training step once, since they determine the second table."""
    if PACES.rows(options.results):
        return
    models = {name: partial(fit, built(name, 0), RATES[0]) for name in ATTENTIONS}
    seconds = step_seconds(models, PACE_ROUNDS, PACED)
    PACES.add(pace_rows(seconds), options.results)


def steps_of(budget: str, steps: int, options: Options) -> dict[str, int]:
    """Return each encoder's steps: the same, or as many as the fastest one's time allows."""
    if budget == EQUAL_STEPS:
        return dict.fromkeys(ATTENTIONS, steps)
    paces = {row["variant"]: row["step"] for row in PACES.rows(options.results)}
    return equal_time_steps(paces, steps)


# --- the time of a forward pass -------------------------------------------------------------------


def forward_of(model: nn.Module, batch: Hidden) -> Callable[[], object]:
    """Return a function that predicts the hidden words of a batch, without gradients."""

    @torch.inference_mode()
    def forward() -> Tensor:
        return model(batch.tokens, batch.places)

    return forward


def first_text(length: int) -> Hidden:
    """Return the first test text of a length, a batch of one."""
    batch = next(evaluation_batches("test", length))
    return Hidden(*(part[:1] for part in batch))


def time(options: Options) -> None:
    """Time the forward pass of every encoder at every length: batch 1, one thread.

    Every attention is compared with its definition first.
    """
    torch.set_num_threads(1)
    models = {name: built(name, 0).eval() for name in ATTENTIONS}
    for model in models.values():
        for attention in model.attentions():
            check_layer(attention, 24)

    seconds = 0.01 if options.small else FORWARD_SECONDS
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        batch = first_text(length)
        ways = {name: forward_of(model, batch) for name, model in models.items()}
        for name, times in in_turn(ways, FORWARD_ROUNDS, seconds).items():
            median, spread = median_and_spread(times)
            row = {"variant": name, "length": length, "rounds": len(times)}
            row |= {"ms": 1e3 * median, "spread": 1e3 * spread}
            rows.append(row)
            print(f"N={length} {name:10} {row['ms']:9.2f} ms", flush=True)
    command = "python -m evidence time luna encoders"
    save({"command": command, "machine": describe(), "rows": rows}, SPEED_FILE, options.results)
