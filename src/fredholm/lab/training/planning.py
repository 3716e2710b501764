"""What a run will cost, before it: parameters, memory, minutes, and how each operator computes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import DataError
from ...kernels import auxiliary_loss
from ..data.create import stand_in
from ..data.registry import get_entry
from .build import build_dataset, build_loaders, build_mixer, build_model, data_arguments
from .checks import check_task
from .fit import Double
from .machine import describe_machine, peak_megabytes, seconds_of
from .module import autocast_of, descent_of, forward_of, in_phase
from .recipe import Phase, Recipe
from .run import check_devices
from .tasks import task_of
from .warm_start import known_vocabulary

MEGABYTE = 2**20


@dataclass(frozen=True)
class Memory:
    """Megabytes of a training step.

    Attributes:
        parameters, gradients: of the model.
        optimizer: AdamW's two moments, and the averaged weights where the recipe keeps them.
        activations: what the forward pass keeps for the backward one.
        peak: by how much a measured step raised the memory of the process (of the device, on a
            GPU), gradients and first moments among it; None where the system does not tell.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    peak: float | None

    @property
    def total(self) -> float:
        """All but what lives only within an operation."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class RunPlan:
    """What :func:`plan_run` found.

    Attributes:
        name, dataset: of the recipe.
        data: ``real``, or ``random`` where the files are not there.
        samples: of training and of validation.
        batch_size, steps, epochs: samples of a batch, batches of an epoch, epochs that are begun.
        batches: of the whole run, whose last epoch may be a part of one.
        parameters: of the model.
        memory: see :class:`Memory`.
        step_seconds, validation_seconds: median of the measured steps, with ``training.phases``
            of those of each, weighted by its batches; one pass over the validation split.
        minutes: of all batches and the validation of each epoch, without what is saved in
            between; at most ``training.max_minutes``.
        limited: whether ``training.max_minutes`` ends the run, so that epochs and batches are as
            many as there is time for.
        operators: what the ``plan`` of each layer's operator says, by the layer's number.
        machine: on which it was measured.
        processes: that the recipe trains in; measured is all of its work in one.
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
        """As JSON takes it."""
        return dataclasses.asdict(self)


def plan_run(recipe: Recipe, steps: int = 3, *, trust_code: bool = False) -> RunPlan:
    """What training by a recipe will cost on this machine, from a few steps of it; nothing is
    written.

    The steps are those of the training: batches of the loader, augmented, forward, loss, backward,
    optimizer. Each of ``training.phases`` is measured on texts of its length; memory is that of
    the longest. An early stop is not foreseen. The steps are taken in this process alone, with
    whole batches of whole samples, whatever the recipe says of several. Where an image data set is
    not there, random pixels of its shape stand in; where another one is not, nothing but its files
    says what a sample is.

    Args:
        recipe: as for :func:`train`.
        steps: that are timed, of each phase, after one that is not.
        trust_code: of the runs in ``init_from``.

    Raises:
        RecipeError: the recipe cannot be built.
        OptionError: more devices than there are.
        DataError: the data are not there, and only they say what a sample is.
    """
    check_devices(recipe)
    train, val, samples, real = _data(recipe, trust_code)
    check_task(recipe, task_of(train))
    loader, _ = build_loaders(recipe, train, val)
    model: Any = build_model(recipe, train)
    if recipe.training.precision == "64":
        model.double()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    step = _Step(model.to(device).train(), recipe, train, device)
    batches = _endless(loader)
    step.number = _longest(recipe.training.phases or [])
    activations = step.kept(next(batches))
    peak = step.peak(next(batches))
    per_epoch = samples["train"] // recipe.data.batch_size
    stretches = _stretches(recipe, per_epoch)
    each = []
    for number in stretches:
        step.number = number
        timed = [seconds_of(lambda: step(next(batches))) for _ in range(steps)]
        each.append(statistics.median(timed))
    validation = step.validation(val, samples["val"])
    own = sum(p.numel() * p.element_size() for p in model.parameters()) / MEGABYTE
    averaged = 0 if recipe.training.ema_decay is None else 1
    count = sum(stretches.values())
    training = sum(n * one for n, one in zip(stretches.values(), each, strict=True))
    epochs = math.ceil(count / max(1, per_epoch))
    whole, most = training + epochs * validation, 60 * (recipe.training.max_minutes or math.inf)
    share = min(1.0, most / whole) if whole else 1.0  # of the run that there is time for
    return RunPlan(
        name=recipe.name,
        dataset=recipe.data.name,
        data="real" if real else "random",
        samples=samples,
        batch_size=recipe.data.batch_size,
        steps=per_epoch,
        epochs=math.ceil(share * epochs),
        batches=round(share * count),
        parameters=sum(p.numel() for p in model.parameters()),
        memory=Memory(own, own, (2 + averaged) * own, activations, peak),
        step_seconds=training / count if count else each[0],
        validation_seconds=validation,
        minutes=min(whole, most) / 60,
        operators=_operators(model, step.there(train.example())),
        machine=describe_machine(),
        processes=recipe.training.devices * recipe.training.nodes,
        limited=share < 1,
    )


def _longest(phases: list[Phase]) -> int:
    """The number of the first step of the phase with the longest texts."""
    lengths = [phase.max_length or math.inf for phase in phases]
    place = lengths.index(max(lengths)) if lengths else 0
    return sum(phase.steps for phase in phases[:place])


