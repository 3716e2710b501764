"""How well a classifier does, as sections of a page: curves, confusion, examples."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import DataError, ShapeError
from ...models.encoders import Inputs
from ...progress import steps
from ..data.kinds.images import IMAGES
from ..data.kinds.kind import Kind
from . import plots
from .page import Picture, Section, table, words
from .style import render

MAX_CLASSES = 25  # of a drawn confusion matrix; beyond it, a table of the most confused pairs
SHOWN = 16


def read_history(metrics: str | Path | Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Columns of a ``metrics.csv`` or of rows (one mapping an epoch); columns that are not numbers
    throughout are left out.

    Raises:
        DataError: no file there, or no column ``epoch``.

    Example:
        >>> read_history([{"epoch": 1, "val_loss": 0.5}, {"epoch": 2, "val_loss": 0.25}])
        {'epoch': [1.0, 2.0], 'val_loss': [0.5, 0.25]}
    """
    name = "metrics"
    if isinstance(metrics, str | Path):
        name = str(metrics)
        try:
            with open(metrics, newline="", encoding="utf-8") as file:
                rows: list[Mapping[str, Any]] = list(csv.DictReader(file))
        except OSError as error:
            raise DataError(
                f"cannot read {name}: {error.strerror}; give the metrics.csv of a run"
            ) from error
    else:
        rows = list(metrics)
    columns: dict[str, list[float]] = {}
    for key in rows[0] if rows else ():
        try:
            columns[key] = [float(row[key]) for row in rows]
        except (KeyError, TypeError, ValueError):
            continue
    if "epoch" not in columns:
        raise DataError(
            f"{name} has no column 'epoch' of numbers; it needs a row an epoch, as fredholm train "
            "writes them"
        )
    return columns


@torch.no_grad()
def classify(
    model: nn.Module, inputs: Tensor | Inputs, *, batch: int = 128
) -> tuple[Tensor, Tensor]:
    """Predicted class and its probability, (N,) each, on the CPU."""
    device = next(model.parameters()).device
    parts = [
        model(inputs[i : i + batch].to(device)).float().softmax(-1).max(-1)
        for i in steps("explain: classes", range(0, len(inputs), batch), unit="batches")
    ]
    return torch.cat([p.indices.cpu() for p in parts]), torch.cat([p.values.cpu() for p in parts])


