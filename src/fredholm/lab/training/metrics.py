"""Metrics by name: functions of all outputs and labels of a split."""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...errors import OptionError, require
from ...registry import Registry

Score = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Metric:
    """A metric of all outputs and labels of a split.

    Attributes:
        function: takes logits (n, c) and classes (n,), or numbers (n,) and numbers (n,).
        of: the answers it compares, ``"classes"`` or ``"numbers"``.
        mode: ``"max"`` if larger scores are better, otherwise ``"min"``.
        of_loss: computes the same score from the mean cross-entropy alone, for outputs that are too
            many to be stored.
        title: its name in tables and pages; "" for the registered name.
        share: whether it is a share, which tables give in percent.
        unitless: of numbers, whether it is the same in every unit of the numbers.
    """

    function: Score
    of: Literal["classes", "numbers"] = "classes"
    mode: Literal["max", "min"] = "max"
    of_loss: Callable[[float], float] | None = None
    title: str = ""
    share: bool = False
    unitless: bool = False

    def __call__(self, outputs: Tensor, labels: Tensor) -> float:
        return float(self.function(outputs, labels))


METRICS: Registry[Metric] = Registry("metric", home=None)

# Keys that results of runs have beside metrics. A metric of the same name would overwrite them.
RESERVED = {
    "baseline",
    "cell",
    "classes",
    "confusion",
    "curve",
    "dataset",
    "epochs",
    "error",
    "folder",
    "label_mean",
    "loss",
    "loss_name",
    "metric",
    "minutes",
    "n",
    "notes",
    "overrides",
    "parameters",
    "per_class",
    "right",
    "run",
    "scores",
    "seed",
    "split",
    "variance",
    "worst",
    "wrong",
}


def register_metric(
    name: str,
    of: Literal["classes", "numbers"] = "classes",
    mode: Literal["max", "min"] = "max",
    of_loss: Callable[[float], float] | None = None,
    title: str = "",
    share: bool = False,
    unitless: bool = False,
) -> Callable[[Score], Score]:
    """Decorator that registers a metric for ``training.metric`` of recipes and conversions.

    The arguments are those of :class:`Metric`.

    Raises:
        OptionError: the name is taken, also by another key of results, or does not consist of small
            letters, digits and underscores.

    Example:
        >>> @register_metric("worst_error", of="numbers", mode="min")
        ... def worst_error(outputs, labels):
        ...     return float((outputs - labels).abs().max())
        >>> METRICS["worst_error"](torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        2.0
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise OptionError(f"metric name: expected small letters, digits and _, got {name!r}")
    if name in RESERVED:
        keys = ", ".join(sorted(RESERVED))
        raise OptionError(
            f"metric name: expected none of the other keys of results ({keys}), got {name!r}"
        )

    def decorate(function: Score) -> Score:
        metric = Metric(function, of, mode, of_loss, title, share, unitless)
        METRICS.add(name, metric)
        return function

    return decorate


def title_of(name: str) -> str:
    """Return the name of a metric in tables and pages.

    Example:
        >>> title_of("auc"), title_of("balanced_accuracy"), title_of("loss")
        ('AUC', 'balanced accuracy', 'loss')
    """
    if name in METRICS and METRICS[name].title:
        return METRICS[name].title
    return name.replace("_", " ")


def named_score(name: str, value: float | None) -> str:
    """Return a score with its title; one that a single class leaves undefined says so.

    Example:
        >>> named_score("auc", 0.91), named_score("auc", None)
        ('AUC 0.9100', 'AUC undefined')
    """
    text = "undefined"
    if value is not None:
        text = f"{value:.4f}"
    return f"{title_of(name)} {text}"


@register_metric("accuracy", share=True)
def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose largest logit is that of their label.

    Example:
        >>> accuracy(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.5
    """
    hits = outputs.argmax(-1) == labels
    return float(hits.double().mean())


@register_metric("pearson", of="numbers", title="Pearson's correlation", unitless=True)
def pearson(outputs: Tensor, labels: Tensor) -> float:
    """Return Pearson's correlation; NaN if outputs or labels are constant.

    Example:
        >>> round(pearson(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        0.981981
    """
    first = outputs.flatten().double()
    second = labels.flatten().double()
    correlations = torch.corrcoef(torch.stack([first, second]))
    return float(correlations[0, 1])


