"""Tasks: what a model predicts for a sample, with the loss, validation metrics and evaluation.

Each task is a class, registered under the name that data sets give as their ``task``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from ...distributed import Shards, summed
from ...errors import DataError, OptionError, ShapeError
from ...registry import Registered, Registry
from ..data.files.reading import refuse_forecasting
from ..data.kinds.dataset import IGNORED
from .metrics import (
    METRICS,
    absolute_error,
    defined,
    direction,
    exponential,
    nats_to_bits,
    pearson,
    r2,
    rmse,
    spearman,
    summarise,
    title_of,
)

# Outputs and labels.
Pairs = tuple[Tensor, Tensor]

TASKS: Registry[type[Task]] = Registry("task", home=None, attribute="name")


class Sums(NamedTuple):
    """Sums over a batch, of which a validation needs nothing else.

    Attributes:
        loss: sum of the losses.
        correct: number of correct predictions, or their summed score; 0 for numbers.
        count: number of losses.
    """

    loss: Tensor
    correct: Tensor
    count: Any


class Task:
    """The target of a model: a class per sample, a number, ...; each task is a subclass.

    Attributes:
        name: its registered name.
        classifies: whether a sample has one class.
        lone: whether a sample has a single label, a class or a number. Methods that know nothing
            about points can predict it.
        follows: whether the label at a point is the next point of the sample.
        counted: what an evaluation counts, if not samples.
        metric: the metric by which the best weights are kept, one of :meth:`reports`, and its
            direction.
        measure: the name of that metric in tables.
        judged_as: the metrics that may replace it: those of ``"classes"`` or ``"numbers"``; None
            allows none.
        streams: whether outputs are too many to be stored, so that only metrics of the mean loss
            can be computed.
        loss_name: the name of the loss.
        score: the metric of conversions, a name of
            :data:`fredholm.lab.training.metrics.METRICS`.
        at_once: samples per batch when a conversion is evaluated.
        points: the dimension of labels along which the points of a sample run, if each point has a
            label.
        chosen: the metric that :meth:`judge_by` set.
        each_mode: ``"max"`` if larger values of :meth:`each` are better, otherwise ``"min"``.
        temperature: divides logits where an evaluation reports probabilities; 1 leaves these
            uncalibrated.
        units: of a regression, (shift, scale): a number of the files is shift + scale · output. A
            validation converts by it before it computes the chosen metric; losses stay those of
            standardised numbers.
        shards: the processes that share the points of a sample, when samples are distributed. Tasks
            with a mean over points do not need it: :meth:`weight` weights the parts.
    """

    name: ClassVar[str]
    classifies: ClassVar[bool] = False
    lone: ClassVar[bool] = False
    follows: ClassVar[bool] = False
    counted: ClassVar[str | None] = None
    metric: tuple[str, str] = ("val_accuracy", "max")
    measure: str = "accuracy"
    judged_as: ClassVar[str | None] = None
    streams: ClassVar[bool] = False
    chosen: str | None = None
    each_mode: ClassVar[str] = "max"
    loss_name: ClassVar[str] = "cross-entropy"
    score: ClassVar[str] = "accuracy"
    at_once: ClassVar[int] = 32
    points: ClassVar[int | None] = None
    temperature: float = 1.0
    units: tuple[float, float] = (0.0, 1.0)
    shards: Shards | None = None

    def outputs(self, classes: Sequence[str]) -> int:
        """Return the number of model outputs per sample, or per point."""
        return len(classes)

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """Return one number per sample of :meth:`pairs`, (B,): 1 if it is correct, or its error.

        It is None for tasks with several labels per sample.
        """
        return None

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        """Return the outputs and labels that are compared, with one entry per loss.

        Raises:
            ShapeError: the outputs come from a head of another kind.
        """
        return outputs, labels

    def in_units(self, values: Tensor) -> Tensor:
        """Return outputs or labels of :meth:`pairs` in the units of the files."""
        if self.units == (0.0, 1.0):
            return values
        shift, scale = self.units
        # In float64, since a shift such as a year would take the digits of a small scale.
        return values.double() * scale + shift

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the mean loss over :meth:`pairs`."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the mean loss of a batch, over its samples or points."""
        return self.loss_of_pairs(*self.pairs(outputs, labels), smoothing)

    def weight(self, labels: Tensor) -> int:
        """Return the number of losses that :meth:`loss` averages, to weight parts of a batch."""
        return len(labels)

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        """Return the sums over a batch."""
        raise NotImplementedError

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return what every validation reports, from the sums over all batches."""
        loss, correct, count = sums
        check_labelled(count)
        return {
            "val_loss": loss / count,
            "val_accuracy": correct / count,
        }

    def judge_by(self, name: str) -> Task:
        """Choose another metric, and return the task.

        Args:
            name: a name of :data:`fredholm.lab.training.metrics.METRICS`, or ``"loss"``.

        Raises:
            OptionError: the metric is unknown, or does not apply to this task.

        Example:
            >>> create_task().judge_by("auc").metric, create_task("tokens").judge_by("bits").metric
            (('val_auc', 'max'), ('val_bits', 'min'))
        """
        known = self.judges()
        if name not in known:
            raise OptionError(
                f"metric: expected one of {', '.join(known)} for {self.name}, got {name!r}"
            )

        # If it is the task's metric already, the task has also set its direction.
        if self.metric[0] != f"val_{name}":
            self.metric = f"val_{name}", direction(name)
            self.measure = self.loss_name if name == "loss" else title_of(name)
        self.chosen = name
        return self

    def _always_reported(self) -> list[str]:
        """Return the names that :meth:`metrics` reports."""
        return list(self.metrics((0.0, 0.0, 1.0)))

    def reports(self) -> list[str]:
        """Return the names of all metrics that a validation reports."""
        names = self._always_reported()
        chosen, _ = self.metric
        if chosen not in names:
            names.append(chosen)
        return names

    def judges(self) -> list[str]:
        """Return the names of the metrics that :meth:`judge_by` accepts."""
        names = {name.removeprefix("val_") for name in self._always_reported()}

        for name, metric in METRICS.items():
            computable = metric.of_loss is not None or not self.streams
            if metric.of == self.judged_as and computable:
                names.add(name)
        return sorted(names)

    @property
    def keeps(self) -> bool:
        """True if the chosen metric needs all outputs and labels of a split."""
        if self.chosen is None or self.streams:
            return False
        return self.metric[0] not in self._always_reported()

    @property
    def score_units(self) -> tuple[float, float] | None:
        """The units of the chosen metric; None if its scores are the same in all units."""
        standardised = self.units == (0.0, 1.0)
        if self.chosen is None or not self.keeps or standardised:
            return None
        if METRICS[self.chosen].unitless:
            return None
        return self.units

    def summary(self, batches: Iterable[Pairs], classes: Sequence[str]) -> dict[str, Any]:
        """Evaluate a split, from the outputs and labels of all batches."""
        pairs = [self.pairs(outputs, labels) for outputs, labels in batches]
        outputs, labels = concatenate_pairs(pairs)
        check_labelled(len(labels))
        summary = self.summary_of_pairs(outputs, labels, classes)
        return self._with_chosen_metric(summary, (outputs, labels))

    def _with_chosen_metric(
        self,
        summary: dict[str, Any],
        pairs: Pairs | None = None,
    ) -> dict[str, Any]:
        """Add the chosen metric to a summary that lacks it."""
        if self.chosen is None or self.chosen in summary:
            return summary
        score = _score(self.chosen, summary["loss"], pairs)
        return summary | {self.chosen: defined(score)}

    def summary_of_pairs(
        self,
        outputs: Tensor,
        labels: Tensor,
        classes: Sequence[str],
    ) -> dict[str, Any]:
        """Evaluate a split, from all of its :meth:`pairs`."""
        raise NotImplementedError


class Tally:
    """The running sums of a validation.

    If the chosen metric needs them, all outputs and labels are stored as well, on the CPU and in
    the units of the files.

    Example:
        >>> tally = Tally(create_task().judge_by("auc"))
        >>> tally.add(torch.tensor([[0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1]))
        >>> tally.metrics()["val_auc"]
        1.0
    """

    def __init__(self, task: Task):
        self.task = task
        self.stores_pairs = task.keeps

        # The fields of Sums over all batches so far; processes add theirs up.
        self.sums = [0.0, 0.0, 0.0]
        self.stored: list[Pairs] = []

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Add a batch."""
        sums = self.task.sums(outputs, labels)
        self.sums = [total + float(value) for total, value in zip(self.sums, sums)]

        if self.stores_pairs:
            outputs = _at_least_float32(outputs)
            outputs, labels = self.task.pairs(outputs, labels)
            outputs = self.task.in_units(outputs.cpu())
            labels = self.task.in_units(labels.cpu())
            self.stored.append((outputs, labels))

    def pairs(self) -> Pairs | None:
        """Return all outputs and labels that were stored."""
        return joined_pairs(self.stored)

    def metrics(
        self,
        sums: Sequence[float] | None = None,
        pairs: Pairs | None = None,
    ) -> dict[str, float]:
        """Return what the validation reports.

        Where several processes validate a part each, ``sums`` and ``pairs`` are those of all of
        them. If the loss is not finite, the chosen metric is NaN.
        """
        if sums is None:
            sums = self.sums
        if pairs is None:
            pairs = self.pairs()

        task = self.task
        metrics = task.metrics(sums)
        if task.chosen is not None and task.metric[0] not in metrics:
            score = math.nan
            if math.isfinite(metrics["val_loss"]):
                score = _score(task.chosen, metrics["val_loss"], pairs)
            metrics[task.metric[0]] = score
        return metrics


def joined_pairs(parts: Iterable[Pairs | None]) -> Pairs | None:
    """Concatenate outputs and labels; None if there are none."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    return concatenate_pairs(present)


def concatenate_pairs(pairs: Sequence[Pairs]) -> Pairs:
    """Concatenate the outputs and labels of one batch or more."""
    outputs, labels = zip(*pairs, strict=True)
    return torch.cat(outputs), torch.cat(labels)


def _score(name: str, loss: float, pairs: Pairs | None) -> float:
    """Compute a metric from all outputs and labels, or from the mean loss if these were not stored.

    Args:
        name: of a metric in :data:`.metrics.METRICS`; without ``pairs`` one that has ``of_loss``.
        loss: the mean loss, for a cross-entropy in nats.
        pairs: outputs (n, c) and classes (n,), or numbers (n,) and numbers (n,).
    """
    metric = METRICS[name]
    if pairs is None:
        assert metric.of_loss is not None
        return float(metric.of_loss(loss))
    return metric(*pairs)


def check_labelled(count: float) -> None:
    """Refuse a split without any label.

    Raises:
        DataError: ``count`` is zero.
    """
    if not count:
        raise DataError(
            "no point of the split has a label, so it has neither a loss nor a score; label some "
            "of its samples, or choose another split"
        )


def register_task(name: str) -> Callable[[Registered], Registered]:
    """Decorator that registers a task under the name that data sets use.

    Raises:
        OptionError: the name is taken.
    """
    return TASKS.register(name)


def create_task(name: str = "classification") -> Task:
    """Create a task by name.

    Raises:
        OptionError: the name is unknown.

    Example:
        >>> task = create_task("regression")
        >>> out, target = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])
        >>> task.loss(out, target).item(), task.metrics([4.0, 0.0, 2.0])
        (2.0, {'val_loss': 2.0})
    """
    refuse_forecasting(name)
    return TASKS[name]()


def task_of(dataset: Any) -> Task:
    """Create the task of a data set, with its units and the metric that it names.

    Raises:
        OptionError: the metric does not apply to the task.
    """
    task = create_task(dataset.task)
    if dataset.task == "regression":
        task.units = dataset.units
    if dataset.metric is not None:
        task.judge_by(dataset.metric)
    return task


# --- classes --------------------------------------------------------------------------------------


@register_task("classification")
class Classification(Task):
    """One class per sample, by cross-entropy.

    Labels are numbers of classes (N,), or shares (N, C) if samples are blended.
    """

    classifies = lone = True
    judged_as = "classes"

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        if outputs.dim() != 2 or len(outputs) != len(labels):
            raise ShapeError(
                f"outputs: expected logits ({len(labels)}, classes) for one class per sample, got "
                f"{tuple(outputs.shape)}; leave out model.head.pool=every"
            )
        return outputs, labels

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        hits = outputs.argmax(-1) == labels
        return hits.double()

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return cross_entropy(outputs, labels, label_smoothing=smoothing)

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        outputs, labels = self.pairs(_at_least_float32(outputs), labels)
        loss = cross_entropy(outputs, labels, reduction="sum")
        hits = outputs.argmax(-1) == labels
        return Sums(loss, hits.sum(), len(labels))

    def summary_of_pairs(
        self,
        outputs: Tensor,
        labels: Tensor,
        classes: Sequence[str],
    ) -> dict[str, Any]:
        return summarise(outputs, labels, classes, self.temperature)


@register_task("steps")
class Steps(Classification):
    """A class at every labelled point."""

    classifies = lone = False
    counted = "points"
    points = 1

    def summary(self, batches: Iterable[Pairs], classes: Sequence[str]) -> dict[str, Any]:
        """Evaluate a split; each example names its sample and the point in it."""
        all_labels: list[Tensor] = []

        def recorded() -> Iterator[Pairs]:
            for outputs, labels in batches:
                all_labels.append(labels)
                yield outputs, labels

        summary = super().summary(recorded(), classes)

        # The summary numbers its examples over all labelled points of the split.
        points: list[tuple[int, int]] = []
        samples = (row for labels in all_labels for row in labels)
        for sample, row in enumerate(samples):
            labelled = (row != IGNORED).nonzero().flatten()
            points += [(sample, point) for point in labelled.tolist()]
        for example in [*summary["wrong"], *summary["right"]]:
            example["index"], example["point"] = points[example["index"]]
        return summary

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        if outputs.dim() != 3 or outputs.shape[:2] != labels.shape:
            shape = ", ".join(map(str, labels.shape))
            raise ShapeError(
                f"outputs: expected logits ({shape}, classes) for a class at every point, got "
                f"{tuple(outputs.shape)}; set model.head.pool=every"
            )
        labelled = labels != IGNORED
        return outputs[labelled], labels[labelled]

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        # The mean of an empty part is NaN. The empty sum is 0, with a gradient of 0.
        if not len(labels):
            return outputs.sum()
        return super().loss_of_pairs(outputs, labels, smoothing)

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return None

    def weight(self, labels: Tensor) -> int:
        return int((labels != IGNORED).sum())


@register_task("tokens")
class Tokens(Steps):
    """The next token at every point, judged by its loss.

    An evaluation adds up batch by batch, since the logits of a split would not fit into memory.

    Example:
        >>> batches = [(torch.zeros(1, 3, 4), torch.tensor([[2, 3, -100]]))]
        >>> summary = Tokens().summary(batches, ())
        >>> summary["n"], round(summary["bits"], 6)
        (2, 2.0)
    """

    follows = streams = True
    counted = "tokens"
    metric = ("val_loss", "min")
    measure = "nats per token"
    loss_name = "cross-entropy (nats per token)"
    score = "perplexity"

    # The logits of one point are as many as the vocabulary has tokens.
    at_once = 1

    def summary(self, batches: Iterable[Pairs], classes: Sequence[str]) -> dict[str, Any]:
        """Evaluate a split by means over all its labelled points, however long the samples are.

        ``n`` counts these points, ``loss`` is in nats and ``bits`` the same in bits.
        """
        total = 0.0
        correct = 0
        count = 0
        for outputs, labels in batches:
            sums = self.sums(outputs, labels)
            total += float(sums.loss)
            correct += int(sums.correct)
            count += sums.count
        check_labelled(count)

        loss = total / count
        summary = {
            "n": count,
            "accuracy": correct / count,
            "loss": loss,
            "bits": nats_to_bits(loss),
            "perplexity": defined(exponential(loss)),
        }
        return self._with_chosen_metric(summary)


@register_task("answers")
class Answers(Task):
    """A score in [0, 1] for every class, by binary cross-entropy.

    The accuracy is the mean score of the class with the largest output.
    """

    loss_name = "binary cross-entropy"

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        return _same_shape(self, outputs, labels)

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return binary_cross_entropy_with_logits(outputs, labels) * labels.shape[-1]

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        outputs, labels = self.pairs(_at_least_float32(outputs), labels)
        predicted = outputs.argmax(-1, keepdim=True)
        scores = labels.gather(1, predicted)

        count = len(labels)
        loss = self.loss(outputs, labels)
        return Sums(loss * count, scores.sum(), count)

    def summary_of_pairs(
        self,
        outputs: Tensor,
        labels: Tensor,
        classes: Sequence[str],
    ) -> dict[str, Any]:
        loss, score, count = self.sums(outputs, labels)
        return {
            "n": count,
            "accuracy": float(score) / count,
            "loss": float(loss) / count,
        }


# --- numbers --------------------------------------------------------------------------------------


class Numbers(Task):
    """Numbers, judged by their loss."""

    metric = ("val_loss", "min")
    score = "spearman"
    each_mode = "min"

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        loss, _, count = sums
        return {"val_loss": loss / count}


@register_task("regression")
class Regression(Numbers):
    """One number, by mean squared error."""

    lone = True
    judged_as = "numbers"
    measure = loss_name = "mean squared error"

    def outputs(self, classes: Sequence[str]) -> int:
        return 1

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        if outputs.numel() != labels.numel():
            raise ShapeError(
                f"outputs: expected one number per sample for a regression, got "
                f"{tuple(outputs.shape)}; set model.head.outputs=1, and leave out "
                "model.head.pool=every"
            )
        outputs = _at_least_float32(outputs)
        labels = _at_least_float32(labels)
        return outputs.flatten(), labels.flatten()

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        errors = outputs.double() - labels.double()
        return errors.square()

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return mse_loss(outputs, labels)

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        outputs, labels = self.pairs(outputs, labels)
        loss = mse_loss(outputs, labels, reduction="sum")
        return Sums(loss, torch.zeros(()), len(labels))

    def summary_of_pairs(
        self,
        outputs: Tensor,
        labels: Tensor,
        classes: Sequence[str],
    ) -> dict[str, Any]:
        numbers = labels.double()
        error = outputs.double() - numbers
        mean = numbers.mean()
        deviation = numbers - mean
        return {
            "n": len(labels),
            "loss": float(error.square().mean()),
            "rmse": rmse(outputs, labels),
            "r2": defined(r2(outputs, labels)),
            "absolute_error": absolute_error(outputs, labels),
            "label_mean": float(mean),
            "variance": float(deviation.square().mean()),
            "pearson": defined(pearson(outputs, labels)),
            "spearman": defined(spearman(outputs, labels)),
        }


@register_task("field")
class Field(Numbers):
    """Numbers at every point, by relative L2 error; labels are NaN where there is no point."""

    measure = loss_name = "relative L2 error"
    score = "loss"
    points = 2

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        labels = labels.flatten(2).mT
        outputs, labels = _same_shape(self, outputs, labels)

        # A sample with fewer points than its batch is padded with NaN.
        real = ~labels.isnan()
        outputs = torch.where(real, outputs, 0.0)
        labels = torch.where(real, labels, 0.0)
        return outputs, labels

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return relative_error(outputs.double(), labels.double())

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return relative_error(outputs, labels, self.shards).mean()

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        outputs, labels = self.pairs(_at_least_float32(outputs), labels)
        error = relative_error(outputs, labels, self.shards)
        return Sums(error.sum(), torch.zeros(()), len(labels))

    def summary(self, batches: Iterable[Pairs], classes: Sequence[str]) -> dict[str, Any]:
        """Evaluate a split by the errors of its samples.

        Each batch is padded to its own number of points, and grids may differ between batches, so
        that errors are concatenated and not fields.
        """
        errors = [self.each(*self.pairs(outputs, labels)) for outputs, labels in batches]
        error = torch.cat(errors)
        check_labelled(len(error))
        return {
            "n": len(error),
            "loss": float(error.mean()),
            "worst": float(error.max()),
        }


def _at_least_float32(numbers: Tensor) -> Tensor:
    """Convert half precision, in which sums would overflow or lose digits, to float32."""
    if numbers.dtype == torch.float64:
        return numbers
    return numbers.float()


def _same_shape(task: Task, outputs: Tensor, labels: Tensor) -> Pairs:
    if outputs.shape != labels.shape:
        raise ShapeError(
            f"outputs: expected {tuple(labels.shape)} for the task {task.name!r}, got "
            f"{tuple(outputs.shape)}"
        )
    return outputs, labels


def relative_error(outputs: Tensor, labels: Tensor, shards: Shards | None = None) -> Tensor:
    r"""Return :math:`\|o - l\|_2 / \|l\|_2` per sample (B, ...); the error itself if l = 0.

    For points in ``shards``, norms are over the points of all ranks, and equal on each.

    Example:
        >>> relative_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
        0.800000011920929
    """
    errors = (outputs - labels).flatten(1)
    error = errors.norm(dim=1)
    size = labels.flatten(1).norm(dim=1)
    if shards is not None:
        local_norms = torch.stack([error, size])
        squares = summed(local_norms.square(), shards)
        positive = squares > 0

        # The derivative of the square root at 0 is infinite. Multiplying by ``positive`` makes both
        # value and gradient 0 there, as torch's norm does.
        norms = torch.where(positive, squares, 1.0).sqrt()
        error, size = norms * positive
    return error / torch.where(size > 0, size, 1.0)
