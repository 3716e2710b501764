"""Scores by name: functions of all outputs and labels of a split."""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...errors import OptionError, require
from ...registry import Registry

Score = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Metric:
    """A score by name, a function of all outputs and labels of a split.

    Attributes:
        function: of logits (n, c) and classes (n,), or of numbers (n,) and numbers (n,).
        of: ``"classes"`` or ``"numbers"``, what it judges.
        mode: whether the larger (``"max"``) or the smaller (``"min"``) score is the better one.
        of_loss: the same score from the mean cross-entropy alone, for answers that are too many to
            be kept.
        title: what tables and pages call it; "" for its name.
        share: whether it is a share, which tables give in percent.
    """

    function: Score
    of: Literal["classes", "numbers"] = "classes"
    mode: Literal["max", "min"] = "max"
    of_loss: Callable[[float], float] | None = None
    title: str = ""
    share: bool = False

    def __call__(self, outputs: Tensor, labels: Tensor) -> float:
        return float(self.function(outputs, labels))


METRICS: Registry[Metric] = Registry("metric", home=None)
# What results of runs hold besides.
RESERVED = (
    {"n", "loss", "loss_name", "error", "metric", "scores", "variance", "worst", "curve", "seed"}
    | {"run", "dataset", "split", "overrides", "notes", "cell", "folder"}
    | {"classes", "per_class", "confusion", "wrong", "right", "epochs", "minutes", "parameters"}
)


def register_metric(
    name: str,
    of: Literal["classes", "numbers"] = "classes",
    mode: Literal["max", "min"] = "max",
    of_loss: Callable[[float], float] | None = None,
    title: str = "",
    share: bool = False,
) -> Callable[[Score], Score]:
    """Decorator that makes a score known by name, for ``training.metric`` of a recipe and
    ``metric`` of a conversion. Arguments are those of :class:`Metric`.

    Raises:
        OptionError: the name is taken, also by what results hold besides, or is no name of small
            letters, digits and underscores.

    Example:
        >>> @register_metric("worst_error", of="numbers", mode="min")
        ... def worst_error(outputs, labels):
        ...     return float((outputs - labels).abs().max())
        >>> METRICS["worst_error"](torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        2.0
    """

    if name in RESERVED or not re.fullmatch("[a-z][a-z0-9_]*", name):
        need = "small letters, digits and _, and no word that results have"
        raise OptionError(
            f"metric name: received {name!r}; needs {need} ({', '.join(sorted(RESERVED))})"
        )

    def decorate(function: Score) -> Score:
        METRICS.add(name, Metric(function, of, mode, of_loss, title, share))
        return function

    return decorate


def title_of(name: str) -> str:
    """What tables and pages call a score.

    Example:
        >>> title_of("auc"), title_of("balanced_accuracy"), title_of("loss")
        ('AUC', 'balanced accuracy', 'loss')
    """
    known = METRICS[name].title if name in METRICS else ""
    return known or name.replace("_", " ")


