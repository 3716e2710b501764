"""Conversion of pretrained models to linear attention: attention distillation, then the task, with
measurements before and after each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
MATCH = StageOptions(epochs=0, lr=1e-4, batch_size=1, warmup=0.05)
LENGTHEN = replace(MATCH, lr=5e-5)
TUNE = StageOptions(epochs=10, lr=1e-5, patience=3)


@dataclass(eq=False)
class Conversion:
    """A converted model, its report, and the parts that saving needs."""

    model: Any
    report: ConversionReport
    replaced: Replaced

    def save(self, folder: str | Path, *, processor: Any = None) -> Path:
        """Save the model (:func:`fredholm.convert.save_linearized`), ``conversion.json`` and
        ``conversion.html``; return the folder.

        Args:
            folder: of the model.
            processor: for a transformers model, a tokenizer or image processor to save beside it.
        """
        lines = self.report.summary()
        folder = save_linearized(self.replaced, folder, processor=processor, lines=lines)
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


def linearize(
    model: nn.Module,
    to: str = "luna",
    *,
    data: tuple[Any, Any] | None = None,
    task: str = "classification",
    metric: str | None = None,
    options: dict[str, Any] | None = None,
    tied: bool = True,
    window: int | str | None = "auto",
    sinks: int | str = "auto",
    store: int = 0,
    decay: str | None = None,
    state: bool = True,
    keep: int | str | Sequence[str] | None = None,
    retrieval: Retrieval | None = None,
    layers: Sequence[str] | None = None,
    inputs: dict[str, Any] | None = None,
    keep_refused: bool = False,
    probe: bool = True,
    distil: StageOptions = DISTIL,
    match: StageOptions = MATCH,
    lengthen: StageOptions = LENGTHEN,
    longer: Any | None = None,
    tune: StageOptions = TUNE,
    folder: str | Path | None = None,
    resume: bool = False,
    precision: str = "32",
    lengths: Sequence[int] | dict[int, Any] = (),
    documents: Documents | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
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
    # In "64" the new maps would be in double, and would not fit the model's other weights.
    check_precision(precision, ("32", "bf16"))
    judged = judged_task(task, metric)
    run = Run(judged, precision, seed, say or quiet)

    # The settings identify the conversion: one that is resumed must have the same.
    settings: dict[str, Any] = {
        "to": to,
        "options": options or {},
        "tied": tied,
        "layers": layers and list(layers),
        "task": task,
        "metric": judged.chosen,
        "precision": precision,
        "seed": seed,
        "model": type(model).__name__,
        "distil": distil.settings(),
        "tune": tune.settings(),
        "match": match.settings(),
    }
    if longer is not None:
        settings["lengthen"] = lengthen.settings()

    _without_lora("distil", distil)
    _without_lora("tune", tune)
    _without_vary_window("tune", tune)
    if longer is not None and not lengthen.epochs:
        raise OptionError(
            "lengthen: expected an epoch or more beside longer, got epochs=0; give "
            "lengthen=StageOptions(epochs=1, ...), or leave longer out"
        )

    # Splits are [training, validation, longer samples or None]; None without data.
    decoder = judged.follows and decoder_of(model)
    splits: list[Any] | None = None
    if data is not None:
        splits = two_splits(data, decoder)
        check_head(model, splits[0])
        settings |= _scale(splits[0])
        longer_samples = None
        if longer is not None:
            longer_samples = as_dataset(longer, decoder)
        splits.append(longer_samples)
        settings["data"] = [_facts(split) for split in splits if split is not None]
    if folder is not None:
        settings["weights"] = digest_weights(model)
    if retrieval is None and (isinstance(keep, int) or keep == "probe"):
        raise OptionError(
            f"expected texts on which groups of heads are ranked beside keep={keep!r}, got none; "
            "give retrieval=Retrieval(texts, tokenizer), or name the groups"
        )

    def replaced_with(groups: str | Sequence[str] | None, stored: int = store) -> Replaced:
        """Convert a copy of the model, whose named groups keep softmax."""
        # The maps' initial weights do not depend on how many copies were made before.
        torch.manual_seed(seed)
        return replace_attention(
            model,
            to,
            options=options,
            tied=tied,
            window=window,
            sinks=sinks,
            store=stored,
            decay=decay,
            keep=groups,
            layers=layers,
            inputs=inputs,
            keep_refused=keep_refused,
            probe=probe,
        )

    # Groups by their number or "probe" come from a ranking; others are named.
    ranked: int | str | None = None
    named: str | Sequence[str] | None = None
    if isinstance(keep, int):
        ranked = keep
    elif keep == "probe":
        ranked = "probe"
    else:
        named = keep
    replaced = replaced_with(named)
    # The values that were chosen for "auto".
    settings |= {"window": replaced.window, "sinks": replaced.sinks, "store": replaced.store}
    settings["decay"] = replaced.decay
    settings["state"] = state
    if not state:
        # Without a window nothing would answer. Maps without a state have nothing to distil.
        if replaced.window is None:
            raise OptionError("expected a window beside state=False, got none; give window=...")
        distil = replace(distil, epochs=0)
    for stage in (distil, match, lengthen):
        if stage.epochs and stage.vary_window and replaced.window is None:
            raise OptionError(
                "expected a window beside vary_window=True, got none; give window=..., or leave "
                "vary_window out"
            )
    settings["keep"] = keep
    if isinstance(keep, list | tuple):
        settings["keep"] = list(keep)
    progress = Progress(_path(folder), settings, resume)
    ranking: list[dict[str, Any]] = []
    if retrieval is not None:
        # The ranking reads converted heads, and is of all groups: it needs a copy without groups
        # that keep softmax.
        without_kept = replaced
        if named is not None:
            without_kept = replaced_with(None)
        ranking = progress.get(
            "ranking", lambda: rank_groups(without_kept, retrieval), of=retrieval.facts()
        )
        if ranked is not None:
            replaced = replaced_with(best_groups(ranking, ranked))
    if not state:
        silence(replaced)
    report = ConversionReport.of(replaced, type(model).__name__)
    report.ranking = ranking
    if splits is not None:
        sizes = f"{len(splits[0]):,} training and {len(splits[1]):,} validation samples"
        report.data = f"{_name(splits[0])}, {sizes}"
        stages = (distil, match, lengthen, tune)
        _train(run, progress, model, replaced, report, splits, stages)
    replaced.model.eval()
    conversion = Conversion(replaced.model, report, replaced)

    # The model is saved before the measurements, which may take long or be interrupted.
    place = None
    if progress.folder is not None:
        place = progress.folder / "model"
        conversion.save(place)
    if lengths:
        report.speed = progress.get(
            "speed", lambda: measure_speed(model, replaced.model, lengths), of=list(lengths)
        )
    if documents:

        def measured() -> dict[str, Any]:
            # The control has a window and sinks: no state, no store, no kept groups.
            control = window_alone(replaced_with(None, stored=0))
            return measure_receipt(model, replaced.model, documents, run.say, control)

        report.receipt = progress.get("receipt", measured, of=documents.facts())
    if place is not None and (lengths or documents):
        conversion.report_again(place)
    for line in report.summary():
        run.say(line)
    return conversion


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
    task: str = "classification",
    metric: str | None = None,
    options: StageOptions = TUNE,
    folder: str | Path | None = None,
    resume: bool = False,
    precision: str = "32",
    seed: int = 0,
    say: Callable[[str], None] | None = None,
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
    # In "64" new weights would be in double, and would not fit the others.
    check_precision(precision, ("32", "bf16"))
    chosen = judged_task(task, metric)
    run = Run(chosen, precision, seed, say or quiet)
    if not options.epochs:
        raise OptionError("options: expected 1 epoch or more, got epochs=0; raise it")
    _without_lora("options", options)
    _without_vary_window("options", options)
    train, val = two_splits(data, chosen.follows and decoder_of(model))
    check_head(model, train)
    settings = {
        "task": task,
        "metric": chosen.chosen,
        "precision": precision,
        "seed": seed,
        "tune": options.settings(),
        **_scale(train),
        "data": [_facts(train), _facts(val)],
    }
    if folder is not None:
        settings["weights"] = digest_weights(model)
    progress = Progress(_path(folder), settings, resume)

    # A stage belongs to a conversion; here it is one in which nothing was replaced.
    stub = Replaced(model, "torch", "softmax", {}, True, [], {}, {})
    report = ConversionReport.of(stub, type(model).__name__)
    run_stage(run, progress, "tuned", FineTuning, stub, train, val, options, report, chosen)
    model.eval()
    return progress.get("score", lambda: evaluate(model, val, chosen, precision, chosen.at_once))


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


def _path(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    return Path(folder)


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
    progress: Progress,
    teacher: nn.Module,
    replaced: Replaced,
    report: ConversionReport,
    data: list[Any],
    stages: tuple[StageOptions, StageOptions, StageOptions, StageOptions],
) -> None:
    """Run all stages, with measurements before and after each; finished stages are read.

    Args:
        data: training and validation split, and longer samples or None.
        stages: options of distil, match, lengthen and tune.
    """
    train, val, longer = data
    distil, match, lengthen, tune = stages
    report.metric = run.task.chosen
    _, report.mode = run.task.metric
    student = replaced.model
    at_once = run.task.at_once

    def score(key: str, of: nn.Module) -> None:
        report.scores[key] = progress.get(
            key, lambda: evaluate(of, val, run.task, run.precision, at_once)
        )
        run.say(f"{report.metric} of {key}: {report.scores[key]:.4f}")

    def divergence(when: str) -> None:
        # Exact divergences need all pairs of tokens in memory.
        found = progress.get(
            f"divergence {when}",
            lambda: divergences(replaced, val, run.precision, min(16, at_once)),
        )
        report.measured(when, found)

    score("teacher", teacher)
    divergence("before")
    score("before", student)
    if distil.epochs and replaced.distils:
        run_stage(run, progress, "distilled", Distillation, replaced, train, None, distil, report)
        divergence("after")
        score("distilled", student)
    if match.epochs:
        extra = (teacher, run.say)
        run_stage(run, progress, "matched", Matching, replaced, train, None, match, report, *extra)
        score("matched", student)
    if lengthen.epochs and longer is not None:
        given = (Lengthening, replaced, longer, None, lengthen, report, teacher, run.say)
        run_stage(run, progress, "lengthened", *given)
        score("lengthened", student)
    if tune.epochs:
        given = (FineTuning, replaced, train, val, tune, report, run.task)
        run_stage(run, progress, "tuned", *given)
        score("tuned", student)


def _scale(data: Any) -> dict[str, Any]:
    """Return the normalisation of pictures, which a resumed conversion must not change."""
    whole = getattr(data, "whole", data)
    if not (hasattr(whole, "mean") and hasattr(whole, "std")):
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
