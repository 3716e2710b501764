"""A record of the evolution of a continuous model, epoch by epoch, as a file of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from ...models.trajectory import trajectory
from .callbacks import Table
from .evaluation import as_weights

COLUMNS = ("epoch", "step", "time", "energy", "distance", "growth")

# The columns that the trajectory of an evolution fills, step by step.
MEASURED = COLUMNS[2:]

# The number of validation samples whose evolution is recorded.
SAMPLES = 64


class StepMonitor(Table):
    """One row per epoch and step of the model's evolution, in ``monitors.csv`` and in checkpoints.

    The evolution of ``inputs``, some of the validation samples, is measured after each validation;
    see :func:`trajectory`. It draws no random number of the training.
    """

    columns = COLUMNS

    def __init__(self, path: Path, inputs: Tensor):
        self.path = path
        self.inputs = inputs
        self.rows: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        model = pl_module.model
        result = trajectory(model, as_weights(model, self.inputs))
        epoch = trainer.current_epoch + 1
        series = [result[name] for name in MEASURED]
        for step, values in enumerate(zip(*series), 1):
            measured = dict(zip(MEASURED, values))
            self.rows.append({"epoch": epoch, "step": step, **measured})
        self.write()
