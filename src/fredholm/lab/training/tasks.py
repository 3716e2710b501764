"""What a data set asks of a model, a class each: the loss that is minimised, the score by which the
best weights are known, and the summary of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

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

Pairs = tuple[Tensor, Tensor]
TASKS: Registry[type[Task]] = Registry("task", home=None, attribute="name")


class Task:
    """What is asked of a sample; a subclass each, by the name that a data set's ``task`` has.

    Attributes:
        name: of the task.
        classifies: whether a sample has one class.
        lone: whether a sample has one answer, a class or a number, so that methods that know of no
            points can give it.
        follows: whether the label at a point is what comes next there.
        counted: what an evaluation counts, where that is not the samples.
        metric: by which the best weights are known, one of :meth:`reports`, and its direction.
        measure: what a table calls that metric.
        judged_as: which metrics by name may judge it, those of ``"classes"`` or of ``"numbers"``;
            None: none.
        streams: whether outputs are too many to be kept, so that only metrics of the mean loss can
            judge it.
        loss_name: what the loss is called.
        score: by which a conversion is judged, a name of
            :data:`fredholm.lab.training.metrics.METRICS`.
        at_once: samples that a conversion is judged on at once.
        points: the dimension of labels along which a sample's points run, where there are answers
            at points.
        chosen: the metric that :meth:`judge_by` was told.
        each_mode: whether more (``"max"``) or less (``"min"``) of :meth:`each` is better.
        shards: the processes that have the points of a sample, in a training on parts of samples.
            A mean over points needs none of them: parts of it are weighted as parts of a batch are.
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
    shards: Shards | None = None

    def outputs(self, classes: Sequence[str]) -> int:
        """How many numbers the model gives for a sample, or for each of its points."""
        return len(classes)

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """A number for each sample of :meth:`pairs`, (B,): whether it is right, or its error; None
        where a sample has several answers.
        """
        return None

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        """Outputs and labels one by one, as many as are asked.

        Raises:
            ShapeError: outputs of another kind of head.
        """
        return outputs, labels

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean over :meth:`pairs`."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean over a batch, and over its points."""
        return self.loss_of_pairs(*self.pairs(outputs, labels), smoothing)

    def weight(self, labels: Tensor) -> int:
        """How many losses :meth:`loss` is the mean of, so that the parts of a batch can be
        weighted.
        """
        return len(labels)

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        """Summed loss, how many were right, and how many there were."""
        raise NotImplementedError

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """What every validation reports, from the sums over all batches."""
        loss, correct, count = sums
        check_asked(count)
        return {"val_loss": loss / count, "val_accuracy": correct / count}

    def judge_by(self, name: str) -> Task:
        """Judge by a metric of :data:`fredholm.lab.training.metrics.METRICS`, or by ``"loss"``; the
        task itself is returned.

        Raises:
            OptionError: an unknown metric, or one of other answers than this task's.

        Example:
            >>> create_task().judge_by("auc").metric, create_task("tokens").judge_by("bits").metric
            (('val_auc', 'max'), ('val_bits', 'min'))
        """
        known = self.judges()
        if name not in known:
            known = ", ".join(known)
            raise OptionError(f"metric: received {name!r}; {self.name} is judged by one of {known}")
        if self.metric[0] != f"val_{name}":  # else its direction is the task's to say
            self.metric = f"val_{name}", direction(name)
            self.measure = self.loss_name if name == "loss" else title_of(name)
        self.chosen = name
        return self

    def _own(self) -> list[str]:
        """What every validation gives, by name."""
        return list(self.metrics((0.0, 0.0, 1.0)))

    def reports(self) -> list[str]:
        """What a validation gives, by name."""
        return list(dict.fromkeys([*self._own(), self.metric[0]]))

    def judges(self) -> list[str]:
        """The metrics that may judge it, by name."""
        named = {
            name
            for name, metric in METRICS.items()
            if metric.of == self.judged_as and (metric.of_loss is not None or not self.streams)
        }
        return sorted({name.removeprefix("val_") for name in self._own()} | named)

    @property
    def keeps(self) -> bool:
        """Whether the chosen metric needs all outputs and labels of a split."""
        return self.chosen is not None and self.metric[0] not in self._own() and not self.streams

    def summary(self, batches: Iterable[Pairs], classes: Sequence[str]) -> dict[str, Any]:
        """Numbers of an evaluation, from outputs and labels of all batches."""
        pairs = [self.pairs(outputs, labels) for outputs, labels in batches]
        outputs, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        check_asked(len(labels))
        return self._scored(self.summary_of_pairs(outputs, labels, classes), (outputs, labels))

    def _scored(self, found: dict[str, Any], pairs: Pairs | None = None) -> dict[str, Any]:
        """The same numbers and the chosen metric, where they lack it."""
        if self.chosen is None or self.chosen in found:
            return found
        return found | {self.chosen: defined(_score(self.chosen, found["loss"], pairs))}

    def summary_of_pairs(
        self, outputs: Tensor, labels: Tensor, classes: Sequence[str]
    ) -> dict[str, Any]:
        """Numbers of an evaluation, from all pairs."""
        raise NotImplementedError


