"""A training process to be killed, with slow steps.

Each step writes a file ``training`` or ``validation`` beside the run's folder. The arguments are a
folder, seconds per step, and overrides.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from fredholm.lab.cli.main import main
from fredholm.lab.training.module import RecipeLearner


def slow(original, mark: Path, pause: float):
    """Return the step with a pause before it, which writes the file ``mark``."""

    def step(self, batch, batch_idx):
        time.sleep(pause)
        result = original(self, batch, batch_idx)
        mark.touch()
        return result

    return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    pause = float(sys.argv[2])
    # There are more steps of validation.
    for name, wait in (("training", pause), ("validation", pause / 10)):
        method = f"{name}_step"
        step = slow(getattr(RecipeLearner, method), folder.parent / name, wait)
        setattr(RecipeLearner, method, step)
    sys.exit(
        main(
            ["train", "digits", *sys.argv[3:], "--runs", str(folder.parent), "--name", folder.name]
        )
    )