def summarise(labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Accuracy and confusion, with the keys that an ``evaluation.json`` has.

    Example:
        >>> summarise(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), ["a", "b"])["confusion"]
        [[1, 0], [1, 1]]
    """
    size = len(classes)
    confusion = torch.bincount(labels * size + predicted, minlength=size * size).reshape(size, size)
    accuracy = float((labels == predicted).double().mean())
    return {
        "n": len(labels),
        "accuracy": accuracy,
        "classes": list(classes),
        "confusion": confusion.tolist(),
    }


def curve_section(history: dict[str, list[float]]) -> Section:
    """Loss and accuracy against the epoch."""
    epochs = len(history["epoch"])
    time = f", {history['seconds'][-1]:.0f} s in all" if history.get("seconds") else ""
    named = "val_accuracy" in history
    unit, also = (" (nats)", ", and validation accuracy,") if named else ("", "")
    facts = {"unit": unit, "also": also, "epochs": epochs, "time": time}
    caption = words("curves_caption", **facts)
    alt = f"Loss{' and accuracy' if named else ''} against the epoch"
    if named:
        alt += f"; validation accuracy ends at {history['val_accuracy'][-1]:.1%}"
    return Section(
        "training",
        "Training",
        "",
        [Picture("curves", alt, caption, render(lambda t: plots.curves(t, history)))],
    )


def confusion_section(evaluation: Mapping[str, Any], classes: Sequence[str], split: str) -> Section:
    """Which classes are taken for which; with many classes a table of the most frequent mistakes."""
    counts = np.asarray(evaluation["confusion"])
    classes = list(evaluation.get("classes") or classes)
    if len(counts) != len(classes):
        raise ShapeError(
            f"the confusion matrix has {len(counts)} classes, but there are {len(classes)} class "
            "names"
        )
    wrong = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    order = np.argsort(-wrong, axis=None)[:10]
    pairs = [(i, j) for i, j in zip(*np.unravel_index(order, wrong.shape)) if wrong[i, j]]
    rows = [
        [classes[i], classes[j], str(wrong[i, j]), f"{wrong[i, j] / counts[i].sum():.1%}"]
        for i, j in pairs
    ]
    listed = table(["is", "called", "times", "of the class"], rows) if rows else ""
    text = words("mistakes", wrong=wrong.sum(), count=counts.sum(), what=split)
    listed = words("frequent", table=listed) if rows else ""
    if len(counts) > MAX_CLASSES:
        return Section("confusion", "Mistakes", text, after=listed)
    caption = words("confusion_caption", what=split)
    alt = f"Confusion matrix of {len(classes)} classes, {wrong.sum()} mistakes of {counts.sum()}"
    drawn = render(lambda theme: plots.confusion(theme, counts, classes))
    picture = Picture("confusion", alt, caption, drawn)
    return Section("confusion", "Mistakes", text, [picture], after=listed, beside=len(counts) <= 10)


def score_head(evaluation: Mapping[str, Any], counted: str) -> list[tuple[str, str, str]]:
    """What an evaluation says, for the head of the page: (name, number, note); losses by the units
    of their task.

    Example:
        >>> score_head({"n": 8, "loss": 0.25, "variance": 1.0}, "test sequences")
        [('Mean squared error', '0.25', 'on 8 test sequences; of a constant 1')]
    """
    where = f"on {evaluation['n']} {counted}"
    head = (
        [("Accuracy", f"{evaluation['accuracy']:.2%}", where)] if "accuracy" in evaluation else []
    )
    head += [
        (_title(name), "undefined" if value is None else f"{value:.4g}", where)
        for name, value in evaluation.get("scores", {}).items()
        if name != "accuracy"
    ]
    if "bits" in evaluation and "perplexity" in evaluation:  # of tokens
        perplexity = evaluation["perplexity"]
        of = "beyond numbers" if perplexity is None else f"{perplexity:.1f}"
        return [*head, ("Bits", f"{evaluation['bits']:.3f}", f"a token, perplexity {of}")]
    if "worst" in evaluation:
        return [
            *head,
            (
                "Relative error",
                f"{evaluation['loss']:.2%}",
                f"in L2, {where}; at worst {evaluation['worst']:.2%}",
            ),
        ]
    if "variance" in evaluation:
        return [
            *head,
            (
                "Mean squared error",
                f"{evaluation['loss']:.3g}",
                f"{where}; of a constant {evaluation['variance']:.3g}",
            ),
        ]
    return head + (
        [("Loss", f"{evaluation['loss']:.3f}", evaluation.get("loss_name", "cross-entropy"))]
        if "loss" in evaluation
        else []
    )


def _title(name: str) -> str:
    """A score's name as a title.

    Example:
        >>> _title("auc"), _title("balanced_accuracy")
        ('AUC', 'Balanced accuracy')
    """
    return name.upper() if len(name) < 4 else name.replace("_", " ").capitalize()


def example_section(
    pictures: Sequence[Any],
    labels: Tensor,
    predicted: Tensor,
    probability: Tensor,
    classes: Sequence[str],
    kind: Kind = IMAGES,
) -> Section:
    """The most confident mistakes, and the first samples that are right."""
    wrong = (labels != predicted).nonzero()[:, 0]
    wrong = wrong[probability[wrong].argsort(descending=True)][:SHOWN]
    right = (labels == predicted).nonzero()[:SHOWN, 0]
    result = []
    for key, chosen, title in (
        ("wrong", wrong, "Wrong, most confident first"),
        ("right", right, "Right, in the data's order"),
    ):
        if not len(chosen):
            continue
        items = [
            {
                "image": pictures[i],
                "label": classes[int(labels[i])],
                "prediction": classes[int(predicted[i])],
                "probability": float(probability[i]),
            }
            for i in chosen.tolist()
        ]
        facts = {"title": title, "one": kind.one, "wrong": key == "wrong", "shown": len(items)}
        facts |= {"count": len(labels), "many": kind.many, "legend": kind.legend}
        caption = words("examples_caption", **facts)
        alt = f"{len(items)} {kind.many} classified {key}: " + ", ".join(
            f"{e['label']} as {e['prediction']}" for e in items
        )
        result.append(
            Picture(
                key, alt, caption, render(lambda theme, items=items: plots.examples(theme, items))
            )
        )
    text = "" if len(wrong) else words("no_mistakes", count=len(labels), many=kind.many)
    return Section("examples", "Examples", text, result)
