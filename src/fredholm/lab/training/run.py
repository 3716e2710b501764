"""One run from a recipe: set up the folder, fit, record the result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ... import models
from ...errors import OptionError, RecipeError, StorageError
from ...files import storage_error
from ...models.bodies.continuous import ContinuousBody
from ..data import Vocabulary, make_loader
from .build import (
    build_dataset,
    build_loaders,
    build_mixer,
    build_model,
    cut_samples,
    in_float32,
    kind_asked,
)
from .calibration import calibrate, calibrates, kept_model, logits_on_shards, write_temperature
from .callbacks import NOT_METRICS
from .checkpoints import list_checkpoints
from .checks import check_read, check_task
from .evaluation import check_unchanged
from .failures import TrainingFailed, memory_named
from .fit import Fit, Goal, Limits, fit
from .folder import RunFolder, RunResult
from .launch import launch, launches
from .leases import hold
from .metrics import direction
from .module import RecipeLearner, judge_few, rehearse
from .monitors import SAMPLES, StepMonitor
from .processes import Group, facts_of, joined
from .recipe import EarlyStop, Recipe
from .tasks import Classification, Task, task_of
from .warm_start import known_vocabulary, start_from


@in_float32()
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
        DataError: files that cannot be read, or the user's own that have changed since the run was
            started.
        CheckpointError: nothing to resume, or no readable checkpoint.
        InUseError: another process trains in ``folder``.
        StorageError: ``folder`` cannot be written.
        TrainingFailed: the loss is not finite, memory is not enough, the disk is full, or the time
            was up before the first epoch ended; the last checkpoint stays.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    check_devices(recipe)
    if launches(recipe):
        return launch(recipe, folder, resume, overwrite, report=report, trust_code=trust_code)
    with joined(recipe) as group, memory_named():
        place, report = RunFolder(folder), report if group.first else None
        group.agree(facts_of(recipe, place.root, resume, overwrite))
        if group.by_first(lambda: _finished(place, recipe, resume, overwrite, report)):
            return group.by_first(place.read_result)
        say = report or (lambda line: None)
        data, loaders, model = group.in_turn(
            lambda: _prepare(recipe, place, group, resume, say, trust_code)
        )
        if resume:
            check_unchanged(place.read_source(), data[0])
        if group.mesh is not None:
            rehearse(model, loaders[1], group.mesh)
        elif not resume and recipe.training.strategy != "fsdp2":  # whose weights may fit no device
            group.by_first(lambda: judge_few(model, recipe, data[0]))
        with _owned(group, place, recipe, resume, overwrite, data[0], say):
            try:
                result = _run(recipe, place, data, loaders, model, resume, report, group)
                _calibrate(recipe, place, data[1], group)
                # Last: a run with a result is finished, and not gone on with.
                group.by_first(lambda: place.write_result(result))
                return result
            except OSError as error:
                raise _storage_failed(place, error) from error


def _finished(
    place: RunFolder,
    recipe: Recipe,
    resume: bool,
    overwrite: bool,
    report: Callable[[str], None] | None,
) -> bool:
    """Whether there is nothing left to do; a folder that cannot be used is refused at once, not
    after the data are read.
    """
    place.check(recipe, resume, overwrite)
    if resume and place.finished:
        return True
    if place.started:
        with hold(place.root, report):
            pass
    return False


def _prepare(
    recipe: Recipe,
    place: RunFolder,
    group: Group,
    resume: bool,
    say: Callable[[str], None],
    trust_code: bool,
) -> tuple[tuple[Any, Any], tuple[Any, Any], Any]:
    """Data sets, their loaders and the model."""
    words = _words(recipe, place, trust_code) if resume else known_vocabulary(recipe, trust_code)
    data = build_dataset(recipe, "train", words), build_dataset(recipe, "val", words)
    for line in dict.fromkeys([*data[0].remarks(), *data[1].notes]):
        say(line)
    check_read(recipe, data[0].kind)
    task = _task(data[0])
    check_task(recipe, task)
    _goal(recipe.training.early_stop, task)  # refused before there is a folder
    if recipe.training.label_smoothing and not isinstance(task, Classification):
        say(f"training.label_smoothing: without effect, since the labels are {task.name}")
    for line in _shortened(recipe, len(data[0])):
        say(line)
    model: Any = build_model(recipe, data[0])
    loaders = build_loaders(recipe, *data, group.rank, group.size, model.encoder)
    if recipe.parallel.domain > 1 and isinstance(model.body, ContinuousBody):
        raise OptionError(
            f"parallel.domain: received {recipe.parallel.domain} for a continuous model, whose "
            "evolution is not computed on parts of samples; needs 1"
        )
    if recipe.training.strategy == "fsdp2" and isinstance(model.body, ContinuousBody):
        raise OptionError(
            "training.strategy: received 'fsdp2' for a continuous model, whose evolution is not "
            "split; needs 'ddp'"
        )
    if recipe.init_from is not None and not resume:
        for line in start_from(model, recipe.init_from, data[0], trust_code=trust_code):
            say(line)
    return data, loaders, model


def _task(dataset: Any) -> Task:
    """What is asked of the samples.

    Raises:
        RecipeError: a metric of other answers.
    """
    try:
        return task_of(dataset)
    except OptionError as error:
        raise RecipeError(f"training.{error}") from None


def _words(recipe: Recipe, place: RunFolder, trust_code: bool) -> Vocabulary | None:
    """The vocabulary that a resumed run reads its texts with: as at its start, whatever has become
    of the runs in ``init_from`` since. A run at its start asks those.
    """
    if recipe.init_from is None or "vocabulary" not in kind_asked(recipe).takes:
        return None
    return place.read_vocabulary() or known_vocabulary(recipe, trust_code)


def _shortened(recipe: Recipe, samples: int) -> Iterator[str]:
    """What is said of a warm-up that is as long as the run."""
    given, options = recipe.schedule, recipe.training
    if recipe.warmup_epochs < given.warmup_epochs:
        yield (
            f"schedule.warmup_epochs: {given.warmup_epochs:g} of "
            f"{options.epochs} training.epochs; shortened to {recipe.warmup_epochs:g}"
        )
    epoch = math.ceil(samples // recipe.data.batch_size / options.accumulate)
    limits = [options.steps, None if options.epochs is None else options.epochs * epoch]
    steps = min(limit for limit in limits if limit is not None)
    asked = given.warmup_steps
    if asked is None and options.steps is not None:
        asked = round(epoch * recipe.warmup_epochs)
    if asked is not None and asked >= steps:
        yield f"schedule: a warm-up of {asked} steps in a run of {steps}; shortened to {steps // 2}"


@contextlib.contextmanager
def _owned(
    group: Group,
    place: RunFolder,
    recipe: Recipe,
    resume: bool,
    overwrite: bool,
    dataset: Any,
    say: Callable[[str], None],
) -> Iterator[None]:
    """The run's folder, locked and ready; rank 0 does it for all."""
    with contextlib.ExitStack() as stack:

        def prepare() -> None:
            stack.enter_context(hold(place.root, say))
            words = None if recipe.init_from is None else dataset.describe().get("vocabulary")
            place.open(recipe, resume, overwrite, dataset.source, words)

        group.by_first(prepare)
        yield


