"""Scores by name: functions of all outputs and labels of a split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..registry import Registry

Metric = Callable[[Tensor, Tensor], float]
METRICS: Registry[Metric] = Registry("metric", home=None)


@METRICS.register("accuracy")
def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Share of samples whose largest logit is their label's.

    Example:
        >>> accuracy(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.5
    """
    return float((outputs.argmax(-1) == labels).double().mean())


def pearson(outputs: Tensor, labels: Tensor) -> float:
    """Pearson's correlation; not a number where either never varies.

    Example:
        >>> round(pearson(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        0.981981
    """
    pair = torch.stack([outputs.flatten().double(), labels.flatten().double()])
    return float(torch.corrcoef(pair)[0, 1])


@METRICS.register("spearman")
def spearman(outputs: Tensor, labels: Tensor) -> float:
    """Spearman's rank correlation; tied values share their mean rank.

    Example:
        >>> round(spearman(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        1.0
    """
    result: Any = stats.spearmanr(outputs.flatten().double().cpu(), labels.flatten().double().cpu())
    return float(result.statistic)


def two_classes(confusion: Tensor) -> dict[str, float]:
    """F1 of the second class and Matthews' correlation, from counts of (class, called) of two
    classes; 0 where undefined.

    Example:
        >>> two_classes(torch.tensor([[2, 0], [1, 1]]))
        {'f1': 0.6666666666666666, 'matthews': 0.5773502691896258}
    """
    (negative, false_alarm), (missed, positive) = confusion.tolist()
    product = (
        (positive + false_alarm)
        * (positive + missed)
        * (negative + false_alarm)
        * (negative + missed)
    )
    cross = positive * negative - false_alarm * missed
    either = 2 * positive + false_alarm + missed
    return {
        "f1": 2 * positive / either if either else 0.0,
        "matthews": cross / product**0.5 if product else 0.0,
    }


EXAMPLES = 16  # of each list in a summary


def summarise(logits: Tensor, labels: Tensor, classes) -> dict[str, Any]:
    """Numbers of a classification, from logits (N, C) and labels (N,).

    Example:
        >>> report = summarise(torch.eye(3), torch.tensor([0, 1, 1]), ("a", "b", "c"))
        >>> report["accuracy"], report["per_class"], report["confusion"][1]
        (0.6666666666666666, {'a': 1.0, 'b': 0.5, 'c': None}, [0, 1, 1])
    """
    count, size = len(labels), len(classes)
    probabilities, predicted = logits.softmax(-1).max(-1)
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
        **(two_classes(confusion) | _area(logits, labels) if size == 2 else {}),
        "accuracy": int(hits.sum()) / count,
        "balanced_accuracy": float((confusion.diag() / totals)[totals > 0].mean()),
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


def _area(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Area under the curve of two classes, where both are there."""
    from ..explain.targets import roc_auc

    area = float(roc_auc((logits[:, 1] - logits[:, 0])[None].double(), labels[None] == 1))
    return {} if math.isnan(area) else {"auc": area}