@register_metric("accuracy", share=True)
def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Share of samples whose largest logit is their label's.

    Example:
        >>> accuracy(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.5
    """
    return float((outputs.argmax(-1) == labels).double().mean())


@register_metric("pearson", of="numbers", title="Pearson's correlation")
def pearson(outputs: Tensor, labels: Tensor) -> float:
    """Pearson's correlation; not a number where either never varies.

    Example:
        >>> round(pearson(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        0.981981
    """
    pair = torch.stack([outputs.flatten().double(), labels.flatten().double()])
    return float(torch.corrcoef(pair)[0, 1])


@register_metric("spearman", of="numbers", title="Spearman's correlation")
def spearman(outputs: Tensor, labels: Tensor) -> float:
    """Spearman's rank correlation; tied values share their mean rank. Not a number where either
    never varies.

    Example:
        >>> round(spearman(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        1.0
    """
    first, second = (some.flatten().double().cpu() for some in (outputs, labels))
    if any(bool((some == some[0]).all()) for some in (first, second)):  # SciPy would warn
        return math.nan
    from scipy import stats  # most of a second, which no other score needs

    result: Any = stats.spearmanr(first, second)
    return float(result.statistic)


def _sklearn() -> Any:
    return require("sklearn.metrics", "train", "AUC, F1 and Matthews' correlation")


@register_metric("f1", title="F1")
def f1(outputs: Tensor, labels: Tensor) -> float:
    """F1 of the second of two classes, or the mean over more of them; 0 where undefined.

    Example:
        >>> f1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
        0.6666666666666666
    """
    classes = outputs.shape[-1]
    called, average = outputs.argmax(-1).cpu(), "binary" if classes == 2 else "macro"
    known = None if classes == 2 else range(classes)
    score = _sklearn().f1_score
    return float(score(labels.cpu(), called, labels=known, average=average, zero_division=0.0))


@register_metric("matthews", title="Matthews' correlation")
def matthews(outputs: Tensor, labels: Tensor) -> float:
    """Matthews' correlation of classes and calls; 0 where undefined.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> round(matthews(logits, torch.tensor([0, 0, 1, 1])), 6)
        0.57735
    """
    labels, called = labels.cpu(), outputs.argmax(-1).cpu()
    if len(torch.cat([labels, called]).unique()) < 2:  # scikit-learn would warn
        return 0.0
    return float(_sklearn().matthews_corrcoef(labels, called))


@register_metric("auc", title="AUC")
def auc(outputs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of two classes, or the mean of each class against the rest; not a
    number unless every class is there.

    Example:
        >>> auc(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 0]))
        1.0
    """
    classes = outputs.shape[-1]
    if len(labels.unique()) < classes:
        return math.nan
    outputs = outputs.double().cpu()
    scores = outputs[:, 1] - outputs[:, 0] if classes == 2 else outputs.softmax(-1)
    return float(_sklearn().roc_auc_score(labels.cpu(), scores, multi_class="ovr"))


def nats_to_bits(loss: float) -> float:
    """A loss in nats to the base 2.

    Example:
        >>> nats_to_bits(math.log(8))
        3.0
    """
    return loss / math.log(2)


@register_metric("bits", mode="min", of_loss=nats_to_bits)
def bits(outputs: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy to the base 2: bits per character of a model of characters.

    Example:
        >>> round(bits(torch.zeros(2, 4), torch.tensor([0, 3])), 6)
        2.0
    """
    return nats_to_bits(float(cross_entropy(outputs.double(), labels)))


def exponential(loss: float) -> float:
    """e^loss, infinite where it is beyond a number.

    Example:
        >>> exponential(0.0), exponential(1000.0)
        (1.0, inf)
    """
    return math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf


@register_metric("perplexity", mode="min", of_loss=exponential)
def perplexity(logits: Tensor, labels: Tensor) -> float:
    """The exponential of the mean cross-entropy of logits (n, c) and labels (n,).

    Example:
        >>> round(perplexity(torch.zeros(3, 4), torch.tensor([0, 1, 2])), 6)
        4.0
    """
    return exponential(float(cross_entropy(logits.double(), labels)))


@register_metric("balanced_accuracy", share=True)
def balanced_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The mean over classes of the share of their samples that are called so; of classes that are
    there.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 1, 1, 1])
        >>> round(balanced_accuracy(logits, labels), 6), accuracy(logits, labels)
        (0.666667, 0.5)
    """
    size = outputs.shape[-1]
    totals = torch.bincount(labels, minlength=size)
    hits = torch.bincount(labels[outputs.argmax(-1) == labels], minlength=size)
    return float((hits / totals)[totals > 0].double().mean())


@register_metric("r2", of="numbers", title="R²")
def r2(outputs: Tensor, labels: Tensor) -> float:
    """The coefficient of determination, 1 - Σ (o - l)² / Σ (l - mean l)²; not a number where the
    labels never vary.

    Example:
        >>> r2(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
        0.7857142857142857
    """
    outputs, labels = outputs.flatten().double(), labels.flatten().double()
    spread = (labels - labels.mean()).square().sum()
    return float(1 - (outputs - labels).square().sum() / spread) if spread > 0 else math.nan


@register_metric("rmse", of="numbers", mode="min", title="root mean squared error")
def rmse(outputs: Tensor, labels: Tensor) -> float:
    """The root of the mean squared error.

    Example:
        >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        1.4142135623730951
    """
    return float((outputs.double() - labels.double()).square().mean().sqrt())


@register_metric("absolute_error", of="numbers", mode="min", title="mean absolute error")
def absolute_error(outputs: Tensor, labels: Tensor) -> float:
    """The mean absolute error.

    Example:
        >>> absolute_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        1.0
    """
    return float((outputs.double() - labels.double()).abs().mean())


EXAMPLES = 16  # of each list in a summary


def summarise(logits: Tensor, labels: Tensor, classes) -> dict[str, Any]:
    """Numbers of a classification, from logits (N, C) and labels (N,).

    Example:
        >>> report = summarise(torch.eye(3), torch.tensor([0, 1, 1]), ("a", "b", "c"))
        >>> report["accuracy"], report["per_class"], report["confusion"][1]
        (0.6666666666666666, {'a': 1.0, 'b': 0.5, 'c': None}, [0, 1, 1])
    """
    count, size = len(labels), len(classes)
    predicted = logits.argmax(-1)
    probabilities = logits.softmax(-1).gather(-1, predicted[:, None])[:, 0]
    confusion = torch.zeros(size * size, dtype=torch.long).index_add_(
        0, labels * size + predicted, torch.ones_like(labels)
    )
    confusion = confusion.view(size, size)
    totals = confusion.sum(1)
    hits = predicted == labels

    def examples(which: Tensor) -> list[dict[str, Any]]:
        return [
            {
                "index": i,
                "label": int(labels[i]),
                "prediction": int(predicted[i]),
                "probability": float(probabilities[i]),
            }
            for i in which.nonzero()[:EXAMPLES, 0].tolist()
        ]

    return {
        "n": count,
        **(_two_classes(logits, labels) if size == 2 else {}),
        "accuracy": int(hits.sum()) / count,
        "balanced_accuracy": balanced_accuracy(logits, labels),
        "loss": float(cross_entropy(logits.double(), labels)),
        "classes": [str(name) for name in classes],
        "per_class": {
            str(name): int(confusion[i, i]) / int(totals[i]) if totals[i] else None
            for i, name in enumerate(classes)
        },
        "confusion": confusion.tolist(),
        "wrong": examples(~hits),
        "right": examples(hits),
    }


def _two_classes(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """What two classes are judged by as well; the area only where both are there."""
    area = auc(logits, labels)
    scores = {"f1": f1(logits, labels), "matthews": matthews(logits, labels)}
    return scores if math.isnan(area) else scores | {"auc": area}


def direction(name: str) -> Literal["max", "min"]:
    """Whether the larger (``"max"``) or the smaller (``"min"``) score is the better one; of a
    validation, a loss or a metric by name. Of a name that nobody registered it is the smaller one.

    Example:
        >>> direction("val_accuracy"), direction("train_loss"), direction("perplexity")
        ('max', 'min', 'min')
    """
    plain = name.removeprefix("val_")
    if plain in METRICS:
        return METRICS[plain].mode
    return "max" if plain.endswith("accuracy") else "min"


def defined(score: float) -> float | None:
    """None in the place of NaN and of infinity, which JSON does not have.

    Example:
        >>> defined(0.5), defined(math.nan)
        (0.5, None)
    """
    return score if math.isfinite(score) else None


def mean_and_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None where there are too few, NaN where one is no finite
    number.

    Example:
        >>> mean_and_sd([1.0, 3.0])
        (2.0, 1.4142135623730951)
    """
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan if len(values) > 1 else None
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


LEVEL_95 = 1.959963984540054  # two-sided normal quantile


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share of ``count`` independent samples: of a share of 1 it
    is no point, as mean ± error would be.

    Reference: Wilson, "Probable inference, the law of succession, and statistical inference"
    (1927).

    Example:
        >>> [round(end, 3) for end in wilson(1.0, 60)], [round(end, 3) for end in wilson(0.5, 4)]
        ([0.94, 1.0], [0.15, 0.85])
    """
    z2 = LEVEL_95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    spread = share * (1 - share) / count + z2 / (4 * count**2)
    half = LEVEL_95 * math.sqrt(spread) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)
