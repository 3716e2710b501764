"""A training process to be killed: slow steps, each of which leaves a file ``training``
or ``validation`` beside the run's folder. Arguments: folder, seconds a step, overrides.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from fredholm.lab.cli.main import main
from fredholm.lab.training.module import RecipeLearner


def slow(original, mark: Path, pause: float):
    """The step, after a pause; it leaves a file behind."""

    def step(self, batch, batch_idx):
        time.sleep(pause)
        result = original(self, batch, batch_idx)
        mark.touch()
        return result

    return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, pause = Path(sys.argv[1]), float(sys.argv[2])
    for name, wait in (("training", pause), ("validation", pause / 10)):  # of these there are more
        method = f"{name}_step"
        step = slow(getattr(RecipeLearner, method), folder.parent / name, wait)
        setattr(RecipeLearner, method, step)
    sys.exit(
        main(
            ["train", "digits", *sys.argv[3:], "--runs", str(folder.parent), "--name", folder.name]
        )
    )
