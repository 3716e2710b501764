"""The cost of a run before it: parameters, memory, minutes, and the plan of each operator."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import DataError
from ..data.create import stand_in
from ..data.registry import get_entry
from .build import build_dataset, build_loaders, build_mixer, build_model, data_arguments
from .checks import check_task
from .fit import Double
from .learner import Loader
from .machine import describe_machine, peak_megabytes, seconds_of
from .module import RecipeLearner, autocast_of
from .recipe import Phase, Recipe
from .run import check_devices
from .tasks import task_of
from .warm_start import known_vocabulary

MEGABYTE = 2**20


@dataclass(frozen=True)
class Memory:
    """Megabytes of a training step.

    Attributes:
        parameters, gradients: the model's.
        optimizer: AdamW's two moments, and the averaged weights if the recipe asks for them.
        activations: tensors that the forward pass saves for the backward pass.
        peak: increase of the memory of the process (of the device, on a GPU) in a measured step,
            which includes gradients and moments; None if the system does not report it.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    peak: float | None

    @property
    def total(self) -> float:
        """The sum of all parts, without temporary tensors inside operations."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class RunPlan:
    """The result of :func:`plan_run`.

    Attributes:
        name, dataset: the recipe's.
        data: ``real``, or ``random`` if the files are missing.
        samples: number of training and validation samples.
        batch_size: samples per batch.
        steps: batches per epoch.
        epochs: epochs that are begun.
        batches: batches of the run, whose last epoch may be incomplete.
        parameters: size of the model.
        memory: see :class:`Memory`.
        step_seconds: median time of the measured steps. With ``training.phases`` it is the mean of
            the medians of all phases, weighted by their batches.
        validation_seconds: time of one pass over the validation split.
        minutes: time of all batches and validations, without checkpoints; at most
            ``training.max_minutes``.
        operators: the ``plan`` of each layer's operator, by the layer's number.
        machine: the machine of the measurement.
        processes: number of processes of the recipe; all of their work is measured in one.
        limited: whether ``training.max_minutes`` ends the run. Epochs and batches are then as many
            as there is time for.
    """

    name: str
    dataset: str
    data: str
    samples: dict[str, int]
    batch_size: int
    steps: int
    epochs: int
    batches: int
    parameters: int
    memory: Memory
    step_seconds: float
    validation_seconds: float
    minutes: float
    operators: dict[str, str]
    machine: dict[str, object]
    processes: int = 1
    limited: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return dataclasses.asdict(self)


def plan_run(
    recipe: Recipe,
    steps: int = 3,
    *,
    trust_code: bool = False,
) -> RunPlan:
    """Measure a few training steps of a recipe and predict its cost on this machine.

    Nothing is written. The steps are those of the training: batches of the loader, augmentation,
    forward, loss, backward, optimizer. Each of ``training.phases`` is measured on texts of its
    length, and memory on the longest. An early stop is not predicted. Steps run in this process
    alone, on global batches of complete samples, whatever the recipe says about processes.

    If the files of an image data set are missing, random pixels of the same shape take their place.
    For other data sets only the files tell what a sample is.

    Args:
        recipe: as for :func:`train`.
        steps: number of timed steps per phase, after a first one that is not timed.
        trust_code: for the run in ``init_from``.

    Raises:
        RecipeError: the recipe cannot be built.
        OptionError: the recipe asks for more devices than there are.
        DataError: files are missing, and only they tell what a sample is.
    """
    check_devices(recipe)
    data = _data(recipe, trust_code)
    check_task(recipe, task_of(data.train))
    loader, _ = build_loaders(recipe, data.train, data.validation)

    model: Any = build_model(recipe, data.train)
    if recipe.training.precision == "64":
        model.double()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
    model.to(device).train()
    step = _Step(model, recipe, loader, data.train).to(device)
    batches = _endless(loader)

    # Memory is measured in the phase with the longest texts. Its step is the first one, which is
    # slower and not timed.
    step.number = _longest(recipe.training.phases or [])
    activations = step.saved_megabytes(next(batches))
    peak = step.peak_megabytes(next(batches))

    per_epoch = data.train_samples // recipe.data.batch_size
    stretches = _stretches(recipe, per_epoch)
    seconds_of_stretch = []
    for number in stretches:
        step.number = number
        times = []
        for _ in range(steps):
            seconds = seconds_of(lambda: step.take(next(batches)), device)
            times.append(seconds)
        seconds_of_stretch.append(statistics.median(times))
    validation = step.validation_seconds(data.validation, data.validation_samples)

    duration = _duration(recipe, per_epoch, stretches, seconds_of_stretch, validation)
    sample = step.part_to_device(data.train.example())
    origin = "random"
    if data.is_real:
        origin = "real"
    return RunPlan(
        name=recipe.name,
        dataset=recipe.data.name,
        data=origin,
        samples={
            "train": data.train_samples,
            "val": data.validation_samples,
        },
        batch_size=recipe.data.batch_size,
        steps=per_epoch,
        epochs=duration.epochs,
        batches=duration.batches,
        parameters=sum(p.numel() for p in model.parameters()),
        memory=_memory(recipe, model, activations, peak),
        step_seconds=duration.step_seconds,
        validation_seconds=validation,
        minutes=duration.minutes,
        operators=_operators(model, sample),
        machine=describe_machine(),
        processes=recipe.training.devices * recipe.training.nodes,
        limited=duration.limited,
    )


def _memory(recipe: Recipe, model: nn.Module, activations: float, peak: float | None) -> Memory:
    """Add the sizes that follow from the parameters to the measured ones."""
    byte_count = sum(p.numel() * p.element_size() for p in model.parameters())
    weights = byte_count / MEGABYTE

    # Two moments, and perhaps averaged weights.
    copies = 2
    if recipe.training.ema_decay is not None:
        copies += 1
    return Memory(
        parameters=weights,
        gradients=weights,
        optimizer=copies * weights,
        activations=activations,
        peak=peak,
    )


class _Duration(NamedTuple):
    """The length of a run; see :class:`RunPlan` for its fields."""

    epochs: int
    batches: int
    step_seconds: float
    minutes: float
    limited: bool


def _duration(
    recipe: Recipe,
    per_epoch: int,
    stretches: dict[int, int],
    seconds_of_stretch: list[float],
    validation: float,
) -> _Duration:
    """Add up the stretches of a run and its validations, up to the limit of time."""
    batches = 0
    training = 0.0
    for count, seconds in zip(stretches.values(), seconds_of_stretch, strict=True):
        batches += count
        training += count * seconds
    epochs = math.ceil(batches / max(1, per_epoch))
    total = training + epochs * validation

    limit = 60 * (recipe.training.max_minutes or math.inf)
    share = 1.0
    if total:
        share = min(1.0, limit / total)

    step_seconds, *_ = seconds_of_stretch
    if batches:
        step_seconds = training / batches
    return _Duration(
        epochs=math.ceil(share * epochs),
        batches=round(share * batches),
        step_seconds=step_seconds,
        minutes=min(total, limit) / 60,
        limited=share < 1,
    )


def _longest(phases: list[Phase]) -> int:
    """Return the number of the first step of the phase with the longest texts."""
    if not phases:
        return 0
    lengths = [phase.max_length or math.inf for phase in phases]
    longest = lengths.index(max(lengths))
    return sum(phase.steps for phase in phases[:longest])


def _stretches(recipe: Recipe, per_epoch: int) -> dict[int, int]:
    """Return the batches of each phase that the run reaches, by the number of its first step.

    A run without phases is a single stretch. The first limit of ``epochs`` and ``steps`` that is
    reached ends the run.
    """
    options = recipe.training
    limit = math.inf
    if options.epochs is not None:
        limit = options.epochs * per_epoch
    if options.steps is None:
        return {0: int(limit)}

    # Boundaries between stretches, first as optimizer steps and then as batches.
    boundaries = [0, options.steps]
    if options.phases:
        lengths = (phase.steps for phase in options.phases)
        boundaries = [0, *itertools.accumulate(lengths)]

    reached = []
    for end in boundaries:
        batches = _batches(end, per_epoch, options.accumulate)
        reached.append(min(limit, batches))

    stretches = {}
    for first_step, (start, end) in zip(boundaries, itertools.pairwise(reached)):
        if end > start:
            stretches[first_step] = int(end - start)
    return stretches or {0: 0}


def _batches(steps: int, per_epoch: int, accumulate: int) -> int:
    """Return the number of batches in ``steps`` optimizer steps.

    A step accumulates several batches, and the last step of an epoch may have fewer of them.

    Example:
        >>> _batches(3, 10, 4), _batches(4, 10, 4)
        (10, 14)
    """
    steps_per_epoch = max(1, math.ceil(per_epoch / accumulate))
    epochs, rest = divmod(steps, steps_per_epoch)
    return epochs * per_epoch + rest * accumulate


class _Data(NamedTuple):
    """Data sets to measure on, and the number of samples that a run would have.

    Without files, the data sets are stand-ins of one batch each.
    """

    train: Any
    validation: Any
    train_samples: int
    validation_samples: int
    is_real: bool


def _data(recipe: Recipe, trust_code: bool) -> _Data:
    """Read the data of a recipe, or make stand-ins for missing files."""
    vocabulary = known_vocabulary(recipe, trust_code)
    try:
        train = build_dataset(recipe, "train", vocabulary)
        validation = build_dataset(recipe, "val", vocabulary)
        return _Data(train, validation, len(train), len(validation), is_real=True)
    except DataError:
        stand_ins = _stand_ins(recipe)
        if stand_ins is None:
            raise
        return stand_ins


def _stand_ins(recipe: Recipe) -> _Data | None:
    """Make random samples of the data set's shape; None if only its files tell the shape."""
    entry = get_entry(recipe.data.name)
    if entry.kind_at is not None or "train" not in entry.samples:
        return None

    arguments = data_arguments(recipe)
    fraction = arguments.pop("val_fraction", entry.val_fraction)
    arguments.pop("path", None)
    train = stand_in(entry.name, recipe.data.batch_size, **arguments)
    validation = stand_in(entry.name, recipe.data.eval_batch_size, **arguments)
    if train is None or validation is None:
        return None

    count = entry.samples["train"]
    validation_samples = round(fraction * count)
    train_samples = count - validation_samples
    limit = recipe.data.limit or count
    return _Data(
        train,
        validation,
        train_samples=min(train_samples, limit),
        validation_samples=min(validation_samples, limit),
        is_real=False,
    )


