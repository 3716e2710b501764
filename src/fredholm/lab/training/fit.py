"""The only place that builds a Lightning Trainer: for runs, stages of conversions, compression.

A :class:`.learner.Learner` defines what is trained. :func:`fit` adds what all trainings share:
limits, devices and precision, the weights to keep, checkpoints and resuming, Ctrl-C, the table of
epochs, and progress.
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
from typing import Any, NamedTuple

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
from .callbacks import Ema, Goal, History, KeepModel, LastStep, Patience, Signs
from .checkpoints import AtomicIO, Checkpoints, list_checkpoints, newest_readable
from .failures import Interrupted
from .learner import Learner
from .processes import Group
from .sharding import make_strategy

# The folder of checkpoints inside that of a fit.
CHECKPOINTS = "checkpoints"

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Limits:
    """The length of a fit, its numerics, and the interval between checkpoints.

    Attributes:
        epochs, steps, minutes: the first limit that is reached ends the fit; one of epochs and
            steps has to be given.
        clip_norm: largest norm of the gradient over all parameters; None does not clip.
        accumulate: batches per optimizer step.
        ema_decay: decay of the averaged weights, which validation and the kept model then use;
            None uses the trained weights.
        precision: a key of :data:`PRECISIONS`; with ``bf16``, weights and statistics stay in
            float32.
        strategy: how several processes share the work, ``ddp`` or ``fsdp2``; ``auto`` is ``ddp``.
        accelerator: as Lightning names it.
        save_minutes, save_steps: interval between checkpoints within an epoch. One more is saved
            after each epoch.
        stop: the metric that may end the fit before its limits.

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
    stop: Goal | None = None

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.epochs is None and self.steps is None:
            raise OptionError("limits: expected epochs or steps, got neither; give one of them")


@dataclass(frozen=True)
class Saving:
    """Where a fit writes, and whether it continues the one that is there.

    Attributes:
        folder: where checkpoints (``checkpoints/``), the table of epochs (``metrics.csv``) and
            ``tensorboard/`` are written.
        resume: continue from the newest readable checkpoint in ``folder``.
        again: the advice on how to continue, for the error after Ctrl-C.
        tensorboard: whether to write TensorBoard curves.
    """

    folder: Path
    resume: bool = False
    again: str = "continue with resume=True, or the same command and --resume"
    tensorboard: bool = False


def continuing(folder: Path | None) -> Saving | None:
    """Return how to save in ``folder``, and continue the fit that was begun there, if one was."""
    if folder is None:
        return None
    return Saving(folder, resume=bool(list_checkpoints(folder / CHECKPOINTS)))


