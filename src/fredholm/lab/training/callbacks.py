"""What a run records and keeps: averaged weights, the epoch table, the best model, an end when
nothing improves.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, Timer, WeightAveraging
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...files import replacing
from ...progress import current
from .sharding import is_sharded, load_whole, shard, whole


class Averages(AveragedModel):
    """torch's, which looks for parameters and buffers once a fit instead of at every update: that
    took as long as the layers of a small model.
    """

    def __init__(self, model: Any, average: Callable[..., None]):
        super().__init__(model, multi_avg_fn=average, use_buffers=False)
        self.average = average
        self.lists: list[tuple[list[Any], list[Any]]] | None = None
        self.buffers_of: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def begin(self, model: Any) -> None:
        """Look for the parameters, a pair of lists for each dtype, and where modules keep buffers.
        Weights that are trained on another device are left to torch's update.
        """
        found: dict[Any, tuple[list[Any], list[Any]]] = {}
        pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
        for mean, value in pairs:
            means, values = found.setdefault(mean.dtype, ([], []))
            means.append(mean)
            values.append(value)
        modules = zip(self.module.modules(), model.modules(), strict=True)
        self.buffers_of = [(mine._buffers, theirs._buffers) for mine, theirs in modules]
        together = len({x.device for pair in pairs for x in pair}) == 1
        self.lists = list(found.values()) if together else None

    @torch.no_grad()
    def update_parameters(self, model: Any) -> None:
        count = int(self.n_averaged)
        if self.lists is None or not count:  # the first update copies
            super().update_parameters(model)
            return
        for means, values in self.lists:
            self.average(means, values, count)
        for mine, theirs in self.buffers_of:
            for name, value in theirs.items():
                if value is not None:
                    mine[name].copy_(value)
        self.n_averaged += 1


class Ema(WeightAveraging):
    """Exponential moving average of the weights, used by validation and by the saved model.

    The decay of update n is min(decay, (1 + n) / (10 + n)), so that a short run is not an average
    with its initial weights.
    """

    def __init__(self, decay: float):
        def average(means, values, count):  # all parameters in one call
            rate = min(decay, (1 + int(count)) / (10 + int(count)))
            get_ema_multi_avg_fn(rate)(means, values, count)

        super().__init__(use_buffers=False, multi_avg_fn=average)

    def setup(self, trainer, pl_module, stage: str) -> None:
        """As Lightning's, which does not average weights that are split over processes."""
        self._average_model = Averages(pl_module, self._kwargs["multi_avg_fn"])
        if pl_module.device_mesh is not None:
            shard(self.averaged.model, pl_module.device_mesh["data_parallel"])

    def on_train_start(self, trainer, pl_module) -> None:
        averages: Any = self._average_model
        averages.begin(pl_module)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        checkpoint["state_dict"] = whole(checkpoint["state_dict"])

    def on_load_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        averages, state = self._average_model, checkpoint["averaging_state"]
        assert averages is not None
        load_whole(self.averaged, checkpoint["state_dict"])
        averages.n_averaged.copy_(state["n_averaged"])
        load_whole(pl_module, checkpoint["current_model_state"])

    @property
    def averaged(self) -> Any:
        assert self._average_model is not None
        return self._average_model.module


class Patience(EarlyStopping):
    """Early stopping that stays stopped when a run is resumed after the epoch that ended it."""

    def on_train_start(self, trainer, pl_module) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class LastStep(Callback):
    """Ends a fit after so many steps, with the validation that every epoch ends with.

    At the trainer's own ``max_steps`` there is no validation, and with it a fit resumed from the
    end of an epoch would end that epoch a second time.
    """

    def __init__(self, steps: int):
        self.steps = steps

    def on_train_start(self, trainer, pl_module) -> None:
        if trainer.global_step >= self.steps:
            trainer.should_stop = True

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx: int) -> None:
        if trainer.global_step >= self.steps:
            trainer.should_stop = True


class Pace:
    """How long a fit will still take, from the steps that this call has made, validation included.

    Example:
        >>> pace = Pace(clock=iter([0.0, 30.0]).__next__)
        >>> pace.begin(step=10, last=40)
        >>> pace.left(20)
        ', about 1 min left'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.start, self.first, self.last = 0.0, 0, None

    def begin(self, step: int, last: float | None) -> None:
        """Note the step that this call begins at, and the last one; None where it is not known."""
        self.start, self.first, self.last = self.clock(), step, last

    def left(self, step: int) -> str:
        """Return the time left in words; "" before the first step, after the last one, and where
        the last one is not known.
        """
        done = step - self.first
        if self.last is None or done <= 0 or step >= self.last:
            return ""
        seconds = (self.clock() - self.start) / done * (self.last - step)
        return f", about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a rough time in words.

    Example:
        >>> [duration(t) for t in (4.2, 75, 3600 * 2.4)]
        ['5 s', '2 min', '2.4 h']
    """
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def last_step(trainer: Any, module: Any) -> float | None:
    """Return the step of the optimizer that a fit ends with at the latest; None where there is no
    such limit.
    """
    limits = [] if module.last_step is None else [module.last_step]
    batches = trainer.num_training_batches
    if trainer.max_epochs not in (None, -1) and math.isfinite(batches):
        limits.append(trainer.max_epochs * math.ceil(batches / trainer.accumulate_grad_batches))
    return min(limits, default=None)


