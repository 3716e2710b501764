"""Pretrained models made linear: attention distillation, then the task, with everything measured on the way."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import RichProgressBar, Timer
from torch import Tensor, nn

from fredholm.convert.linearize import ConversionReport, Replaced, replace_attention, save_linearized
from fredholm.data import make_loader
from fredholm.errors import OptionError, RecipeError
from fredholm.training.build import Batches
from fredholm.training.callbacks import History, KeepModel, Patience, write_json
from fredholm.training.checkpoints import AtomicIO, Checkpoints, list_checkpoints, newest_readable
from fredholm.training.conversion_data import as_dataset
from fredholm.training.conversion_speed import measure_speed
from fredholm.training.conversion_stages import Distillation, FineTuning, Metric, Stage, check_batch, outputs_of
from fredholm.training.failures import Interrupted
from fredholm.training.metrics import metric_named
from fredholm.training.run import _graceful, _quiet
from fredholm.training.tasks import Task

BATCHES = 8  # of the validation split, on which divergences are measured
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class StageOptions:
    """How one stage learns: AdamW at ``lr``, linear warm-up over the share ``warmup`` of all steps, a cosine to zero.

    ``epochs=0`` leaves the stage out; ``patience`` is how many epochs without a better validation score are waited for.
    """

    epochs: int = 1
    lr: float = 1e-2
    batch_size: int = 8
    weight_decay: float = 0.0
    warmup: float = 0.0
    patience: int | None = None
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or not self.lr > 0:
            raise OptionError(f"a stage needs epochs >= 0, a batch of 1 or more and a positive lr, got {self}")


DISTIL = StageOptions(epochs=1, lr=1e-2)
TUNE = StageOptions(epochs=10, lr=1e-5, patience=3)


@dataclass(eq=False)
class Conversion:
    """A converted model, its report, and what is needed to save it."""

    model: Any
    report: ConversionReport
    replaced: Replaced

    def save(self, folder: str | Path) -> Path:
        """The model (:func:`fredholm.convert.save_linearized`), ``conversion.json`` and ``conversion.html``."""
        from fredholm.training.conversion_page import write_page

        folder = save_linearized(self.replaced, folder)
        self.report.save(folder / "conversion.json")
        write_page(self.report, folder / "conversion.html")
        return folder


def linearize(
    model: nn.Module,
    to: str = "luna",
    *,
    data: tuple[Any, Any] | None = None,
    task: str = "classification",
    metric: str | None = None,
    options: dict[str, Any] | None = None,
    tied: bool = True,
    layers: Sequence[str] | None = None,
    inputs: dict[str, Any] | None = None,
    keep_refused: bool = False,
    distil: StageOptions = DISTIL,
    tune: StageOptions = TUNE,
    folder: str | Path | None = None,
    resume: bool = False,
    precision: str = "32",
    lengths: Sequence[int] | dict[int, Any] = (),
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Conversion:
    r"""A pretrained model with linear attention in place of its softmax, trained to do what it did.

    The projections, networks and norms are kept; each layer gets a feature map φ, and attention costs O(N) instead of O(N²).
    Stage 1 trains the maps alone: every layer is given what the teacher gives it, and minimises
    :math:`\mathrm{KL}(\mathrm{softmax}(QK^\top/\sqrt e)\,\|\,\phi(Q)\phi(K)^\top / Z)` over real keys. Stage 2 trains everything on
    the task, with early stopping.

    Args:
        model: an encoder or decoder of transformers, a model of fredholm, or one with ``nn.MultiheadAttention`` or timm's ``Attention``;
            it is copied, and stays as it is.
        to: a name of :data:`fredholm.kernels.FEATURE_MAPS`: ``"luna"``, ``"hedgehog"``, ``"t2r"``, ``"performer"``, ``"elu"``, …; or
            ``"infsa"``, ``"linear_infsa"``, which have nothing to distil.
        data: training and validation split: data sets of :mod:`fredholm.data`, or torch data sets of (inputs, label), inputs a tensor or a
            mapping of a model's arguments. Without data the model is replaced and not trained.
        task: ``"classification"``, ``"regression"`` or ``"steps"``, see :class:`fredholm.training.tasks.Task`.
        metric: a name of :data:`fredholm.training.metrics.METRICS`; default ``"accuracy"``, of regressions ``"spearman"``.
        options, tied, layers, inputs, keep_refused: see :func:`fredholm.convert.replace_attention`.
        distil, tune: the two stages.
        folder: where progress is kept, the converted model (``model/``) and its report; needed to resume.
        resume: go on in ``folder``; what is finished is read.
        precision: ``"32"`` or ``"bf16"`` (autocast; statistics stay in float32).
        lengths: at which time and memory of both models are measured, see
            :func:`fredholm.training.conversion_speed.measure_speed`.
        seed: of the maps' start, the batches' order and dropout.
        say: receives a line at every step of the conversion and every epoch.

    Raises:
        ConversionError: nothing to convert, or attention that cannot be, by name.
        OptionError: an unknown map, metric or task; a folder that is in use.
        RecipeError: the conversion to resume was started otherwise.
        TrainingFailed: a loss that is not finite, with step and layer.
        DataError: a sample that is padding from end to end.
        Interrupted: Ctrl-C; with a folder the same call with ``resume=True`` goes on.

    Reference: LUNA, §5.2, §10.2.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"precision is one of {', '.join(PRECISIONS)}, got {precision!r}")
    chosen = Task(task)
    name = metric or ("spearman" if task == "regression" else "accuracy")
    run = _Run(chosen, name, metric_named(name), precision, seed, say or (lambda line: None))
    settings = {
        "to": to,
        "options": options or {},
        "tied": tied,
        "layers": None if layers is None else list(layers),
        "task": task,
    }
    settings |= {"metric": name, "precision": precision, "seed": seed, "model": type(model).__name__}
    settings |= {"distil": dataclasses.asdict(distil), "tune": dataclasses.asdict(tune)}
    progress = Progress(None if folder is None else Path(folder), settings, resume)
    torch.manual_seed(seed)
    replaced = replace_attention(
        model, to, options=options, tied=tied, layers=layers, inputs=inputs, keep_refused=keep_refused
    )
    report = ConversionReport.of(replaced, type(model).__name__)
    if data is not None:
        _train(run, progress, model, replaced, report, [as_dataset(split) for split in data], distil, tune)
    replaced.model.eval()
    if lengths:
        report.speed = progress.get("speed", lambda: measure_speed(model, replaced.model, lengths))
    conversion = Conversion(replaced.model, report, replaced)
    if progress.folder is not None:
        conversion.save(progress.folder / "model")
    for line in report.summary():
        run.say(line)
    return conversion


