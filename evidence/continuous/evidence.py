"""Evidence on the continuous transformer.

A model per variant and seed is trained on the movie reviews. Measured on the test split are its
accuracy, also under noise in the input, accuracy and error at other numbers of steps, and monitors
of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.families.continuous.splitting.controls import resolve_controls
from fredholm.lab import data
from fredholm.lab.data.counter import uniform
from fredholm.lab.data.vocabulary import UNKNOWN
from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.evaluation import load_run
from fredholm.lab.training.folder import RunFolder
from fredholm.lab.training.grid import Cell, Report, recipe_cell, train_cell
from fredholm.lab.training.machine import seconds_of
from fredholm.models import Model, read_out
from fredholm.models.trajectory import trajectory
from fredholm.training import load_recipe

from ..kit.answers import pack
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.subject import Options

TABLE = Table("continuous-transformer.json", ("variant", "seed"))
RECIPE = "continuous-reviews"
# A run takes a minute or two on one quiet core.
SMALL = ["model.body.dim=32", "data.max_length=48", "training.epochs=5"]
VARIANTS: dict[str, list[str]] = {
    "post": ["model.body.norm=post"],
    "pre": ["model.body.norm=pre"],
    "soft": ["model.body.norm=soft"],
    "parallel": ["model.body.norm=pre", "model.body.scheme=parallel"],
    "shared": ["model.body.norm=pre", "model.body.control=shared"],
    "strang": ["model.body.norm=pre", "model.body.scheme=strang"],
}
DROPPED = (0.1, 0.2, 0.4)
"""Shares of tokens that are replaced by the unknown word."""
NOISE = (0.25, 0.5, 1.0)
"""Standard deviations, in units of the features' root mean square."""
STEPS = (1, 2, 4, 8, 16)
FINE = 64
"""Number of steps of the reference for errors."""
SAMPLES = 128
"""Number of texts for errors and monitors."""

Forward = Callable[[Tensor, Tensor], Tensor]


class Batch(NamedTuple):
    """Samples of a data set with their indices in it."""

    indices: Tensor
    inputs: Tensor
    labels: Tensor


def batches(dataset: Any, size: int = 256) -> list[Batch]:
    """Return all samples of a data set in batches, in order."""
    parts = torch.arange(len(dataset)).split(size)
    return [Batch(part, *dataset.batch(part)) for part in parts]


@torch.inference_mode()
def right_answers(forward: Forward, parts: list[Batch]) -> list[float]:
    """Return 1.0 for every sample whose largest logit is its label's, else 0.0."""
    found = [forward(part.indices, part.inputs).argmax(-1) == part.labels for part in parts]
    return torch.cat(found).double().tolist()


def accuracy(forward: Forward, parts: list[Batch]) -> float:
    """Return the share of samples whose largest logit is their label's."""
    return fmean(right_answers(forward, parts))


def drop_tokens(index: Tensor, numbers: Tensor, share: float, seed: int) -> Tensor:
    """Replace tokens by the unknown word with probability ``share``.

    The choice is a hash of (seed, sample, position) and thereby the same for every model.
    """
    positions = torch.arange(numbers.shape[1])
    hit = uniform(seed, index[:, None], positions[None]) < share
    return torch.where(hit & (numbers != 0), UNKNOWN, numbers)


