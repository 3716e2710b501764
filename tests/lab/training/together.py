"""One of several processes that torchrun starts: it trains its jobs and saves the results.

Its argument is a folder with ``jobs.json``, which lists (name, overrides, resume).
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path

import torch

from fredholm.errors import FredholmError
from fredholm.lab.training.module import RecipeLearner
from fredholm.training import Interrupted, load_recipe, train

original = RecipeLearner.training_step
# After this many seconds a job counts as hanging, and the stacks of all threads are printed.
LONG = 100


def stopping(self, batch, batch_idx):
    if self.trainer.fit_loop.total_batch_idx == 4:
        raise Interrupted("stopped")
    return original(self, batch, batch_idx)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    outcome = {}
    for name, overrides, resume in json.loads((folder / "jobs.json").read_text()):
        print(f"rank {rank}: {name}", flush=True)
        faulthandler.dump_traceback_later(LONG, exit=True)
        RecipeLearner.training_step = stopping if name == "stopped" else original
        own = [f"optimizer.lr={1e-3 * (1 + rank)}"] if name == "unlike" else []
        lines: list[str] = []
        try:
            recipe = load_recipe("digits", [*overrides, *own])
            result = train(recipe, folder / name, resume=resume, report=lines.append)
            outcome[name] = {"steps": result.steps, "lines": len(lines)}
        except FredholmError as error:
            kind = type(error).__name__
            outcome[name] = {"error": str(error), "kind": kind, "said": error.said}
    print(f"rank {rank}: done", flush=True)
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
