"""Which sections show a model's answers: of classes, of numbers or of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...training.metrics import summarise
from ..examples.fields import field_samples, field_section
from ..examples.samples import class_examples, number_examples
from ..given import RunFacts
from ..importance import importance_section
from ..page import Fact, Section
from ..subject import Subject, answers, encoder_config
from .agreement import agreement_section, confusion_section
from .scores import score_head

# Samples among which the best and the worst field are looked for.
FIELDS = 64


def result_sections(subject: Subject, run: RunFacts) -> tuple[list[Fact], list[Section]]:
    """Return the scores for the top of the page, and sections about the answers as far as the right
    ones are known. The model is in evaluation mode.
    """
    samples = subject.samples
    evaluation = run.evaluation
    sections = []
    counted = _counted(subject, run)
    if samples.labels is not None:
        evaluation, sections = _of_classes(subject, evaluation, counted)
    elif samples.targets is not None and samples.targets.dim() == 1:
        sections = _of_numbers(subject, counted)
    elif samples.targets is not None:
        sections = _of_fields(subject)
    elif evaluation is not None and "confusion" in evaluation:
        sections = [confusion_section(evaluation, subject.classes, counted)]
    if evaluation is None:
        return [], sections
    return score_head(evaluation, counted, independent=run.counted is None), sections


def _counted(subject: Subject, run: RunFacts) -> str:
    """Return the word for the samples of an evaluation, such as "test rows"."""
    what = run.counted or subject.kind.many
    if run.evaluation and "split" in run.evaluation:
        return f"{run.evaluation['split']} {what}"
    return what


def _of_classes(
    subject: Subject,
    evaluation: Mapping[str, Any] | None,
    counted: str,
) -> tuple[Mapping[str, Any], list[Section]]:
    assert subject.samples.labels is not None
    labels = subject.samples.labels.cpu()
    outputs = answers(subject.model, subject.inputs)
    if not evaluation:
        evaluation = summarise(outputs, labels, subject.classes)

    sections = []
    if "confusion" in evaluation:
        sections.append(confusion_section(evaluation, subject.classes, counted))
    if subject.things is not None:
        sections.append(class_examples(subject, labels, outputs))

    def wrong(outputs: Tensor) -> float:
        mistakes = outputs.argmax(-1) != labels[: len(outputs)]
        return float(mistakes.double().mean())

    return evaluation, sections + importance_section(subject, wrong, "accuracy")


def _of_numbers(subject: Subject, counted: str) -> list[Section]:
    assert subject.samples.targets is not None
    truth = subject.samples.targets.double().cpu()
    # A model answers in units of the training data, of mean 0 and deviation 1.
    shift, scale = subject.facts.get("units", (0.0, 1.0))

    def in_units(outputs: Tensor) -> Tensor:
        return outputs.double().flatten() * scale + shift

    predicted = in_units(answers(subject.model, subject.inputs))
    sections = [agreement_section(truth, predicted, subject.terms.label, counted)]
    if subject.things is not None:
        sections.append(number_examples(subject, truth, predicted, scale))

    def error(outputs: Tensor) -> float:
        off = in_units(outputs) - truth[: len(outputs)]
        return float(off.square().mean().sqrt())

    return sections + importance_section(subject, error, "RMSE")


def _of_fields(subject: Subject) -> list[Section]:
    assert subject.samples.targets is not None
    inputs = subject.inputs[:FIELDS]
    targets = subject.samples.targets[:FIELDS].cpu()
    outputs = answers(subject.model, inputs, batch=16)
    if outputs.dim() == 2:
        outputs = outputs[..., None]
    coordinates = getattr(encoder_config(subject.model), "position_dim", 0)
    fields = field_samples(inputs.cpu(), outputs, targets, subject.facts, coordinates)
    fields = [each._replace(name=subject.name(place)) for place, each in enumerate(fields)]
    name = (subject.classes or ("the field",))[0]
    return [field_section(fields, name)]
