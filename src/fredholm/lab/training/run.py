"""One run of a recipe: prepare its data and model, train in a run folder, record the result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ... import models
from ...errors import OptionError, RecipeError, StorageError
from ...files import storage_error
from ...models.bodies.continuous import ContinuousBody
from ..data import LabelledDataset, Vocabulary, make_loader
from .build import (
    Batches,
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
from .fit import Fit, Goal, Limits, Saving, fit
from .folder import RunFolder, RunResult
from .launch import launch, launches
from .learner import Loader
from .leases import hold
from .metrics import direction
from .module import RecipeLearner, judge_few, rehearse
from .monitors import SAMPLES, StepMonitor
from .processes import Group, facts_of, joined
from .recipe import EarlyStop, Recipe
from .tasks import Classification, Task, task_of
from .warm_start import known_vocabulary, start_from

Report = Callable[[str], None]

# The advice after Ctrl-C.
AGAIN = "continue with the same command and --resume"


@dataclass(frozen=True)
class Request:
    """One call of :func:`train`: what to train, where, and in which processes.

    ``report`` is None without a listener, and in every process but rank 0.
    """

    recipe: Recipe
    folder: RunFolder
    group: Group
    resume: bool
    overwrite: bool
    trust_code: bool
    report: Report | None

    def say(self, line: str) -> None:
        if self.report is not None:
            self.report(line)


class Prepared(NamedTuple):
    """The data and the model of a run, before its folder is opened."""

    train: LabelledDataset
    validation: LabelledDataset
    train_loader: Loader
    validation_loader: Batches
    model: Any


@in_float32()
def train(
    recipe: Recipe,
    folder: str | Path,
    resume: bool = False,
    *,
    overwrite: bool = False,
    report: Report | None = None,
    trust_code: bool = False,
) -> RunResult:
    """Train the recipe's model in ``folder``, or resume exactly at the newest checkpoint there.

    On a CPU a resumed run ends with the same bits as an uninterrupted one. The optimizer's state,
    the averaged weights and the position of the loader are in the checkpoint, and all random
    numbers of a step follow from (seed, epoch, batch).

    The weights with the best validation score (with ``keep: last``, the last ones) are saved in
    ``folder/model``, in the format of ``save_pretrained``. The temperature that calibrates their
    probabilities is written to ``folder/calibration.json``.

    Args:
        recipe: the recipe, from :func:`load_recipe`.
        folder: the run folder; created if it does not exist.
        resume: continue the run in ``folder``. The result of a finished run is returned unchanged.
        overwrite: delete the run in ``folder`` first.
        report: receives one line per epoch.
        trust_code: for the run in ``init_from``, see :func:`load_run`.

    Raises:
        OptionError: ``folder`` holds a run and neither ``resume`` nor ``overwrite`` is given, or
            the recipe asks for more devices than there are.
        RecipeError: the recipe cannot be built, or differs from the one that started the run.
        DataError: files cannot be read, or the user's own have changed since the run was started.
        CheckpointError: there is nothing to resume, or no readable checkpoint.
        InUseError: another process trains in ``folder``.
        StorageError: ``folder`` cannot be written.
        TrainingFailed: the loss is not finite, memory is not enough, the disk is full, or the time
            was up before the first epoch ended. The last checkpoint stays.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    check_devices(recipe)
    if launches(recipe):
        return launch(recipe, folder, resume, overwrite, report=report, trust_code=trust_code)

    with joined(recipe) as group, memory_named():
        if not group.first:
            report = None
        request = Request(
            recipe,
            RunFolder(folder),
            group,
            resume,
            overwrite,
            trust_code,
            report,
        )

        # All processes must train the same recipe in the same folder.
        group.agree(facts_of(recipe, request.folder.root, resume, overwrite))

        # Rank 0 alone reads the folder, and the others get its answer.
        if group.by_first(lambda: _is_done(request)):
            return group.by_first(request.folder.read_result)

        # Everything that can be refused is refused here, before the folder changes.
        prepared = group.in_turn(lambda: _prepare(request))
        _check_prepared(request, prepared)
        with _opened(request, prepared):
            return _train_in_folder(request, prepared)


