"""The recipe: a typed description of one training run.

Each section is a pydantic model that forbids unknown keys and coerces no types. Names and fields
that depend on the registries (data sets, models, operators) are checked in
:mod:`fredholm.lab.training.checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .conflicts import conflicts
from .recipe_text import Word

# Keys of the section ``data`` that describe the user's own files.
READING = (
    "kind",
    "label",
    "time",
    "id",
    "group",
    "text",
    "channels",
    "task",
    "split",
    "read",
    "strict",
)


def _square(value: Any) -> Any:
    """Read one number as the side of a square image; two are height and width."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value, value]
    return value


def _one_or_several(value: Any) -> Any:
    """Read a single text as a list of one."""
    if isinstance(value, str):
        return [value]
    return value


def _one_run(value: Any) -> Any:
    """Refuse several runs, which earlier versions took weights from."""
    if isinstance(value, list):
        raise ValueError(
            "one finished run (name the one on the same kind of data; null in a finished recipe)"
        )
    return value


def _name_or_section(value: Any) -> Any:
    """Read a bare name as a section with that name."""
    if isinstance(value, str):
        return {"name": value}
    return value


def _operator(value: Any) -> Any:
    """Read ``{sum: [...]}`` as the operator ``sum`` of these parts."""
    value = _name_or_section(value)
    if isinstance(value, dict) and "sum" in value and "name" not in value:
        options = dict(value)
        parts = options.pop("sum")
        return {"name": "sum", "parts": parts, **options}
    return value


def _text(value: Any) -> Any:
    """Read a precision as text, since YAML makes a number of a bare ``32``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _strategy(value: Any) -> Any:
    """Read ``fsdp`` as another name of ``fsdp2``."""
    if value == "fsdp":
        return "fsdp2"
    return value


def _truth(value: Any) -> Any:
    """Read the truth values of YAML 1.1: yes, no, on, off."""
    if isinstance(value, Word):
        return value.truth
    return value


Flag = Annotated[bool, BeforeValidator(_truth)]

# Integers.
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0, lt=2**31)]

# Real numbers.
NonNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]

# Shares: without 1, without both ends, and with both.
Fraction = Annotated[float, Field(ge=0, lt=1)]
InnerFraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]

Size = Annotated[list[Positive], Field(min_length=2, max_length=2), BeforeValidator(_square)]


class Section(BaseModel):
    """A group of keys that refuses unknown ones and coerces no types."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True)


class Augment(Section):
    """Random changes of each training sample, drawn from (seed, epoch, index).

    Attributes:
        crop: pixels of padding before a random crop.
        flip: mirror left and right at random.
        shift: largest shift in pixels.
        area: crop a random share of the image, for instance [0.08, 1.0], and resize it.
        color: largest changes of [brightness, contrast, saturation, hue].
        randaugment: [number of changes, magnitude out of 30].
        erase: probability of erasing a rectangle.
        scale: point clouds are scaled by a factor up to 1 + scale, or down to its inverse.
        jitter: standard deviation of the noise on the coordinates of point clouds.
        rotate: turn point clouds by a random angle about their last axis.
    """

    crop: Count = 0
    flip: Flag = False
    shift: Count = 0
    area: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    color: Annotated[list[NonNegative], Field(min_length=4, max_length=4)] | None = None
    randaugment: Annotated[list[NonNegative], Field(min_length=2, max_length=2)] | None = None
    erase: Share = 0.0
    scale: NonNegative = 0.0
    jitter: NonNegative = 0.0
    rotate: Flag = False