class Signs(Callback):
    """How far an epoch is, on what :func:`fredholm.progress.shown` opened, and how long the fit
    will still take; of several processes the first one says it.
    """

    def __init__(self) -> None:
        self.open, self.pace = 0, Pace()

    def on_train_start(self, trainer, pl_module) -> None:
        self.pace.begin(trainer.global_step, last_step(trainer, pl_module))

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self._begin_epoch(trainer, pl_module, 0)

    def _begin_epoch(self, trainer, pl_module: Any, batches: int) -> None:
        """An epoch of which so many batches are done; it may end before its last one, by steps."""
        if not trainer.is_global_zero or self.open:
            return
        count, steps = trainer.num_training_batches, pl_module.last_step
        if steps is not None:
            left = max(steps - trainer.global_step, 0) * trainer.accumulate_grad_batches
            count = min(count, batches + left)
        last = "" if trainer.max_epochs in (None, -1) else f"/{trainer.max_epochs}"
        self._begin(f"epoch {trainer.current_epoch + 1}{last}", count)

    def on_train_batch_end(self, trainer, pl_module: Any, outputs, batch, batch_idx: int) -> None:
        # an epoch that is gone on with in its middle has no start
        self._begin_epoch(trainer, pl_module, batch_idx + 1)
        if self.open:
            left = self.pace.left(trainer.global_step)
            current().at(batch_idx + 1, lambda: f", train loss {pl_module.train_loss():.4g}{left}")

    def on_validation_start(self, trainer, pl_module) -> None:
        if self.open:
            self._begin("validation", sum(trainer.num_val_batches))

    def on_validation_batch_end(
        self, trainer, pl_module, outputs, batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.open:
            current().at(batch_idx + 1)

    def on_validation_end(self, trainer, pl_module) -> None:
        self._end(down_to=1)

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self._end(down_to=0)

    def on_exception(self, trainer, pl_module, exception) -> None:
        self._end(down_to=0)

    def _begin(self, label: str, batches: float) -> None:
        current().start(label, int(batches) if math.isfinite(batches) else 0, "steps")
        self.open += 1

    def _end(self, down_to: int) -> None:
        for _ in range(self.open - down_to):
            current().end()
        self.open = min(self.open, down_to)


class Table(Callback):
    """A CSV file of the fit, one row a record, kept in checkpoints; a subclass sets ``path`` (None
    for no file), ``rows`` and ``columns``.
    """

    columns: tuple[str, ...]
    path: Path | None
    rows: list[dict[str, Any]]

    def write(self) -> None:
        """Write the whole table anew, so that a resumed run's file has each epoch once."""
        if self.path is not None:
            write_table(self.path, self.columns, self.rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]


PLACES = ("epoch", "step", "lr", "seconds")  # columns of :class:`History` that are no metric


class History(Table):
    """One row an epoch, in ``metrics.csv``, on the terminal through ``report`` and in the
    checkpoint; ``scores`` are columns of what the module's validation gives, and what else it
    gives follows them.
    """

    def __init__(
        self,
        path: Path | None,
        timer: Timer,
        scores: Sequence[str],
        report: Callable[[str], None] | None = None,
    ):
        self.path, self.timer, self.report, self.scores = path, timer, report, scores
        self.rows: list[dict[str, Any]] = []
        self.pace = Pace()

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.pace.begin(trainer.global_step, last_step(trainer, pl_module))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "train_loss": pl_module.train_loss(),
            **pl_module.metrics,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "seconds": round(self.timer.time_elapsed("train"), 2),
        }
        self.rows.append(row)
        scores = dict.fromkeys((*self.scores, *pl_module.metrics))
        self.columns = ("epoch", "step", "train_loss", *scores, "lr", "seconds")
        if trainer.is_global_zero:
            self.write()
            if self.report:
                epochs = "" if trainer.max_epochs in (None, -1) else f"/{trainer.max_epochs}"
                shown = "  ".join(
                    f"{key.replace('_', ' ')} {value:.4g}"
                    for key, value in pl_module.metrics.items()
                )
                self.report(
                    f"epoch {row['epoch']}{epochs}  train loss {row['train_loss']:.4g}  {shown}  "
                    f"{row['seconds']:.0f} s{self.pace.left(trainer.global_step)}"
                )
                current().spoke()


class KeepModel(Callback):
    """Saves the weights, averaged ones where there are, whenever validation is the best so far;
    with ``metric=None`` only when :meth:`write` is called.
    """

    def __init__(
        self, save: Callable[[Any], object], metric: str | None, mode: str, ema: Ema | None
    ):
        self.save, self.metric, self.ema = save, metric, ema
        self.sign = 1.0 if mode == "max" else -1.0
        self.best: float | None = None
        self.best_epoch = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking or self.metric is None:
            return
        value = self.sign * pl_module.metrics[self.metric]
        # A score that is not a number, such as a correlation with a constant, is beaten by any.
        if self.best is None or math.isnan(self.best) or value > self.best:
            self.best, self.best_epoch = value, trainer.current_epoch + 1
            self.write(trainer, pl_module)

    def write(self, trainer: pl.Trainer, pl_module: Any) -> None:
        model = (self.ema.averaged if self.ema else pl_module).model
        if is_sharded(model):  # put together by all, written by one
            state = whole(model.state_dict())
            model = SimpleNamespace(config=model.config, state_dict=lambda: state)
        if trainer.is_global_zero:
            self.save(model)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]


def write_table(path: Path, columns: Sequence[str], rows: list[dict[str, Any]]) -> Path:
    """Write a CSV file in one step, see :func:`fredholm.files.replacing`."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table: Any = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)
    return path
