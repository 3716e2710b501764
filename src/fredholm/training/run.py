"""One run from a recipe: set up the folder, fit, record the result."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import RichProgressBar, Timer
from lightning.pytorch.loggers import TensorBoardLogger

from .. import models
from ..errors import OptionError, StorageError
from ..families.continuous import ContinuousBody
from ..files import storage_error
from .build import build_dataset, build_loaders, build_mixer, build_model
from .calibration import calibrate
from .callbacks import Ema, History, KeepModel, Patience
from .checkpoints import AtomicIO, Checkpoints, list_checkpoints, newest_readable
from .failures import Interrupted, TrainingFailed
from .folder import RunFolder, RunResult
from .leases import hold
from .module import Classifier
from .monitors import SAMPLES, StepMonitor
from .recipe import Recipe
from .tasks import Task, task_of
from .warm_start import known_vocabulary, start_from


def train(
    recipe: Recipe,
    folder: str | Path,
    resume: bool = False,
    *,
    overwrite: bool = False,
    report: Callable[[str], None] | None = None,
    trust_code: bool = False,
) -> RunResult:
    """Train the recipe's model into ``folder``, or continue there exactly where its newest
    checkpoint stopped.

    On a CPU a resumed run ends with the same bits as one that was never stopped: the optimizer's
    state, the averaged weights and the loader's place are in the checkpoint, and all random numbers
    of a step follow from (seed, epoch, batch). The weights with the best validation are kept in
    ``folder/model``, in the format of ``save_pretrained``; the temperature that calibrates their
    probabilities on validation is in ``folder/calibration.json``.

    Args:
        recipe: what to train, from :func:`load_recipe`.
        folder: the run folder; made if need be.
        resume: continue the run in ``folder``; a finished run is returned as it is.
        overwrite: delete the run in ``folder`` first.
        report: receives one line an epoch.
        trust_code: of the runs in ``init_from``, see :func:`load_run`.

    Raises:
        OptionError: ``folder`` holds a run and neither ``resume`` nor ``overwrite`` is given, or
            more devices are asked for than there are.
        RecipeError: the recipe cannot be built, or differs from the one the run was started with.
        CheckpointError: nothing to resume, or no readable checkpoint.
        InUseError: another process trains in ``folder``.
        StorageError: ``folder`` cannot be written.
        TrainingFailed: the loss is not finite, or the disk is full; the last checkpoint stays.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    place, say = RunFolder(folder), report or (lambda line: None)
    _check_devices(recipe)
    if not _joins():
        place.check(recipe, resume, overwrite)
        if place.started and not (resume and place.finished):
            with hold(place.root, say):  # refused at once, not after the data are read
                pass
    if resume and place.finished:
        return place.read_result()
    words = known_vocabulary(recipe, trust_code)
    data = build_dataset(recipe, "train", words), build_dataset(recipe, "val", words)
    for line in dict.fromkeys([*data[0].remarks(), *data[1].notes]):
        say(line)
    if recipe.warmup_epochs < recipe.schedule.warmup_epochs:
        say(
            f"schedule.warmup_epochs: {recipe.schedule.warmup_epochs:g} of "
            f"{recipe.training.epochs} training.epochs; shortened to {recipe.warmup_epochs:g}"
        )
    loaders = build_loaders(recipe, *data)
    model = build_model(recipe, data[0])
    if recipe.init_from is not None and not resume:  # refused before there is a folder
        for line in start_from(model, recipe.init_from, data[0], trust_code=trust_code):
            say(line)
    with _owned(place, recipe, resume, overwrite, say):
        try:
            result = _run(recipe, place, data, loaders, model, resume, report)
            if not _joins():
                calibrate(place, task_of(data[0]), loaders[1])
            return result
        except OSError as error:
            reason = error if isinstance(error, StorageError) else storage_error(error, place.root)
            saved = list_checkpoints(place.checkpoints)
            way = (
                f"{saved[0].name} is intact, continue with --resume"
                if saved
                else "no checkpoint was saved yet, start again with --overwrite"
            )
            raise TrainingFailed(f"{reason}; {way}") from error


def _joins() -> bool:
    """Whether this process was started by another one of the same run, which has the folder."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0) > 0


@contextlib.contextmanager
def _owned(
    place: RunFolder, recipe: Recipe, resume: bool, overwrite: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """The run's folder, locked and ready; of a run's further processes, the first one's."""
    if _joins():
        yield
        return
    with hold(place.root, say):
        place.open(recipe, resume, overwrite)
        yield


