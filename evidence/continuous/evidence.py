"""Evidence on the continuous transformer.

One model a variant and seed is trained on the movie reviews, then measured on the test split:
accuracy, accuracy under noise in the input, accuracy and error at other numbers of steps, what
every step does.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

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
SMALL = [
    "model.body.dim=32",
    "data.max_length=48",
    "training.epochs=5",
]  # a run in a minute or two on one quiet core
VARIANTS: dict[str, list[str]] = {
    "post": ["model.body.norm=post"],
    "pre": ["model.body.norm=pre"],
    "soft": ["model.body.norm=soft"],
    "parallel": ["model.body.norm=pre", "model.body.scheme=parallel"],
    "shared": ["model.body.norm=pre", "model.body.control=shared"],
    "strang": ["model.body.norm=pre", "model.body.scheme=strang"],
}
DROPPED = (0.1, 0.2, 0.4)  # share of tokens made unknown
NOISE = (0.25, 0.5, 1.0)  # standard deviation, in units of the features' root mean square
STEPS = (1, 2, 4, 8, 16)
FINE = 64  # steps of the reference that errors are measured against
SAMPLES = 128  # texts for errors and monitors

Forward = Callable[[Tensor, Tensor], Tensor]


def batches(dataset: Any, size: int = 256) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(indices, inputs, labels) of a whole data set, in order."""
    parts = torch.arange(len(dataset)).split(size)
    return [(part, *dataset.batch(part)) for part in parts]


@torch.inference_mode()
def right_answers(forward: Forward, parts: list[tuple[Tensor, Tensor, Tensor]]) -> list[float]:
    """Return 1.0 for every sample whose largest logit is its label's, else 0.0."""
    found = [forward(index, inputs).argmax(-1) == labels for index, inputs, labels in parts]
    return torch.cat(found).double().tolist()


def accuracy(forward: Forward, parts: list[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Return the share of samples whose largest logit is their label's."""
    return fmean(right_answers(forward, parts))


def drop_tokens(index: Tensor, numbers: Tensor, share: float, seed: int) -> Tensor:
    """Tokens made unknown with probability ``share``, by a hash of (seed, sample, place): the same
    ones for every model.
    """
    places = torch.arange(numbers.shape[1])
    hit = uniform(seed, index[:, None], places[None]) < share
    return torch.where(hit & (numbers != 0), UNKNOWN, numbers)


def noisy(model: Model, numbers: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Logits after Gaussian noise on u(0), of ``level`` times its root mean square over the real
    tokens.
    """
    u, domain = model.encoder(numbers)
    real = u[domain.valid]
    noise = torch.randn(u.shape, generator=generator) * (level * real.square().mean().sqrt())
    return model.head(read_out(*model.body(u + noise, domain), model.pool))


def measure_noise(model: Model, parts: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Any]:
    """Accuracy under both kinds of noise, at each level."""
    generator = torch.Generator().manual_seed(0)
    return {
        "tokens": [
            accuracy(lambda i, x, p=p: model(drop_tokens(i, x, p, seed=7)), parts) for p in DROPPED
        ],
        "features": [
            accuracy(lambda i, x, s=s: noisy(model, x, s, generator), parts) for s in NOISE
        ],
    }


def operator_calls(model: Model, inputs: Tensor, steps: int) -> int:
    """How often attention is evaluated in a forward pass: its cost, free of what else the machine
    does.
    """
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
def measure_steps(
    model: Model, parts: list[tuple[Tensor, Tensor, Tensor]], control: str
) -> list[Any]:
    """At each number of steps: accuracy, attention evaluations, seconds, relative error of u(T)
    against a fine Strang solution.
    """
    evolution, inputs = model.body.evolution, parts[0][1][:SAMPLES]
    trained, evolution.controls = evolution.controls, resolve_controls(control)
    try:
        start, domain = model.body.start(*model.encoder(inputs))
        reference = None
        if model.config.body.norm != "post":  # hard projections have no limit
            reference = evolution(start, domain, steps=FINE, scheme="strang")
        rows = []
        for steps in STEPS:
            found: list[list[float]] = []
            seconds = seconds_of(
                lambda n=steps, f=found: f.append(
                    right_answers(lambda _, x: model(x, steps=n), parts)
                )
            )
            right = found[0]
            row = {"steps": steps, "accuracy": fmean(right), "seconds": round(seconds, 2)}
            row["answers"] = {"accuracy": pack(right)}
            row["calls"] = operator_calls(model, inputs, steps)
            if reference is not None:
                row["error"] = float(
                    (evolution(start, domain, steps=steps) - reference).norm() / reference.norm()
                )
            rows.append(row)
        return rows
    finally:
        evolution.controls = trained


def trained_model(cell: Cell) -> tuple[Model, list[tuple[Tensor, Tensor, Tensor]]]:
    """Return a trained model and its test set in batches of (indices, inputs, labels)."""
    model, _ = load_run(cell.place)
    words: Any = model.extra.get("vocabulary")
    vocabulary = data.Vocabulary.from_dict(words) if words else None
    return model, batches(build_dataset(cell.given, "test", vocabulary))


def work(cell: Cell, report: Report) -> Row:
    """Train and measure one model."""
    result, recipe = train_cell(cell, report), cell.given
    place = RunFolder(cell.place)
    model, parts = trained_model(cell)
    shared = recipe.name.startswith("shared")
    controls = ("constant",) if shared else ("constant", "linear")
    right = right_answers(lambda _, x: model(x), parts)
    return {
        "parameters": result["parameters"],
        "evolution_parameters": sum(p.numel() for p in model.body.evolutions.parameters()),
        "minutes": result["minutes"],
        "val_accuracy": place.read_result().metrics["val_accuracy"],
        "accuracy": fmean(right),
        "answers": {"accuracy": pack(right)},
        "noise": measure_noise(model, parts),
        "steps": {control: measure_steps(model, parts, control) for control in controls},
        "monitors": {steps: trajectory(model, parts[0][1][:SAMPLES], steps) for steps in (4, 16)},
    }


def run(options: Options) -> None:
    """The variants of ``--only``, or all, seed by seed."""
    rows = [
        {"variant": name, "seed": seed}
        for seed in range(options.seeds or 3)
        for name in options.chosen(VARIANTS)
    ]

    def cell(row: Row) -> Cell:
        label = f"{row['variant']}-{row['seed']}"
        own = [*SMALL, *VARIANTS[row["variant"]], *options.trial]
        recipe = load_recipe(RECIPE, [*own, f"seed={row['seed']}", f"name={label}"])
        return recipe_cell(recipe, options.runs / label)

    names = {"dropped": DROPPED, "noise": NOISE, "steps": STEPS, "fine": FINE, "samples": SAMPLES}
    fill(TABLE, rows, work, cell, options, machine=describe(), settings=names)