def _calibrate(recipe: Recipe, place: RunFolder, validation: Any, group: Group) -> None:
    """The temperature of the kept model, from all of the validation data; of samples in parts all
    processes that have them find it, and one writes.
    """
    size, seed, task = recipe.data.eval_batch_size, recipe.seed, task_of(validation)
    if not calibrates(task):
        return
    if group.mesh is None:
        batches = make_loader(validation, size, seed=seed, shuffle=False)
        group.by_first(lambda: calibrate(place, task, batches))
        return
    group.by_first(lambda: None)  # until the model is written
    model, mesh = kept_model(place), group.mesh
    parts = cut_samples(validation, model.encoder, mesh.get_local_rank(), mesh.size())
    found = logits_on_shards(model, task, make_loader(parts, size, seed=seed), mesh)
    group.by_first(lambda: write_temperature(place, *found))


def _storage_failed(place: RunFolder, error: OSError) -> TrainingFailed:
    reason = error if isinstance(error, StorageError) else storage_error(error, place.root)
    return TrainingFailed(f"{reason}; {_way_on(place)}")


def _way_on(place: RunFolder) -> str:
    """What to do about a run that ended early."""
    saved = list_checkpoints(place.checkpoints)
    if saved:
        return f"{saved[0].name} is intact, continue with --resume"
    return "no checkpoint was saved yet, start again with --overwrite"


