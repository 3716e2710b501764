"""One stage of a conversion: trained, resumed, or read."""

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
from ..data import make_loader
from ..training.build import Batches
from ..training.checkpoints import list_checkpoints
from ..training.fit import Goal, Limits, fit
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
            raise OptionError(f"steps: received {self.steps}; needs 1 or more, or None")
        if self.lora is not None and self.lora < 1:
            raise OptionError(f"lora: received {self.lora}; needs a rank of 1 or more, or None")
        if self.epochs < 0 or self.batch_size < 1 or not self.lr > 0:
            raise OptionError(
                f"a stage needs epochs >= 0, a batch of 1 or more and a positive lr, got {self}"
            )

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
    """What every step of a conversion needs to know."""

    task: Task
    precision: str
    seed: int
    say: Callable[[str], None]


def run_stage(
    run: Run,
    progress: Progress,
    key: str,
    kind: type[Stage],
    replaced: Replaced,
    train: Any,
    val: Any,
    options: StageOptions,
    report: ConversionReport,
    *extra: Any,
) -> None:
    """One stage: trained, resumed or read; the model holds its best weights afterwards. ``extra``
    are further arguments of the stage.
    """
    if f"epochs {key}" not in progress.done:
        with _frozen(replaced.model):
            rows = _fit(run, progress, key, kind, replaced, train, val, options, *extra)
        progress.done[f"minutes {key}"] = round(rows[-1]["seconds"] / 60, 3)
        progress.get(f"epochs {key}", lambda: len(rows))
    progress.restore(key, replaced.model)
    report.epochs[key], report.minutes[key] = (
        progress.done[f"epochs {key}"],
        progress.done[f"minutes {key}"],
    )


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Which parameters learn is a stage's choice; afterwards it is as it was."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, learns in before:
            parameter.requires_grad_(learns)


@contextlib.contextmanager
def _back_in_place(models: list[nn.Module]) -> Iterator[None]:
    """A fit takes models to its device, and Lightning leaves what learned on the processor."""
    places = [(model, next(model.parameters()).device) for model in models]
    try:
        yield
    finally:
        for model, device in places:
            model.to(device)


@contextlib.contextmanager
def _in_single(model: nn.Module, learning: list[nn.Parameter]) -> Iterator[None]:
    """Where weights in half precision learn, the whole model is in float32 meanwhile: a step of
    1e-5 is less than the distance of two such numbers, and would leave most of them where they are.
    Where only maps and low-rank changes learn, which are in float32, the frozen rest stays small.
    """
    if not any(parameter.dtype in HALF for parameter in learning):
        yield
        return
    weights = [(x, x.dtype) for x in model.parameters() if x.dtype in HALF]
    buffers = {name: x.dtype for name, x in _buffers(model) if x.dtype in HALF}
    hook = model.register_forward_pre_hook(_given_in_single, with_kwargs=True)
    halves = [x for x, _ in weights] + [x for name, x in _buffers(model) if name in buffers]
    try:
        for tensor in halves:  # there may be no memory for all
            tensor.data = tensor.data.float()
        yield
    finally:
        hook.remove()
        for tensor, dtype in weights:
            tensor.grad, tensor.data = None, tensor.data.to(dtype)
        for name, tensor in _buffers(model):  # others where they were on another device meanwhile
            tensor.data = tensor.data.to(buffers.get(name, tensor.dtype))


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return model.named_buffers(remove_duplicate=False)


def _given_in_single(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Inputs in half precision as the weights are."""
    return tree_map_only(
        Tensor, lambda x: x.float() if x.dtype in HALF else x, (tuple(args), dict(kwargs))
    )


def _fit(
    run: Run,
    progress: Progress,
    key: str,
    kind: type[Stage],
    replaced: Replaced,
    train: Any,
    val: Any,
    options: StageOptions,
    *extra: Any,
) -> list[dict[str, Any]]:
    """Train one stage, and return its table of epochs; ``progress`` keeps its weights.

    With a folder, a stage that was interrupted continues from its newest checkpoint.

    Args:
        key: name of the stage in ``progress``, in its folder and in lines of progress.
        kind: class of the stage.
        val: validation split. Its metric decides which weights are kept and when to stop; None
            keeps the last weights.
        extra: further arguments of ``kind``, such as the teacher of a student.
    """
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

    stage = kind(replaced, loader, options, run.seed, *extra)
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
        options.epochs, options.steps, clip_norm=options.clip_norm, precision=run.precision
    )
    # The fit moves the model to its device, and a teacher among the further arguments as well.
    models = [replaced.model, *(part for part in extra if isinstance(part, nn.Module))]
    with lock, _back_in_place(models), _in_single(replaced.model, learning):
        fitted = fit(
            stage,
            limits=limits,
            keep=lambda model: progress.keep(key, model),
            validation=validation,
            best=goal,
            stop=goal,
            folder=folder,
            resume=folder is not None and bool(list_checkpoints(folder / "checkpoints")),
            say=lambda line: run.say(f"{key}: {line}"),
        )
    return fitted.rows
