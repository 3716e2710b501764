"""How long ITNet's recipes take: ``python -m benchmarks.itnet_recipes [--minutes 0.4] [--threads 2]
[--only NAME ...]``.

Each recipe trains for so many minutes as it stands; a whole run's time is the median step's times
all its steps, and its validations. Written to docs/results/itnet-recipes.json, one row at a time;
``benchmarks.itnet_report`` shows them. Keep the machine quiet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from fredholm.files import write_json
from fredholm.training import load_recipe
from fredholm.training.build import build_dataset, build_loaders, build_mixer, build_model
from fredholm.training.module import Classifier
from fredholm.training.tasks import task_of

from .machine import describe

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "itnet-recipes.json"
RECIPES = (
    "digits",
    "fashion-mnist",
    "reviews",
    "itnet-monte-carlo",
    "itnet-kicad",
    "itnet-mosaics-qa",
    "itnet-debian-graph",
    "itnet-graphs",
    "itnet-darcy",
    "itnet-kjv",
    "itnet-mlm",
    "itnet-paraphrase",
)


class Clock(pl.Callback):
    """The time of every training step, loading included."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


def measure(name: str, minutes: float) -> dict[str, Any]:
    """Seconds of a training step and of a validation sample, and minutes of the whole recipe; what
    comes before is not counted.
    """
    recipe = load_recipe(name, ["init_from=null"])
    data = build_dataset(recipe, "train"), build_dataset(recipe, "val")
    loader, validation = build_loaders(recipe, *data)
    model, clock = build_model(recipe, data[0]), Clock()
    module = Classifier(
        model, recipe, loader, build_mixer(recipe, len(data[0].classes)), task_of(data[0])
    )
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    limits = {
        "max_epochs": recipe.training.epochs,
        "max_time": timedelta(minutes=minutes),
        "limit_val_batches": 0,
        "min_steps": 4,
    }
    trainer = pl.Trainer(
        accelerator="cpu",
        gradient_clip_val=recipe.training.clip_norm,
        callbacks=[clock],
        **quiet,
        **limits,
    )
    trainer.fit(module)
    seconds = statistics.median(b - a for a, b in itertools.pairwise(clock.times))
    begun, seen = time.perf_counter(), 0
    with torch.no_grad():
        for step, (inputs, _) in enumerate(validation):
            model.eval()(inputs)
            seen += len(inputs)
            if step and time.perf_counter() - begun > 12 * minutes:
                break
    sample = (time.perf_counter() - begun) / seen
    steps = recipe.training.epochs * (len(data[0]) // recipe.data.batch_size)
    return {
        "recipe": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "samples": len(data[0]),
        "epochs": recipe.training.epochs,
        "steps": steps,
        "measured": len(clock.times) - 1,
        "seconds_per_step": seconds,
        "validation_seconds_per_sample": sample,
        "minutes": (steps * seconds + recipe.training.epochs * len(data[1]) * sample) / 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.itnet_recipes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    for name in options.only:
        row = measure(name, options.minutes)
        print(
            f"{name:20} {row['seconds_per_step']:8.4f} s a step, {row['minutes']:6.1f} minutes",
            flush=True,
        )
        found = (
            json.loads(options.out.read_text(encoding="utf-8"))["rows"]
            if options.out.is_file()
            else []
        )
        rows = [old for old in found if old["recipe"] != name]
        write_json(options.out, {"machine": describe(), "rows": [*rows, row]})


if __name__ == "__main__":
    main()
