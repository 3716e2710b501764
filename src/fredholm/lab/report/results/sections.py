"""Which sections show a model's answers: of classes, of numbers or of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ....errors import ShapeError
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


def result_sections(
    subject: Subject,
    run: RunFacts,
) -> tuple[list[Fact], list[Section]]:
    """Return the scores for the top of the page, and sections about the answers as far as the right
    ones are known. The model is in evaluation mode.
    """
    targets = subject.samples.targets
    evaluation = run.evaluation
    sections = []
    counted = _counted(subject, run)
    if subject.samples.labels is not None:
        evaluation, sections = _of_classes(subject, run, counted)
    elif targets is not None and targets.dim() == 1:
        sections = _of_numbers(subject, counted)
    elif targets is not None:
        sections = _of_fields(subject)
    elif evaluation is not None and "confusion" in evaluation:
        confusion = confusion_section(evaluation, subject.classes, counted)
        sections = [confusion]

    if evaluation is None:
        return [], sections
    independent = run.counted is None
    facts = score_head(evaluation, counted, independent=independent)
    return facts, sections


def _counted(subject: Subject, run: RunFacts) -> str:
    """Return the word for the samples of an evaluation, such as "test rows"."""
    what = run.counted or subject.kind.many
    if run.evaluation and "split" in run.evaluation:
        return f"{run.evaluation['split']} {what}"
    return what


def _of_classes(
    subject: Subject,
    run: RunFacts,
    counted: str,
) -> tuple[Mapping[str, Any], list[Section]]:
    """Return the evaluation of a classifier and the sections about its answers.

    Without an evaluation of the run, the samples of ``subject`` are evaluated. ``counted`` is the
    word for the evaluated samples, see :func:`_counted`.
    """
    assert subject.samples.labels is not None
    labels = subject.samples.labels.cpu()
    evaluation = run.evaluation
    outputs = answers(subject.model, subject.inputs)
    if not evaluation:
        evaluation = summarise(outputs, labels, subject.classes)

    sections = []
    if "confusion" in evaluation:
        confusion = confusion_section(evaluation, subject.classes, counted)
        sections.append(confusion)
    if subject.things is not None:
        examples = class_examples(subject, labels, outputs, run.temperature)
        sections.append(examples)

    def wrong(outputs: Tensor) -> float:
        """Return the share of wrong answers."""
        mistakes = outputs.argmax(-1) != labels[: len(outputs)]
        return float(mistakes.double().mean())

    sections += importance_section(subject, wrong, "accuracy")
    return evaluation, sections


def _of_numbers(subject: Subject, counted: str) -> list[Section]:
    assert subject.samples.targets is not None
    truth = subject.samples.targets.double().cpu()
    # A model answers in units of the training data, of mean 0 and deviation 1.
    shift, scale = subject.facts.get("units", (0.0, 1.0))

    def in_units(outputs: Tensor) -> Tensor:
        return outputs.double().flatten() * scale + shift

    outputs = answers(subject.model, subject.inputs)
    predicted = in_units(outputs)
    agreement = agreement_section(truth, predicted, subject.terms.label, counted)
    sections = [agreement]
    if subject.things is not None:
        examples = number_examples(subject, truth, predicted, in_units)
        sections.append(examples)

    def error(outputs: Tensor) -> float:
        off = in_units(outputs) - truth[: len(outputs)]
        mean = off.square().mean()
        return float(mean.sqrt())

    sections += importance_section(subject, error, "RMSE")
    return sections


def _of_fields(subject: Subject) -> list[Section]:
    assert subject.samples.targets is not None
    inputs = subject.inputs[:FIELDS]
    targets = subject.samples.targets[:FIELDS].cpu()
    outputs = answers(subject.model, inputs, batch=16)
    if outputs.dim() == 2:
        outputs = outputs[..., None]
    points = targets[0, 0].numel()
    if outputs.shape[1] != points:
        raise ShapeError(
            f"targets: expected fields of {outputs.shape[1]} points, as the inputs have, got "
            f"{points}; pad both to the same points, the targets with NaN"
        )
    config = encoder_config(subject.model)
    coordinates = getattr(config, "position_dim", 0)
    samples = field_samples(
        inputs.cpu(),
        outputs,
        targets,
        subject.facts,
        coordinates,
    )
    fields = []
    for place, sample in enumerate(samples):
        name = subject.name(place)
        fields.append(sample._replace(name=name))

    quantity = "the field"
    if subject.classes:
        quantity = subject.classes[0]
    return [field_section(fields, quantity)]