def _stretches(recipe: Recipe, per_epoch: int) -> dict[int, int]:
    """Batches of each phase that is reached, by the number of its first step; of a run without
    phases all of them.

    The first of ``epochs`` and ``steps`` that is reached ends the run.
    """
    options = recipe.training
    most = math.inf if options.epochs is None else options.epochs * per_epoch
    if options.steps is None:
        return {0: int(most)}
    ends = [0, *itertools.accumulate(p.steps for p in options.phases or ())]
    ends = ends if options.phases else [0, options.steps]
    reached = [min(most, _batches(end, per_epoch, options.accumulate)) for end in ends]
    found = {a: int(y - x) for a, (x, y) in zip(ends, itertools.pairwise(reached)) if y > x}
    return found or {0: 0}


def _batches(steps: int, per_epoch: int, accumulate: int) -> int:
    """Batches of so many steps of the optimizer, of which an epoch's last may have fewer.

    Example:
        >>> _batches(3, 10, 4), _batches(4, 10, 4)
        (10, 14)
    """
    epochs, rest = divmod(steps, max(1, math.ceil(per_epoch / accumulate)))
    return epochs * per_epoch + rest * accumulate


def _data(recipe: Recipe, trust_code: bool) -> tuple[Any, Any, dict[str, int], bool]:
    """Training and validation data, or stand-ins of a batch each; how many there are; whether they
    are real.
    """
    words = known_vocabulary(recipe, trust_code)
    try:
        train, val = (build_dataset(recipe, split, words) for split in ("train", "val"))
        return train, val, {"train": len(train), "val": len(val)}, True
    except DataError:
        entry, given = get_entry(recipe.data.name), data_arguments(recipe)
        if entry.kind_at is not None:  # the user's own files have no stand-in
            raise
        share = given.pop("val_fraction", entry.val_fraction)
        given.pop("path", None)
        train = stand_in(entry.name, recipe.data.batch_size, **given)
        val = stand_in(entry.name, recipe.data.eval_batch_size, **given)
        if train is None or val is None or "train" not in entry.samples:
            raise
    count = entry.samples["train"]
    split = {"train": count - round(share * count), "val": round(share * count)}
    limit = recipe.data.limit or count
    return train, val, {name: min(size, limit) for name, size in split.items()}, False


def _endless(loader: Callable[[int, int], Any]):
    """Batches of process 0, epoch after epoch."""
    batches = loader(0, 1)
    while True:
        yield from batches


class _Step:
    """One step of the training, as :class:`fredholm.lab.training.module.RecipeLearner` takes it;
    ``number`` tells its phase.
    """

    number = 0

    def __init__(self, model: Any, recipe: Recipe, data: Any, device: torch.device):
        self.model, self.recipe, self.device = model, recipe, device
        self.task, self.mixer = task_of(data), build_mixer(recipe, len(data.classes))
        groups = model.weight_decay_groups(recipe.optimizer.weight_decay)
        self.optimizer = descent_of(recipe).optimizer(groups)

    def __call__(self, batch: tuple[Any, Tensor]) -> None:
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        if self.recipe.training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.training.clip_norm)
        self.optimizer.step()
        self._wait()

    def there(self, part: Any) -> Any:
        """On the device, in the training's precision."""
        part = part.to(self.device)
        return Double().convert_input(part) if self.recipe.training.precision == "64" else part

    def loss(self, batch: tuple[Any, Tensor]) -> Tensor:
        inputs, labels = map(self.there, batch)
        if self.mixer is not None:
            inputs, labels = self.mixer(inputs, labels, torch.Generator().manual_seed(0))
        inputs, labels = in_phase(self.recipe.training.phases, self.number, inputs, labels)
        with self._precision():
            options = self.recipe.training
            out = forward_of(self.model, self.model, inputs, options.weight_dropout)
            loss = self.task.loss(out, labels, options.label_smoothing)
        extra = auxiliary_loss(self.model)
        return loss if extra is None else loss + extra

    def kept(self, batch: tuple[Any, Tensor]) -> float:
        """Megabytes that the forward pass keeps for the backward one, parameters left out."""
        own = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        sizes: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            loss = self.loss(batch)
        loss.backward()
        return sum(sizes.values()) / MEGABYTE

    def peak(self, batch: tuple[Any, Tensor]) -> float | None:
        """Megabytes by which a whole step raises what is in use."""
        if self.device.type != "cuda":
            return peak_megabytes(lambda: self(batch))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self(batch)
        return (torch.cuda.max_memory_allocated() - before) / MEGABYTE

    @torch.no_grad()
    def validation(self, val: Any, samples: int) -> float:
        """Seconds of one pass over the validation split, from its first batch."""
        size = min(self.recipe.data.eval_batch_size, len(val))
        inputs, _ = val.batch(torch.arange(size))
        self.model.eval()

        def forward() -> None:
            with self._precision():
                self.model(self.there(inputs))
            self._wait()

        seconds = seconds_of(forward)
        self.model.train()
        return seconds * math.ceil(samples / size)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return autocast_of(self.recipe, self.device)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _operators(model: Any, sample: Any) -> dict[str, str]:
    """What the operator of each layer says of the domain of a sample of full length."""
    return {
        str(number): str(operator.plan(domain))
        for number, (operator, _, domain) in enumerate(model.trace(sample), 1)
        if hasattr(operator, "plan")
    }
