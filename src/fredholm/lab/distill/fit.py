"""Run one stage of a conversion: train it, resume it, or read its result."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ...errors import OptionError
from ...linearization import ConversionReport, Replaced
from ...modes import device_of
from ..data import make_loader
from ..training.build import Batches
from ..training.fit import Goal, Limits, continuing, fit
from ..training.leases import hold
from ..training.tasks import Task
from .progress import Progress
from .stages import Stage

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class StageOptions:
    """Options of one stage: AdamW at ``lr``, with a linear warm-up over the share ``warmup`` of all
    steps, then a cosine to zero.

    ``epochs=0`` leaves the stage out, and ``steps`` ends it within an epoch; ``patience`` is the
    number of epochs without a better validation score after which it ends. With ``lora`` only the
    maps and low-rank changes of that rank, of the layers inside converted attention, are trained.

    With ``vary_window`` every second step, on average, uses a narrower window of softmax and no
    store, so that the state learns what the window would answer. The length is drawn from 1 (the
    query's own token) to the window's. The draws follow from the seed and the step's epoch and
    batch, so that a resumed stage makes the same ones.
    """

    epochs: int = 1
    lr: float = 1e-2
    batch_size: int = 8
    weight_decay: float = 0.0
    warmup: float = 0.0
    patience: int | None = None
    clip_norm: float | None = 1.0
    steps: int | None = None
    lora: int | None = None
    vary_window: bool = False

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise OptionError(f"steps: expected 1 or more, got {self.steps}; None sets no limit")
        if self.lora is not None and self.lora < 1:
            raise OptionError(
                f"lora: expected a rank of 1 or more, got {self.lora}; None trains all weights"
            )
        if self.epochs < 0:
            raise OptionError(f"epochs: expected 0 or more, got {self.epochs}; 0 skips the stage")
        if self.batch_size < 1:
            raise OptionError(f"batch_size: expected 1 or more, got {self.batch_size}; raise it")
        if not self.lr > 0:
            raise OptionError(f"lr: expected a positive number, got {self.lr}; try 1e-4")

    def settings(self) -> dict[str, Any]:
        """Return the options as plain data, which a resumed conversion compares with those that
        it was started with.

        ``vary_window`` is left out where it is False: conversions that were started before this
        option existed have saved no value for it.
        """
        fields = dataclasses.asdict(self)
        if not self.vary_window:
            del fields["vary_window"]
        return fields


@dataclass(frozen=True)
class Run:
    """A conversion under way, which all of its stages share.

    Attributes:
        task: judges the model on validation samples.
        precision: of the training, see :class:`fredholm.lab.training.fit.Limits`.
        seed: of the batches' order and of dropout.
        say: receives lines of progress.
        progress: its results so far.
        replaced: the converted model.
        report: receives the number of epochs and the minutes of each stage.
    """

    task: Task
    precision: str
    seed: int
    say: Callable[[str], None]
    progress: Progress
    replaced: Replaced
    report: ConversionReport


def run_stage(
    run: Run,
    key: str,
    kind: type[Stage],
    train: Any,
    val: Any,
    options: StageOptions,
    **further: Any,
) -> None:
    """Run one stage; the model has its best weights afterwards.

    Args:
        run: the conversion.
        key: name of the stage.
        kind: class of the stage.
        train, val: splits; without ``val`` the last weights count as the best.
        options: of the stage.
        further: arguments of ``kind`` beside those of every stage.
    """
    progress = run.progress
    if f"epochs {key}" not in progress.done:
        with _frozen(run.replaced.model):
            rows = _fit(run, key, kind, train, val, options, **further)
        progress.done[f"minutes {key}"] = round(rows[-1]["seconds"] / 60, 3)
        progress.get(f"epochs {key}", lambda: len(rows))
    progress.restore(key, run.replaced.model)
    run.report.epochs[key] = progress.done[f"epochs {key}"]
    run.report.minutes[key] = progress.done[f"minutes {key}"]


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Restore afterwards which parameters are trained: a stage chooses that for itself."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, learns in before:
            parameter.requires_grad_(learns)


@contextlib.contextmanager
def _back_in_place(models: list[nn.Module]) -> Iterator[None]:
    """Restore the devices of models: a fit moves them, and Lightning leaves them on the CPU."""
    places = [(model, device_of(model)) for model in models]
    try:
        yield
    finally:
        for model, device in places:
            model.to(device)


@contextlib.contextmanager
def _in_single(model: nn.Module, learning: list[nn.Parameter]) -> Iterator[None]:
    """Hold the whole model in float32 while weights in half precision are trained.

    A step of 1e-5 is less than the distance between neighbouring numbers in half precision, and
    would leave most weights as they are. Maps and low-rank changes are in float32 already: where
    only these are trained, the frozen rest stays in half precision and needs less memory.
    """
    if not any(parameter.dtype in HALF for parameter in learning):
        yield
        return
    weights = [(x, x.dtype) for x in model.parameters() if x.dtype in HALF]
    buffers = {name: x.dtype for name, x in _buffers(model) if x.dtype in HALF}
    hook = model.register_forward_pre_hook(_given_in_single, with_kwargs=True)
    halves = [x for x, _ in weights] + [x for name, x in _buffers(model) if name in buffers]
    try:
        # Inside the try: there may be memory for some of them only.
        for tensor in halves:
            tensor.data = tensor.data.float()
        yield
    finally:
        hook.remove()
        for tensor, dtype in weights:
            tensor.grad = None
            tensor.data = tensor.data.to(dtype)

        # Buffers go by name: a model that was on another device has other tensors now.
        for name, tensor in _buffers(model):
            tensor.data = tensor.data.to(buffers.get(name, tensor.dtype))


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return model.named_buffers(remove_duplicate=False)


def _given_in_single(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Hook of a model: convert inputs in half precision to float32, as its weights are."""

    def single(x: Tensor) -> Tensor:
        if x.dtype in HALF:
            return x.float()
        return x

    return tree_map_only(Tensor, single, (tuple(args), dict(kwargs)))


def _fit(
    run: Run,
    key: str,
    kind: type[Stage],
    train: Any,
    val: Any,
    options: StageOptions,
    **further: Any,
) -> list[dict[str, Any]]:
    """Train one stage, and return its table of epochs; ``run.progress`` keeps its weights.

    With a folder, a stage that was interrupted continues from its newest checkpoint. The arguments
    are those of :func:`run_stage`.
    """
    progress = run.progress
    replaced = run.replaced
    # Incomplete batches are dropped, so that a batch must not be larger than the split.
    size = min(options.batch_size, len(train))

    def loader(rank: int, world_size: int) -> Any:
        return make_loader(
            train,
            size,
            seed=run.seed,
            shuffle=True,
            drop_last=True,
            rank=rank,
            world_size=world_size,
        )

    stage = kind(replaced, loader, options, run.seed, **further)
    learning = stage.trained()
    replaced.model.requires_grad_(False)
    for parameter in learning:
        parameter.requires_grad_(True)

    # With a folder, no other process may train in it.
    folder = None
    lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if progress.folder is not None:
        folder = progress.folder / f"stage-{key}"
        lock = hold(folder, run.say)

    goal = None
    validation = None
    if val is not None:
        _, direction = run.task.metric
        goal = Goal("val_metric", direction, options.patience)
        validation = Batches(make_loader(val, size))

    limits = Limits(
        options.epochs,
        options.steps,
        clip_norm=options.clip_norm,
        precision=run.precision,
        stop=goal,
    )
    # The fit moves the model to its device, and a teacher among the further arguments as well.
    teachers = [part for part in further.values() if isinstance(part, nn.Module)]
    models = [replaced.model, *teachers]
    with lock, _back_in_place(models), _in_single(replaced.model, learning):
        fitted = fit(
            stage,
            limits=limits,
            keep=lambda model: progress.keep(key, model),
            validation=validation,
            best=goal,
            saving=continuing(folder),
            say=lambda line: run.say(f"{key}: {line}"),
        )
    return fitted.rows