class Data(Section):
    """The samples, the batch size, and the variation of training samples.

    Without a ``name`` the samples are the user's own files at ``path``. Whatever the recipe does
    not state about them (``kind`` to ``split``) is inferred from the files; see
    :class:`fredholm.lab.data.files.Reading`.

    Attributes:
        name: a registered data set, or ``files``.
        path: the user's files.
        kind: the kind of samples: images, series, texts, rows, ...
        label, time, id, group, text, channels: columns of a table, or names of arrays.
        task: what to predict: classification, regression, ...
        split: the rule that divides samples into training, validation and test.
        read: how a table is written, such as its separator.
        strict: refuse unreadable samples instead of leaving them out.
        image_size: height and width to which images are resized; one number for a square.
        batch_size: samples per global batch of training.
        eval_batch_size: samples per batch of evaluation.
        val_fraction: share of the training samples that is held out for validation, more than 0:
            a run needs validation samples.
        limit: size of a fixed random subset of training, and of validation. The test set keeps all
            of its samples.
        augment: random changes of each training sample.
        mixup, cutmix: parameters of their Beta distributions; 0 turns them off.
        tokens: the unit of texts.
        max_length: longest text in tokens; longer ones are cut.
        min_count: occurrences that a word needs to enter the vocabulary.
        pieces: largest number of wordpieces.
        masked: share of tokens to hide. The task is then to predict them, not the text's class.
        options: options of the data set itself, such as ``sequence`` of mnist.
    """

    name: str = "files"
    path: str | None = None
    kind: str | None = None
    label: str | None = None
    time: str | None = None
    id: str | None = None
    group: str | None = None
    text: str | None = None
    channels: Annotated[list[str], BeforeValidator(_one_or_several)] | None = None
    task: str | None = None
    split: str | None = None
    read: dict[str, str] | None = None
    strict: Flag | None = None
    image_size: Size | None = None
    batch_size: Positive = 64
    eval_batch_size: Positive = 256
    val_fraction: InnerFraction | None = None
    limit: Positive | None = None
    augment: Augment = Field(default_factory=Augment)
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    tokens: Literal["words", "wordpieces", "bytes", "characters"] | None = None
    max_length: Positive | None = None
    min_count: Positive | None = None
    pieces: Positive | None = None
    masked: InnerFraction | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def reading(self) -> dict[str, Any]:
        """The keys that describe the user's own files, as far as the recipe sets them."""
        options = {}
        for key in READING:
            value = getattr(self, key)
            if value is not None:
                options[key] = value
        return options


class Model(Section):
    """A registered model, and changes to the fields of its three parts.

    The field ``kind`` replaces a part by another kind.
    """

    name: str
    encoder: dict[str, Any] = Field(default_factory=dict)
    body: dict[str, Any] = Field(default_factory=dict)
    head: dict[str, Any] = Field(default_factory=dict)

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The parts with changed fields."""
        parts = {
            "encoder": self.encoder,
            "body": self.body,
            "head": self.head,
        }
        return {name: fields for name, fields in parts.items() if fields}


class Operator(Section):
    """The operator of every block, by registered name, and its options as further keys.

    Without a name, blocks keep the model's own operator. A sum of operators is written
    ``{sum: [luna, {name: convolution, depthwise: true}]}``; each part is a name, or a mapping of a
    name and options.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    name: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Optimizer(Section):
    """AdamW, or Adam with the decay in the gradient (L2).

    Weight decay acts on weight matrices only; the model names its exceptions.
    """

    name: Literal["adamw", "adam"] = "adamw"
    lr: AboveZero = 1e-3
    weight_decay: NonNegative = 0.05
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: AboveZero = 1e-8


class Schedule(Section):
    """Linear warm-up and a course after it; see :class:`.schedules.Schedule`.

    Attributes:
        name: the course.
        warmup_epochs, warmup_steps: length of the warm-up. It takes half of a run that is not
            longer than its warm-up.
        min_lr_ratio: lowest learning rate, as a share of the peak.
        factor: factor of each drop of ``step`` and ``plateau``; 0.1 by default.
        patience: epochs without improvement that ``plateau`` tolerates; 10 by default.
        metric: metric that ``plateau`` watches: ``val_loss`` (the default), ``val_accuracy``,
            ``val_`` followed by ``training.metric``, or ``train_loss``.
        milestones: epochs at which ``step`` drops.
        every: number of epochs between two drops of ``step``.
    """

    name: Literal["cosine", "linear", "inverse_sqrt", "step", "plateau", "constant"] = "cosine"
    warmup_epochs: NonNegative = 0.0
    warmup_steps: Positive | None = None
    min_lr_ratio: Share = 0.0
    factor: InnerFraction | None = None
    patience: Count | None = None
    metric: str | None = None
    milestones: Annotated[list[NonNegative], Field(min_length=1)] | None = None
    every: AboveZero | None = None


class EarlyStop(Section):
    """Stop when ``metric`` has not improved for ``patience`` epochs.

    Attributes:
        metric: any metric that ``schedule.metric`` accepts. The default is the one by which weights
            are kept: ``training.metric``, else accuracy for classes and the loss otherwise.
        patience: epochs without improvement.
        mode: ``min`` or ``max``; by default the one that suits the metric.
    """

    metric: str | None = None
    patience: Positive = 10
    mode: Literal["min", "max"] | None = None


class Phase(Section):
    """A stretch of a run's ``steps`` in which texts are cut to ``max_length`` tokens.

    Without ``max_length``, texts keep the length of ``data.max_length``.
    """

    steps: Positive
    max_length: Positive | None = None


