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

from fredholm.lab.training.grid import Cell

from ...kit.answers import pack
from ...kit.clock import in_turn, median_and_spread
from ...kit.contest import EQUAL_STEPS, own_cell
from ...kit.grid import Row, fill
from ...kit.machine import describe
from ...kit.page import save
from ...kit.subject import Options
from ...kit.task import Task, run_task
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

STEPS, BRIEF, BATCH = 800, 300, 16
"""Training steps of a run and of a trial of a rate, and segments per step."""
RATES = (3e-3, 1e-2, 3e-2)
# Named on 29 November 2026 before the first run; seed 0 chooses rates.
SEEDS = (200, 201, 202, 203, 204)
HEDGEHOG_OTHER_RATE, LUNA_AGAIN, OTHER_RATE = "hedgehog, other rate", "luna, again", 1e-2
AGAIN = {HEDGEHOG_OTHER_RATE: OTHER_RATE, LUNA_AGAIN: 3e-2}
"""Two encoders that were trained on 1 December 2026, after all other runs, and their rates.

The main runs choose rates by the loss in validation; by the accuracy, Hedgehog's would be another
one. The documentation had changed since, so that LUNA was trained again beside it.
"""
PACED = 4
"""Steps per round of timing a training step."""
FORWARD_ROUNDS, FORWARD_SECONDS = 15, 6.0
"""Rounds of timing a forward pass at one length, and seconds per encoder after which they end."""


class Scores(NamedTuple):
    """The share of hidden words that are right, and the mean loss in nats, for each segment."""

    accuracy: list[float]
    loss: list[float]


def accuracy_at(length: int) -> str:
    """Return the name of the accuracy on texts of ``length`` tokens."""
    return f"accuracy {length}"


def make(row: Row) -> TextEncoder:
    """Return the encoder of a row."""
    # The names of encoders that are trained again go on after a comma.
    attention = row["variant"].partition(",")[0]
    return TextEncoder(attention, corpus().words)


def loss(model: nn.Module, generator: Generator) -> Tensor:
    """Return the mean loss of a batch of training segments."""
    batch = training_batch(BATCH, generator)
    logits = model(batch.tokens, batch.places)
    return F.cross_entropy(logits.flatten(0, 1), batch.answers.flatten())


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


def validate(model: nn.Module, batches: int | None) -> float:
    """Return the mean loss in validation."""
    return statistics.fmean(scores(model, "val", TRAINED, batches).loss)


def test(model: nn.Module, batches: int | None) -> Row:
    """Return the accuracy and the loss on texts of every length.

    The documentation changes with its distribution. Runs on different texts must not be compared,
    so a row also has the number of different words.
    """
    found: Row = {"answers": {}, "corpus": corpus().words}
    for length in LENGTHS:
        each = scores(model, "test", length, batches)
        found[accuracy_at(length)] = statistics.fmean(each.accuracy)
        found[f"loss {length}"] = statistics.fmean(each.loss)
        found["answers"][accuracy_at(length)] = pack(each.accuracy)
    return found


def make_task(batches: int | None = None) -> Task:
    """Return the task. A trial validates and tests on the first ``batches`` alone."""
    return Task(
        name="hidden words",
        file=FILE,
        part=(),
        knobs=("rate",),
        make=make,
        loss=loss,
        validate=partial(validate, batches=batches),
        test=partial(test, batches=batches),
        steps=STEPS,
        seeds=SEEDS,
        settings={name: tuple((rate,) for rate in RATES) for name in ATTENTIONS},
        tried_steps=BRIEF,
        trial_steps=2,
        paced=PACED,
    )


def run(options: Options) -> None:
    """Train the encoders of ``--only``, or all: rates, paces, then the seeds of both tables."""
    batches = 1 if options.small else None
    task = make_task(batches)
    run_task(task, options, machine=describe(), seeds=list(SEEDS))
    # Whoever selects encoders does not need it.
    if not options.only:
        run_again(task, options)


def run_again(task: Task, options: Options) -> None:
    """Train the encoders of :data:`AGAIN`: the same seeds, equal steps only."""
    steps, seeds = task.steps, SEEDS[: options.seeds]
    if options.small:
        steps, seeds = task.trial_steps, seeds[:1]
    rows = [
        {"variant": name, "rate": rate, "budget": EQUAL_STEPS, "steps": steps, "seed": seed}
        for seed, (name, rate) in product(seeds, AGAIN.items())
    ]

    def cell(row: Row) -> Cell:
        return own_cell({"task": task.name} | row, options)

    fill(task.runs_table, rows, task.train_and_test, cell, options)


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
    build = make_task().build
    models = {name: build({"variant": name}, 0).eval() for name in ATTENTIONS}
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