def check_devices(recipe: Recipe) -> None:
    """Refuse a recipe for more devices than this machine has.

    Raises:
        OptionError: the recipe asks for more GPUs than there are.
    """
    wanted = recipe.training.devices
    if torch.cuda.is_available() and wanted > torch.cuda.device_count():
        raise OptionError(
            f"training.devices: expected at most the {torch.cuda.device_count()} GPUs of this "
            f"machine, got {wanted}; lower it"
        )


def _is_done(request: Request) -> bool:
    """Tell whether the run is finished; refuse a folder that cannot be used.

    This happens before data are read, which may take minutes.
    """
    folder = request.folder
    folder.check(request.recipe, request.resume, request.overwrite)
    if request.resume and folder.finished:
        return True

    # The lock is taken and released, to learn at once whether another process trains here.
    if folder.started:
        with hold(folder.root, request.report):
            pass
    return False


# --- data and model -------------------------------------------------------------------------------


def _prepare(request: Request) -> Prepared:
    """Read the data, build loaders and model, and refuse what does not suit them."""
    recipe = request.recipe
    vocabulary = _vocabulary(request)
    train = build_dataset(recipe, "train", vocabulary)
    validation = build_dataset(recipe, "val", vocabulary)
    for line in dict.fromkeys([*train.remarks(), *validation.notes]):
        request.say(line)

    check_read(recipe, train.kind)
    task = _checked_task(recipe, train)
    if recipe.training.label_smoothing and not isinstance(task, Classification):
        request.say(f"training.label_smoothing: without effect, since the labels are {task.name}")
    for line in _warmup_notes(recipe, len(train)):
        request.say(line)

    model: Any = build_model(recipe, train)
    group = request.group
    train_loader, validation_loader = build_loaders(
        recipe,
        train,
        validation,
        group.rank,
        group.size,
        model.encoder,
    )
    _refuse_split_evolution(recipe, model)

    if recipe.init_from is not None and not request.resume:
        notes = start_from(model, recipe.init_from, train, trust_code=request.trust_code)
        for line in notes:
            request.say(line)
    return Prepared(train, validation, train_loader, validation_loader, model)


def _vocabulary(request: Request) -> Vocabulary | None:
    """Find the vocabulary that texts are read with; None if the data set makes its own.

    A new run takes the vocabulary of the run in ``init_from``. A resumed run takes the one of its
    start, since that run may have changed.
    """
    recipe = request.recipe
    if not request.resume:
        return known_vocabulary(recipe, request.trust_code)
    if recipe.init_from is None or "vocabulary" not in kind_asked(recipe).takes:
        return None
    return request.folder.read_vocabulary() or known_vocabulary(recipe, request.trust_code)


def _checked_task(recipe: Recipe, dataset: LabelledDataset) -> Task:
    """Return the task of the samples, and refuse a recipe that does not suit it.

    Raises:
        RecipeError: a metric, an early stop or another option for answers of another kind.
    """
    try:
        task = task_of(dataset)
    except OptionError as error:
        raise RecipeError(f"training.{error}") from None

    check_task(recipe, task)
    _goal(recipe.training.early_stop, task)
    return task


def _refuse_split_evolution(recipe: Recipe, model: Any) -> None:
    if not isinstance(model.body, ContinuousBody):
        return
    if recipe.parallel.domain > 1:
        raise OptionError(
            "parallel.domain: expected 1 for a continuous model, whose evolution needs complete "
            f"samples, got {recipe.parallel.domain}"
        )
    if recipe.training.strategy == "fsdp2":
        raise OptionError(
            "training.strategy: expected 'ddp' for a continuous model, whose evolution needs all "
            "weights in each process, got 'fsdp2'"
        )


