"""A training process to be killed: slow steps, a checkpoint every third one. Arguments: folder,
seconds a step, overrides.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from fredholm.cli.main import main
from fredholm.training.module import RecipeLearner

original = RecipeLearner.training_step


def slow(self, batch, batch_idx):
    time.sleep(float(sys.argv[2]))
    return original(self, batch, batch_idx)


if __name__ == "__main__":
    torch.set_num_threads(1)
    RecipeLearner.training_step = slow
    folder = Path(sys.argv[1])
    sys.exit(
        main(
            ["train", "digits", *sys.argv[3:], "--runs", str(folder.parent), "--name", folder.name]
        )
    )