def _run(
    recipe: Recipe,
    place: RunFolder,
    data: tuple[Any, Any],
    loaders: tuple[Any, Any],
    model: Any,
    resume: bool,
    report: Callable[[str], None] | None,
    group: Group,
) -> RunResult:
    """Fit in a folder that is ready."""
    save = partial(models.save_pretrained, folder=place.model, **data[0].describe())
    task = task_of(data[0])
    loader, validation = loaders
    mixer = build_mixer(recipe, len(data[0].classes))
    module = RecipeLearner(model, recipe, loader, mixer, task, group.mesh)
    options, stop = recipe.training, _goal(recipe.training.early_stop, task)
    watched = stop if stop is not None and stop.metric.startswith("val") else None
    best = watched if watched is not None and task.chosen is None else Goal(*task.metric)
    fitted = fit(
        module,
        limits=_limits(recipe),
        keep=save,
        validation=validation,
        best=best if options.keep == "best" else None,
        stop=stop,
        folder=place.root,
        resume=resume,
        again="continue with the same command and --resume",
        tensorboard=True,
        callbacks=_watchers(place, model, data[1]),
        say=report,
        group=group,
    )
    if not fitted.rows:
        raise TrainingFailed(
            f"training.max_minutes: received {options.max_minutes:g}, used up before the first "
            f"epoch ended; give more; {_way_on(place)}"
        )
    return _result(recipe, place, model, fitted, best.metric)


def _limits(recipe: Recipe) -> Limits:
    options = recipe.training
    return Limits(
        epochs=options.epochs,
        steps=options.steps,
        minutes=options.max_minutes,
        clip_norm=options.clip_norm,
        accumulate=options.accumulate,
        ema_decay=options.ema_decay,
        precision=options.precision,
        strategy=options.strategy,
        save_minutes=options.checkpoint_minutes,
        save_steps=options.checkpoint_steps,
    )


def _goal(stop: EarlyStop | None, task: Task) -> Goal | None:
    """When a run ends early.

    Raises:
        RecipeError: a mode that does not suit the metric.
    """
    if stop is None:
        return None
    metric = stop.metric or task.metric[0]
    mode = task.metric[1] if metric == task.metric[0] else direction(metric)
    if stop.mode not in (None, mode):
        raise RecipeError(
            f"training.early_stop.mode: received {stop.mode!r} for {metric}; needs the other, or "
            "leave it out"
        )
    return Goal(metric, mode, stop.patience)


def check_devices(recipe: Recipe) -> None:
    """Refuse a recipe for devices that this machine does not have.

    Raises:
        OptionError: more GPUs than there are.
    """
    wanted = recipe.training.devices
    if torch.cuda.is_available() and wanted > torch.cuda.device_count():
        raise OptionError(
            f"training.devices: received {wanted}; this machine has {torch.cuda.device_count()} "
            "GPUs"
        )


def _watchers(place: RunFolder, model: Any, validation: Any) -> list[Any]:
    """Callbacks that suit the model: what an evolution's steps do."""
    if not isinstance(model.body, ContinuousBody):
        return []
    inputs, _ = validation.batch(torch.arange(min(SAMPLES, len(validation))))
    return [StepMonitor(place.monitors, inputs)]


def _result(
    recipe: Recipe, place: RunFolder, model: nn.Module, fitted: Fit, metric: str
) -> RunResult:
    rows = fitted.rows
    kept = rows[fitted.best_epoch - 1]
    return RunResult(
        name=recipe.name,
        folder=str(place.root),
        parameters=sum(p.numel() for p in model.parameters()),
        epochs=len(rows),
        steps=rows[-1]["step"],
        minutes=round(rows[-1]["seconds"] / 60, 3),
        best_epoch=fitted.best_epoch,
        metrics={key: value for key, value in kept.items() if key not in NOT_METRICS},
        stopped=fitted.stopped,
        metric=metric,
    )
