"""What the steps of a continuous model do, epoch by epoch, as a file of the run."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fredholm.models.continuous import trajectory

COLUMNS = ("epoch", "step", "time", "energy", "distance", "growth")
SAMPLES = 64


class StepMonitor(Callback):
    """One row an epoch and step of the model's evolution, in ``monitors.csv`` and in the checkpoint; see :func:`trajectory`.

    Looks at ``inputs``, some of the validation samples, after each validation; uses no random number of the training's.
    """

    def __init__(self, path: Path, inputs: Tensor):
        self.path, self.inputs = path, inputs
        self.rows: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        found = trajectory(pl_module.model, self.inputs.to(pl_module.device))
        epoch = trainer.current_epoch + 1
        for step, values in enumerate(zip(*(found[key] for key in COLUMNS[2:])), 1):
            self.rows.append({"epoch": epoch, "step": step, **dict(zip(COLUMNS[2:], values))})
        self.write()

    def write(self) -> None:
        """Write the whole table anew, so that a resumed run's file has each epoch once."""
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            table: Any = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(self.rows)
        os.replace(temporary, self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]