def _endless(loader: Callable[[int, int], Any]) -> Iterator[Any]:
    """Yield the batches of a single process, epoch after epoch."""
    batches = loader(0, 1)
    while True:
        yield from batches


class _Step(RecipeLearner):
    """The training step of a run without a trainer.

    ``number`` is the number of the step, which decides its phase.
    """

    number = 0

    def __init__(self, model: Any, recipe: Recipe, loader: Loader, data: Any):
        mixer = build_mixer(recipe, len(data.classes))
        super().__init__(model, recipe, loader, mixer, task_of(data))
        self.optimizer = self.descent.optimizer(self.trained())

    @property
    def global_step(self) -> int:
        return self.number

    def take(self, batch: tuple[Any, Tensor]) -> None:
        """Take a step of the optimizer."""
        self.optimizer.zero_grad()
        loss = self.total_loss(batch)
        loss.backward()

        clip_norm = self.recipe.training.clip_norm
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        self.optimizer.step()

    def part_to_device(self, part: Any) -> Any:
        """Move inputs or labels to the device, in the precision of the training."""
        part = part.to(self.device)
        if self.recipe.training.precision == "64":
            return Double().convert_input(part)
        return part

    def total_loss(self, batch: tuple[Any, Tensor]) -> Tensor:
        """Compute the loss of a batch, with the model's own penalty."""
        inputs, labels = map(self.part_to_device, batch)
        if self.mixer is not None:
            generator = torch.Generator().manual_seed(0)
            inputs, labels = self.mixer(inputs, labels, generator)
        inputs, labels = self.cut_to_phase(inputs, labels)
        with autocast_of(self.recipe, self.device):
            loss = self.loss(inputs, labels)

        penalty = self.penalty()
        if penalty is None:
            return loss
        return loss + penalty

    def saved_megabytes(self, batch: tuple[Any, Tensor]) -> float:
        """Return the size of the tensors that the forward saves for the backward.

        Parameters do not count. Several tensors may share a storage, which counts once.
        """
        storages = (parameter.untyped_storage() for parameter in self.model.parameters())
        parameters = {storage.data_ptr() for storage in storages}
        sizes: dict[int, int] = {}

        def record(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            address = storage.data_ptr()
            if address not in parameters:
                sizes[address] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
            loss = self.total_loss(batch)
        loss.backward()
        return sum(sizes.values()) / MEGABYTE

    def peak_megabytes(self, batch: tuple[Any, Tensor]) -> float | None:
        """Return by how much a complete step raises the memory in use."""
        if self.device.type != "cuda":
            return peak_megabytes(lambda: self.take(batch))

        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.take(batch)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        return (peak - before) / MEGABYTE

    @torch.no_grad()
    def validation_seconds(self, dataset: Any, samples: int) -> float:
        """Predict the time of one pass over the validation split from its first batch."""
        size = min(self.recipe.data.eval_batch_size, len(dataset))
        inputs, _ = dataset.batch(torch.arange(size))
        self.model.eval()

        def forward() -> None:
            with autocast_of(self.recipe, self.device):
                self.model(self.part_to_device(inputs))

        seconds = seconds_of(forward, self.device)
        self.model.train()
        return seconds * math.ceil(samples / size)


def _operators(model: Any, sample: Any) -> dict[str, str]:
    """Return the plan of each layer's operator on the domain of a sample of full length."""
    plans = {}
    for number, (operator, _, domain) in enumerate(model.trace(sample), 1):
        if hasattr(operator, "plan"):
            plans[str(number)] = str(operator.plan(domain))
    return plans
