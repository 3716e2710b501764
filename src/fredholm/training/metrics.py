"""Scores by name: functions of all outputs and labels of a split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from ..errors import OptionError, suggest


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


def spearman(outputs: Tensor, labels: Tensor) -> float:
    """Spearman's rank correlation; tied values share their mean rank.

    Example:
        >>> round(spearman(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])), 6)
        1.0
    """
    found: Any = stats.spearmanr(outputs.flatten().double().cpu(), labels.flatten().double().cpu())
    return float(found.statistic)


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


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": accuracy, "spearman": spearman}


def metric_named(name: str) -> Callable[[Tensor, Tensor], float]:
    """A score by name, or an OptionError."""
    if name not in METRICS:
        raise OptionError(f"unknown metric {name!r}{suggest(name, METRICS)}")
    return METRICS[name]
