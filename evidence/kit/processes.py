"""Measure the memory of each process of a training.

``torchrun --nproc-per-node 2 -m evidence.kit.processes FOLDER ddp`` (or ``fsdp2``; without torchrun
``auto``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fredholm.lab.training.machine import peak_megabytes
from fredholm.training import load_recipe, train

# 25 million parameters take 101 MB. Gradients and each of AdamW's two averages take as much.
MODEL = ("operator=softmax", "model.body.depth=8", "model.body.dim=512", "model.body.heads=8")
STEPS = ("training.epochs=1", "data.limit=64", "data.batch_size=16", "data.eval_batch_size=16")
REST = ("training.ema_decay=null", "model.encoder.patch=4", "schedule.warmup_epochs=0")


def main(folder: str, strategy: str) -> None:
    recipe = load_recipe("digits", [*MODEL, *STEPS, *REST, f"training.strategy={strategy}"])
    grown = peak_megabytes(lambda: train(recipe, Path(folder) / strategy, overwrite=True))
    rank, size = (os.environ.get(name, "-") for name in ("RANK", "WORLD_SIZE"))
    print(f"{strategy}, rank {rank} of {size}: {grown:.0f} MB above the idle process", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