def _warmup_notes(recipe: Recipe, samples: int) -> Iterator[str]:
    """Explain how a warm-up that is as long as the run is shortened."""
    training = recipe.training
    asked_epochs = recipe.schedule.warmup_epochs
    if recipe.warmup_epochs < asked_epochs:
        yield (
            f"schedule.warmup_epochs: {asked_epochs:g} of {training.epochs} training.epochs; "
            f"shortened to {recipe.warmup_epochs:g}"
        )

    steps_per_epoch = math.ceil(samples // recipe.data.batch_size / training.accumulate)
    limits = []
    if training.steps is not None:
        limits.append(training.steps)
    if training.epochs is not None:
        limits.append(training.epochs * steps_per_epoch)
    steps = min(limits)

    warmup = recipe.schedule.warmup_steps
    if warmup is None and training.steps is not None:
        warmup = round(steps_per_epoch * recipe.warmup_epochs)
    if warmup is not None and warmup >= steps:
        yield (
            f"schedule: a warm-up of {warmup} steps in a run of {steps}; shortened to {steps // 2}"
        )


def _check_prepared(request: Request, prepared: Prepared) -> None:
    """Try the model on a few points, and compare the data of a resumed run with its start."""
    recipe = request.recipe
    group = request.group
    if request.resume:
        check_unchanged(request.folder.read_source(), prepared.train)

    if group.mesh is not None:
        rehearse(prepared.model, prepared.validation_loader, group.mesh)
    elif not request.resume and recipe.training.strategy != "fsdp2":
        # Weights to be sharded by fsdp2 may not fit a single device, so they are not tried.
        group.by_first(lambda: judge_few(prepared.model, recipe, prepared.train))


# --- training in the folder -----------------------------------------------------------------------


@contextlib.contextmanager
def _opened(request: Request, prepared: Prepared) -> Iterator[None]:
    """Lock the run folder and make it ready; rank 0 does so for all processes."""
    with contextlib.ExitStack() as stack:

        def prepare() -> None:
            stack.enter_context(hold(request.folder.root, request.say))

            # A vocabulary that another run decided is kept, for this run to be resumed with.
            vocabulary = None
            if request.recipe.init_from is not None:
                vocabulary = prepared.train.describe().get("vocabulary")
            request.folder.open(
                request.recipe,
                request.resume,
                request.overwrite,
                prepared.train.source,
                vocabulary,
            )

        request.group.by_first(prepare)
        yield


def _train_in_folder(request: Request, prepared: Prepared) -> RunResult:
    try:
        result = _fit(request, prepared)
        _calibrate(request, prepared.validation)

        # The result comes last. A folder with a result counts as finished and is not resumed.
        request.group.by_first(lambda: request.folder.write_result(result))
        return result
    except OSError as error:
        reason = error
        if not isinstance(error, StorageError):
            reason = storage_error(error, request.folder.root)
        raise TrainingFailed(f"{reason}; {_way_on(request.folder)}") from error


def _fit(request: Request, prepared: Prepared) -> RunResult:
    recipe = request.recipe
    folder = request.folder
    model = prepared.model
    task = task_of(prepared.train)
    mixer = build_mixer(recipe, len(prepared.train.classes))
    module = RecipeLearner(
        model,
        recipe,
        prepared.train_loader,
        mixer=mixer,
        task=task,
        mesh=request.group.mesh,
    )
    if isinstance(model.body, ContinuousBody):
        count = min(SAMPLES, len(prepared.validation))
        inputs, _ = prepared.validation.batch(torch.arange(count))
        module.callbacks.append(StepMonitor(folder.monitors, inputs))

    stop = _goal(recipe.training.early_stop, task)
    best = _best_goal(stop, task)
    kept_by = None
    if recipe.training.keep == "best":
        kept_by = best

    facts = prepared.train.describe()
    fitted = fit(
        module,
        limits=limits_of(recipe, stop),
        keep=partial(models.save_pretrained, folder=folder.model, **facts),
        validation=prepared.validation_loader,
        best=kept_by,
        saving=Saving(folder.root, request.resume, AGAIN, tensorboard=True),
        say=request.report,
        group=request.group,
    )

    if not fitted.rows:
        raise TrainingFailed(
            "training.max_minutes: expected time for one epoch or more, got "
            f"{recipe.training.max_minutes:g}; raise it; {_way_on(folder)}"
        )
    return _result(recipe, folder, model, fitted, best.metric)


def limits_of(recipe: Recipe, stop: Goal | None = None) -> Limits:
    """Read a recipe's limits and numerics; ``stop`` is the metric that may end it early."""
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
        stop=stop,
    )