class Tally:
    """What a validation of a task counts: sums over batches, and, where its metric needs them, all
    outputs and labels, on the CPU.

    Example:
        >>> tally = Tally(create_task().judge_by("auc"))
        >>> tally.add(torch.tensor([[0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1]))
        >>> tally.metrics()["val_auc"]
        1.0
    """

    def __init__(self, task: Task):
        self.task, self.keeps = task, task.keeps
        self.sums = [0.0, 0.0, 0.0]  # loss * n, correct, n
        self.kept: list[Pairs] = []

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Count a batch."""
        values = self.task.sums(outputs, labels)
        self.sums = [total + float(value) for total, value in zip(self.sums, values)]
        if self.keeps:
            outputs, labels = self.task.pairs(_wide(outputs), labels)
            self.kept.append((outputs.cpu(), labels.cpu()))

    def pairs(self) -> Pairs | None:
        """All that was kept."""
        return joined_pairs(self.kept)

    def metrics(
        self, sums: Sequence[float] | None = None, pairs: Pairs | None = None
    ) -> dict[str, float]:
        """What the validation reports; from the ``sums`` and ``pairs`` of all processes, where
        several have a part. Where the loss is not finite, no metric is a number.
        """
        task, pairs = self.task, self.pairs() if pairs is None else pairs
        found = task.metrics(self.sums if sums is None else sums)
        if task.chosen is not None and task.metric[0] not in found:
            finite = math.isfinite(found["val_loss"])
            score = _score(task.chosen, found["val_loss"], pairs) if finite else math.nan
            found[task.metric[0]] = score
        return found


def joined_pairs(parts: Iterable[Pairs | None]) -> Pairs | None:
    """Outputs and labels one after the other; None of no part."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    outputs, labels = (torch.cat(each) for each in zip(*found, strict=True))
    return outputs, labels


def _score(name: str, loss: float, pairs: Pairs | None) -> float:
    """A metric by name, from all answers, or from the mean loss where they were not kept."""
    metric = METRICS[name]
    if pairs is None:
        assert metric.of_loss is not None
        return float(metric.of_loss(loss))
    return metric(*pairs)


def check_asked(count: float) -> None:
    """DataError where a split has no label at all."""
    if not count:
        raise DataError(
            "no point of the split has a label, so that it has no loss and no score; give some of "
            "its samples labels, or take another split"
        )


def register_task(name: str) -> Callable[[Registered], Registered]:
    """Decorator that makes a task known by the name that data sets give.

    Raises:
        OptionError: the name is taken.
    """
    return TASKS.register(name)