@register_metric("spearman", of="numbers", title="Spearman's correlation", unitless=True)
def spearman(outputs: Tensor, labels: Tensor) -> float:
    """Return Spearman's rank correlation; NaN if outputs or labels are constant.

    Tied values share their mean rank.

    Example:
        >>> round(spearman(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        1.0
    """
    first = outputs.flatten().double().cpu()
    second = labels.flatten().double().cpu()
    if _is_constant(first) or _is_constant(second):
        return math.nan

    # SciPy takes most of a second to import, and no other metric needs it.
    from scipy import stats

    result: Any = stats.spearmanr(first, second)
    return float(result.statistic)


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())


def _sklearn() -> Any:
    return require("sklearn.metrics", "train", "AUC, F1 and Matthews' correlation")


@register_metric("f1", title="F1")
def f1(outputs: Tensor, labels: Tensor) -> float:
    """Return F1 of the second of two classes, or the mean over more classes; 0 if undefined.

    Example:
        >>> f1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
        0.6666666666666666
    """
    f1_score = _sklearn().f1_score
    labels = labels.cpu()
    predicted = outputs.argmax(-1).cpu()
    classes = outputs.shape[-1]
    if classes == 2:
        score = f1_score(labels, predicted, average="binary", zero_division=0.0)
        return float(score)

    # All classes are named, so that one that is absent from the split counts as well.
    score = f1_score(
        labels,
        predicted,
        labels=range(classes),
        average="macro",
        zero_division=0.0,
    )
    return float(score)


@register_metric("matthews", title="Matthews' correlation")
def matthews(outputs: Tensor, labels: Tensor) -> float:
    """Return Matthews' correlation of labels and predicted classes; 0 if undefined.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> round(matthews(logits, torch.tensor([0, 0, 1, 1])), 6)
        0.57735
    """
    labels = labels.cpu()
    predicted = outputs.argmax(-1).cpu()

    # For a single class scikit-learn returns 0 too, with a warning.
    classes = torch.cat([labels, predicted]).unique()
    if len(classes) < 2:
        return 0.0

    correlation = _sklearn().matthews_corrcoef(labels, predicted)
    return float(correlation)


@register_metric("auc", title="AUC")
def auc(outputs: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve; NaN unless every class occurs.

    For more than two classes it is the mean over the classes, each against the rest.

    Example:
        >>> auc(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 0]))
        1.0
    """
    classes = outputs.shape[-1]
    if len(labels.unique()) < classes:
        return math.nan

    # With two classes the difference of the logits orders the samples. Their probabilities would
    # tie where the softmax saturates.
    outputs = outputs.double().cpu()
    if classes == 2:
        scores = outputs[:, 1] - outputs[:, 0]
    else:
        scores = outputs.softmax(-1)
    area = _sklearn().roc_auc_score(labels.cpu(), scores, multi_class="ovr")
    return float(area)


def nats_to_bits(loss: float) -> float:
    """Convert a loss from nats to bits.

    Example:
        >>> nats_to_bits(math.log(8))
        3.0
    """
    return loss / math.log(2)


@register_metric("bits", mode="min", of_loss=nats_to_bits)
def bits(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean cross-entropy in bits: bits per character for a model of characters.

    Example:
        >>> round(bits(torch.zeros(2, 4), torch.tensor([0, 3])), 6)
        2.0
    """
    loss = cross_entropy(outputs.double(), labels)
    return nats_to_bits(float(loss))


def exponential(loss: float) -> float:
    """Return e^loss; infinity if it overflows.

    Example:
        >>> exponential(0.0), exponential(1000.0)
        (1.0, inf)
    """
    if loss < math.log(sys.float_info.max):
        return math.exp(loss)
    return math.inf