def _run(
    recipe: Recipe,
    place: RunFolder,
    data: tuple[Any, Any],
    loaders: tuple[Any, Any],
    model: Any,
    resume: bool,
    report: Callable[[str], None] | None,
) -> RunResult:
    """Fit in a folder that is ready."""
    checkpoint = newest_readable(place.checkpoints, report) if resume else None
    save = partial(models.save_pretrained, folder=place.model, **data[0].describe())
    task = task_of(data[0])
    loader, validation = loaders
    module = Classifier(model, recipe, loader, build_mixer(recipe, len(data[0].classes)), task)
    with _quiet():
        trainer, parts = _make_trainer(
            recipe, place, save, report, _watchers(place, model, data[1]), task
        )
        with _graceful(parts["checkpoints"]):
            try:
                trainer.fit(
                    module, val_dataloaders=validation, ckpt_path=checkpoint, weights_only=True
                )
            except Interrupted as stop:
                raise Interrupted(f"{stop}; continue with the same command and --resume") from None
    return _finish(recipe, place, trainer, module, parts)


def _check_devices(recipe: Recipe) -> None:
    wanted, cuda = recipe.training.devices, torch.cuda.is_available()
    if cuda and wanted > torch.cuda.device_count():
        raise OptionError(
            f"training.devices: received {wanted}; this machine has {torch.cuda.device_count()} "
            "GPUs"
        )
    if not cuda and recipe.training.strategy == "fsdp":
        raise OptionError("training.strategy: received 'fsdp'; needs GPUs, here use 'ddp'")


def _watchers(place: RunFolder, model: Any, validation: Any) -> list[Any]:
    """Callbacks that suit the model: what an evolution's steps do."""
    if not isinstance(model.body, ContinuousBody):
        return []
    inputs, _ = validation.batch(torch.arange(min(SAMPLES, len(validation))))
    return [StepMonitor(place.monitors, inputs)]


def _make_trainer(
    recipe: Recipe, place: RunFolder, save, report, watchers: list[Any], task: Task
) -> tuple[pl.Trainer, dict[str, Any]]:
    options, stop = recipe.training, recipe.training.early_stop
    ema = Ema(options.ema_decay) if options.ema_decay else None
    timer = Timer(
        timedelta(minutes=options.max_minutes) if options.max_minutes else None, verbose=False
    )
    watched = stop if stop is not None and stop.metric.startswith("val") else None
    metric, mode = (watched.metric, watched.direction) if watched else task.metric
    keeper = KeepModel(save, metric, mode, options.keep, ema)
    checkpoints = Checkpoints(
        place.checkpoints, options.checkpoint_minutes, options.checkpoint_steps
    )
    history = History(place.metrics, timer, report)
    callbacks: list[Any] = [c for c in (ema, timer, keeper, history, *watchers) if c is not None]
    if stop is not None:
        late = stop.metric == "train_loss"
        callbacks.append(
            Patience(
                stop.metric,
                patience=stop.patience,
                mode=stop.direction,
                check_on_train_epoch_end=late,
            )
        )
    if sys.stderr.isatty() and report is not None:
        callbacks.append(RichProgressBar())
    trainer = pl.Trainer(
        accelerator="auto",
        devices=options.devices,
        strategy=options.strategy,
        precision="bf16-mixed" if options.precision == "bf16" else "32-true",
        max_epochs=options.epochs,
        gradient_clip_val=options.clip_norm,
        accumulate_grad_batches=options.accumulate,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(c, RichProgressBar) for c in callbacks),
        enable_checkpointing=True,
        logger=TensorBoardLogger(place.root, name="tensorboard", version=""),
        log_every_n_steps=10,
        plugins=[AtomicIO()],
        callbacks=[*callbacks, checkpoints],
        use_distributed_sampler=False,
    )
    return trainer, {
        "ema": ema,
        "timer": timer,
        "keeper": keeper,
        "history": history,
        "checkpoints": checkpoints,
    }


def _finish(
    recipe: Recipe, place: RunFolder, trainer: pl.Trainer, module: Classifier, parts: dict[str, Any]
) -> RunResult:
    keeper, rows = parts["keeper"], parts["history"].rows
    if keeper.keep == "last" or not keeper.best_epoch:
        keeper.write(trainer, module)
        keeper.best_epoch = len(rows)
    if len(rows) >= recipe.training.epochs:
        stopped = "all epochs done"
    else:
        late = recipe.training.max_minutes and parts["timer"].time_remaining("train") <= 0
        stopped = "time is up" if late else "no more improvement"
    kept = rows[keeper.best_epoch - 1]
    result = RunResult(
        name=recipe.name,
        folder=str(place.root),
        parameters=sum(p.numel() for p in module.model.parameters()),
        epochs=len(rows),
        steps=rows[-1]["step"],
        minutes=round(rows[-1]["seconds"] / 60, 3),
        best_epoch=keeper.best_epoch,
        metrics={
            key: kept[key] for key in ("train_loss", "val_loss", "val_accuracy") if key in kept
        },
        stopped=stopped,
    )
    if trainer.is_global_zero:
        place.write_result(result)
    return result


@contextlib.contextmanager
def _graceful(checkpoints: Checkpoints) -> Iterator[None]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to save and stop after this step; a second
    one stops at once.
    """

    def request(number, frame):
        if checkpoints.requested:
            raise Interrupted("stopped at once; what came after the last checkpoint is lost")
        checkpoints.requested = True
        print(
            "stopping after this step, saving a checkpoint (again to stop at once) ...",
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
