"""Named scores against their definitions, counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fredholm.lab.compare.verdict import interval
from fredholm.lab.training.metrics import METRICS, accuracy, mean_and_sd, perplexity, summarise
from fredholm.lab.training.tasks import create_task

LOGITS = torch.tensor(
    [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 3.0, 1.0], [0.0, 1.0, 2.0], [1.0, 0.0, 3.0]]
)
LABELS = torch.tensor([0, 1, 2, 2, 2])


def one_against_rest(scores: torch.Tensor, inside: torch.Tensor) -> float:
    """Return how often a sample inside scores above one outside; ties count half."""
    gap = scores[inside][:, None] - scores[~inside][None]
    return float(((gap > 0).double() + 0.5 * (gap == 0)).mean())


def test_scores_of_three_classes_equal_counts_by_hand():
    # Calls 0, 1, 1, 2, 2: one of three samples of the last class is called the second.
    assert METRICS["f1"](LOGITS, LABELS) == pytest.approx((1 + 2 / 3 + 4 / 5) / 3)
    calls, own = torch.eye(3)[[0, 1, 1, 2, 2]].double(), torch.eye(3)[LABELS].double()
    joint = torch.stack([(calls - calls.mean(0)).flatten(), (own - own.mean(0)).flatten()])
    covariance = joint @ joint.T
    matthews = covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt()
    assert METRICS["matthews"](LOGITS, LABELS) == pytest.approx(float(matthews))
    shares = LOGITS.double().softmax(-1)
    areas = [one_against_rest(shares[:, c], c == LABELS) for c in range(3)]
    assert METRICS["auc"](LOGITS, LABELS) == pytest.approx(sum(areas) / 3)
    picked = shares[torch.arange(5), LABELS].log2()
    assert METRICS["bits"](LOGITS, LABELS) == pytest.approx(-float(picked.mean()), rel=1e-6)


def test_scores_without_one_of_two_classes_are_undefined():
    logits, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0])
    assert math.isnan(METRICS["auc"](logits, labels))
    assert METRICS["f1"](logits, labels) == METRICS["matthews"](logits, labels) == 0.0


def test_logits_equal_after_softmax_are_ranked_as_by_accuracy():
    logits, labels = torch.tensor([[0.0, 1e-9], [1e-9, 0.0]]), torch.tensor([1, 0])
    assert summarise(logits, labels, ("a", "b"))["accuracy"] == accuracy(logits, labels) == 1.0


def test_an_overflowing_perplexity_is_infinite():
    assert perplexity(torch.tensor([[0.0, 1000.0]]), torch.tensor([0])) == math.inf
    found = create_task("tokens").summary([(torch.tensor([[[0.0, 1e4]]]), torch.tensor([[0]]))], ())
    assert found["perplexity"] is None  # JSON has no infinity


def test_statistics_of_nan_are_nan():
    assert all(map(math.isnan, mean_and_sd([1.0, math.nan])))
    assert all(map(math.isnan, mean_and_sd([math.inf, -math.inf])))
    assert all(map(math.isnan, interval([math.nan, 1.0, 2.0])))
