"""How well a model answers some samples: the head's scores, and sections by what is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..data.files.terms import Terms
from ..data.kinds.sequences import TABLES
from .examples import (
    Shown,
    class_examples,
    field_samples,
    field_section,
    number_examples,
    text_support,
)
from .given import RunFacts, Samples
from .importance import ROWS, column_importance, read_texts
from .page import Section
from .results import (
    agreement_section,
    confusion_section,
    importance_section,
    score_head,
    summarise,
)
from .samples import answers, encoder_config

FIELDS = 64  # samples among which the best and the worst field are looked for


def result_sections(
    model: Any, samples: Samples, inputs: Any, shown: list[Any] | None, run: RunFacts, seed: int
) -> tuple[list[tuple[str, str, str]], list[Section]]:
    """The scores in the page's head, and what was answered, as far as it is known what was asked.

    Args:
        model: in evaluation mode.
        samples: prepared: their kind and class names are known.
        inputs: of the model.
        shown: what is drawn of each sample; None where nothing can be.
        run: what is known of the training.
        seed: of what is drawn at random.
    """
    assert samples.kind is not None
    evaluation, sections = run.evaluation, []
    if samples.labels is not None:
        evaluation, sections = _of_classes(model, samples, inputs, shown, run, seed)
    elif samples.targets is not None and samples.targets.dim() == 1:
        sections = _of_numbers(model, samples, inputs, shown, run, seed)
    elif samples.targets is not None:
        sections = _of_fields(model, samples, inputs)
    elif evaluation is not None and "confusion" in evaluation:
        sections = [confusion_section(evaluation, samples.classes or (), _split(samples, run))]
    if evaluation is None:
        return [], sections
    head = score_head(evaluation, _split(samples, run), independent=run.counted is None)
    return head, sections


def _of_classes(
    model: Any, samples: Samples, inputs: Any, shown: list[Any] | None, run: RunFacts, seed: int
) -> tuple[Mapping[str, Any], list[Section]]:
    assert samples.labels is not None
    labels, classes = samples.labels.cpu(), samples.classes or ()
    outputs = answers(model, inputs)
    evaluation = run.evaluation or summarise(labels, outputs.argmax(-1), classes)
    sections = []
    if "confusion" in evaluation:
        sections.append(confusion_section(evaluation, classes, _split(samples, run)))
    if shown is not None:
        found = _shown(model, samples, inputs, shown)
        sections.append(class_examples(found, labels, outputs, classes))

    def wrong(answers: Tensor) -> float:
        return float((answers.argmax(-1) != labels[: len(answers)]).double().mean())

    return evaluation, sections + _columns(model, samples, inputs, wrong, "accuracy", seed)


def _of_numbers(
    model: Any, samples: Samples, inputs: Any, shown: list[Any] | None, run: RunFacts, seed: int
) -> list[Section]:
    assert samples.targets is not None
    truth, facts = samples.targets.double().cpu(), getattr(model, "extra", None) or {}
    shift, scale = facts.get("units", (0.0, 1.0))
    predicted = answers(model, inputs).double().flatten() * scale + shift
    terms = Terms.of(facts)
    sections = [agreement_section(truth, predicted, terms.label, _split(samples, run))]
    if shown is not None:
        found = _shown(model, samples, inputs, shown, scale)
        sections.append(number_examples(found, truth, predicted))

    def error(answers: Tensor) -> float:
        off = answers.double().flatten() * scale + shift - truth[: len(answers)]
        return float(off.square().mean().sqrt())

    return sections + _columns(model, samples, inputs, error, "RMSE", seed)


def _of_fields(model: Any, samples: Samples, inputs: Any) -> list[Section]:
    assert samples.targets is not None
    facts = getattr(model, "extra", None) or {}
    outputs, targets = answers(model, inputs[:FIELDS], batch=16), samples.targets[:FIELDS].cpu()
    if outputs.dim() == 2:
        outputs = outputs[..., None]
    coordinates = getattr(encoder_config(model), "position_dim", 0)
    found = field_samples(inputs[: len(outputs)].cpu(), outputs, targets, facts, coordinates)
    return [field_section(found, (samples.classes or ("the field",))[0])]


def _shown(
    model: Any, samples: Samples, inputs: Any, shown: list[Any], scale: float = 1.0
) -> Shown:
    assert samples.kind is not None
    facts = getattr(model, "extra", None) or {}
    rows = inputs[..., 0].cpu().numpy() if samples.kind is TABLES else None
    support = None
    if samples.texts is not None:
        support = text_support(model, read_texts(facts), scale)
    return Shown(shown, rows, Terms.of(facts), samples.kind, support)


def _columns(
    model: Any,
    samples: Samples,
    inputs: Any,
    score: Callable[[Tensor], float],
    measure: str,
    seed: int,
) -> list[Section]:
    """Which columns of a table matter; nothing of other samples."""
    columns = Terms.of(getattr(model, "extra", None) or {}).columns
    if samples.kind is not TABLES or len(columns) < 2:
        return []
    rows = inputs[:ROWS]
    found = column_importance(model, rows, columns, score, seed=seed)
    return [importance_section(found, measure, len(rows))]


def _split(samples: Samples, run: RunFacts) -> str:
    """What an evaluation counts, in words: "test rows"."""
    assert samples.kind is not None
    what, evaluation = run.counted or samples.kind.many, run.evaluation or {}
    return f"{evaluation['split']} {what}" if "split" in evaluation else what