@register_metric("perplexity", mode="min", of_loss=exponential)
def perplexity(logits: Tensor, labels: Tensor) -> float:
    """Return the exponential of the mean cross-entropy of logits (n, c) and labels (n,).

    Example:
        >>> round(perplexity(torch.zeros(3, 4), torch.tensor([0, 1, 2])), 6)
        4.0
    """
    loss = cross_entropy(logits.double(), labels)
    return exponential(float(loss))


@register_metric("balanced_accuracy", share=True)
def balanced_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean recall over the classes that occur.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 1, 1, 1])
        >>> round(balanced_accuracy(logits, labels), 6), accuracy(logits, labels)
        (0.666667, 0.5)
    """
    size = outputs.shape[-1]
    totals = torch.bincount(labels, minlength=size)
    is_hit = outputs.argmax(-1) == labels
    hits = torch.bincount(labels[is_hit], minlength=size)

    recalls = hits / totals
    occurring = recalls[totals > 0]
    return float(occurring.double().mean())


@register_metric("r2", of="numbers", title="R²", unitless=True)
def r2(outputs: Tensor, labels: Tensor) -> float:
    """Return the coefficient of determination, 1 - Σ (o - l)² / Σ (l - mean l)².

    It is NaN if the labels are constant.

    Example:
        >>> r2(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
        0.7857142857142857
    """
    outputs = outputs.flatten().double()
    labels = labels.flatten().double()
    deviations = labels - labels.mean()
    spread = deviations.square().sum()
    if spread <= 0:
        return math.nan
    error = (outputs - labels).square().sum()
    return float(1 - error / spread)


@register_metric("rmse", of="numbers", mode="min", title="root mean squared error")
def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Return the root of the mean squared error.

    Example:
        >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        1.4142135623730951
    """
    errors = outputs.double() - labels.double()
    return math.sqrt(errors.square().mean())


@register_metric("absolute_error", of="numbers", mode="min", title="mean absolute error")
def absolute_error(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean absolute error.

    Example:
        >>> absolute_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        1.0
    """
    errors = outputs.double() - labels.double()
    return float(errors.abs().mean())


# The number of examples in each list of a summary.
EXAMPLES = 16


def summarise(
    logits: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    temperature: float = 1.0,
) -> dict[str, Any]:
    """Summarise a classification, from logits (N, C) and labels (N,).

    The ``temperature`` calibrates the probabilities of the examples, and changes no score.

    Returns: metrics, the confusion matrix (rows are true classes), and the first examples that were
    predicted wrong and right.

    Example:
        >>> report = summarise(torch.eye(3), torch.tensor([0, 1, 1]), ("a", "b", "c"))
        >>> report["accuracy"], report["per_class"], report["confusion"][1]
        (0.6666666666666666, {'a': 1.0, 'b': 0.5, 'c': None}, [0, 1, 1])
    """
    size = len(classes)
    predicted = logits.argmax(-1)
    hits = predicted == labels

    # The probability of each predicted class.
    probabilities = (logits / temperature).softmax(-1)
    confidences = probabilities.gather(-1, predicted[:, None])[:, 0]

    # Each pair (label, prediction) is one cell of the flattened matrix.
    cells = labels * size + predicted
    confusion = torch.bincount(cells, minlength=size * size).view(size, size)
    totals = confusion.sum(1)

    # A class without samples has no accuracy.
    per_class: dict[str, float | None] = {}
    for number, name in enumerate(classes):
        share = None
        total = int(totals[number])
        if total:
            share = int(confusion[number, number]) / total
        per_class[str(name)] = share

    def examples(which: Tensor) -> list[dict[str, Any]]:
        indices = which.nonzero()[:EXAMPLES, 0]
        return [
            {
                "index": i,
                "label": int(labels[i]),
                "prediction": int(predicted[i]),
                "probability": float(confidences[i]),
            }
            for i in indices.tolist()
        ]

    loss = cross_entropy(logits.double(), labels)
    binary = {}
    if size == 2:
        binary = _two_classes(logits, labels)

    return {
        "n": len(labels),
        **binary,
        "accuracy": int(hits.sum()) / len(labels),
        "balanced_accuracy": balanced_accuracy(logits, labels),
        "loss": float(loss),
        "classes": [str(name) for name in classes],
        "per_class": per_class,
        "confusion": confusion.tolist(),
        "wrong": examples(~hits),
        "right": examples(hits),
    }


def baseline_of(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the score of the best constant answer to the samples of a summary.

    For classes it is the most frequent class of these samples, for a number their mean. Fields and
    tokens have no such answer, and give None.

    Example:
        >>> baseline_of({"n": 4, "classes": ["a", "b"], "confusion": [[1, 0], [1, 2]]})
        {'class': 'b', 'accuracy': 0.75}
        >>> baseline_of({"n": 4, "label_mean": 2.0, "variance": 9.0})
        {'value': 2.0, 'rmse': 3.0}
    """
    if "confusion" in summary:
        # Rows of the matrix are the true classes.
        counts = [sum(row) for row in summary["confusion"]]
        largest = max(counts)
        most_frequent = counts.index(largest)
        return {
            "class": summary["classes"][most_frequent],
            "accuracy": largest / sum(counts),
        }

    if "variance" in summary:
        return {
            "value": summary["label_mean"],
            "rmse": math.sqrt(summary["variance"]),
        }
    return None


def _two_classes(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of two classes; the AUC only if both occur."""
    scores = {
        "f1": f1(logits, labels),
        "matthews": matthews(logits, labels),
    }
    area = auc(logits, labels)
    if not math.isnan(area):
        scores["auc"] = area
    return scores


def direction(name: str) -> Literal["max", "min"]:
    """Return ``"max"`` if larger scores of a metric are better, otherwise ``"min"``.

    ``name`` is a loss or a registered metric, with or without ``val_``. For an unknown name,
    smaller scores are better.

    Example:
        >>> direction("val_accuracy"), direction("train_loss"), direction("perplexity")
        ('max', 'min', 'min')
    """
    plain = name.removeprefix("val_")
    if plain in METRICS:
        return METRICS[plain].mode
    return "max" if plain.endswith("accuracy") else "min"


def defined(score: float) -> float | None:
    """Replace NaN and infinity, which JSON does not have, by None.

    Example:
        >>> defined(0.5), defined(math.nan)
        (0.5, None)
    """
    return score if math.isfinite(score) else None


class MeanAndSd(NamedTuple):
    """Mean and sample standard deviation of scores."""

    mean: float | None
    sd: float | None


def mean_and_sd(values: Sequence[float]) -> MeanAndSd:
    """Return mean and sample standard deviation.

    Each is None if there are too few values, and NaN if a value is not finite.

    Example:
        >>> mean_and_sd([1.0, 3.0])
        MeanAndSd(mean=2.0, sd=1.4142135623730951)
    """
    if len(values) == 0:
        return MeanAndSd(None, None)

    finite = all(map(math.isfinite, values))
    mean = statistics.fmean(values) if finite else math.nan
    if len(values) == 1:
        return MeanAndSd(mean, None)

    sd = statistics.stdev(values) if finite else math.nan
    return MeanAndSd(mean, sd)


# The two-sided 95% quantile of the normal distribution.
LEVEL_95 = 1.959963984540054


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


def wilson(share: float, count: int) -> Interval:
    """Return Wilson's 95% interval of a share of ``count`` independent samples.

    For a share of 1, mean ± standard error would be a single point; this interval is not. Its end
    there is exactly 1, and at a share of 0 exactly 0.

    Reference: Wilson, "Probable inference, the law of succession, and statistical inference"
    (1927).

    Example:
        >>> [round(end, 3) for end in wilson(1.0, 60)], [round(end, 3) for end in wilson(0.5, 4)]
        ([0.94, 1.0], [0.15, 0.85])
    """
    z2 = LEVEL_95**2
    divisor = 1 + z2 / count
    middle = (share + z2 / (2 * count)) / divisor

    variance = share * (1 - share) / count
    spread = math.sqrt(variance + z2 / (4 * count**2))
    half = LEVEL_95 * spread / divisor

    # At the ends the formula gives 0 and 1 up to a rounding error.
    low = middle - half
    if share <= 0:
        low = 0.0
    high = middle + half
    if share >= 1:
        high = 1.0
    return Interval(low, high)
