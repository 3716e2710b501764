"""Scores for the top of a page, from an ``evaluation.json``, in the units of the task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...numbers import readable
from ...training.metrics import wilson
from ..page import Fact


def score_head(
    evaluation: Mapping[str, Any],
    counted: str,
    *,
    independent: bool = True,
) -> list[Fact]:
    """Return the scores of an evaluation for the top of the page.

    Accuracy and further scores come first. A loss is shown in the units of its task: bits per
    token, relative L2 error of fields, R² and RMSE of numbers, else by its name.

    Args:
        evaluation: the content of an ``evaluation.json``.
        counted: what its ``n`` counts, such as "test sequences".
        independent: whether these are independent samples, not points or tokens of the same sample;
            only then has the accuracy an interval.

    Example:
        >>> [fact[:2] for fact in score_head({"n": 8, "loss": 0.25, "variance": 1.0}, "test rows")]
        [('R²', '0.750'), ('RMSE', '0.5')]
    """
    where = f"on {evaluation['n']} {counted}"
    head = []
    if "accuracy" in evaluation:
        accuracy = evaluation["accuracy"]
        note = where
        if independent:
            low, high = wilson(accuracy, evaluation["n"])
            note += f"; 95% interval {low:.1%} to {high:.1%}"
        head.append(Fact("Accuracy", f"{accuracy:.2%}", note))
    for name, value in evaluation.get("scores", {}).items():
        if name == "accuracy":
            continue
        shown = "undefined"
        if value is not None:
            shown = readable(value)
        head.append(Fact(_title(name), shown, where))
    return head + _losses(evaluation, where)


def _losses(evaluation: Mapping[str, Any], where: str) -> list[Fact]:
    """Return the loss of an evaluation in the units of its task."""
    # Tokens of a language model. An infinite perplexity is saved as None.
    if "bits" in evaluation and "perplexity" in evaluation:
        perplexity = evaluation["perplexity"]
        shown = "beyond numbers"
        if perplexity is not None:
            shown = f"{perplexity:.1f}"
        return [Fact("Bits", f"{evaluation['bits']:.3f}", f"per token, perplexity {shown}")]

    # Fields: the loss is the mean relative error of the samples.
    if "worst" in evaluation:
        note = f"in L2, {where}; at worst {evaluation['worst']:.2%}"
        return [Fact("Relative error", f"{evaluation['loss']:.2%}", note)]

    # Numbers: the loss is the mean squared error, the variance that of the labels.
    if "variance" in evaluation:
        loss = evaluation["loss"]
        variance = evaluation["variance"]
        scores = evaluation.get("scores", {})
        found = []
        if "r2" not in scores and variance > 0:
            found.append(Fact("R²", f"{1 - loss / variance:.3f}", where))
        if "rmse" not in scores:
            constant = readable(math.sqrt(variance), 3)
            answer = "the mean"
            # Evaluations of earlier versions do not say which number that is.
            if "label_mean" in evaluation:
                answer = f"{readable(evaluation['label_mean'])}, the mean"
            note = f"root mean squared error; {constant} for always answering {answer}"
            found.append(Fact("RMSE", readable(math.sqrt(loss), 3), note))
        return found

    if "loss" not in evaluation:
        return []
    name = evaluation.get("loss_name", "cross-entropy")
    return [Fact("Loss", f"{evaluation['loss']:.3f}", name)]


def _title(name: str) -> str:
    """Return a score's name as a title.

    Example:
        >>> _title("auc"), _title("balanced_accuracy")
        ('AUC', 'Balanced accuracy')
    """
    if len(name) < 4:
        return name.upper()
    return name.replace("_", " ").capitalize()
