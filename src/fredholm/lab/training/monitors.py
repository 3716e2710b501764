"""What the steps of a continuous model do, epoch by epoch, as a file of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from ...models.trajectory import trajectory
from .callbacks import Table
from .evaluation import as_weights

COLUMNS = ("epoch", "step", "time", "energy", "distance", "growth")
SAMPLES = 64


class StepMonitor(Table):
    """One row an epoch and step of the model's evolution, in ``monitors.csv`` and in the
    checkpoint; see :func:`trajectory`.

    Looks at ``inputs``, some of the validation samples, after each validation; uses no random
    number of the training's.
    """

    columns = COLUMNS

    def __init__(self, path: Path, inputs: Tensor):
        self.path, self.inputs = path, inputs
        self.rows: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        model = pl_module.model
        result = trajectory(model, as_weights(model, self.inputs))
        epoch = trainer.current_epoch + 1
        for step, values in enumerate(zip(*(result[key] for key in COLUMNS[2:])), 1):
            self.rows.append({"epoch": epoch, "step": step, **dict(zip(COLUMNS[2:], values))})
        self.write()
