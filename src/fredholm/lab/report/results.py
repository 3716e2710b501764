"""Sections of a page about a model's results: scores, curves, confusion, predicted against true,
and examples of its answers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, ShapeError
from ..data.files.terms import Terms
from ..data.kinds.sequences import TABLES
from ..numbers import readable
from ..training.metrics import METRICS, wilson
from . import result_plots
from .examples import (
    Shown,
    class_examples,
    field_samples,
    field_section,
    number_examples,
    text_support,
)
from .given import RunFacts, Samples
from .importance import Importance, column_importance, read_texts
from .page import Data, Picture, Section, table, words
from .samples import answers, encoder_config
from .style import render

FIELDS = 64  # samples among which the best and the worst field are looked for
MAX_CLASSES = 25  # of a drawn confusion matrix; beyond it, a table of the most confused pairs
MAX_COLUMNS = 20  # of a table, whose importance is drawn


def result_sections(
    model: Any, samples: Samples, inputs: Any, shown: list[Any] | None, run: RunFacts, seed: int
) -> tuple[list[tuple[str, str, str]], list[Section]]:
    """The scores in the page's head, and what was answered, as far as it is known what was asked.

    Args:
        model: in evaluation mode.
        samples: prepared: their kind and class names are known.
        inputs: of the model.
        shown: what is drawn of each sample; None where nothing can be.
        run: what is known of the training.
        seed: of what is drawn at random.
    """
    assert samples.kind is not None
    evaluation, sections = run.evaluation, []
    if samples.labels is not None:
        evaluation, sections = _of_classes(model, samples, inputs, shown, run, seed)
    elif samples.targets is not None and samples.targets.dim() == 1:
        sections = _of_numbers(model, samples, inputs, shown, run, seed)
    elif samples.targets is not None:
        sections = _of_fields(model, samples, inputs)
    elif evaluation is not None and "confusion" in evaluation:
        sections = [confusion_section(evaluation, samples.classes or (), _split(samples, run))]
    if evaluation is None:
        return [], sections
    head = score_head(evaluation, _split(samples, run), independent=run.counted is None)
    return head, sections


def _of_classes(
    model: Any, samples: Samples, inputs: Any, shown: list[Any] | None, run: RunFacts, seed: int
) -> tuple[Mapping[str, Any], list[Section]]:
    assert samples.labels is not None
    labels, classes = samples.labels.cpu(), samples.classes or ()
    outputs = answers(model, inputs)
    evaluation = run.evaluation or summarise(labels, outputs.argmax(-1), classes)
    sections = []
    if "confusion" in evaluation:
        sections.append(confusion_section(evaluation, classes, _split(samples, run)))
    if shown is not None:
        found = _shown(model, samples, inputs, shown)
        sections.append(class_examples(found, labels, outputs, classes))

    def wrong(answers: Tensor) -> float:
        return float((answers.argmax(-1) != labels[: len(answers)]).double().mean())

    return evaluation, sections + _columns(model, samples, inputs, wrong, "accuracy", seed)


def _of_numbers(
    model: Any, samples: Samples, inputs: Any, shown: list[Any] | None, run: RunFacts, seed: int
) -> list[Section]:
    assert samples.targets is not None
    truth, facts = samples.targets.double().cpu(), getattr(model, "extra", None) or {}
    shift, scale = facts.get("units", (0.0, 1.0))
    predicted = answers(model, inputs).double().flatten() * scale + shift
    terms = Terms.of(facts)
    sections = [agreement_section(truth, predicted, terms.label, _split(samples, run))]
    if shown is not None:
        found = _shown(model, samples, inputs, shown, scale)
        sections.append(number_examples(found, truth, predicted))

    def error(answers: Tensor) -> float:
        off = answers.double().flatten() * scale + shift - truth[: len(answers)]
        return float(off.square().mean().sqrt())

    return sections + _columns(model, samples, inputs, error, "RMSE", seed)


def _of_fields(model: Any, samples: Samples, inputs: Any) -> list[Section]:
    assert samples.targets is not None
    facts = getattr(model, "extra", None) or {}
    outputs, targets = answers(model, inputs[:FIELDS], batch=16), samples.targets[:FIELDS].cpu()
    if outputs.dim() == 2:
        outputs = outputs[..., None]
    coordinates = getattr(encoder_config(model), "position_dim", 0)
    found = field_samples(inputs[: len(outputs)].cpu(), outputs, targets, facts, coordinates)
    return [field_section(found, (samples.classes or ("the field",))[0])]


def _shown(
    model: Any, samples: Samples, inputs: Any, shown: list[Any], scale: float = 1.0
) -> Shown:
    assert samples.kind is not None
    facts = getattr(model, "extra", None) or {}
    rows = inputs[..., 0].cpu().numpy() if samples.kind is TABLES else None
    support = None
    if samples.texts is not None:
        support = text_support(model, read_texts(facts), scale)
    return Shown(shown, rows, Terms.of(facts), samples.kind, support)


def _columns(
    model: Any,
    samples: Samples,
    inputs: Any,
    score: Callable[[Tensor], float],
    measure: str,
    seed: int,
) -> list[Section]:
    """Which columns of a table matter; nothing of other samples."""
    columns = Terms.of(getattr(model, "extra", None) or {}).columns
    if samples.kind is not TABLES or len(columns) < 2:
        return []
    found = column_importance(model, inputs, columns, score, seed=seed)
    return [importance_section(found, measure)] if found else []


def _split(samples: Samples, run: RunFacts) -> str:
    """Return the word for the samples of an evaluation, such as "test rows"."""
    assert samples.kind is not None
    what, evaluation = run.counted or samples.kind.many, run.evaluation or {}
    return f"{evaluation['split']} {what}" if "split" in evaluation else what


# --- sections -------------------------------------------------------------------------------------


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
    drawn = render(lambda theme: result_plots.curves(theme, history))
    data = Data(list(history), list(zip(*history.values())))
    return Section("training", "Training", "", [Picture("curves", alt, caption, drawn, data)])


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
    listed = table(["true", "predicted", "times", "share"], rows) if rows else ""
    text = words("mistakes", wrong=wrong.sum(), count=counts.sum(), what=split)
    listed = words("frequent", table=listed) if rows else ""
    if len(counts) > MAX_CLASSES:
        return Section("confusion", "Mistakes", text, after=listed)
    caption = words("confusion_caption", what=split)
    alt = f"Confusion matrix of {len(classes)} classes, {wrong.sum()} mistakes of {counts.sum()}"
    drawn = render(lambda theme: result_plots.confusion(theme, counts, classes))
    rows = [[name, *line] for name, line in zip(classes, counts.tolist())]
    picture = Picture("confusion", alt, caption, drawn, Data(["true \\ predicted", *classes], rows))
    return Section("confusion", "Mistakes", text, [picture], after=listed, beside=len(counts) <= 10)


def score_head(
    evaluation: Mapping[str, Any], counted: str, *, independent: bool = True
) -> list[tuple[str, str, str]]:
    """Return the scores of an evaluation as (name, number, note), for the head of the page.

    Accuracy and further scores come first. A loss is shown in the units of its task: bits per
    token, relative L2 error of fields, R² and RMSE of numbers, else by its name.

    Args:
        evaluation: the content of an ``evaluation.json``.
        counted: what its ``n`` counts, such as "test sequences".
        independent: whether these are independent samples, not points or tokens of the same sample;
            only then has the accuracy an interval.

    Example:
        >>> score_head({"n": 8, "loss": 0.25, "variance": 1.0}, "test sequences")
        [('R²', '0.750', 'on 8 test sequences'), ('RMSE', '0.5', 'root mean squared error; 1 for answering the mean')]
    """
    where = f"on {evaluation['n']} {counted}"
    scores = evaluation.get("scores", {})
    head = []
    if "accuracy" in evaluation:
        accuracy, note = evaluation["accuracy"], where
        if independent:
            low, high = wilson(accuracy, evaluation["n"])
            note += f"; 95% interval {low:.1%} to {high:.1%}"
        head.append(("Accuracy", f"{accuracy:.2%}", note))
    head += [
        (_title(name), "undefined" if value is None else readable(value), where)
        for name, value in scores.items()
        if name != "accuracy"
    ]

    # Tokens of a language model. An infinite perplexity is saved as None.
    if "bits" in evaluation and "perplexity" in evaluation:
        perplexity = evaluation["perplexity"]
        shown = "beyond numbers" if perplexity is None else f"{perplexity:.1f}"
        return [*head, ("Bits", f"{evaluation['bits']:.3f}", f"a token, perplexity {shown}")]

    # Fields: the loss is the mean relative error of the samples.
    if "worst" in evaluation:
        return [
            *head,
            (
                "Relative error",
                f"{evaluation['loss']:.2%}",
                f"in L2, {where}; at worst {evaluation['worst']:.2%}",
            ),
        ]

    # Numbers: the loss is the mean squared error, the variance that of the labels.
    if "variance" in evaluation:
        loss, variance = evaluation["loss"], evaluation["variance"]
        if "r2" not in scores and variance > 0:
            head.append(("R²", f"{1 - loss / variance:.3f}", where))
        if "rmse" not in scores:
            constant = f"{readable(math.sqrt(variance), 3)} for answering the mean"
            error = readable(math.sqrt(loss), 3)
            head.append(("RMSE", error, f"root mean squared error; {constant}"))
        return head

    if "loss" in evaluation:
        name = evaluation.get("loss_name", "cross-entropy")
        head.append(("Loss", f"{evaluation['loss']:.3f}", name))
    return head


def _title(name: str) -> str:
    """A score's name as a title.

    Example:
        >>> _title("auc"), _title("balanced_accuracy")
        ('AUC', 'Balanced accuracy')
    """
    return name.upper() if len(name) < 4 else name.replace("_", " ").capitalize()


def agreement_section(truth: Tensor, predicted: Tensor, label: str, what: str) -> Section:
    """Predicted against true numbers, a dot per sample."""
    found = {"r2": METRICS["r2"](predicted, truth), "rmse": METRICS["rmse"](predicted, truth)}
    facts = {"label": label or "the number asked for", "count": len(truth), "what": what}
    caption = words("agreement_caption", **facts)
    alt = f"Predicted against true {facts['label']}: R² {found['r2']:.3f}, {len(truth)} {what}"
    drawn = render(
        lambda theme: result_plots.agreement(theme, truth.numpy(), predicted.numpy(), label)
    )
    pairs = enumerate(zip(truth.tolist(), predicted.tolist()))
    data = Data(["sample", "true", "predicted"], [[i, *pair] for i, pair in pairs])
    picture = Picture("agreement", alt, caption, drawn, data)
    return Section("agreement", "Predicted against true", "", [picture])


def importance_section(found: Sequence[Importance], measure: str) -> Section:
    """How much worse the answers are without each column of a table."""
    shown = found[:MAX_COLUMNS]
    alt = "; ".join(f"{each.name}: {each.mean:.3g}" for each in shown)
    percent = measure == "accuracy"
    drawn = render(lambda theme: result_plots.importances(theme, shown, measure, percent))
    caption = words("importance_caption", left_out=len(found) - len(shown))
    data = Data(["column", "mean", "sd"], [list(each) for each in found])
    text = words("importance", percent=percent)
    picture = Picture("importance", alt, caption, drawn, data)
    return Section("importance", "Which columns matter", text, [picture])