def _goal(stop: EarlyStop | None, task: Task) -> Goal | None:
    """Return the metric that may end a run early, and its direction.

    Raises:
        RecipeError: the recipe names the other direction.
    """
    if stop is None:
        return None

    metric, mode = task.metric
    if stop.metric and stop.metric != metric:
        metric = stop.metric
        mode = direction(metric)

    if stop.mode not in (None, mode):
        raise RecipeError(
            f"training.early_stop.mode: expected {mode!r} for {metric}, got {stop.mode!r}; leave "
            "it out"
        )
    return Goal(metric, mode, stop.patience)


def _best_goal(stop: Goal | None, task: Task) -> Goal:
    """Return the metric by which weights are kept.

    It is the one that the recipe chose (``training.metric``), else the validation metric of the
    early stop, else the usual one of the task.
    """
    if task.chosen is None and stop is not None and stop.metric.startswith("val"):
        return stop
    return Goal(*task.metric)


def _calibrate(request: Request, validation: LabelledDataset) -> None:
    """Fit the temperature of the kept model on all of the validation data.

    With distributed samples, all processes that share them compute the logits together and one
    writes the temperature.
    """
    folder = request.folder
    group = request.group
    batch_size = request.recipe.data.eval_batch_size
    seed = request.recipe.seed
    task = task_of(validation)
    if not calibrates(task):
        return

    if group.mesh is None:
        batches = make_loader(validation, batch_size, seed=seed, shuffle=False)
        group.by_first(lambda: calibrate(folder, task, batches))
        return

    # Rank 0 may still be writing the model; this waits for it.
    group.by_first(lambda: None)
    model = kept_model(folder)
    mesh = group.mesh
    parts = cut_samples(validation, model.encoder, mesh.get_local_rank(), mesh.size())
    batches = make_loader(parts, batch_size, seed=seed)
    logits, labels = logits_on_shards(model, task, batches, mesh)
    group.by_first(lambda: write_temperature(folder, logits, labels))


def _way_on(folder: RunFolder) -> str:
    """Return the advice for a run that ended early."""
    checkpoints = list_checkpoints(folder.checkpoints)
    if checkpoints:
        return f"{checkpoints[0].name} is intact, continue with --resume"
    return "no checkpoint was saved yet, start again with --overwrite"


def _result(
    recipe: Recipe,
    folder: RunFolder,
    model: nn.Module,
    fitted: Fit,
    metric: str,
) -> RunResult:
    kept_epoch = fitted.rows[fitted.best_epoch - 1]
    last_epoch = fitted.rows[-1]
    return RunResult(
        name=recipe.name,
        folder=str(folder.root),
        parameters=sum(p.numel() for p in model.parameters()),
        epochs=len(fitted.rows),
        steps=last_epoch["step"],
        minutes=round(last_epoch["seconds"] / 60, 3),
        best_epoch=fitted.best_epoch,
        metrics={key: value for key, value in kept_epoch.items() if key not in NOT_METRICS},
        stopped=fitted.stopped,
        metric=metric,
    )
