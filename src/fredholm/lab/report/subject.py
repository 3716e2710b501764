"""The subject of a report: a model and its samples, and what its layers see of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import OptionError, ShapeError
from ...models import Model
from ...modes import device_of
from ..data.files.terms import Terms
from ..data.kinds.kind import Kind, Page, kind_of
from ..data.kinds.sequences import SEQUENCES, TABLES
from ..data.vocabulary import Vocabulary
from .given import Samples
from .layers import PLAIN, Axis, Layer


def saved_facts(model: Any) -> Mapping[str, Any]:
    """Return what a model was saved with: names of classes, scales, vocabulary, the source."""
    return getattr(model, "extra", None) or {}


def encoder_config(model: Any) -> Any:
    """Return the configuration of the encoder of this library's models; None for any other."""
    if isinstance(model, Model):
        return model.config.encoder
    return None


def training_steps(encoder: Any) -> float:
    """Return how many steps of the model's time one unit of the domain's coordinate is.

    Args:
        encoder: configuration of an encoder of sequences.
    """
    if encoder.timed:
        step = getattr(encoder, "step", None) or 1.0
        return encoder.length * step
    # The points of a training sequence span one unit. The last patch may reach beyond its end.
    return encoder.points * getattr(encoder, "patch", 1)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with the samples that a report shows.

    Attributes:
        model: see :func:`.report.report`.
        samples: completed by what the model was saved with.
        kind: of the samples.
        classes: names of all classes.
        inputs: the samples as the model reads them.
        things: a picture, text, signal or cloud of each sample to draw; None if the kind has none.
        seed: of everything drawn at random.
    """

    model: Any
    samples: Samples
    kind: Kind
    classes: Sequence[str]
    inputs: Any
    things: list[Any] | None
    seed: int

    @classmethod
    def of(cls, model: Any, samples: Samples, seed: int) -> Subject:
        """Complete samples with the facts of a model, and prepare its inputs.

        Raises:
            ShapeError: no samples; or labels and class names that do not fit.
        """
        facts = saved_facts(model)
        encoder = encoder_config(model)
        data = getattr(encoder, "data", "")
        kind = samples.kind or kind_of(samples.inputs, data)
        if not len(samples.inputs):
            raise ShapeError(f"a report needs at least one {kind.one}, got none")

        # What a caller gives comes before what the model was saved with.
        mean = samples.mean or facts.get("mean")
        std = samples.std or facts.get("std")
        timed = bool(getattr(encoder, "timed", False))
        page = Page(mean, std, samples.texts, timed)
        inputs, things = kind.prepare(samples.inputs, page)

        named = samples.classes or facts.get("classes")
        classes = _class_names(named, model, samples.labels, len(inputs))
        samples = replace(
            samples,
            mean=mean,
            std=std,
            kind=kind,
            classes=classes,
        )
        return cls(
            model,
            samples,
            kind,
            classes,
            inputs,
            things,
            seed,
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        return saved_facts(self.model)

    @property
    def terms(self) -> Terms:
        return Terms.of(self.facts)

    @property
    def tabular(self) -> bool:
        """Whether samples are rows of a table."""
        return self.kind is TABLES

    def name(self, sample: int) -> str:
        """Return what a sample is called; "" where that is not known."""
        if sample < len(self.samples.names):
            return self.samples.names[sample]
        return ""

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def axis(self, chosen: int) -> Axis:
        """Return the names of a sample's points: columns, times of its clock, or words."""
        terms = self.terms
        if self.tabular:
            return Axis(terms.channels, "column")
        if self.kind is SEQUENCES and terms.clock:
            steps = training_steps(encoder_config(self.model))
            return Axis((), terms.clock, terms.step * steps)

        worded = self.samples.texts is not None and "vocabulary" in self.facts
        tokens = self.samples.inputs
        if not worded or not isinstance(tokens, Tensor):
            return PLAIN
        vocabulary = Vocabulary.from_dict(self.facts["vocabulary"])
        # Token 0 is padding.
        numbers = [number for number in tokens[chosen].tolist() if number]
        names = tuple(vocabulary.decode(numbers))
        return Axis(names, "the text, word by word")


def choose_samples(
    count: int,
    samples: int,
    seed: int,
    picture: int | None,
) -> list[int]:
    """Return indices of some samples, drawn with ``seed``; ``picture``, if given, comes first."""
    if picture is not None and not 0 <= picture < count:
        raise OptionError(f"picture {picture} is not among the {count} samples")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator).tolist()
    if picture is not None:
        order.remove(picture)
        order.insert(0, picture)
    return order[:samples]


@torch.no_grad()
def trace_layers(subject: Subject, chosen: list[int]) -> list[Layer]:
    """Return the layers of a model with their inputs for some samples, where an operator shows its
    kernel.
    """
    model = subject.model
    inputs = subject.inputs[chosen].to(subject.device)
    seen = model.trace(inputs)
    names = []
    if isinstance(model, Model):
        names = model.body.layer_names
    if not names:
        names = [f"layer {number}" for number in range(1, len(seen) + 1)]

    layers = []
    for name, (operator, u, domain) in zip(names, seen):
        if hasattr(operator, "kernel_matrix"):
            layers.append(Layer(name, operator, u, domain))
    return layers


@torch.no_grad()
def answers(
    model: nn.Module,
    inputs: Any,
    *,
    batch: int = 128,
) -> Tensor:
    """Return a model's outputs on all inputs, in float32 on the CPU."""
    device = device_of(model)
    parts = []
    for start in range(0, len(inputs), batch):
        part = inputs[start : start + batch].to(device)
        outputs = model(part)
        parts.append(outputs.float().cpu())
    return torch.cat(parts)


def _class_names(
    classes: Sequence[str] | None,
    model: Any,
    labels: Tensor | None,
    size: int,
) -> list[str]:
    """Return the names of all classes: those given, else their numbers.

    Raises:
        ShapeError: labels or names that do not fit the model and its ``size`` samples.
    """
    known = 0
    lowest = 0
    highest = -1
    if isinstance(model, Model):
        known = model.config.head.outputs
    if labels is not None:
        if labels.shape != (size,):
            raise ShapeError(
                f"labels must have shape ({size},), one per sample, got {tuple(labels.shape)}"
            )
        lowest = int(labels.min())
        highest = int(labels.max())

    count = known or len(classes or ()) or highest + 1
    if lowest < 0 or highest >= count:
        raise ShapeError(f"labels must lie between 0 and {count - 1}, got {lowest} to {highest}")
    if not classes:
        return [str(number) for number in range(count)]
    if len(classes) != count:
        raise ShapeError(f"there are {len(classes)} class names for {count} classes")
    return [str(name) for name in classes]