def noisy(model: Model, numbers: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Return the logits after adding Gaussian noise to u(0).

    The noise is ``level`` times the root mean square of u(0) over the real tokens.
    """
    u, domain = model.encoder(numbers)
    real = u[domain.valid]
    noise = torch.randn(u.shape, generator=generator) * (level * real.square().mean().sqrt())
    return model.head(read_out(*model.body(u + noise, domain), model.pool))


def measure_noise(model: Model, parts: list[Batch]) -> dict[str, Any]:
    """Measure the accuracy at each level of both kinds of noise."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {"tokens": [], "features": []}
    for share in DROPPED:
        right = accuracy(lambda i, x, p=share: model(drop_tokens(i, x, p, seed=7)), parts)
        found["tokens"].append(right)
    for level in NOISE:
        right = accuracy(lambda i, x, s=level: noisy(model, x, s, generator), parts)
        found["features"].append(right)
    return found


def operator_calls(model: Model, inputs: Tensor, steps: int) -> int:
    """Count the attention evaluations of a forward pass, a cost independent of the machine."""
    count = 0

    def add(*_: Any) -> None:
        nonlocal count
        count += 1

    handles = [knot[0].operator.register_forward_hook(add) for knot in model.body.evolution.knots]
    try:
        model(inputs[:1], steps=steps)
    finally:
        for handle in handles:
            handle.remove()
    return count


@torch.inference_mode()
def measure_steps(model: Model, parts: list[Batch], control: str) -> list[Any]:
    """Return a row per number of steps.

    It has accuracy, attention evaluations, seconds, and the relative error of u(T) against a fine
    Strang solution.
    """
    evolution, inputs = model.body.evolution, parts[0].inputs[:SAMPLES]
    trained, evolution.controls = evolution.controls, resolve_controls(control)
    try:
        start, domain = model.body.start(*model.encoder(inputs))
        reference = None
        # With hard projections the scheme does not converge as the step goes to zero.
        if model.config.body.norm != "post":
            reference = evolution(start, domain, steps=FINE, scheme="strang")
        rows = []
        for steps in STEPS:
            found: list[list[float]] = []

            def answer(n: int = steps, found: list[list[float]] = found) -> None:
                found.append(right_answers(lambda _, x: model(x, steps=n), parts))

            seconds = seconds_of(answer)
            right = found[0]
            row = {"steps": steps, "accuracy": fmean(right), "seconds": round(seconds, 2)}
            row["answers"] = {"accuracy": pack(right)}
            row["calls"] = operator_calls(model, inputs, steps)
            if reference is not None:
                difference = evolution(start, domain, steps=steps) - reference
                row["error"] = float(difference.norm() / reference.norm())
            rows.append(row)
        return rows
    finally:
        evolution.controls = trained


def trained_model(cell: Cell) -> tuple[Model, list[Batch]]:
    """Return a trained model and its test set in batches."""
    model, _ = load_run(cell.place)
    words: Any = model.extra.get("vocabulary")
    vocabulary = data.Vocabulary.from_dict(words) if words else None
    return model, batches(build_dataset(cell.given, "test", vocabulary))


def work(cell: Cell, report: Report) -> Row:
    """Train and measure a model."""
    result, recipe = train_cell(cell, report), cell.given
    folder = RunFolder(cell.place)
    model, parts = trained_model(cell)
    # A shared control is constant in time, so there is nothing to interpolate.
    shared = recipe.name.startswith("shared")
    controls = ("constant",) if shared else ("constant", "linear")
    right = right_answers(lambda _, x: model(x), parts)
    return {
        "parameters": result["parameters"],
        "evolution_parameters": sum(p.numel() for p in model.body.evolutions.parameters()),
        "minutes": result["minutes"],
        "val_accuracy": folder.read_result().metrics["val_accuracy"],
        "accuracy": fmean(right),
        "answers": {"accuracy": pack(right)},
        "noise": measure_noise(model, parts),
        "steps": {control: measure_steps(model, parts, control) for control in controls},
        "monitors": {n: trajectory(model, parts[0].inputs[:SAMPLES], n) for n in (4, 16)},
    }


def run(options: Options) -> None:
    """Train and measure the variants of ``--only``, or all, seed by seed."""
    rows = [
        {"variant": name, "seed": seed}
        for seed in range(options.seeds or 3)
        for name in options.chosen(VARIANTS)
    ]

    def cell(row: Row) -> Cell:
        label = f"{row['variant']}-{row['seed']}"
        overrides = [*SMALL, *VARIANTS[row["variant"]], *options.trial]
        recipe = load_recipe(RECIPE, [*overrides, f"seed={row['seed']}", f"name={label}"])
        return recipe_cell(recipe, options.runs / label)

    names = {"dropped": DROPPED, "noise": NOISE, "steps": STEPS, "fine": FINE, "samples": SAMPLES}
    fill(TABLE, rows, work, cell, options, machine=describe(), settings=names)
