"""InfSA on canvases of known objects: accuracy, faithfulness and localisation of attention,
alignment; ablations of γ and activation.

Small InfViTs and a softmax ViT of equal depth are trained with one recipe, and each is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
# Ablations are of the linear form, as in the paper's Table 4; its own values are the plain run's.
ABLATIONS = {
    **{f"gamma {value:g}": (f"model.body.decay={value}",) for value in (0.3, 0.5, 0.9)},
    **{
        f"activation {name}": ("operator=linear_infsa", f"operator.activation={name}")
        for name in ("gelu", "abs")
    },
}
IMAGES, STEPS, ALIGNED = 256, 12, 32


def plan(task: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """(name, model, overrides) of every variant."""
    plain = [(name, name, ()) for name in MODELS]
    return plain + (
        [(name, "linear", extra) for name, extra in ABLATIONS.items()] if task == "canvas" else []
    )


def judge(model: Any, dataset: Any) -> dict[str, Any]:
    """Attention quality on the first test images, and the alignment of every layer."""
    index = torch.arange(min(IMAGES, len(dataset)))
    images, _ = dataset.batch(index)
    boxes, masks = dataset.masks(index, "box"), dataset.masks(index)
    found = attention_quality(model, images, boxes=boxes, masks=masks, steps=STEPS).summary()
    return found | {"alignment": align(model, images[:ALIGNED])}


def align(model: Any, images: torch.Tensor) -> list[dict[str, Any]]:
    """Cosine and rank correlation with the leading eigenvector, layer by layer, over all heads of
    some images.
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
    """Train and measure one model."""
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
    """The variants of ``--only``, or all, seed by seed; the ablations come last."""
    variants = {name: (model, extra) for name, model, extra in plan(task)}
    chosen = options.chosen(variants)

    def rows() -> Iterator[Row]:
        for late in (False, True):
            for seed in range(options.seeds or 3):
                for name in chosen:
                    if bool(variants[name][1]) == late:
                        yield {"task": task, "variant": name, "seed": seed}

    def cell(row: Row) -> Cell:
        model, extra = variants[row["variant"]]
        label = f"{task}-{row['variant'].replace(' ', '-')}-{row['seed']}"
        own = [*SMALL[task], *extra, *options.trial, f"seed={row['seed']}", f"name={label}"]
        recipe = load_recipe(RECIPES[task].format(model), own)
        return recipe_cell(recipe, options.runs / label)

    settings = {"small": SMALL, "images": IMAGES, "steps": STEPS, "aligned": ALIGNED}
    fill(TABLE, rows(), work, cell, options, machine=describe(), settings=settings)


def run_canvas(options: Options) -> None:
    run("canvas", options)


def run_cifar10(options: Options) -> None:
    run("cifar10", options)
