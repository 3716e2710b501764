"""The recipe: one typed description of one training run.

Each section is a pydantic model that forbids unknown keys and does not coerce types; what depends
on the registries (a model's own fields, operator names, data-set names) is checked in
:mod:`fredholm.lab.training.checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .recipe_text import Word

# Keys of the section data that say what the user's own files hold.
READING = ("kind", "label", "time", "id", "group", "text", "channels", "task", "split")


def _pair(value: Any) -> Any:
    """One number for a square image, two for height and width."""
    return [value, value] if isinstance(value, int) and not isinstance(value, bool) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _operator(value: Any) -> Any:
    """``{sum: [...]}`` is the operator ``sum`` of these parts."""
    value = _named(value)
    if isinstance(value, dict) and "sum" in value and "name" not in value:
        value = dict(value)
        return {"name": "sum", "parts": value.pop("sum"), **value}
    return value


def _text(value: Any) -> Any:
    """YAML reads a bare ``32`` as a number; precision is a name."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _sharded(value: Any) -> Any:
    return "fsdp2" if value == "fsdp" else value


def _truth(value: Any) -> Any:
    """YAML 1.1's other truth values."""
    return value.truth if isinstance(value, Word) else value


Positive = Annotated[int, Field(gt=0, lt=2**31)]
Flag = Annotated[bool, BeforeValidator(_truth)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Size = Annotated[list[Positive], Field(min_length=2, max_length=2), BeforeValidator(_pair)]


class Section(BaseModel):
    """A group of keys: unknown ones are refused, types are not coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True)


class Augment(Section):
    """Random changes of each training image, drawn from (seed, epoch, index).

    ``crop``: pixels of padding before a random crop; ``flip``: mirror left-right; ``shift``:
    largest shift in pixels. ``area``: a crop of so much of the picture, [0.08, 1.0], resized;
    ``color``: [brightness, contrast, saturation, hue], up to so much; ``randaugment``: [changes,
    magnitude of 30]; ``erase``: probability of an erased rectangle.

    Of clouds, whose points are drawn anew each time: ``scale``: a factor of up to 1 + scale either
    way; ``jitter``: standard deviation of noise on the coordinates; ``rotate``: any turn about the
    last axis.
    """

    crop: Annotated[int, Field(ge=0)] = 0
    flip: Flag = False
    shift: Annotated[int, Field(ge=0)] = 0
    area: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    color: Annotated[list[NonNegative], Field(min_length=4, max_length=4)] | None = None
    randaugment: Annotated[list[NonNegative], Field(min_length=2, max_length=2)] | None = None
    erase: Annotated[float, Field(ge=0, le=1)] = 0.0
    scale: NonNegative = 0.0
    jitter: NonNegative = 0.0
    rotate: Flag = False


class Data(Section):
    """Which samples, how many at a time, and how images are varied. ``mixup`` and ``cutmix`` are
    Beta parameters (0: off).

    ``limit`` keeps so many samples of training, and of validation, drawn at random once for all;
    the test set stays whole.

    Of text: ``tokens`` are words, wordpieces, bytes or characters, ``max_length`` of them are kept,
    a word of the vocabulary occurs ``min_count`` times, wordpieces are ``pieces`` at most;
    ``masked``, a share of the tokens, asks for hidden tokens instead of a text's class.
    ``options`` are the data set's own, such as ``delay`` of copy-memory.

    Without a ``name`` the samples are the user's own, at ``path``. What is not said of them is
    found out: their ``kind``, the columns or arrays of ``label``, ``time``, ``id``, ``group``,
    ``text`` and ``channels``, the ``task`` and the rule of the ``split``; see
    :class:`fredholm.lab.data.files.Reading`.
    """

    name: str = "files"
    path: str | None = None
    kind: str | None = None
    label: str | None = None
    time: str | None = None
    id: str | None = None
    group: str | None = None
    text: str | None = None
    channels: Annotated[list[str], BeforeValidator(_listed)] | None = None
    task: str | None = None
    split: str | None = None
    image_size: Size | None = None
    batch_size: Positive = 64
    eval_batch_size: Positive = 256
    val_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    limit: Positive | None = None
    augment: Augment = Field(default_factory=Augment)
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    tokens: Literal["words", "wordpieces", "bytes", "characters"] | None = None
    max_length: Positive | None = None
    min_count: Positive | None = None
    pieces: Positive | None = None
    masked: Annotated[float, Field(gt=0, lt=1)] | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def reading(self) -> dict[str, Any]:
        """What is said of the user's own files."""
        said = {key: getattr(self, key) for key in READING}
        return {key: value for key, value in said.items() if value is not None}


class Model(Section):
    """A registered model, and changed fields of its three parts; ``kind`` among them makes a part
    another one.
    """

    name: str
    encoder: dict[str, Any] = Field(default_factory=dict)
    body: dict[str, Any] = Field(default_factory=dict)
    head: dict[str, Any] = Field(default_factory=dict)

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The parts of which something is changed."""
        result = {"encoder": self.encoder, "body": self.body, "head": self.head}
        return {name: fields for name, fields in result.items() if fields}


class Operator(Section):
    """The operator of every block, by registered name (absent: the model's own); every other key is
    one of its options. ``{sum: [luna, {name: convolution, depthwise: true}]}`` is a sum of
    operators, each a name or a mapping of a name and options.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    name: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Optimizer(Section):
    """AdamW, or Adam with the decay in the gradient (L2); weight decay acts on weight matrices
    only (the model says which).
    """

    name: Literal["adamw", "adam"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: NonNegative = 0.05
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: Annotated[float, Field(gt=0)] = 1e-8


class Schedule(Section):
    """Linear warm-up, by ``warmup_epochs`` or ``warmup_steps``, then a course by name, never below
    ``min_lr_ratio`` of the peak; see :class:`.schedules.Schedule`. A run that is no longer than
    its warm-up warms up for half of it.

    ``step`` multiplies the rate by ``factor`` (0.1) at each of ``milestones``, or ``every`` so many
    epochs; ``plateau`` does whenever ``metric`` (``val_loss``) is no better for more than
    ``patience`` (10) epochs; it is one of a validation (``val_loss``, ``val_accuracy``,
    ``val_`` and the name of ``training.metric``), or ``train_loss``.
    """

    name: Literal["cosine", "linear", "inverse_sqrt", "step", "plateau", "constant"] = "cosine"
    warmup_epochs: NonNegative = 0.0
    warmup_steps: Positive | None = None
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    factor: Annotated[float, Field(gt=0, lt=1)] | None = None
    patience: Annotated[int, Field(ge=0)] | None = None
    metric: str | None = None
    milestones: Annotated[list[NonNegative], Field(min_length=1)] | None = None
    every: Annotated[float, Field(gt=0)] | None = None


class EarlyStop(Section):
    """Stop when ``metric`` has not improved for ``patience`` epochs: by default the one by which
    weights are kept, accuracy of classes and loss of all else, or ``training.metric``; it takes
    what ``schedule.metric`` takes. ``mode`` is what suits the metric.
    """

    metric: str | None = None
    patience: Positive = 10
    mode: Literal["min", "max"] | None = None


class Phase(Section):
    """Some of a run's ``steps``, in which texts are cut to ``max_length`` tokens (None: those of
    ``data.max_length``).
    """

    steps: Positive
    max_length: Positive | None = None


class Training(Section):
    """How long, how regularised, how often saved, and on what.

    ``devices`` processes on each of ``nodes`` machines share every batch; left out, both are what
    torchrun or srun started. ``strategy``: ``ddp`` (each process has all weights; the default of
    several) or ``fsdp2`` (each has its part of them; ``fsdp`` is another name).

    The first of ``epochs``, ``steps`` of the optimizer and ``max_minutes`` that is reached ends the
    run. ``epochs`` are 10, or, with ``steps``, without a limit. ``phases`` divide the ``steps``
    into stretches of shorter and longer texts.

    ``weight_dropout`` is the share of the entries of all weight matrices that a step leaves out.

    ``metric``: by which weights are kept and tables are made, a name of
    :data:`.metrics.METRICS` (``auc``, ``f1``, ``balanced_accuracy``, ``r2``, ...) or ``loss``;
    left out, accuracy of classes and loss of all else.
    """

    epochs: Positive | None = 10
    steps: Positive | None = None
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    phases: Annotated[list[Phase], Field(min_length=1)] | None = None
    label_smoothing: Fraction = 0.0
    weight_dropout: Fraction = 0.0
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Annotated[Literal["32", "64", "bf16"], BeforeValidator(_text)] = "32"
    early_stop: EarlyStop | None = None
    metric: str | None = None
    keep: Literal["best", "last"] = "best"
    checkpoint_minutes: Annotated[float, Field(gt=0)] | None = 5.0
    checkpoint_steps: Positive | None = None
    max_minutes: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    accumulate: Positive = 1
    devices: Annotated[int, Field(ge=1)] = 1
    nodes: Annotated[int, Field(ge=1)] = 1
    strategy: Annotated[Literal["auto", "ddp", "fsdp2"], BeforeValidator(_sharded)] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _by_steps(cls, given: Any) -> Any:
        counted = isinstance(given, dict) and given.get("steps") is not None
        return {"epochs": None, **given} if counted else given


class Parallel(Section):
    """``domain``: so many of the processes have a stretch of the points of each sample, for samples
    whose points do not fit one; what is left of ``training.devices`` times ``nodes`` shares the
    batch. See docs/parallel.md.
    """

    domain: Positive = 1


class Recipe(Section):
    """One run: data, model, operator, optimizer, schedule, training, and how samples are cut.

    ``init_from`` is a finished run whose weights the model starts with, and whose vocabulary its
    texts are read with; or several, see :mod:`fredholm.lab.training.warm_start`.

    Example:
        >>> sections = {"data": {"name": "digits"}, "model": {"name": "itnet_nano"}}
        >>> recipe = Recipe.model_validate({"name": "demo", **sections})
        >>> recipe.training.epochs, recipe.operator.name
        (10, None)
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._,=+-]*$")]
    seed: Annotated[int, Field(ge=0)] = 0
    init_from: str | Annotated[list[str], Field(min_length=1)] | None = None
    imports: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default_factory=list, alias="import"
    )
    data: Data
    model: Annotated[Model, BeforeValidator(_named)]
    operator: Annotated[Operator, BeforeValidator(_operator)] = Field(default_factory=Operator)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=Schedule)
    training: Training = Field(default_factory=Training)
    parallel: Parallel = Field(default_factory=Parallel)

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        """Combinations that no run can satisfy."""
        for problem in _conflicts(self):
            raise ValueError(problem)
        return self

    @property
    def warmup_epochs(self) -> float:
        """Those of the schedule, or half of the run where it is no longer than they are.

        Example:
            >>> sections = {"data": {"name": "digits"}, "model": "itnet_nano"}
            >>> recipe = Recipe.model_validate({"name": "demo", **sections})
            >>> recipe.training.epochs, recipe.schedule.warmup_epochs = 1, 2.0
            >>> recipe.warmup_epochs
            0.5
        """
        epochs, given = self.training.epochs, self.schedule.warmup_epochs
        return given if epochs is None or given < epochs else epochs / 2

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data, every default written out."""
        return self.model_dump(mode="json", by_alias=True)


def _conflicts(recipe: Recipe):
    training = recipe.training
    size = recipe.data.image_size
    if recipe.data.cutmix > 0 and size is not None and min(size) < 2:
        got = f"{recipe.data.cutmix:g} with {size[0]}x{size[1]} images"
        yield f"data.cutmix: received {got}; needs 2x2 pixels or 0"
    if training.epochs is None and training.steps is None:
        yield "training.epochs: received None; needs a number, or training.steps"
    if training.phases is not None:
        total = sum(phase.steps for phase in training.phases)
        if total != training.steps:
            got = f"{total} steps in all, training.steps={training.steps}"
            yield f"training.phases: received {got}; needs the same number"
        longest, most = recipe.data.max_length, [p.max_length or 0 for p in training.phases]
        if longest is not None and max(most) > longest:
            got = f"max_length {max(most)} with data.max_length={longest}"
            yield f"training.phases: received {got}; needs no more than that"
    if training.weight_dropout and training.strategy == "fsdp2":
        got = f"{training.weight_dropout:g} with strategy='fsdp2'"
        yield f"training.weight_dropout: received {got}; needs all weights in each process: 'ddp'"
    yield from _schedule_conflicts(recipe.schedule)
    yield from _domain_conflicts(recipe)
    if recipe.operator.name is None and recipe.operator.options:
        yield "operator.name: missing, but the operator has options; needs the name they belong to"


def _domain_conflicts(recipe: Recipe):
    """What cannot be done on parts of samples, as far as the recipe says it."""
    count, processes = recipe.parallel.domain, recipe.training.devices * recipe.training.nodes
    if count == 1:
        return
    if processes > 1 and processes % count:  # one process: torchrun or srun may start more
        got = f"{count} with {processes} processes"
        yield f"parallel.domain: received {got}; needs a divisor of them"
    if recipe.data.cutmix > 0:
        got = f"{recipe.data.cutmix:g} with parallel.domain={count}"
        yield f"data.cutmix: received {got}; a patch lies in several parts, needs 0"
    if recipe.training.weight_dropout:
        got = f"{recipe.training.weight_dropout:g} with parallel.domain={count}"
        yield f"training.weight_dropout: received {got}; all parts need the same weights, needs 0"
    if recipe.training.phases:
        got = f"them with parallel.domain={count}"
        yield f"training.phases: received {got}; parts are not cut again, remove it"


# Which keys each schedule has beside the warm-up and `min_lr_ratio`.
_OF_SCHEDULE = {
    "step": ("factor", "milestones", "every"),
    "plateau": ("factor", "patience", "metric"),
}


def _schedule_conflicts(schedule: Schedule):
    keys = sorted({key for keys in _OF_SCHEDULE.values() for key in keys})
    for key in keys:
        value = getattr(schedule, key)
        if value is not None and key not in _OF_SCHEDULE.get(schedule.name, ()):
            where = " or ".join(name for name, own in _OF_SCHEDULE.items() if key in own)
            got = f"{value!r} with {schedule.name!r}"
            yield f"schedule.{key}: received {got}; needs schedule.name={where}, or remove it"
    if schedule.name == "step" and (schedule.milestones is None) == (schedule.every is None):
        got = "neither" if schedule.every is None else "both"
        yield f"schedule.milestones, schedule.every: received {got}; 'step' needs one of them"
    if schedule.warmup_steps is not None and schedule.warmup_epochs:
        got = f"{schedule.warmup_steps} with warmup_epochs {schedule.warmup_epochs:g}"
        yield f"schedule.warmup_steps: received {got}; needs one of them"