def fine_tune(
    model: nn.Module,
    *,
    data: tuple[Any, Any],
    task: str = "classification",
    metric: str | None = None,
    options: StageOptions = TUNE,
    folder: str | Path | None = None,
    resume: bool = False,
    precision: str = "32",
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> float:
    """Train any model on a task as stage 2 of :func:`linearize` does, in place; returns the validation score of the weights it keeps.

    The arguments are those of :func:`linearize`; this is how a teacher is made where none was fine-tuned yet.
    """
    name = metric or ("spearman" if task == "regression" else "accuracy")
    run = _Run(Task(task), name, metric_named(name), precision, seed, say or (lambda line: None))
    settings = {"task": task, "metric": name, "precision": precision, "seed": seed, "tune": dataclasses.asdict(options)}
    progress = Progress(None if folder is None else Path(folder), settings, resume)
    stub = Replaced(model, "torch", "softmax", {}, True, [], {}, {})
    train, val = (as_dataset(split) for split in data)
    _stage(
        run, progress, "tuned", FineTuning, stub, train, val, options, ConversionReport.of(stub, type(model).__name__)
    )
    model.eval()
    return progress.get("score", lambda: evaluate(model, val, run.metric, run.task, precision))


@dataclass(frozen=True)
class _Run:
    """What every step of a conversion needs to know."""

    task: Task
    metric_name: str
    metric: Metric
    precision: str
    seed: int
    say: Callable[[str], None]


class Progress:
    """What a conversion has done: numbers in ``progress.json`` and weights beside it, or in memory without a folder."""

    def __init__(self, folder: Path | None, settings: dict[str, Any], resume: bool):
        self.folder, self.done, self.weights = folder, {}, {}
        if folder is None:
            if resume:
                raise OptionError("resume=True needs the folder in which the conversion was begun")
            return
        path = folder / "progress.json"
        settings = json.loads(json.dumps(settings))
        if path.is_file():
            saved = json.loads(path.read_text(encoding="utf-8"))
            if not resume:
                raise OptionError(f"{folder}: holds a conversion; pass resume=True to go on, or choose another folder")
            changed = sorted(key for key in settings if saved["settings"].get(key) != settings[key])
            if changed:
                raise RecipeError(f"{folder}: the conversion was started otherwise; it differs in {', '.join(changed)}")
            self.done = saved["done"]
        elif folder.is_dir() and any(folder.iterdir()):
            raise OptionError(f"{folder}: exists and holds no conversion; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self._write()

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """A number of an earlier call, or computed now and kept."""
        if key not in self.done:
            self.done[key] = compute()
            self._write()
        return self.done[key]

    def keep(self, key: str, model: nn.Module) -> None:
        """Keep a model's weights."""
        state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        if self.folder is None:
            self.weights[key] = state
            return
        temporary = self.folder / f".{key}.tmp"
        torch.save(state, temporary)
        temporary.replace(self.folder / f"{key}.pt")

    def restore(self, key: str, model: nn.Module) -> None:
        """Give a model the weights kept."""
        folder = self.folder
        state = self.weights[key] if folder is None else torch.load(folder / f"{key}.pt", weights_only=True)
        model.load_state_dict(state)

    def _write(self) -> None:
        if self.folder is not None:
            write_json(self.folder / "progress.json", {"settings": self.settings, "done": self.done})


def _train(
    run: _Run,
    progress: Progress,
    teacher: nn.Module,
    replaced: Replaced,
    report: ConversionReport,
    data: list[Any],
    distil: StageOptions,
    tune: StageOptions,
) -> None:
    """Both stages, measured before and after each; what was done before is read."""
    train, val = data
    report.metric = run.metric_name
    student = replaced.model

    def score(key: str, of: nn.Module) -> None:
        report.scores[key] = progress.get(key, lambda: evaluate(of, val, run.metric, run.task, run.precision))
        run.say(f"{run.metric_name} of {key}: {report.scores[key]:.4f}")

    score("teacher", teacher)
    report.measured("before", progress.get("divergence before", lambda: divergences(replaced, val, run.precision)))
    score("before", student)
    if distil.epochs and replaced.distils:
        _stage(run, progress, "distilled", Distillation, replaced, train, None, distil, report)
        report.measured("after", progress.get("divergence after", lambda: divergences(replaced, val, run.precision)))
        score("distilled", student)
    if tune.epochs:
        _stage(run, progress, "tuned", FineTuning, replaced, train, val, tune, report)
        score("tuned", student)


def _stage(
    run: _Run,
    progress: Progress,
    key: str,
    kind: type[Stage],
    replaced: Replaced,
    train: Any,
    val: Any,
    options: StageOptions,
    report: ConversionReport,
) -> None:
    """One stage: trained, resumed or read; the model holds its best weights afterwards."""
    if f"epochs {key}" not in progress.done:
        rows = _fit(run, progress, key, kind, replaced, train, val, options)
        progress.done[f"minutes {key}"] = round(rows[-1]["seconds"] / 60, 3)
        progress.get(f"epochs {key}", lambda: len(rows))
    progress.restore(key, replaced.model)
    report.epochs[key], report.minutes[key] = progress.done[f"epochs {key}"], progress.done[f"minutes {key}"]


class StageHistory(History):
    """The rows of a stage."""

    columns = ("epoch", "step", "train_loss", "val_loss", "val_metric", "lr", "seconds")


def _fit(
    run: _Run,
    progress: Progress,
    key: str,
    kind: type[Stage],
    replaced: Replaced,
    train: Any,
    val: Any,
    options: StageOptions,
) -> list[dict[str, Any]]:
    size = min(options.batch_size, len(train))

    def loader(rank: int, world_size: int) -> Any:
        return make_loader(train, size, seed=run.seed, shuffle=True, drop_last=True, rank=rank, world_size=world_size)

    extra = (run.task, run.metric) if kind is FineTuning else ()
    module = kind(replaced, loader, options, run.seed, *extra)
    place = None if progress.folder is None else progress.folder / f"stage-{key}"
    timer = Timer(verbose=False)
    callbacks: list[Any] = [timer]
    keeper = KeepModel(lambda model: progress.keep(key, model), "val_metric", "max", "best" if val else "last", None)
    callbacks.append(keeper)
    if val is not None and options.patience:
        callbacks.append(Patience("val_metric", patience=options.patience, mode="max", check_on_train_epoch_end=False))
    if sys.stderr.isatty():
        callbacks.append(RichProgressBar())
    checkpoints = Checkpoints(place / "checkpoints" if place else Path(), minutes=5.0)
    history = StageHistory(place / "metrics.csv" if place else Path(), timer, lambda line: run.say(f"{key}: {line}"))
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
        loaders = {} if val is None else {"val_dataloaders": Batches(make_loader(val, size))}
        path = newest_readable(place / "checkpoints") if place is not None and resumed else None
        try:
            trainer.fit(module, ckpt_path=path, weights_only=True, **loaders)
        except Interrupted as stop:
            raise Interrupted(f"{stop}; continue with the same call and resume=True") from None
        if keeper.keep == "last":
            keeper.write(trainer, module)
    return history.rows


@torch.no_grad()
def evaluate(
    model: nn.Module,
    dataset: Any,
    metric: Metric,
    task: Task | None = None,
    precision: str = "32",
    batch_size: int = 32,
) -> float:
    """A model's score on a split, in evaluation mode."""
    pairs = [
        (task or Task()).pairs(out.float().cpu(), target.cpu())
        for out, target in _forward(model, dataset, precision, batch_size)
    ]
    outputs, labels = (torch.cat(parts) for parts in zip(*pairs))
    return metric(outputs, labels)


@torch.no_grad()
def divergences(replaced: Replaced, dataset: Any, precision: str = "32", batch_size: int = 16) -> dict[str, float]:
    """Each layer's divergence from its teacher, mean over the first batches of a split, inputs as the teacher gives them."""
    sums, count = dict.fromkeys(replaced.parts, 0.0), 0
    with replaced.mode("distil"):
        for out, _ in _forward(replaced.model, dataset, precision, batch_size, BATCHES):
            for name, value in replaced.losses().items():
                sums[name] += float(value) * len(out)
            count += len(out)
    return {name: max(0.0, total / count) for name, total in sums.items()}  # the logarithm's floor may cost 1e-6


def _forward(model: nn.Module, dataset: Any, precision: str, batch_size: int, limit: int | None = None):
    """(outputs, labels) of the batches of a split."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        for number, (inputs, labels) in enumerate(make_loader(dataset, batch_size)):
            if limit is not None and number >= limit:
                break
            check_batch(inputs)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                yield outputs_of(model, _to(inputs, device)), labels
    finally:
        model.train(training)


def _to(inputs: Any, device: torch.device) -> Any:
    return inputs.to(device) if isinstance(inputs, Tensor) else {key: value.to(device) for key, value in inputs.items()}