def create_task(name: str = "classification") -> Task:
    """A task by name.

    Raises:
        OptionError: an unknown name.

    Example:
        >>> task = create_task("regression")
        >>> out, target = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])
        >>> task.loss(out, target).item(), task.metrics([4.0, 0.0, 2.0])
        (2.0, {'val_loss': 2.0})
    """
    refuse_forecasting(name)
    return TASKS[name]()


def task_of(dataset: Any) -> Task:
    """The task of a data set, judged as the data set says.

    Raises:
        OptionError: a metric of other answers than the task's.
    """
    task = create_task(dataset.task)
    return task if dataset.metric is None else task.judge_by(dataset.metric)


# --- classes --------------------------------------------------------------------------------------


@register_task("classification")
class Classification(Task):
    """One class for each sample, by cross-entropy; labels may be shares (N, C) where samples are
    blended.
    """

    classifies = lone = True
    judged_as = "classes"

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        if outputs.dim() != 2 or len(outputs) != len(labels):
            raise ShapeError(
                f"a class of each sample needs logits ({len(labels)}, classes), got "
                f"{tuple(outputs.shape)}; leave out model.head.pool=every"
            )
        return outputs, labels

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return (outputs.argmax(-1) == labels).double()

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return cross_entropy(outputs, labels, label_smoothing=smoothing)

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        outputs, labels = self.pairs(_wide(outputs), labels)
        right = (outputs.argmax(-1) == labels).sum()
        return cross_entropy(outputs, labels, reduction="sum"), right, len(labels)

    def summary_of_pairs(
        self, outputs: Tensor, labels: Tensor, classes: Sequence[str]
    ) -> dict[str, Any]:
        return summarise(outputs, labels, classes)