@dataclass(frozen=True)
class Fit:
    """The outcome of a fit.

    Attributes:
        rows: the table of epochs; empty if the time was up before the first epoch ended.
        best_epoch: the epoch whose weights were kept, counted from 1; 0 if none were.
        stopped: the reason for the end.
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
    saving: Saving | None = None,
    say: Callable[[str], None] | None = None,
    group: Group | None = None,
) -> Fit:
    """Train ``module``, or continue exactly where its newest checkpoint stopped.

    A new kind of training is a :class:`Learner` with its own loss, for instance the distance of a
    student to its teacher's logits. On a CPU a resumed fit ends with the same bits as an
    uninterrupted one.

    Args:
        module: the model, its loss, its optimizer, and its training data.
        limits: length, numerics and checkpoint interval.
        keep: receives the model whenever its weights are to be kept: at each best validation, or
            once at the end.
        validation: batches on which the module is evaluated after each epoch.
        best: the metric that decides which weights are kept; None keeps the last ones.
        saving: where the fit writes and resumes. None writes nothing, and the fit cannot be
            resumed.
        say: receives one line per epoch, and within a long epoch one line every ten seconds. On a
            terminal there is a progress bar instead, see :mod:`fredholm.progress`.
        group: the processes that train together; None for this process alone.

    Raises:
        CheckpointError: nothing to resume, or no readable checkpoint.
        StorageError: the folder cannot be written.
        TrainingFailed: the loss is not finite.
        Interrupted: Ctrl-C; with a folder a checkpoint was saved.
    """
    group = group or Group()
    folder = None
    checkpoint = None
    if saving is not None:
        folder = saving.folder
        if saving.resume:
            checkpoint = _newest(group, folder, say)
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    ema = None
    if limits.ema_decay:
        ema = Ema(limits.ema_decay)
    keeper = KeepModel(keep, best, ema, module.score_units)
    parts = _make_parts(module, limits, keeper, folder, say)
    module.last_step = limits.steps

    # Lightning would convert the weights only after it has read a checkpoint, and round them.
    if limits.precision == "64":
        module.double()

    progress = contextlib.nullcontext() if say is None else shown(say)
    with _quiet(), _graceful(parts.checkpoints, group), progress:
        logger: Any = False
        if saving is not None and saving.tensorboard:
            logger = TensorBoardLogger(saving.folder, name="tensorboard", version="")
        trainer = _trainer(limits, group, parts.callbacks, logger)
        _keep_signals(trainer)
        try:
            trainer.fit(module, val_dataloaders=validation, ckpt_path=checkpoint, weights_only=True)
        except Interrupted as request:
            if saving is None:
                raise
            raise Interrupted(f"{request}; {saving.again}") from None

        module.finish()

        # Without a best epoch (none was asked for, or no score was ever computed) the last weights
        # are kept.
        rows = parts.history.rows
        if rows and (best is None or not keeper.best_epoch):
            keeper.write(trainer, module)
            keeper.best_epoch = len(rows)

    return Fit(rows, keeper.best_epoch, _reason(limits, rows, parts.timer))


class _Parts(NamedTuple):
    """The callbacks of a fit, and those of them whose state it reads."""

    callbacks: list[Callback]
    timer: Timer
    history: History
    checkpoints: Checkpoints


def _make_parts(
    module: Learner,
    limits: Limits,
    keeper: KeepModel,
    folder: Path | None,
    say: Callable[[str], None] | None,
) -> _Parts:
    """Make the callbacks of a fit; the arguments are those of :func:`fit`.

    Lightning calls them in this order. Averaged weights are in place before they are kept, and a
    checkpoint, which Lightning moves to the end, holds the state of all others.
    """
    ordered: list[Callback] = []
    if keeper.ema is not None:
        ordered.append(keeper.ema)

    duration = None
    if limits.minutes:
        duration = timedelta(minutes=limits.minutes)
    timer = Timer(duration, verbose=False)
    ordered.append(timer)
    if limits.steps is not None:
        ordered.append(LastStep(limits.steps))

    history = History(folder and folder / "metrics.csv", timer, module.scores, say)
    ordered += [keeper, Signs(), history, *module.callbacks]
    stop = limits.stop
    if stop is not None and stop.patience is not None:
        ordered.append(Patience(stop.metric, stop.mode, stop.patience))

    checkpoints = Checkpoints(
        folder and folder / CHECKPOINTS,
        limits.save_minutes,
        limits.save_steps,
    )
    ordered.append(checkpoints)
    return _Parts(ordered, timer, history, checkpoints)


def _trainer(
    limits: Limits,
    group: Group,
    callbacks: list[Callback],
    logger: Any,
) -> pl.Trainer:
    """Build Lightning's Trainer for the limits and the group of processes."""
    plugins: list[Any] = [AtomicIO(), group.environment]
    precision: Any = PRECISIONS[limits.precision]

    # With sharded weights Lightning refuses the name "64-true", but accepts a plugin instead.
    if limits.precision == "64":
        plugins.append(Double())
        precision = None

    # The callback LastStep ends a fit without a limit of epochs. Callbacks of our own show the
    # progress, and the loaders already divide the samples among the processes.
    max_epochs = -1 if limits.epochs is None else limits.epochs
    return pl.Trainer(
        accelerator=limits.accelerator,
        devices=group.devices,
        num_nodes=group.nodes,
        strategy=make_strategy(limits.strategy, group),
        precision=precision,
        max_epochs=max_epochs,
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
    """Lightning's double precision, extended to :class:`Inputs` of several tensors."""

    def convert_input(self, data: Any) -> Any:
        def convert(part: Tensor | Inputs) -> Tensor | Inputs:
            if isinstance(part, Inputs) or part.is_floating_point():
                return part.to(torch.float64)
            return part

        return apply_to_collection(data, (Tensor, Inputs), convert)


def _reason(limits: Limits, rows: list[dict[str, Any]], timer: Timer) -> str:
    """Return the reason for which a fit ended."""
    if limits.epochs is not None and len(rows) >= limits.epochs:
        return "all epochs done"
    if limits.steps is not None and rows and rows[-1]["step"] >= limits.steps:
        return "all steps done"
    if limits.minutes and (timer.time_remaining("train") or 0.0) <= 0:
        return "time is up"
    return "no more improvement"


def _newest(group: Group, folder: Path, say: Callable[[str], None] | None) -> Path:
    """Return the checkpoint that rank 0 chooses, and check that this process sees the file."""
    path = group.by_first(lambda: newest_readable(folder / CHECKPOINTS, say))
    if not path.is_file():
        raise CheckpointError(
            f"{path}: expected on every machine, got none on {socket.gethostname()}; put the run's "
            "folder on a shared drive"
        )
    return path


def check_precision(name: str, known: Sequence[str] = tuple(PRECISIONS)) -> None:
    """Check the name of a precision.

    Raises:
        OptionError: the name is not among ``known``.
    """
    if name not in known:
        raise OptionError(f"precision: expected one of {', '.join(known)}, got {name!r}")


def _keep_signals(trainer: Any) -> None:
    """Leave SIGTERM to :func:`_graceful`.

    Lightning's own handler would end the process in the middle of an accumulation or a validation,
    with exit code 0 and nothing saved. It also starts a broadcast wherever a rank happens to be.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None


@contextlib.contextmanager
def _graceful(checkpoints: Checkpoints, group: Group) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into a request to save and stop after this step.

    A second signal stops at once. With several processes, all signals within one second count as
    one: a terminal sends Ctrl-C to all processes, and torchrun passes it on once more.
    """
    first_signal = math.inf

    def request(number, frame):
        nonlocal first_signal
        if group.size > 1:
            first_signal = min(first_signal, time.monotonic())
            if time.monotonic() - first_signal < 1:
                checkpoints.requested = True
                return

        if checkpoints.requested:
            raise Interrupted("stopped at once; the steps since the last checkpoint are lost")
        checkpoints.requested = True

        saving = "" if checkpoints.folder is None else ", saving a checkpoint"
        line = f"stopping after this step{saving} (again to stop at once) ..."
        print(line, file=sys.stderr, flush=True)

    try:
        previous = {
            number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:
        # Only the main thread may set handlers. In another thread the caller handles signals.
        yield
        return
    try:
        yield
    except RuntimeError:
        # Perhaps another process died. torchrun's SIGTERM then arrives any moment and must not end
        # this process before `joined` has found out which one. `joined` restores the handler.
        if group.size > 1:
            previous[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's banners and advice, which are meant for its own users."""
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
