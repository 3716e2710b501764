"""Sections about a model's results: scores, training curves, confusion, predicted against true,
importance of columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, ShapeError
from ..numbers import readable
from ..training.metrics import METRICS, wilson
from .examples import class_examples, number_examples
from .fields import field_samples, field_section
from .given import RunFacts
from .importance import importance_section
from .page import Data, Fact, Picture, Section, words
from .panels import clip, dots, percent, plain_numbers, whole_numbers, within_percent
from .style import Theme, colormap, literal, new_figure, panels, render
from .subject import Subject, answers, encoder_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Samples among which the best and the worst field are looked for.
FIELDS = 64

# Classes of a drawn confusion matrix; beyond it the most confused pairs are listed.
MAX_CLASSES = 25

# Classes up to which the most frequent mistakes stand beside the matrix.
BESIDE = 10

# Letters of a class that fit below its column of the confusion matrix, letters at most, and the
# inches of one.
SHORT, LONGEST, LETTER = 3, 14, 0.075

PARTS = {"train": "training", "val": "validation"}

Evaluation = Mapping[str, Any]


def result_sections(subject: Subject, run: RunFacts) -> tuple[list[Fact], list[Section]]:
    """Return the scores for the top of the page, and sections about the answers as far as the right
    ones are known. The model is in evaluation mode.
    """
    samples, evaluation, sections = subject.samples, run.evaluation, []
    counted = _counted(subject, run)
    if samples.labels is not None:
        evaluation, sections = _of_classes(subject, evaluation, counted)
    elif samples.targets is not None and samples.targets.dim() == 1:
        sections = _of_numbers(subject, counted)
    elif samples.targets is not None:
        sections = _of_fields(subject)
    elif evaluation is not None and "confusion" in evaluation:
        sections = [confusion_section(evaluation, subject.classes, counted)]
    if evaluation is None:
        return [], sections
    return score_head(evaluation, counted, independent=run.counted is None), sections


def _counted(subject: Subject, run: RunFacts) -> str:
    """Return the word for the samples of an evaluation, such as "test rows"."""
    what = run.counted or subject.kind.many
    if run.evaluation and "split" in run.evaluation:
        return f"{run.evaluation['split']} {what}"
    return what


def _of_classes(
    subject: Subject, evaluation: Evaluation | None, counted: str
) -> tuple[Evaluation, list[Section]]:
    assert subject.samples.labels is not None
    labels = subject.samples.labels.cpu()
    outputs = answers(subject.model, subject.inputs)
    if not evaluation:
        evaluation = summarise(labels, outputs.argmax(-1), subject.classes)

    sections = []
    if "confusion" in evaluation:
        sections.append(confusion_section(evaluation, subject.classes, counted))
    if subject.things is not None:
        sections.append(class_examples(subject, labels, outputs))

    def wrong(outputs: Tensor) -> float:
        mistakes = outputs.argmax(-1) != labels[: len(outputs)]
        return float(mistakes.double().mean())

    return evaluation, sections + importance_section(subject, wrong, "accuracy")


def _of_numbers(subject: Subject, counted: str) -> list[Section]:
    assert subject.samples.targets is not None
    truth = subject.samples.targets.double().cpu()
    # A model answers in units of the training data, of mean 0 and deviation 1.
    shift, scale = subject.facts.get("units", (0.0, 1.0))

    def in_units(outputs: Tensor) -> Tensor:
        return outputs.double().flatten() * scale + shift

    predicted = in_units(answers(subject.model, subject.inputs))
    sections = [
        agreement_section(
            truth,
            predicted,
            subject.terms.label,
            counted,
        )
    ]
    if subject.things is not None:
        sections.append(
            number_examples(
                subject,
                truth,
                predicted,
                scale,
            )
        )

    def error(outputs: Tensor) -> float:
        off = in_units(outputs) - truth[: len(outputs)]
        return float(off.square().mean().sqrt())

    return sections + importance_section(subject, error, "RMSE")


def _of_fields(subject: Subject) -> list[Section]:
    assert subject.samples.targets is not None
    inputs, targets = subject.inputs[:FIELDS], subject.samples.targets[:FIELDS].cpu()
    outputs = answers(subject.model, inputs, batch=16)
    if outputs.dim() == 2:
        outputs = outputs[..., None]
    coordinates = getattr(encoder_config(subject.model), "position_dim", 0)
    fields = field_samples(
        inputs.cpu(),
        outputs,
        targets,
        subject.facts,
        coordinates,
    )
    fields = [each._replace(name=subject.name(place)) for place, each in enumerate(fields)]
    name = (subject.classes or ("the field",))[0]
    return [field_section(fields, name)]


# --- training curves ------------------------------------------------------------------------------


def read_history(metrics: str | Path | Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the columns of a ``metrics.csv`` or of rows (one mapping per epoch), without columns
    that are not numbers throughout.

    Raises:
        DataError: no file there, or no column ``epoch``.

    Example:
        >>> read_history([{"epoch": 1, "val_loss": 0.5}, {"epoch": 2, "val_loss": 0.25}])
        {'epoch': [1.0, 2.0], 'val_loss': [0.5, 0.25]}
    """
    name, rows = "metrics", metrics
    if isinstance(metrics, str | Path):
        name = str(metrics)
        try:
            with open(metrics, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise DataError(
                f"cannot read {name}: {error.strerror}; give the metrics.csv of a run"
            ) from error

    table: list[Mapping[str, Any]] = list(rows)  # pyright: ignore[reportArgumentType]
    columns: dict[str, list[float]] = {}
    for key in table[0] if table else ():
        try:
            columns[key] = [float(row[key]) for row in table]
        except (KeyError, TypeError, ValueError):
            continue
    if "epoch" not in columns:
        raise DataError(
            f"{name} has no column 'epoch' of numbers; it needs one row per epoch, as fredholm train "
            "writes them"
        )
    return columns


def curve_section(history: dict[str, list[float]]) -> Section:
    """Return the section with loss and accuracy against the epoch."""
    unit, also, time, alt = "", "", "", "Loss against the epoch"
    if "val_accuracy" in history:
        unit, also = " (nats)", ", and validation accuracy,"
        final = history["val_accuracy"][-1]
        alt = f"Loss and accuracy against the epoch; validation accuracy ends at {final:.1%}"
    if history.get("seconds"):
        time = f", {history['seconds'][-1]:.0f} s in all"
    epochs = len(history["epoch"])
    caption = words(
        "curves_caption",
        unit=unit,
        also=also,
        epochs=epochs,
        time=time,
    )
    picture = Picture(
        "curves",
        alt,
        caption,
        render(draw_curves, history),
        Data.of(history),
    )
    return Section("training", "Training", "", [picture])


# --- classes and numbers --------------------------------------------------------------------------


def summarise(
    labels: Tensor,
    predicted: Tensor,
    classes: Sequence[str],
) -> dict[str, Any]:
    """Return accuracy and confusion, with the keys of an ``evaluation.json``.

    Example:
        >>> summarise(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), ["a", "b"])["confusion"]
        [[1, 0], [1, 1]]
    """
    size = len(classes)
    # Each pair of a true and a predicted class has a number of its own.
    pairs = torch.bincount(labels * size + predicted, minlength=size * size)
    return {
        "n": len(labels),
        "accuracy": float((labels == predicted).double().mean()),
        "classes": list(classes),
        "confusion": pairs.reshape(size, size).tolist(),
    }


class _Mistake(NamedTuple):
    """How often a class is taken for another one, and the share of its samples."""

    true: str
    predicted: str
    times: int
    share: float


def confusion_section(
    evaluation: Evaluation,
    classes: Sequence[str],
    counted: str,
) -> Section:
    """Return the section on which classes are taken for which: a matrix, for few enough classes,
    and the most frequent mistakes.
    """
    counts = np.asarray(evaluation["confusion"])
    classes = list(evaluation.get("classes") or classes)
    if len(counts) != len(classes):
        raise ShapeError(
            f"the confusion matrix has {len(counts)} classes, but there are {len(classes)} class "
            "names"
        )
    total, wrong = counts.sum(), counts.sum() - np.trace(counts)
    text = words("mistakes", wrong=wrong, count=total, what=counted)
    after = words("frequent", mistakes=_mistakes(counts, classes))
    pictures = []
    if len(counts) <= MAX_CLASSES:
        rows = [[name, *line] for name, line in zip(classes, counts.tolist())]
        picture = Picture(
            "confusion",
            f"Confusion matrix of {len(classes)} classes, {wrong} mistakes of {total}",
            words("confusion_caption", what=counted),
            render(draw_confusion, counts, classes),
            Data(["true \\ predicted", *classes], rows),
        )
        pictures.append(picture)
    beside = len(counts) <= BESIDE
    return Section(
        "confusion",
        "Mistakes",
        text,
        pictures,
        after,
        beside,
    )


def _mistakes(counts: np.ndarray, classes: Sequence[str]) -> list[_Mistake]:
    """Return the ten most frequent mistakes, or as many as there are."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    most = np.argsort(-wrong, axis=None)[:10]
    result = []
    for flat in map(int, most):
        true, predicted = divmod(flat, len(counts))
        times = int(wrong[true, predicted])
        if times:
            share = times / int(counts[true].sum())
            result.append(
                _Mistake(
                    classes[true],
                    classes[predicted],
                    times,
                    share,
                )
            )
    return result


def agreement_section(
    truth: Tensor,
    predicted: Tensor,
    label: str,
    counted: str,
) -> Section:
    """Return the section with predicted against true numbers, a dot per sample.

    Args:
        label: name of the numbers; may be empty.
        counted: word for the samples.
    """
    name, count = label or "the number asked for", len(truth)
    r2 = METRICS["r2"](predicted, truth)
    columns = {"sample": range(count), "true": truth.tolist(), "predicted": predicted.tolist()}
    picture = Picture(
        "agreement",
        f"Predicted against true {name}: R² {r2:.3f}, {count} {counted}",
        words(
            "agreement_caption",
            label=name,
            count=count,
            what=counted,
        ),
        render(
            draw_agreement,
            truth.numpy(),
            predicted.numpy(),
            label,
        ),
        Data.of(columns),
    )
    return Section("agreement", "Predicted against true", pictures=[picture])


# --- scores ---------------------------------------------------------------------------------------


def score_head(
    evaluation: Evaluation,
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
        accuracy, note = evaluation["accuracy"], where
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


def _losses(evaluation: Evaluation, where: str) -> list[Fact]:
    """Return the loss of an evaluation in the units of its task."""
    # Tokens of a language model. An infinite perplexity is saved as None.
    if "bits" in evaluation and "perplexity" in evaluation:
        perplexity, shown = evaluation["perplexity"], "beyond numbers"
        if perplexity is not None:
            shown = f"{perplexity:.1f}"
        return [Fact("Bits", f"{evaluation['bits']:.3f}", f"per token, perplexity {shown}")]

    # Fields: the loss is the mean relative error of the samples.
    if "worst" in evaluation:
        note = f"in L2, {where}; at worst {evaluation['worst']:.2%}"
        return [Fact("Relative error", f"{evaluation['loss']:.2%}", note)]

    # Numbers: the loss is the mean squared error, the variance that of the labels.
    if "variance" in evaluation:
        loss, variance = evaluation["loss"], evaluation["variance"]
        scores, found = evaluation.get("scores", {}), []
        if "r2" not in scores and variance > 0:
            found.append(Fact("R²", f"{1 - loss / variance:.3f}", where))
        if "rmse" not in scores:
            constant = readable(math.sqrt(variance), 3)
            note = f"root mean squared error; {constant} for answering the mean"
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


# --- pictures -------------------------------------------------------------------------------------


def draw_curves(theme: Theme, history: Mapping[str, list[float]]) -> Figure:
    """Plot loss and, where it is known, accuracy against the epoch: one panel per quantity, one
    line each for training and validation.

    Args:
        history: columns of ``metrics.csv``, one number per epoch: ``epoch``, and any of
            ``train_loss``, ``val_loss``, ``train_accuracy`` and ``val_accuracy``, as shares of 1.
    """
    drawn = [
        what for what in ("loss", "accuracy") if any(f"{part}_{what}" in history for part in PARTS)
    ]
    # Without any of these columns the page shows an empty panel.
    drawn = drawn or ["loss"]
    figure, every = panels(theme, len(drawn), 2.7)
    for axes, what in zip(every, drawn):
        _curve(axes, theme, history, what)
        axes.set_title(what)
        if what == "accuracy":
            percent(axes.yaxis)
            axes.set_ylim(within_percent(axes.get_ylim()))
    return figure


def _curve(
    axes: Axes,
    theme: Theme,
    history: Mapping[str, list[float]],
    what: str,
) -> None:
    """Plot one quantity, ``"loss"`` or ``"accuracy"``, of training and validation."""
    epoch = history["epoch"]
    for (part, label), colour in zip(PARTS.items(), theme.series):
        values = history.get(f"{part}_{what}")
        if values is not None:
            axes.plot(
                epoch,
                values,
                color=colour,
                label=label,
                **dots(len(epoch)),
            )
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    whole_numbers(axes.xaxis)
    # The limits of a single epoch would be equal or very near.
    if len(epoch) == 1:
        axes.set_xlim(epoch[0] - 1, epoch[0] + 1)
    if axes.lines:
        axes.legend()


def draw_confusion(theme: Theme, counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Draw counts of true (rows) against predicted classes (columns), shaded by the share of the
    row.
    """
    size, names = len(counts), [clip(str(name), LONGEST) for name in classes]
    # Long names need room of their own, or they would squeeze the matrix.
    longest = max(map(len, names))
    spare = LETTER * max(0, longest - SHORT)
    side = min(theme.width, 8.0, 0.38 * size + 0.9 + spare)
    # Many classes on a phone need smaller numbers.
    letters = 8
    if side - spare < 0.3 * size:
        letters = 5
    figure = new_figure(side, side)
    axes = figure.subplots()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap=colormap(theme), vmin=0, vmax=1)
    for i, j in zip(*np.nonzero(counts)):
        colour = theme.ink
        if share[i, j] > 0.45:
            colour = theme.paper
        axes.text(
            j,
            i,
            str(counts[i, j]),
            ha="center",
            va="center",
            fontsize=letters,
            color=colour,
        )

    # Long names would run into one another.
    turned: dict[str, Any] = {}
    if longest > SHORT:
        turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(size), names, **turned)
    axes.set_yticks(range(size), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.tick_params(length=0)
    return figure


def draw_agreement(
    theme: Theme,
    truth: np.ndarray,
    predicted: np.ndarray,
    label: str,
) -> Figure:
    """Plot predicted against true numbers; on the dashed line they agree."""
    side = min(theme.width, 4.6)
    figure = new_figure(side, side)
    axes = figure.subplots()
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    axes.plot(
        ends,
        ends,
        color=theme.faint,
        linewidth=1,
        linestyle="--",
    )
    axes.scatter(
        truth,
        predicted,
        s=14,
        color=theme.series[0],
        alpha=0.55,
        linewidth=0,
    )
    axes.set_aspect("equal")
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    axes.set_xlabel(literal(f"true {label}".rstrip()))
    axes.set_ylabel(literal(f"predicted {label}".rstrip()))
    axes.grid(axis="both")
    return figure