@register_task("steps")
class Steps(Classification):
    """A class at every point at which one is asked."""

    classifies = lone = False
    counted = "points"
    points = 1

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        if outputs.dim() != 3 or outputs.shape[:2] != labels.shape:
            need = f"({', '.join(map(str, labels.shape))}, classes)"
            raise ShapeError(
                f"a class at every point needs logits {need}, got {tuple(outputs.shape)}; "
                "set model.head.pool=every"
            )
        asked = labels != IGNORED
        return outputs[asked], labels[asked]

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean over :meth:`pairs`; of none zero, with a gradient of zero."""
        if not len(labels):
            return outputs.sum()
        return super().loss_of_pairs(outputs, labels, smoothing)

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return None

    def weight(self, labels: Tensor) -> int:
        return int((labels != IGNORED).sum())


@register_task("tokens")
class Tokens(Steps):
    """A token at every point, kept by its loss; an evaluation goes batch by batch, since the logits
    of a whole split are many.

    Example:
        >>> found = Tokens().summary([(torch.zeros(1, 3, 4), torch.tensor([[2, 3, -100]]))], ())
        >>> found["n"], round(found["bits"], 6)
        (2, 2.0)
    """

    follows = streams = True
    counted = "tokens"
    metric = ("val_loss", "min")
    measure = "nats a token"
    loss_name = "cross-entropy (nats a token)"
    score = "perplexity"
    at_once = 1  # a token's logits are as many as there are tokens

    def summary(self, batches: Iterable[Pairs], classes: Sequence[str]) -> dict[str, Any]:
        total, right, count = 0.0, 0, 0
        for outputs, labels in batches:
            loss, correct, asked = self.sums(outputs, labels)
            total, right, count = total + float(loss), right + int(correct), count + asked
        check_asked(count)
        loss = total / count
        found = {"n": count, "accuracy": right / count, "loss": loss}
        found |= {"bits": nats_to_bits(loss), "perplexity": defined(exponential(loss))}
        return self._scored(found)


@register_task("answers")
class Answers(Task):
    """A score in [0, 1] for every class, by binary cross-entropy; its accuracy is the score of the
    class called.
    """

    loss_name = "binary cross-entropy"

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        return _alike(self, outputs, labels)

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return binary_cross_entropy_with_logits(outputs, labels) * labels.shape[-1]

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        outputs, labels = self.pairs(_wide(outputs), labels)
        score = labels.gather(1, outputs.argmax(-1, keepdim=True)).sum()
        return self.loss(outputs, labels) * len(labels), score, len(labels)

    def summary_of_pairs(
        self, outputs: Tensor, labels: Tensor, classes: Sequence[str]
    ) -> dict[str, Any]:
        loss, score, count = self.sums(outputs, labels)
        return {"n": count, "accuracy": float(score) / count, "loss": float(loss) / count}


# --- numbers --------------------------------------------------------------------------------------


class Numbers(Task):
    """Numbers, known by their loss alone."""

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
                f"a regression needs one number a sequence, got {tuple(outputs.shape)}; set "
                "model.head.outputs=1, and leave out model.head.pool=every"
            )
        return _wide(outputs).flatten(), _wide(labels).flatten()

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return (outputs.double() - labels.double()).square()

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return mse_loss(outputs, labels)

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        outputs, labels = self.pairs(outputs, labels)
        return mse_loss(outputs, labels, reduction="sum"), torch.zeros(()), len(labels)

    def summary_of_pairs(
        self, outputs: Tensor, labels: Tensor, classes: Sequence[str]
    ) -> dict[str, Any]:
        error = outputs.double() - labels.double()
        return {
            "n": len(labels),
            "loss": float(error.square().mean()),
            "rmse": rmse(outputs, labels),
            "r2": defined(r2(outputs, labels)),
            "absolute_error": absolute_error(outputs, labels),
            "variance": float((labels.double() - labels.double().mean()).square().mean()),
            "pearson": defined(pearson(outputs, labels)),
            "spearman": defined(spearman(outputs, labels)),
        }


@register_task("field")
class Field(Numbers):
    """Numbers at every point, NaN where there is none, by relative L2 error."""

    measure = loss_name = "relative L2 error"
    score = "loss"
    points = 2

    def pairs(self, outputs: Tensor, labels: Tensor) -> Pairs:
        outputs, labels = _alike(self, outputs, labels.flatten(2).mT)
        here = ~labels.isnan()  # a sample with fewer points than its batch
        return torch.where(here, outputs, 0.0), torch.where(here, labels, 0.0)

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return relative_error(outputs.double(), labels.double())

    def loss_of_pairs(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return relative_error(outputs, labels, self.shards).mean()

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        outputs, labels = self.pairs(_wide(outputs), labels)
        error = relative_error(outputs, labels, self.shards)
        return error.sum(), torch.zeros(()), len(labels)

    def summary_of_pairs(
        self, outputs: Tensor, labels: Tensor, classes: Sequence[str]
    ) -> dict[str, Any]:
        error = relative_error(outputs.double(), labels.double())
        return {"n": len(labels), "loss": float(error.mean()), "worst": float(error.max())}


def _wide(numbers: Tensor) -> Tensor:
    """In float32 at least: half precision does not hold sums."""
    return numbers if numbers.dtype == torch.float64 else numbers.float()


def _alike(task: Task, outputs: Tensor, labels: Tensor) -> Pairs:
    if outputs.shape != labels.shape:
        raise ShapeError(
            f"task {task.name!r} needs outputs {tuple(labels.shape)}, got {tuple(outputs.shape)}"
        )
    return outputs, labels


def relative_error(outputs: Tensor, labels: Tensor, shards: Shards | None = None) -> Tensor:
    r""":math:`\|o - l\|_2 / \|l\|_2` of each sample (B, …); where the answer is zero, the error
    itself. Of points in ``shards``: over all ranks', the same on each.

    Example:
        >>> relative_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
        0.800000011920929
    """
    error, size = (x.flatten(1).norm(dim=1) for x in (outputs - labels, labels))
    if shards is not None:
        squares = summed(torch.stack([error, size]).square(), shards)
        # The root of zero has no slope; that of an error of zero is zero, as a norm's is.
        error, size = torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)
    return error / torch.where(size > 0, size, 1.0)
