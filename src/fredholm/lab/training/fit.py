"""The one place that fits by Lightning: runs, the stages of conversions, compression.

What is trained is a :class:`.learner.Learner`; here is what all of them share. How long, on which
devices and in which precision; which weights are kept; the state that is saved, and
gone on from; Ctrl-C; the table of epochs; signs of life.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from ...errors import CheckpointError, OptionError
from ...files import storing
from ...models.encoders import Inputs
from ...progress import shown
from .callbacks import Ema, History, KeepModel, LastStep, Patience, Signs
from .checkpoints import AtomicIO, Checkpoints, newest_readable
from .failures import Interrupted
from .learner import Learner
from .processes import Group
from .sharding import make_strategy

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Limits:
    """How long, on what, and how often the state is saved.

    Attributes:
        epochs, steps, minutes: the first that is reached ends the fit; without epochs, steps are
            needed.
        clip_norm: of the gradient, over all parameters.
        accumulate: batches a step.
        ema_decay: of the average of the weights that validation and the kept model use; None for
            the weights themselves.
        precision: a name of :data:`PRECISIONS`; weights and statistics stay in float32.
        strategy: how several processes share the work, ``ddp`` or ``fsdp2``; ``auto`` is ``ddp``.
        accelerator: Lightning's.
        save_minutes, save_steps: within an epoch; after each epoch it is saved anyway.

    Raises:
        OptionError: an unknown precision, or neither epochs nor steps.
    """

    epochs: int | None
    steps: int | None = None
    minutes: float | None = None
    clip_norm: float | None = 1.0
    accumulate: int = 1
    ema_decay: float | None = None
    precision: str = "32"
    strategy: str = "auto"
    accelerator: str = "auto"
    save_minutes: float | None = 5.0
    save_steps: int | None = None

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.epochs is None and self.steps is None:
            raise OptionError("received neither epochs nor steps; needs one of them")


@dataclass(frozen=True)
class Goal:
    """A metric, of those that a module logs, and whether it shall be ``"max"`` or ``"min"``.

    ``patience`` is how many epochs without a better value end the fit; None for no such end.
    """

    metric: str
    mode: str
    patience: int | None = None


@dataclass(frozen=True)
class Fit:
    """What a fit did.

    Attributes:
        rows: the table of epochs; empty where the time was up before the first ended.
        best_epoch: whose weights were kept, from 1; 0 where none were.
        stopped: why it ended.
    """

    rows: list[dict[str, Any]]
    best_epoch: int
    stopped: str


def fit(
    module: Learner,
    *,
    limits: Limits,
    keep: Callable[[Any], object],
    validation: Any = None,
    best: Goal | None = None,
    stop: Goal | None = None,
    folder: Path | None = None,
    resume: bool = False,
    again: str = "continue with the same call and resume=True",
    tensorboard: bool = False,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] | None = None,
    group: Group | None = None,
) -> Fit:
    """Train ``module``, or go on exactly where its newest checkpoint stopped.

    A kind of training is a :class:`Learner` with a loss, for instance that of a student to its
    teacher's logits; the rest is said here. On a CPU a resumed fit ends with the same bits as one
    that was never stopped.

    Args:
        module: the model, its loss, its optimiser, and its training data.
        limits: how long, on what, and how often the state is saved.
        keep: receives the model whenever its weights are to be kept: at each best validation, or
            once at the end.
        validation: batches on which the module is judged after each epoch.
        best: by which metric of a validation weights are kept; None for the last ones.
        stop: by which metric the fit ends early, if any.
        folder: where state (``checkpoints/``), the table of epochs (``metrics.csv``) and
            ``tensorboard/`` are written. None writes nothing, and cannot be resumed.
        resume: go on from the newest checkpoint in ``folder`` that can be read.
        again: how to go on after Ctrl-C, for its error.
        tensorboard: whether curves are written.
        callbacks: further ones of Lightning's.
        say: receives a line an epoch, and within one that takes longer a line every ten seconds;
            on a terminal there is a progress bar instead, see :mod:`fredholm.progress`.
        group: the processes that train together; None for this one alone.

    Raises:
        OptionError: something to resume without a folder.
        CheckpointError: nothing to resume, or no readable checkpoint.
        StorageError: the folder cannot be written.
        TrainingFailed: a loss that is not finite.
        Interrupted: Ctrl-C; with a folder a checkpoint was saved.
    """
    if resume and folder is None:
        raise OptionError("resume=True needs the folder in which the fit was begun")
    group = group or Group()
    checkpoint = _newest(group, folder, say) if resume and folder else None
    if folder is not None:
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    ema = Ema(limits.ema_decay) if limits.ema_decay else None
    timer = Timer(timedelta(minutes=limits.minutes) if limits.minutes else None, verbose=False)
    keeper = KeepModel(keep, best and best.metric, best.mode if best else "max", ema)
    history = History(folder and folder / "metrics.csv", timer, module.scores, say)
    checkpoints = Checkpoints(
        folder and folder / "checkpoints", limits.save_minutes, limits.save_steps
    )
    stopping = [] if stop is None or stop.patience is None else [_patience(stop)]
    last = None if limits.steps is None else LastStep(limits.steps)
    module.last_step = limits.steps
    parts = [ema, timer, last, keeper, Signs(), history, *callbacks, *stopping, checkpoints]
    if limits.precision == "64":
        module.double()  # Lightning's turn comes after a checkpoint is read
    seen = contextlib.nullcontext() if say is None else shown(say)
    with _quiet(), _graceful(checkpoints, group), seen:
        told = [part for part in parts if part is not None]
        trainer = _trainer(limits, group, told, _logger(folder if tensorboard else None))
        _keep_signals(trainer)
        try:
            trainer.fit(module, val_dataloaders=validation, ckpt_path=checkpoint, weights_only=True)
        except Interrupted as request:
            raise Interrupted(f"{request}; {again}" if folder else str(request)) from None
        module.finish()
        if history.rows and (best is None or not keeper.best_epoch):
            keeper.write(trainer, module)
            keeper.best_epoch = len(history.rows)
    stopped = _reason(limits, history.rows, timer)
    return Fit(history.rows, keeper.best_epoch, stopped)


def _trainer(limits: Limits, group: Group, callbacks: list[Callback], logger: Any) -> pl.Trainer:
    """Lightning's part, as the limits and the group of processes have it."""
    plugins: list[Any] = [AtomicIO(), group.environment]
    precision: Any = PRECISIONS[limits.precision]
    if limits.precision == "64":  # as a name, Lightning refuses it with sharded weights
        plugins.append(Double())
        precision = None
    return pl.Trainer(
        accelerator=limits.accelerator,
        devices=group.devices,
        num_nodes=group.nodes,
        strategy=make_strategy(limits.strategy, group),
        precision=precision,
        max_epochs=-1 if limits.epochs is None else limits.epochs,
        gradient_clip_val=limits.clip_norm,
        accumulate_grad_batches=limits.accumulate,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_progress_bar=False,
        enable_checkpointing=True,
        logger=logger,
        log_every_n_steps=10,
        plugins=plugins,
        callbacks=callbacks,
        use_distributed_sampler=False,
    )


