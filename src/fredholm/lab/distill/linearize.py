"""Conversion of pretrained models to linear attention: attention distillation, then the task, with
measurements before and after each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import nn

from ...errors import OptionError
from ...linearization import (
    ConversionReport,
    LinearHeads,
    Replaced,
    replace_attention,
    save_linearized,
)
from ...linearization.kept import MixedHeads
from ..training.fit import check_precision
from ..training.grid import quiet
from ..training.tasks import Task, create_task
from .data import as_dataset, decoder_of, two_splits
from .fit import Run, StageOptions, run_stage
from .matching import Lengthening, Matching
from .page import write_page
from .progress import Progress, digest_weights
from .receipt import Documents, measure_receipt
from .retrieval import Retrieval, best_groups, rank_groups
from .scores import check_head, divergences, evaluate
from .speed import measure_speed
from .stages import Distillation, FineTuning

DISTIL = StageOptions(epochs=1, lr=1e-2)
MATCH = StageOptions(
    epochs=0,
    lr=1e-4,
    batch_size=1,
    warmup=0.05,
)
LENGTHEN = replace(MATCH, lr=5e-5)
TUNE = StageOptions(epochs=10, lr=1e-5, patience=3)


@dataclass(eq=False)
class Conversion:
    """A converted model, its report, and the parts that saving needs."""

    model: Any
    report: ConversionReport
    replaced: Replaced

    def save(
        self,
        folder: str | Path,
        *,
        processor: Any = None,
    ) -> Path:
        """Save the model (:func:`fredholm.convert.save_linearized`), ``conversion.json`` and
        ``conversion.html``; return the folder.

        Args:
            folder: of the model.
            processor: for a transformers model, a tokenizer or image processor to save beside it.
        """
        folder = save_linearized(
            self.replaced,
            folder,
            processor=processor,
            lines=self.report.summary(),
        )
        self._report(folder)
        return folder

    def report_again(self, folder: Path) -> None:
        """Write the report and the card of a saved model again, after further measurements."""
        if self.replaced.ecosystem == "transformers":
            # The module imports transformers, which is an extra.
            from ...linearization.auto import write_card

            write_card(self.model, folder, self.report.summary())
        self._report(folder)

    def _report(self, folder: Path) -> None:
        self.report.save(folder / "conversion.json")
        write_page(self.report, folder / "conversion.html")


class CourseOptions(TypedDict, total=False):
    """Keywords of :func:`fine_tune`, which :func:`linearize` takes as well."""

    task: str
    metric: str | None
    folder: str | Path | None
    resume: bool
    precision: str
    seed: int
    say: Callable[[str], None] | None


class ConversionOptions(CourseOptions, total=False):
    """Keywords of :func:`linearize`."""

    data: tuple[Any, Any] | None
    options: dict[str, Any] | None
    tied: bool
    window: int | str | None
    sinks: int | str
    store: int
    decay: str | None
    state: bool
    keep: int | str | Sequence[str] | None
    retrieval: Retrieval | None
    layers: Sequence[str] | None
    inputs: dict[str, Any] | None
    keep_refused: bool
    probe: bool
    distil: StageOptions
    match: StageOptions
    lengthen: StageOptions
    longer: Any
    tune: StageOptions
    lengths: Sequence[int] | dict[int, Any]
    documents: Documents | None


@dataclass(frozen=True)
class Course:
    """The options of a training, by the keywords of :func:`fine_tune`."""

    task: str = "classification"
    metric: str | None = None
    folder: str | Path | None = None
    resume: bool = False
    precision: str = "32"
    seed: int = 0
    say: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        # In "64" new weights would be in double, and would not fit the others.
        check_precision(self.precision, ("32", "bf16"))

    @cached_property
    def judged(self) -> Task:
        """The task, judged by the metric."""
        return judged_task(self.task, self.metric)

    def begin(
        self,
        model: nn.Module,
        settings: dict[str, Any],
    ) -> Progress:
        """Begin a training, or continue the one in the folder.

        ``settings`` and those of the course identify it: one that is resumed must have the same.
        """
        settings = {
            "task": self.task,
            "metric": self.judged.chosen,
            "precision": self.precision,
            "seed": self.seed,
            **settings,
        }
        folder = None
        if self.folder is not None:
            folder = Path(self.folder)
            settings["weights"] = digest_weights(model)
        return Progress(folder, settings, self.resume)

    def run(
        self,
        progress: Progress,
        replaced: Replaced,
        source: str,
    ) -> Run:
        """Return the conversion of the model of a class ``source``, with a new report."""
        report = ConversionReport.of(replaced, source)
        say = self.say or quiet
        return Run(
            self.judged,
            self.precision,
            self.seed,
            say,
            progress,
            replaced,
            report,
        )


@dataclass(frozen=True)
class Plan(Course):
    """The options of a conversion, by the keywords of :func:`linearize`.

    ``replacement`` has those that :func:`fredholm.convert.replace_attention` takes.
    """

    to: str = "luna"
    replacement: dict[str, Any] = field(default_factory=dict)
    data: tuple[Any, Any] | None = None
    state: bool = True
    keep: int | str | Sequence[str] | None = None
    retrieval: Retrieval | None = None
    distil: StageOptions = DISTIL
    match: StageOptions = MATCH
    lengthen: StageOptions = LENGTHEN
    longer: Any = None
    tune: StageOptions = TUNE
    lengths: Sequence[int] | dict[int, Any] = ()
    documents: Documents | None = None

    @classmethod
    def of(cls, to: str, options: ConversionOptions) -> Plan:
        """Sort the keywords of :func:`linearize`."""
        unknown = sorted(options.keys() - ConversionOptions.__optional_keys__)
        if unknown:
            raise TypeError(f"linearize() got an unexpected keyword argument {unknown[0]!r}")
        own = {each.name for each in fields(cls)}
        replacement: dict[str, Any] = {}
        known: dict[str, Any] = {}
        for key, value in options.items():
            if key in own:
                known[key] = value
            else:
                replacement[key] = value
        return cls(to=to, replacement=replacement, **known)

    def __post_init__(self) -> None:
        super().__post_init__()
        _without_lora("distil", self.distil)
        _without_lora("tune", self.tune)
        _without_vary_window("tune", self.tune)
        if self.longer is not None and not self.lengthen.epochs:
            raise OptionError(
                "lengthen: expected an epoch or more beside longer, got epochs=0; give "
                "lengthen=StageOptions(epochs=1, ...), or leave longer out"
            )
        if by_rank(self.keep) and self.retrieval is None:
            raise OptionError(
                "expected texts on which groups of heads are ranked beside "
                f"keep={self.keep!r}, got none; give retrieval=Retrieval(texts, tokenizer), or "
                "name the groups"
            )

    def replaced(
        self,
        model: nn.Module,
        groups: Any,
        **changes: Any,
    ) -> Replaced:
        """Convert a copy of the model, whose named groups of heads keep softmax."""
        # The maps' initial weights do not depend on how many copies were made before.
        torch.manual_seed(self.seed)
        options = self.replacement | changes
        return replace_attention(model, self.to, keep=groups, **options)

    def check_window(self, window: int | None) -> None:
        """Refuse options that need a window, which a conversion may choose by itself."""
        if not self.state and window is None:
            # Nothing would answer.
            raise OptionError("expected a window beside state=False, got none; give window=...")
        for stage in (self.distil, self.match, self.lengthen):
            if stage.epochs and stage.vary_window and window is None:
                raise OptionError(
                    "expected a window beside vary_window=True, got none; give window=..., or "
                    "leave vary_window out"
                )

    def settings(self, replaced: Replaced, splits: Splits | None) -> dict[str, Any]:
        """Return plain data that identify the conversion; see :meth:`Course.begin`."""
        options = self.replacement
        layers = options.get("layers")
        keep = self.keep
        if isinstance(keep, list | tuple):
            keep = list(keep)
        settings: dict[str, Any] = {
            "to": self.to,
            "options": options.get("options") or {},
            "tied": options.get("tied", True),
            "layers": layers and list(layers),
            "distil": self.distil.settings(),
            "match": self.match.settings(),
            "tune": self.tune.settings(),
            # The values that were chosen for "auto".
            "window": replaced.window,
            "sinks": replaced.sinks,
            "store": replaced.store,
            "decay": replaced.decay,
            "state": self.state,
            "keep": keep,
        }
        if self.longer is not None:
            settings["lengthen"] = self.lengthen.settings()
        if splits is not None:
            settings |= _scale(splits.train)
            settings["data"] = [_facts(split) for split in splits if split is not None]
        return settings


def by_rank(keep: int | str | Sequence[str] | None) -> bool:
    """Tell whether a ranking chooses the groups of heads to keep; others are given by name."""
    return isinstance(keep, int) or keep == "probe"


class Splits(NamedTuple):
    """The training and validation split, and longer samples or None."""

    train: Any
    val: Any
    longer: Any


def linearize(
    model: nn.Module,
    to: str = "luna",
    **options: Unpack[ConversionOptions],
) -> Conversion:
    r"""Replace the softmax attention of a pretrained model by linear attention, and train the
    result to answer as the model does.

    The projections, networks and norms are kept; each layer gets a feature map φ, and attention
    costs O(N) instead of O(N²). The training has four stages, each of which ``epochs=0`` leaves
    out:

    - *Distil* trains the maps alone. Every layer reads what the teacher's layer reads, and
      minimises
      :math:`\mathrm{KL}(\mathrm{softmax}(QK^\top/\sqrt e)\,\|\,\phi(Q)\phi(K)^\top / Z)`, in which
      e is the width of a head, Z normalises each row, and keys that are padding do not count.
    - *Match* (off by default) trains all weights, or low-rank changes of them, to give the
      teacher's logits: :math:`\mathrm{KL}(p \,\|\, s)` between the probabilities p of the teacher
      and s of the student.
    - *Lengthen* (off by default) continues *match* on the samples of ``longer``.
    - *Tune* trains all weights on the task, with early stopping.

    Args:
        model: an encoder or decoder of transformers, a model of fredholm, or one with
            ``nn.MultiheadAttention`` or timm's ``Attention``; it is copied, and stays as it is.
        to: a name of :data:`fredholm.kernels.FEATURE_MAPS`: ``"luna"``, ``"hedgehog"``, ``"t2r"``,
            ``"performer"``, ``"elu"``, …; or ``"infsa"``, ``"linear_infsa"``, which have nothing to
            distil.
        data: training and validation split: data sets of :mod:`fredholm.data`, or torch data sets
            of (inputs, label), where inputs are a tensor or a mapping of a model's arguments, or of
            mappings with ``labels`` among them, padded to one length (Hugging Face data sets). For
            tokens, a mapping's ``labels`` are the tokens themselves, as its decoder takes them; a
            label beside the inputs is the token that follows each. Without data the model is
            converted and not trained.
        task: ``"classification"``, ``"regression"``, ``"steps"`` or ``"tokens"``, see
            :class:`fredholm.lab.training.tasks.Task`.
        metric: a name of :data:`fredholm.lab.training.metrics.METRICS`; default ``"accuracy"``, for
            regression ``"spearman"``, for tokens ``"perplexity"``.
        options, tied, window, sinks, store, decay, layers, inputs, keep_refused, probe: see
            :func:`fredholm.convert.replace_attention`.
        state: False silences the linear state, so that the window, the sinks, the store and kept
            groups answer alone: a control with the same training, except for distillation.
        keep: groups of heads that keep full softmax: their names, as in
            :func:`fredholm.convert.replace_attention`; a number, for as many of the best groups by
            a probe of retrieval; or ``"probe"``, for all groups that retrieve. The report has the
            ranking.
        retrieval: for a decoder, the texts on which groups are ranked, whatever is kept, see
            :class:`fredholm.lab.distill.retrieval.Retrieval`.
        distil, match, tune: the options of these stages.
        lengthen, longer: the options of ``lengthen``, and its training split of longer samples.
        folder: of the progress, the converted model (``model/``) and its report; needed to resume.
        resume: continue in ``folder``; finished stages are read.
        precision: ``"32"`` or ``"bf16"`` (autocast; statistics stay in float32). A model in
            half precision learns in float32 and is rounded to its own after each stage; the maps of
            a transformers model stay in float32.
        lengths: at which time and memory of both models are measured, see
            :func:`fredholm.lab.distill.speed.measure_speed`.
        documents: for a decoder, held-out texts on which its receipt is measured, see
            :class:`fredholm.lab.distill.receipt.Documents`.
        seed: of the maps' start, the batches' order and dropout.
        say: receives a line at every step of the conversion and every epoch.

    The options are those of :class:`ConversionOptions`.

    Raises:
        ConversionError: nothing to convert, attention that cannot be converted, by name, or a model
            without the head of a task.
        OptionError: an unknown map, metric or task; a folder with something else in it.
        InUseError: another process trains in the folder.
        RecipeError: the conversion to resume has other settings, another model or other data.
        TrainingFailed: a loss that is not finite, with step and layer.
        DataError: a sample that is nothing but padding.
        Interrupted: Ctrl-C; with a folder the same call with ``resume=True`` continues.

    Reference: LUNA, §5.2, §10.2.
    """
    plan = Plan.of(to, options)
    splits = _read_splits(plan, model)
    keep: Any = plan.keep
    named = keep
    if by_rank(keep):
        named = None
    replaced = plan.replaced(model, named)
    plan.check_window(replaced.window)
    settings = plan.settings(replaced, splits)
    kind = type(model).__name__
    progress = plan.begin(model, {"model": kind, **settings})

    ranking: list[dict[str, Any]] = []
    if plan.retrieval is not None:
        # The ranking reads converted heads, and is of all groups: it needs a copy without groups
        # that keep softmax.
        without_kept = replaced
        if named is not None:
            without_kept = plan.replaced(model, None)
        rank = partial(rank_groups, without_kept, plan.retrieval)
        ranking = progress.get("ranking", rank, of=plan.retrieval.facts())
        if by_rank(keep):
            replaced = plan.replaced(model, best_groups(ranking, keep))
    if not plan.state:
        silence(replaced)

    run = plan.run(progress, replaced, kind)
    run.report.ranking = ranking
    if splits is not None:
        _train(run, plan, model, splits)
    replaced.model.eval()
    conversion = Conversion(replaced.model, run.report, replaced)

    # The model is saved before the measurements, which may take long or be interrupted.
    place = None
    if progress.folder is not None:
        place = progress.folder / "model"
        conversion.save(place)
    _measure(run, plan, model)
    if place is not None and (plan.lengths or plan.documents):
        conversion.report_again(place)
    for line in run.report.summary():
        run.say(line)
    return conversion


def _read_splits(plan: Plan, model: nn.Module) -> Splits | None:
    """Return the splits that the conversion learns from; None without data."""
    if plan.data is None:
        return None
    decoder = plan.judged.follows and decoder_of(model)
    train, val = two_splits(plan.data, decoder)
    plan.judged.units = train.units
    check_head(model, train)
    longer = None
    if plan.longer is not None:
        longer = as_dataset(plan.longer, decoder)
    return Splits(train, val, longer)


def _measure(run: Run, plan: Plan, teacher: nn.Module) -> None:
    """Measure speed and receipt, as far as the plan asks for them."""
    student = run.replaced.model
    if plan.lengths:
        timed = partial(measure_speed, teacher, student, plan.lengths)
        run.report.speed = run.progress.get("speed", timed, of=list(plan.lengths))

    documents = plan.documents
    if documents is None:
        return

    def measured() -> dict[str, Any]:
        # The control has a window and sinks: no state, no store, no kept groups.
        without_store = plan.replaced(teacher, None, store=0)
        control = window_alone(without_store)
        return measure_receipt(teacher, student, documents, run.say, control)

    facts = documents.facts()
    run.report.receipt = run.progress.get("receipt", measured, of=facts)


def window_alone(replaced: Replaced) -> nn.Module | None:
    """Return an untrained conversion with nothing but its window and sinks: the control of a
    receipt. None where it has no window.
    """
    if replaced.window is None:
        return None
    silence(replaced)
    return replaced.model


def silence(replaced: Replaced) -> None:
    """Silence the linear states: windows, sinks, stores and kept groups answer alone."""
    for part in replaced.parts.values():
        # Beside kept groups only some heads are linear.
        heads = part
        if isinstance(part, MixedHeads):
            heads = part.linear
        if isinstance(heads, LinearHeads):
            heads.silence()


def fine_tune(
    model: nn.Module,
    *,
    data: tuple[Any, Any],
    options: StageOptions = TUNE,
    **course: Unpack[CourseOptions],
) -> float:
    """Train any model on a task in place, as :func:`linearize` tunes one: make a teacher where none
    has been fine-tuned yet.

    The arguments are those of :func:`linearize`.

    Returns:
        The validation score of the best weights, which the model has afterwards.

    Raises:
        OptionError: an unknown metric, task or precision, no epochs, ``lora``; a folder with
            something else in it.
        ConversionError: a model without the head of a task.
        RecipeError: the training to resume has other settings, another model or other data.
    """
    chosen = Course(**course)
    task = chosen.judged
    if not options.epochs:
        raise OptionError("options: expected 1 epoch or more, got epochs=0; raise it")
    _without_lora("options", options)
    _without_vary_window("options", options)
    decoder = task.follows and decoder_of(model)
    train, val = two_splits(data, decoder)
    task.units = train.units
    check_head(model, train)
    settings = {
        "tune": options.settings(),
        **_scale(train),
        "data": [_facts(train), _facts(val)],
    }
    progress = chosen.begin(model, settings)

    # A stage belongs to a conversion; here it is one in which nothing was replaced.
    stub = Replaced(
        model,
        ecosystem="torch",
        to="softmax",
        options={},
        tied=True,
        layers=[],
        refused={},
        parts={},
    )
    run = chosen.run(progress, stub, type(model).__name__)
    run_stage(run, "tuned", FineTuning, train, val, options, task=task)
    model.eval()
    score = partial(evaluate, model, val, task, run.precision, task.at_once)
    return progress.get("score", score)


def judged_task(name: str, metric: str | None) -> Task:
    """Return the task of a conversion, judged by a metric, or by its usual one.

    Raises:
        OptionError: an unknown task, or a metric that does not suit it.
    """
    task = create_task(name)
    if metric is None:
        metric = "loss"
        if task.score in task.judges():
            metric = task.score
    return task.judge_by(metric)


def _without_vary_window(stage: str, options: StageOptions) -> None:
    if options.vary_window:
        raise OptionError(
            f"{stage}: expected vary_window in distil, match or lengthen, got it in a stage that "
            "learns the task; leave it out"
        )


def _without_lora(stage: str, options: StageOptions) -> None:
    if options.lora is not None:
        raise OptionError(
            f"{stage}: expected lora in match or lengthen, got lora={options.lora} here; leave it "
            "out"
        )


def _train(
    run: Run,
    plan: Plan,
    teacher: nn.Module,
    splits: Splits,
) -> None:
    """Run all stages, with measurements before and after each; finished stages are read."""
    train, val, longer = splits
    report = run.report
    progress = run.progress
    report.data = f"{_name(train)}, {len(train):,} training and {len(val):,} validation samples"
    report.metric = run.task.chosen
    _, report.mode = run.task.metric
    student = run.replaced.model
    at_once = run.task.at_once

    def score(key: str, of: nn.Module) -> None:
        compute = partial(evaluate, of, val, run.task, run.precision, at_once)
        report.scores[key] = progress.get(key, compute)
        run.say(f"{report.metric} of {key}: {report.scores[key]:.4f}")

    def divergence(when: str) -> None:
        """Report each layer's divergence from its teacher, "before" or "after" the distillation."""
        # Exact divergences need all pairs of tokens in memory.
        batch_size = min(16, at_once)
        compute = partial(divergences, run.replaced, val, run.precision, batch_size)
        found = progress.get(f"divergence {when}", compute)
        report.measured(when, found)

    score("teacher", teacher)
    divergence("before")
    score("before", student)

    # Maps without a state have nothing to distil.
    if plan.distil.epochs and plan.state and run.replaced.distils:
        run_stage(run, "distilled", Distillation, train, None, plan.distil)
        divergence("after")
        score("distilled", student)
    of_teacher = {"teacher": teacher, "say": run.say}
    if plan.match.epochs:
        run_stage(run, "matched", Matching, train, None, plan.match, **of_teacher)
        score("matched", student)
    if plan.lengthen.epochs and longer is not None:
        run_stage(run, "lengthened", Lengthening, longer, None, plan.lengthen, **of_teacher)
        score("lengthened", student)
    if plan.tune.epochs:
        run_stage(run, "tuned", FineTuning, train, val, plan.tune, task=run.task)
        score("tuned", student)


def _scale(data: Any) -> dict[str, Any]:
    """Return the normalisation of pictures, which a resumed conversion must not change."""
    whole = getattr(data, "whole", data)
    if not hasattr(whole, "mean") or not hasattr(whole, "std"):
        return {}
    return {"mean": list(whole.mean), "std": list(whole.std)}


def _facts(split: Any) -> dict[str, Any]:
    """Return plain data that identify a split without reading it, for a resumed conversion."""
    whole = getattr(split, "whole", split)
    facts = {"name": _name(split), "samples": len(split)}
    for key in ("max_length", "reach"):
        value = getattr(whole, key, None)
        if isinstance(value, int):
            facts[key] = value
    share = getattr(whole, "share", None)
    if share is not None:
        facts["exercises"] = share
    return facts


def _name(split: Any) -> str:
    return getattr(split, "name", "") or type(split).__name__
