"""Weighted samples, in the training loss and in validation metrics.

The weight of a sample is stored in front of its label, so that loaders and trainers need not know
about weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data.kinds.dataset import LabelledDataset, Transform
from .tasks import Sums, Task

# Numbers of samples.
Indices = Tensor | Sequence[int]


class Labelled(NamedTuple):
    """Labels in the form that a task reads, and the weight of each sample."""

    labels: Tensor
    weights: Float[Tensor, " b"]


class WeightedSamples(LabelledDataset):
    """A data set whose labels begin with the weight of their sample, see :class:`WeightedTask`."""

    def __init__(self, samples: LabelledDataset, weights: Float[Tensor, " n"]):
        super().__init__(
            samples.name,
            samples.split,
            samples.labels,
            samples.classes,
        )
        self.samples = samples
        self.weights = weights

    def raw(self, indices: Indices) -> tuple[Any, Tensor]:
        inputs, labels = self.samples.raw(indices)
        return inputs, self._with_weights(labels, indices)

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Any, Tensor]:
        inputs, labels = self.samples.batch(indices, transform)
        return inputs, self._with_weights(labels, indices)

    def augmentation(self, options: Any) -> Any:
        return self.samples.augmentation(options)

    def _with_weights(self, labels: Tensor, indices: Indices) -> Tensor:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        chosen = self.weights[rows]
        flat = labels.float().reshape(len(labels), -1)
        return torch.cat([chosen[:, None], flat], 1)


class WeightedTask(Task):
    r"""A task whose loss of a batch is :math:`\frac1B \sum_i w_i \ell_i`.

    Weights have mean one over all samples, so that the loss of a batch is an unbiased estimate of
    the weighted mean. Validation divides by the sum of its weights.
    """

    def __init__(self, task: Task):
        self.task = task
        self.name = task.name  # type: ignore[misc]
        self.metric = task.metric

    def outputs(self, classes: Sequence[str]) -> int:
        return self.task.outputs(classes)

    def split(self, outputs: Tensor, carried: Tensor) -> Labelled:
        """Separate the labels and weights that :class:`WeightedSamples` stored together."""
        weights = carried[:, 0]
        labels = carried[:, 1:]
        if self.task.points is not None:
            fields = labels.unflatten(1, (outputs.shape[-1], -1))
            return Labelled(fields, weights)

        # Tasks without points have one label per sample.
        labels = labels[:, 0]
        if self.task.classifies:
            labels = labels.long()
        return Labelled(labels, weights)

    def losses(
        self,
        outputs: Tensor,
        labels: Tensor,
        smoothing: float = 0.0,
    ) -> Float[Tensor, " b"]:
        """Return the loss of each sample."""
        pairs = self.task.pairs(outputs, labels)
        if self.task.classifies:
            return cross_entropy(*pairs, label_smoothing=smoothing, reduction="none")
        errors = self.task.each(*pairs)
        assert errors is not None
        return errors

    def loss(
        self,
        outputs: Tensor,
        labels: Tensor,
        smoothing: float = 0.0,
    ) -> Tensor:
        answers, weights = self.split(outputs, labels)
        losses = self.losses(outputs, answers, smoothing)
        mean = (weights * losses).mean()
        return mean.to(outputs.dtype)

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        answers, weights = self.split(outputs, labels)
        weights = weights.double()
        losses = self.losses(outputs.float(), answers)
        loss = (weights * losses).sum()

        correct = torch.zeros(())
        if self.task.classifies:
            hits = outputs.argmax(-1) == answers
            correct = (weights * hits).sum()
        return Sums(loss, correct, weights.sum())

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return self.task.metrics(sums)
