"""The sections that compare answers with the truth: mistakes among classes, and predicted against
true numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from ....errors import ShapeError
from ...training.metrics import METRICS
from ..page import Data, Picture, Section, words
from ..panels import clip, plain_numbers
from ..style import Theme, colormap, literal, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Classes of a drawn confusion matrix; beyond it the most confused pairs are listed.
MAX_CLASSES = 25

# Classes up to which the most frequent mistakes stand beside the matrix.
BESIDE = 10

# Letters of a class that fit below its column of the confusion matrix, letters at most, and the
# inches of one.
SHORT = 3
LONGEST = 14
LETTER = 0.075


class _Mistake(NamedTuple):
    """How often a class is taken for another one, and the share of its samples."""

    true: str
    predicted: str
    times: int
    share: float


def confusion_section(
    evaluation: Mapping[str, Any],
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
    total = counts.sum()
    wrong = total - np.trace(counts)
    text = words("mistakes", wrong=wrong, count=total, what=counted)
    after = words("frequent", mistakes=_mistakes(counts, classes))
    pictures = []
    if len(counts) <= MAX_CLASSES:
        rows = []
        for name, line in zip(classes, counts.tolist()):
            rows.append([name, *line])
        picture = Picture(
            "confusion",
            f"Confusion matrix of {len(classes)} classes, {wrong} mistakes of {total}",
            words("confusion_caption", what=counted),
            render(draw_confusion, counts, classes),
            Data(["true \\ predicted", *classes], rows),
        )
        pictures.append(picture)
    beside = len(counts) <= BESIDE
    return Section("confusion", "Mistakes", text, pictures, after, beside)


def _mistakes(counts: np.ndarray, classes: Sequence[str]) -> list[_Mistake]:
    """Return the ten most frequent mistakes, or as many as there are."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    most = np.argsort(-wrong, axis=None)[:10]
    result = []
    for flat in map(int, most):
        true, predicted = divmod(flat, len(counts))
        times = int(wrong[true, predicted])
        if not times:
            continue
        share = times / int(counts[true].sum())
        mistake = _Mistake(
            classes[true],
            classes[predicted],
            times,
            share,
        )
        result.append(mistake)
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
    name = label or "the number asked for"
    count = len(truth)
    r2 = METRICS["r2"](predicted, truth)
    columns = {
        "sample": range(count),
        "true": truth.tolist(),
        "predicted": predicted.tolist(),
    }
    picture = Picture(
        "agreement",
        f"Predicted against true {name}: R² {r2:.3f}, {count} {counted}",
        words("agreement_caption", label=name, count=count, what=counted),
        render(draw_agreement, truth.numpy(), predicted.numpy(), label),
        Data.of(columns),
    )
    return Section("agreement", "Predicted against true", pictures=[picture])


def draw_confusion(
    theme: Theme,
    counts: np.ndarray,
    classes: Sequence[str],
) -> Figure:
    """Draw counts of true (rows) against predicted classes (columns), shaded by the share of the
    row.
    """
    size = len(counts)
    names = [clip(str(name), LONGEST) for name in classes]
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
    _shaded_counts(axes, theme, counts, letters)

    # Long names would run into one another.
    turned: dict[str, Any] = {}
    if longest > SHORT:
        turned = {
            "rotation": 60,
            "ha": "right",
            "rotation_mode": "anchor",
        }
    axes.set_xticks(range(size), names, **turned)
    axes.set_yticks(range(size), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.tick_params(length=0)
    return figure


def _shaded_counts(
    axes: Axes,
    theme: Theme,
    counts: np.ndarray,
    letters: int,
) -> None:
    """Draw cells shaded by their share of the row, with their counts in letters of that size."""
    samples = counts.sum(1, keepdims=True)
    share = counts / np.maximum(samples, 1)
    axes.imshow(
        share,
        cmap=colormap(theme),
        vmin=0,
        vmax=1,
    )
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
    low = min(truth.min(), predicted.min())
    high = max(truth.max(), predicted.max())
    ends = [low, high]
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
