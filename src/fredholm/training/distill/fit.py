"""One stage of a conversion, fitted by Lightning: trained, resumed, or read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar, Timer

from ...convert.linearize import ConversionReport, Replaced
from ...data import make_loader
from ...errors import OptionError
from ..build import Batches
from ..callbacks import History, KeepModel, Patience
from ..checkpoints import AtomicIO, Checkpoints, list_checkpoints, newest_readable
from ..failures import Interrupted
from ..metrics import direction
from ..run import _graceful, _quiet
from ..tasks import Task
from .progress import Progress
from .stages import Metric, Stage

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class StageOptions:
    """How one stage learns: AdamW at ``lr``, linear warm-up over the share ``warmup`` of all steps,
    a cosine to zero.

    ``epochs=0`` leaves the stage out, and ``steps`` ends it within an epoch; ``patience`` is how
    many epochs without a better validation score are waited for. With ``lora`` only changes of that
    rank, of the layers inside converted attention, and the maps are trained.
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

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise OptionError(f"steps: received {self.steps}; needs 1 or more, or None")
        if self.epochs < 0 or self.batch_size < 1 or not self.lr > 0:
            raise OptionError(
                f"a stage needs epochs >= 0, a batch of 1 or more and a positive lr, got {self}"
            )


@dataclass(frozen=True)
class Run:
    """What every step of a conversion needs to know."""

    task: Task
    metric_name: str
    metric: Metric
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
        rows = _fit(run, progress, key, kind, replaced, train, val, options, extra)
        progress.done[f"minutes {key}"] = round(rows[-1]["seconds"] / 60, 3)
        progress.get(f"epochs {key}", lambda: len(rows))
    progress.restore(key, replaced.model)
    report.epochs[key], report.minutes[key] = (
        progress.done[f"epochs {key}"],
        progress.done[f"minutes {key}"],
    )


class StageHistory(History):
    """The rows of a stage."""

    columns = ("epoch", "step", "train_loss", "val_loss", "val_metric", "lr", "seconds")


def _fit(
    run: Run,
    progress: Progress,
    key: str,
    kind: type[Stage],
    replaced: Replaced,
    train: Any,
    val: Any,
    options: StageOptions,
    extra: tuple[Any, ...],
) -> list[dict[str, Any]]:
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

    module = kind(replaced, loader, options, run.seed, *extra)
    place = None if progress.folder is None else progress.folder / f"stage-{key}"
    timer = Timer(verbose=False)
    callbacks: list[Any] = [timer]
    keeper = KeepModel(
        lambda model: progress.keep(key, model),
        "val_metric",
        direction(run.metric_name),
        "best" if val else "last",
        None,
    )
    callbacks.append(keeper)
    if val is not None and options.patience:
        callbacks.append(
            Patience(
                "val_metric",
                patience=options.patience,
                mode=direction(run.metric_name),
                check_on_train_epoch_end=False,
            )
        )
    if sys.stderr.isatty():
        callbacks.append(RichProgressBar())
    checkpoints = Checkpoints(place / "checkpoints" if place else Path(), minutes=5.0)
    history = StageHistory(
        place / "metrics.csv" if place else Path(), timer, lambda line: run.say(f"{key}: {line}")
    )
    if place is None:
        history.write = lambda: None  # type: ignore[method-assign]
    callbacks.append(history)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        callbacks.append(checkpoints)
    resumed = place is not None and list_checkpoints(place / "checkpoints")
    with _quiet(), _graceful(checkpoints):
        trainer = pl.Trainer(
            accelerator="auto",
            devices=1,
            precision=PRECISIONS[run.precision],  # type: ignore[arg-type]
            max_epochs=options.epochs,
            max_steps=-1 if options.steps is None else options.steps,
            gradient_clip_val=options.clip_norm,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            enable_progress_bar=any(isinstance(c, RichProgressBar) for c in callbacks),
            enable_checkpointing=place is not None,
            logger=False,
            plugins=[AtomicIO()],
            callbacks=callbacks,
            use_distributed_sampler=False,
        )
        loaders: dict[str, Any] = (
            {} if val is None else {"val_dataloaders": Batches(make_loader(val, size))}
        )
        path = newest_readable(place / "checkpoints") if place is not None and resumed else None
        try:
            trainer.fit(module, ckpt_path=path, weights_only=True, **loaders)
        except Interrupted as stop:
            raise Interrupted(f"{stop}; continue with the same call and resume=True") from None
        if keeper.keep == "last":
            keeper.write(trainer, module)
    return history.rows
