"""Lightning callbacks of a fit: averaged weights, table of epochs, best model, early stops."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, Timer, WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...errors import CheckpointError
from ...files import replacing
from ...progress import current
from ..numbers import duration, readable
from .sharding import gather_full, is_sharded, load_full, shard


@dataclass(frozen=True)
class Goal:
    """A metric to optimise.

    Attributes:
        metric: name of a metric that the module logs.
        mode: ``"max"`` if larger is better, otherwise ``"min"``.
        patience: number of epochs without a better value after which the fit ends; None never ends
            it early.
    """

    metric: str
    mode: str
    patience: int | None = None


class ParameterLists(NamedTuple):
    """Averaged and trained parameters of one dtype, in the same order."""

    averaged: list[nn.Parameter]
    trained: list[nn.Parameter]


class ModuleBuffers(NamedTuple):
    """The buffers, by name, of a module of the averaged model and of its trained counterpart."""

    averaged: dict[str, Tensor | None]
    trained: dict[str, Tensor | None]


class Averages(AveragedModel):
    """torch's averaged model, with its parameters and buffers looked up once per fit.

    torch looks them up at every update, which takes as long as the layers of a small model.
    """

    def __init__(self, model: nn.Module, average: Callable[..., None]):
        super().__init__(model, multi_avg_fn=average, use_buffers=False)
        self.average = average

        # One entry per dtype; None leaves the update to torch.
        self.parameter_lists: list[ParameterLists] | None = None
        self.module_buffers: list[ModuleBuffers] = []

    def begin(self, model: nn.Module) -> None:
        """Look up the parameters and buffers that later updates read from ``model``.

        Weights that are trained on another device than the average are left to torch's update,
        which moves them.
        """
        by_dtype: dict[torch.dtype, ParameterLists] = {}
        devices: set[torch.device] = set()
        pairs = zip(self.module.parameters(), model.parameters(), strict=True)
        for averaged, trained in pairs:
            lists = by_dtype.setdefault(averaged.dtype, ParameterLists([], []))
            lists.averaged.append(averaged)
            lists.trained.append(trained)
            devices |= {averaged.device, trained.device}

        modules = zip(self.module.modules(), model.modules(), strict=True)
        self.module_buffers = []
        for averaged, trained in modules:
            buffers = ModuleBuffers(averaged._buffers, trained._buffers)
            self.module_buffers.append(buffers)

        self.parameter_lists = None
        if len(devices) == 1:
            self.parameter_lists = list(by_dtype.values())

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        # The first update copies the weights, which torch does.
        updates = int(self.n_averaged)
        if self.parameter_lists is None or updates == 0:
            super().update_parameters(model)
            return

        for lists in self.parameter_lists:
            self.average(lists.averaged, lists.trained, updates)

        # Buffers, such as running statistics, are not averaged. The average has the newest ones.
        for buffers in self.module_buffers:
            for name, value in buffers.trained.items():
                if value is not None:
                    kept = buffers.averaged[name]
                    assert kept is not None
                    kept.copy_(value)
        self.n_averaged += 1


class Ema(WeightAveraging):
    """Exponential moving average of the weights, used by validation and by the saved model.

    The decay of update n is min(decay, (1 + n) / (10 + n)). It begins small, so that the average
    of a short run is not dominated by its initial weights.
    """

    def __init__(self, decay: float):
        def average(averaged, trained, updates):
            count = int(updates)
            rate = min(decay, (1 + count) / (10 + count))
            update = get_ema_multi_avg_fn(rate)
            update(averaged, trained, updates)

        super().__init__(use_buffers=False, multi_avg_fn=average)

    def setup(self, trainer, pl_module, stage: str) -> None:
        # Lightning's own setup refuses weights that are sharded over processes.
        self._average_model = Averages(pl_module, self._kwargs["multi_avg_fn"])
        if pl_module.device_mesh is not None:
            shard(self.averaged.model, pl_module.device_mesh["data_parallel"])

    def on_train_start(self, trainer, pl_module) -> None:
        averages: Any = self._average_model
        averages.begin(pl_module)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        checkpoint["state_dict"] = gather_full(checkpoint["state_dict"])

    def on_load_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        """Restore the averaged weights, the trained weights and the number of updates.

        A checkpoint holds complete tensors. Lightning's own method copies them without cutting them
        to the shards that this process owns.
        """
        averages = self._average_model
        assert averages is not None

        # Lightning stores the average as "state_dict" and the trained weights beside it.
        load_full(self.averaged, checkpoint["state_dict"])
        averages.n_averaged.copy_(checkpoint["averaging_state"]["n_averaged"])
        load_full(pl_module, checkpoint["current_model_state"])

    @property
    def averaged(self) -> Any:
        """The Lightning module that holds the averaged weights."""
        assert self._average_model is not None
        return self._average_model.module


class Patience(EarlyStopping):
    """Early stopping that remembers its end.

    A run that is resumed after the epoch that ended it does not train another one.
    """

    def __init__(self, metric: str, mode: str, patience: int):
        # A score of NaN is not an improvement, and no reason to end at once. A loss of NaN ends the
        # fit elsewhere, by the Learner.
        at_train_end = metric == "train_loss"
        super().__init__(
            metric,
            patience=patience,
            mode=mode,
            check_finite=False,
            check_on_train_epoch_end=at_train_end,
        )

    def on_train_start(self, trainer, pl_module) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class LastStep(Callback):
    """End a fit after ``steps`` steps, with the validation that ends every epoch.

    Lightning's own ``max_steps`` ends without a validation. A fit resumed from the end of an epoch
    would also end that epoch a second time.
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
    """Estimate of the time that a fit still takes, from its steps so far and their validations.

    Example:
        >>> pace = Pace(clock=iter([0.0, 30.0]).__next__)
        >>> pace.begin(step=10, last=40)
        >>> pace.left(20, most=45.0)
        ', about 45 s left'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.start = 0.0
        self.first = 0
        self.last: float | None = None

    def begin(self, step: int, last: float | None) -> None:
        """Record the step that this call begins at, and the last one; None if it is not known."""
        self.start = self.clock()
        self.first = step
        self.last = last

    def left(self, step: int, most: float | None) -> str:
        """Return the time left in words, at most ``most`` seconds.

        It is "" before the first step, after the last one, and if the last one is not known.
        """
        done = step - self.first
        if self.last is None or done <= 0 or step >= self.last:
            return ""

        seconds_per_step = (self.clock() - self.start) / done
        seconds = seconds_per_step * (self.last - step)
        if most is not None:
            seconds = min(seconds, most)
        return f", about {duration(seconds)} left"


def last_step(trainer: Any, module: Any) -> float | None:
    """Return the optimizer step at which a fit ends at the latest; None without such a limit."""
    limits = []
    if module.last_step is not None:
        limits.append(module.last_step)

    batches = trainer.num_training_batches
    if _limits_epochs(trainer) and math.isfinite(batches):
        steps_per_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        limits.append(trainer.max_epochs * steps_per_epoch)
    return min(limits, default=None)


def _limits_epochs(trainer: Any) -> bool:
    # Lightning writes -1 for no limit.
    return trainer.max_epochs not in (None, -1)


def epoch_label(trainer: Any) -> str:
    """Return the number of the epoch, out of all if these are limited."""
    label = f"epoch {trainer.current_epoch + 1}"
    if _limits_epochs(trainer):
        return f"{label}/{trainer.max_epochs}"
    return label


def seconds_allowed(trainer: Any) -> float | None:
    """Return the seconds that a limit of time leaves; None without such a limit."""
    for callback in trainer.callbacks:
        if isinstance(callback, Timer):
            return callback.time_remaining()
    return None


class Signs(Callback):
    """Progress of each epoch and the time left, shown by :mod:`fredholm.progress`; only rank 0
    shows it.
    """

    def __init__(self) -> None:
        self.open = 0
        self.pace = Pace()

    def on_train_start(self, trainer, pl_module) -> None:
        self.pace.begin(trainer.global_step, last_step(trainer, pl_module))

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self._begin_epoch(trainer, pl_module, 0)

    def _begin_epoch(self, trainer, pl_module: Any, batches: int) -> None:
        """Open the bar of an epoch after ``batches`` of its batches.

        The fit may be limited by steps, and its last epoch then ends early.
        """
        if not trainer.is_global_zero or self.open:
            return

        count = trainer.num_training_batches
        last = pl_module.last_step
        if last is not None:
            steps_left = max(last - trainer.global_step, 0)
            batches_left = steps_left * trainer.accumulate_grad_batches
            count = min(count, batches + batches_left)
        self._begin(epoch_label(trainer), count)

    def on_train_batch_end(self, trainer, pl_module: Any, outputs, batch, batch_idx: int) -> None:
        # An epoch that is resumed in its middle gets no on_train_epoch_start.
        self._begin_epoch(trainer, pl_module, batch_idx + 1)
        if self.open:
            current().at(batch_idx + 1, lambda: self._said(trainer, pl_module))

    def _said(self, trainer: Any, module: Any) -> str:
        """Return the loss and the time left; computed only where they are shown."""
        left = self.pace.left(trainer.global_step, seconds_allowed(trainer))
        return f", train loss {module.train_loss():.4g}{left}"

    def on_validation_start(self, trainer, pl_module) -> None:
        if self.open:
            self._begin("validation", sum(trainer.num_val_batches))

    def on_validation_batch_end(
        self,
        trainer,
        pl_module,
        outputs,
        batch,
        batch_idx: int,
        dataloader_idx: int = 0,
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
        # A total of 0 stands for an unknown one.
        total = 0
        if math.isfinite(batches):
            total = int(batches)
        current().start(label, total, "steps")
        self.open += 1

    def _end(self, down_to: int) -> None:
        for _ in range(self.open - down_to):
            current().end()
        self.open = min(self.open, down_to)


class Table(Callback):
    """A CSV file that a fit writes and its checkpoints remember.

    A subclass sets ``path`` (None for no file), ``rows`` and ``columns``.
    """

    columns: tuple[str, ...]
    path: Path | None
    rows: list[dict[str, Any]]

    def write(self) -> None:
        """Rewrite the file, so that each epoch appears once even in a resumed run."""
        if self.path is not None:
            write_table(self.path, self.columns, self.rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]


# Columns of :class:`History` that are not metrics.
NOT_METRICS = ("epoch", "step", "lr", "seconds")


class History(Table):
    """One row per epoch: in ``metrics.csv``, as a line to ``report``, and in the checkpoint.

    The names in ``scores`` are the first columns of validation metrics; other metrics of the
    module follow them.
    """

    def __init__(
        self,
        path: Path | None,
        timer: Timer,
        scores: Sequence[str],
        report: Callable[[str], None] | None = None,
    ):
        self.path = path
        self.timer = timer
        self.scores = scores
        self.report = report
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

        # Repeated names are dropped.
        scores = dict.fromkeys((*self.scores, *pl_module.metrics))
        self.columns = ("epoch", "step", "train_loss", *scores, "lr", "seconds")

        if trainer.is_global_zero:
            self.write()
            if self.report:
                self.report(self._epoch_line(trainer, row, pl_module.metrics))
                current().spoke()

    def _epoch_line(
        self,
        trainer: pl.Trainer,
        row: dict[str, Any],
        metrics: dict[str, float],
    ) -> str:
        """Describe an epoch and the time left on one line."""
        scores = []
        for key, value in metrics.items():
            name = key.replace("_", " ")
            scores.append(f"{name} {readable(value)}")

        left = self.pace.left(trainer.global_step, seconds_allowed(trainer))
        parts = [
            epoch_label(trainer),
            f"train loss {row['train_loss']:.4g}",
            "  ".join(scores),
            f"{row['seconds']:.0f} s{left}",
        ]
        return "  ".join(parts)


class KeepModel(Callback):
    """Save the weights whenever the validation is the best so far.

    With an average of the weights, the average is saved. Without a ``goal`` nothing is saved until
    :meth:`write` is called.

    Args:
        save: receives the model.
        goal: decides which validation is better.
        ema: the averaged weights, if there are any.
        units: (shift, scale) of scores in the units of the files; None if there are none.
    """

    def __init__(
        self,
        save: Callable[[Any], object],
        goal: Goal | None,
        ema: Ema | None,
        units: tuple[float, float] | None = None,
    ):
        self.save = save
        self.goal = goal
        self.ema = ema
        self.units = units

        # The best score so far, with the sign by which larger is better.
        self.best: float | None = None
        self.best_epoch = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking or self.goal is None:
            return
        value = pl_module.metrics[self.goal.metric]
        if self.goal.mode != "max":
            value = -value

        # A score may be NaN, such as a correlation with a constant; every other score beats it.
        has_best = self.best is not None and not math.isnan(self.best)
        if not has_best or value > self.best:
            self.best = value
            self.best_epoch = trainer.current_epoch + 1
            self.write(trainer, pl_module)

    def write(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Save the weights now; every process calls it, and rank 0 writes."""
        module: Any = pl_module
        if self.ema:
            module = self.ema.averaged
        model = module.model

        # All processes together assemble sharded weights, which only rank 0 then holds.
        if is_sharded(model):
            state = gather_full(model.state_dict())
            model = SimpleNamespace(config=model.config, state_dict=lambda: state)

        if trainer.is_global_zero:
            self.save(model)

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "units": self.units,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the best score so far.

        Raises:
            CheckpointError: the scores before and after the checkpoint would have other units.
        """
        # Earlier versions stored no units. They scored standardised numbers.
        scored = state_dict["best"] is not None
        if scored and self.units is not None and state_dict.get("units") is None:
            raise CheckpointError(
                "checkpoint: expected scores in the units of the files, got those of standardised "
                "numbers, by an earlier version of fredholm, which would be compared with the new "
                "ones; train again in another folder"
            )
        self.best = state_dict["best"]
        self.best_epoch = state_dict["best_epoch"]


def write_table(path: Path, columns: Sequence[str], rows: list[dict[str, Any]]) -> Path:
    """Write a CSV file atomically, see :func:`fredholm.files.replacing`."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table: Any = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)
    return path