class Training(Section):
    """Length, regularisation, checkpoints and processes of a run.

    The first of ``epochs``, ``steps`` and ``max_minutes`` that is reached ends the run.

    Attributes:
        epochs: 10 by default; with ``steps``, unlimited by default.
        steps: optimizer steps.
        clip_norm: largest norm of the gradient.
        phases: consecutive stretches of ``steps`` with shorter and longer texts.
        label_smoothing: share of each label that is spread over all classes.
        weight_dropout: share of the entries of all weight matrices that a step leaves out.
        ema_decay: decay of the averaged weights, see :class:`.callbacks.Ema`.
        precision: 32, 64 or bf16.
        early_stop: an end before the limits.
        metric: the metric by which weights are kept and tables are made: a name of
            :data:`.metrics.METRICS` (``auc``, ``f1``, ``balanced_accuracy``, ``r2``, ...) or
            ``loss``. By default accuracy for classes, and the loss otherwise.
        keep: the weights to keep.
        checkpoint_minutes, checkpoint_steps: interval between checkpoints within an epoch.
        max_minutes: limit of time.
        accumulate: batches per optimizer step.
        devices: processes per machine; they share every batch.
        nodes: machines. If ``devices`` and ``nodes`` are left out, torchrun or srun decide.
        strategy: ``ddp`` (each process has all weights; the default of several processes) or
            ``fsdp2``, also written ``fsdp`` (each process has a part of them).
    """

    epochs: Positive | None = 10
    steps: Positive | None = None
    clip_norm: AboveZero | None = 1.0
    phases: Annotated[list[Phase], Field(min_length=1)] | None = None
    label_smoothing: Fraction = 0.0
    weight_dropout: Fraction = 0.0
    ema_decay: InnerFraction | None = None
    precision: Annotated[Literal["32", "64", "bf16"], BeforeValidator(_text)] = "32"
    early_stop: EarlyStop | None = None
    metric: str | None = None
    keep: Literal["best", "last"] = "best"
    checkpoint_minutes: AboveZero | None = 5.0
    checkpoint_steps: Positive | None = None
    max_minutes: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    accumulate: Positive = 1
    devices: Annotated[int, Field(ge=1)] = 1
    nodes: Annotated[int, Field(ge=1)] = 1
    strategy: Annotated[Literal["auto", "ddp", "fsdp2"], BeforeValidator(_strategy)] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _unlimited_epochs_with_steps(cls, section: Any) -> Any:
        if isinstance(section, dict) and section.get("steps") is not None:
            return {"epochs": None, **section}
        return section


class Parallel(Section):
    """Samples whose points are divided over processes; see docs/parallel.md.

    Attributes:
        domain: number of processes that share the points of each sample. The groups of so many
            processes share the batch.
    """

    domain: Positive = 1


class Recipe(Section):
    """One run: data, model, operator, optimizer, schedule, training and parallelism.

    ``init_from`` names a finished run. The model starts with its weights, and texts are read with
    its vocabulary; see :mod:`fredholm.lab.training.warm_start`.

    Example:
        >>> sections = {"data": {"name": "digits"}, "model": {"name": "itnet_nano"}}
        >>> recipe = Recipe.model_validate({"name": "demo", **sections})
        >>> recipe.training.epochs, recipe.operator.name
        (10, None)
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._,=+-]*$")]
    seed: Count = 0
    init_from: Annotated[str | None, BeforeValidator(_one_run)] = None
    imports: Annotated[list[str], BeforeValidator(_one_or_several)] = Field(
        default_factory=list, alias="import"
    )
    data: Data
    model: Annotated[Model, BeforeValidator(_name_or_section)]
    operator: Annotated[Operator, BeforeValidator(_operator)] = Field(default_factory=Operator)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=Schedule)
    training: Training = Field(default_factory=Training)
    parallel: Parallel = Field(default_factory=Parallel)

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Recipe:
        for problem in conflicts(self):
            raise ValueError(problem)
        return self

    @property
    def warmup_epochs(self) -> float:
        """Epochs of warm-up; half of the run if it is not longer than its warm-up.

        Example:
            >>> sections = {"data": {"name": "digits"}, "model": "itnet_nano"}
            >>> recipe = Recipe.model_validate({"name": "demo", **sections})
            >>> recipe.training.epochs, recipe.schedule.warmup_epochs = 1, 2.0
            >>> recipe.warmup_epochs
            0.5
        """
        epochs = self.training.epochs
        warmup = self.schedule.warmup_epochs
        if epochs is None or warmup < epochs:
            return warmup
        return epochs / 2

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, with every default written out."""
        plain = self.model_dump(mode="json", by_alias=True)

        # Earlier recipe files do not have these keys. Writing their defaults would make a resumed
        # run look changed.
        for key in ("read", "strict"):
            if plain["data"][key] is None:
                del plain["data"][key]
        return plain
