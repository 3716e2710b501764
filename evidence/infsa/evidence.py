"""InfSA on canvases with known objects: accuracy, quality and alignment of its attention, and
ablations of γ and activation.

Small InfViTs and a softmax ViT of equal depth are trained with one recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from fredholm.explain import attention_quality, model_alignment
from fredholm.explain.quality import mean_error
from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.evaluation import load_run
from fredholm.lab.training.grid import Cell, Report, recipe_cell, scores_of
from fredholm.models import Model
from fredholm.training import load_recipe

from ..kit.answers import answers_of
from ..kit.grid import Row, Table, fill
from ..kit.machine import describe
from ..kit.subject import Options

TABLE = Table("infsa.json", ("task", "variant", "seed"))
RECIPES = {"canvas": "infvit-{}-canvas", "cifar10": "infvit-{}-cifar10"}
SMALL = {
    "canvas": (
        "data.options={train: 8000, val: 500, test: 1000, clutter: 6}", "data.image_size=42",
        "model.body.dim=48", "model.body.mlp_ratio=2.0", "training.epochs=8", "training.keep=last",
    ),
    "cifar10": ("model.body.dim=48", "model.body.mlp_ratio=2.0", "training.epochs=2", "training.keep=last", "optimizer.lr=2e-3"),
}  # fmt: skip
MODELS = ("linear", "pure", "softmax")
# Ablations change the linear form, as in the paper's Table 4. The plain run is their base.
ABLATIONS = {
    **{f"gamma {value:g}": (f"model.body.decay={value}",) for value in (0.3, 0.5, 0.9)},
    **{
        f"activation {name}": ("operator=linear_infsa", f"operator.activation={name}")
        for name in ("gelu", "abs")
    },
}
IMAGES = 256
"""Test images of the attention's quality."""
STEPS = 12
"""Steps in which patches are removed."""
ALIGNED = 32
"""Test images of the alignment."""


class Variant(NamedTuple):
    """A model's name in its recipe and its overrides."""

    model: str
    overrides: tuple[str, ...] = ()


def plan(task: str) -> dict[str, Variant]:
    """Return the variants of a task by name."""
    variants = {name: Variant(name) for name in MODELS}
    if task == "canvas":
        for name, overrides in ABLATIONS.items():
            variants[name] = Variant("linear", overrides)
    return variants


def judge(model: Any, dataset: Any) -> dict[str, Any]:
    """Measure attention quality on the first test images, and the alignment of every layer."""
    index = torch.arange(min(IMAGES, len(dataset)))
    images, _ = dataset.batch(index)
    boxes, masks = dataset.masks(index, "box"), dataset.masks(index)
    found = attention_quality(model, images, boxes=boxes, masks=masks, steps=STEPS).summary()
    return found | {"alignment": align(model, images[:ALIGNED])}


def align(model: Any, images: torch.Tensor) -> list[dict[str, Any]]:
    """Measure each layer's alignment with the leading eigenvector over all heads and images.

    Returns a row per layer with cosine and rank correlation.
    """
    rows = []
    for one in model_alignment(model, images).values():
        row: dict[str, Any] = {"samples": one.cosine.numel()}
        for key in ("cosine", "spearman"):
            values = getattr(one, key).flatten()
            row[key] = mean_error(values)["mean"]
            row[f"{key}_sd"] = float(values[~values.isnan()].std())
        rows.append(row)
    return rows


def work(cell: Cell, report: Report) -> Row:
    """Train and measure a model."""
    facts, scores = scores_of(cell, report, each=True)
    recipe = cell.given
    trained, _ = load_run(cell.place)
    test = build_dataset(recipe, "test")
    torch.manual_seed(recipe.seed)
    untrained = Model(trained.config).eval()
    images, _ = test.batch(torch.arange(ALIGNED))
    return {
        **facts,
        "accuracy": scores["accuracy"],
        "answers": answers_of(scores),
        **judge(trained, test),
        "untrained_alignment": align(untrained, images),
    }


def run(task: str, options: Options) -> None:
    """Train the variants of ``--only``, or all, seed by seed, ablations last."""
    variants = plan(task)
    chosen = options.chosen(variants)
    models = [name for name in chosen if not variants[name].overrides]
    ablations = [name for name in chosen if variants[name].overrides]

    def rows() -> Iterator[Row]:
        for names in (models, ablations):
            for seed in range(options.seeds or 3):
                for name in names:
                    yield {"task": task, "variant": name, "seed": seed}

    def cell(row: Row) -> Cell:
        variant = variants[row["variant"]]
        label = f"{task}-{row['variant'].replace(' ', '-')}-{row['seed']}"
        overrides = [*SMALL[task], *variant.overrides, *options.trial]
        overrides += [f"seed={row['seed']}", f"name={label}"]
        recipe = load_recipe(RECIPES[task].format(variant.model), overrides)
        return recipe_cell(recipe, options.runs / label)

    settings = {"small": SMALL, "images": IMAGES, "steps": STEPS, "aligned": ALIGNED}
    fill(TABLE, rows(), work, cell, options, machine=describe(), settings=settings)


def run_canvas(options: Options) -> None:
    run("canvas", options)


def run_cifar10(options: Options) -> None:
    run("cifar10", options)
