"""InfSA on canvases of known objects: accuracy, faithfulness and localisation of attention,
alignment; ablations of γ and activation.

``python -m benchmarks.infsa_evidence [--runs DIR] [--seeds N] [--only NAME ...] [--out FILE]``
trains small InfViTs and a softmax ViT of equal depth with one recipe, measures each, and adds it to
the file; run it again to go on. ``benchmarks.infsa_report`` writes the page.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch

from fredholm.explain import attention_quality, model_alignment
from fredholm.explain.quality import mean_error
from fredholm.models import Model
from fredholm.training import evaluate, load_recipe, train
from fredholm.training.build import build_dataset
from fredholm.training.evaluation import load_run

from .machine import describe
from .sections import claimed

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "infsa.json"
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


def run(
    task: str,
    name: str,
    model: str,
    extra: tuple[str, ...],
    seed: int,
    folder: Path,
    more: list[str],
) -> dict[str, Any]:
    """Train and measure one model."""
    label = f"{task}-{name.replace(' ', '-')}-{seed}"
    recipe = load_recipe(
        RECIPES[task].format(model), [*SMALL[task], *extra, *more, f"seed={seed}", f"name={label}"]
    )
    place = folder / label
    result = train(
        recipe,
        place,
        resume=(place / "checkpoints").is_dir(),
        report=lambda line: print(line, flush=True),
    )
    trained, _ = load_run(place)
    test = build_dataset(recipe, "test")
    torch.manual_seed(seed)
    untrained = Model(trained.config).eval()
    images, _ = test.batch(torch.arange(ALIGNED))
    return {
        "task": task,
        "variant": name,
        "seed": seed,
        "parameters": result.parameters,
        "minutes": result.minutes,
        "epochs": result.epochs,
        "accuracy": evaluate(place)["accuracy"],
        **judge(trained, test),
        "untrained_alignment": align(untrained, images),
    }


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": []}


def _add(path: Path, row: dict[str, Any]) -> None:
    """One more row, beside what others may have added meanwhile."""
    settings = {"small": SMALL, "images": IMAGES, "steps": STEPS, "aligned": ALIGNED}
    found = _read(path)
    found |= {"machine": describe(), "settings": settings, "runs": [*found["runs"], row]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.infsa_evidence", description=__doc__
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/infsa"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", choices=list(RECIPES), default="canvas")
    parser.add_argument(
        "--only", nargs="+", help="names of variants, such as linear or 'gamma 0.3'"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("overrides", nargs="*", help="changes to the recipes, for a quick try")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [one for one in plan(args.task) if not args.only or one[0] in args.only]
    groups = (
        [one for one in chosen if not one[2]],
        [one for one in chosen if one[2]],
    )  # the ablations come last
    for group in groups:
        for seed, (name, model, extra) in itertools.product(range(args.seeds), group):
            if any(
                (row["task"], row["variant"], row["seed"]) == (args.task, name, seed)
                for row in _read(args.out)["runs"]
            ):
                continue
            with claimed(args.runs / f"{args.task}-{name.replace(' ', '-')}-{seed}.lock") as mine:
                if not mine:  # another process is at it
                    continue
                print(f"{args.task} {name} seed {seed}", flush=True)
                row = run(args.task, name, model, extra, seed, args.runs, args.overrides)
                with claimed(args.runs / "results.lock", wait=True):
                    _add(args.out, row)
                print(
                    f"{args.task} {name} seed {seed}: test accuracy {row['accuracy']:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