class Double(DoublePrecision):
    """Lightning's, which does not look into inputs of several tensors."""

    def convert_input(self, data: Any) -> Any:
        def convert(part: Tensor | Inputs) -> Tensor | Inputs:
            real = isinstance(part, Inputs) or part.is_floating_point()
            return part.to(torch.float64) if real else part

        return apply_to_collection(data, (Tensor, Inputs), convert)


def _reason(limits: Limits, rows: list[dict[str, Any]], timer: Timer) -> str:
    """Why a fit ended."""
    if limits.epochs is not None and len(rows) >= limits.epochs:
        return "all epochs done"
    if limits.steps is not None and rows and rows[-1]["step"] >= limits.steps:
        return "all steps done"
    late = limits.minutes and (timer.time_remaining("train") or 0.0) <= 0
    return "time is up" if late else "no more improvement"


def _newest(group: Group, folder: Path, say: Callable[[str], None] | None) -> Path:
    """The checkpoint that rank 0 chooses, which every machine must see."""
    path = group.by_first(lambda: newest_readable(folder / "checkpoints", say))
    if not path.is_file():
        raise CheckpointError(
            f"{path}: not here on {socket.gethostname()}; all machines of a run need the same "
            "folder, on a shared drive"
        )
    return path


def check_precision(name: str, known: Sequence[str] = tuple(PRECISIONS)) -> None:
    """OptionError for a precision that there is not."""
    if name not in known:
        raise OptionError(f"precision is one of {', '.join(known)}, got {name!r}")


def _patience(stop: Goal) -> Patience:
    assert stop.patience is not None
    return Patience(
        stop.metric,
        patience=stop.patience,
        mode=stop.mode,
        check_finite=False,  # a score that is not a number is no better one; losses are looked at
        check_on_train_epoch_end=stop.metric == "train_loss",
    )


def _logger(folder: Path | None) -> Any:
    return False if folder is None else TensorBoardLogger(folder, name="tensorboard", version="")


def _keep_signals(trainer: Any) -> None:
    """Leave SIGTERM to :func:`_graceful`. Lightning's own handler would end the process in the
    middle of an accumulation or a validation, with exit code 0 and nothing saved, and begins a
    broadcast of its own wherever a rank happens to be.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None


@contextlib.contextmanager
def _graceful(checkpoints: Checkpoints, group: Group) -> Iterator[None]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to save and stop after this step; a second
    one stops at once. Of several processes' signals, those within a second are one: a terminal
    gives Ctrl-C to all of them, and torchrun passes it on.
    """
    first = math.inf

    def request(number, frame):
        nonlocal first
        if group.size > 1:
            first = min(first, time.monotonic())
            if time.monotonic() - first < 1:
                checkpoints.requested = True
                return
        if checkpoints.requested:
            raise Interrupted("stopped at once; what came after the last checkpoint is lost")
        checkpoints.requested = True
        saving = "" if checkpoints.folder is None else ", saving a checkpoint"
        print(
            f"stopping after this step{saving} (again to stop at once) ...",
            file=sys.stderr,
            flush=True,
        )

    try:
        previous = {
            number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's banners and advice are for its users, not for ours."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)
