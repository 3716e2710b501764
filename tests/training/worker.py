"""A training process to be killed: slow steps, each of which leaves a file ``step`` or
``validation`` beside the run's folder. Arguments: folder, seconds a step, overrides.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from fredholm.cli.main import main
from fredholm.training.module import RecipeLearner

folder, pause = Path(sys.argv[1]), float(sys.argv[2])


def slow(name: str, original):
    def step(self, batch, batch_idx):
        time.sleep(pause if name == "step" else pause / 10)  # there are more of the others
        result = original(self, batch, batch_idx)
        (folder.parent / name).touch()
        return result

    return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    RecipeLearner.training_step = slow("step", RecipeLearner.training_step)
    RecipeLearner.validation_step = slow("validation", RecipeLearner.validation_step)
    sys.exit(
        main(
            ["train", "digits", *sys.argv[3:], "--runs", str(folder.parent), "--name", folder.name]
        )
    )
