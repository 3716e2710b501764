"""Pictures of results: curves, confusion, samples with predictions, agreement, importance. Every
function takes a theme and numbers and returns a figure; none computes anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.kinds.kind import Cloud, Signal
from .panels import clip, few_ticks, name_lanes, percent, picture, whole_numbers
from .style import Theme, colormap, literal, new_figure, panels, panels_abreast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Channels of a series whose names are written.
MAX_LANES = 12

# Epochs below which each is a dot on its curve.
DOTTED = 25

# Points of a series below which each is a dot on its line.
POINTS = 64

# Letters of a class that fit below its column of the confusion matrix, letters at most, and the
# inches of one.
SHORT, LONGEST, LETTER = 3, 14, 0.075

PARTS = {"train": "training", "val": "validation"}


def curves(theme: Theme, history: Mapping[str, list[float]]) -> Figure:
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
    figure, every = panels_abreast(theme, len(drawn), 2.7)
    for axes, what in zip(every, drawn):
        _curve(axes, theme, history, what)
        axes.set_title(what)
        if what == "accuracy":
            percent(axes.yaxis)
            # The margins that matplotlib adds may not reach beyond 0% and 100%.
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.02), min(high, 1.02))
    return figure


def _curve(
    axes: Axes,
    theme: Theme,
    history: Mapping[str, list[float]],
    what: str,
) -> None:
    """Plot one quantity, ``"loss"`` or ``"accuracy"``, of training and validation."""
    epoch, marker = history["epoch"], None
    if len(epoch) < DOTTED:
        marker = "o"
    for (part, label), colour in zip(PARTS.items(), theme.series):
        values = history.get(f"{part}_{what}")
        if values is not None:
            axes.plot(
                epoch,
                values,
                color=colour,
                label=label,
                marker=marker,
                markersize=3,
            )
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    whole_numbers(axes.xaxis)
    # The limits of a single epoch would be equal or very near.
    if len(epoch) == 1:
        axes.set_xlim(epoch[0] - 1, epoch[0] + 1)
    if axes.lines:
        axes.legend()


def confusion(theme: Theme, counts: np.ndarray, classes: Sequence[str]) -> Figure:
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


def agreement(
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
    # Numbers such as prices are wide: a few of them fit below the picture.
    axes.locator_params(nbins=5)
    axes.set_xlabel(literal(f"true {label}".rstrip()))
    axes.set_ylabel(literal(f"predicted {label}".rstrip()))
    axes.grid(axis="both")
    return figure


def importances(theme: Theme, found: Sequence[Any], measure: str) -> Figure:
    """Plot one bar per column, the most important on top, with a line of ± 1 standard deviation.

    Args:
        found: :class:`.importance.Importance` of each column.
        measure: ``"accuracy"``, or the name of an error.
    """
    figure = new_figure(min(theme.width, 6.5), 0.3 * len(found) + 0.8)
    axes = figure.subplots()
    places = range(len(found))[::-1]
    axes.barh(
        places,
        [each.mean for each in found],
        xerr=[each.sd for each in found],
        color=theme.series[0],
        ecolor=theme.ink,
        height=0.62,
    )
    axes.axvline(0, color=theme.ink, linewidth=0.8)
    axes.set_yticks(places, [clip(each.name, 22) for each in found])
    change = f"{measure} added"
    if measure == "accuracy":
        change = "accuracy lost"
        percent(axes.xaxis)
    between = " "
    if theme.narrow:
        between = "\n"
    axes.set_xlabel(f"{change} when{between}the column is shuffled")
    axes.grid(axis="x")
    return figure


# --- samples --------------------------------------------------------------------------------------


def examples(theme: Theme, things: Sequence[Any], found: Sequence[Any]) -> Figure:
    """Draw samples below their predictions, with the truth below a wrong class or a number.

    Args:
        things: pictures, :class:`Signal` or :class:`Cloud`.
        found: :class:`.examples.Answer` of each.
    """
    first = things[0]
    columns, shape = 4, 0.6
    if theme.narrow:
        columns = 2
    if isinstance(first, np.ndarray):
        columns, shape = 8, 0.85 * min(first.shape[0] / first.shape[1], 1.6)
        if theme.narrow:
            columns = 3
    size = theme.width, theme.width / columns * shape + 0.42
    figure, every = panels(len(found), columns, size)
    if isinstance(first, Signal):
        things = in_lanes(things)
    for axes, thing, answer in zip(every, things, found):
        _sample(axes, thing, theme)
        _name_sample(axes, theme, answer)
    if isinstance(first, Signal):
        figure.supxlabel(literal(first.clock), fontsize=9)
        _name_channels(every, first.names, columns)
    return figure


def _sample(axes: Axes, thing: np.ndarray | Signal | Cloud, theme: Theme) -> None:
    """Draw one sample: an image, a series with a line per channel, or a cloud of points."""
    if isinstance(thing, np.ndarray):
        picture(axes, thing)
        return
    if isinstance(thing, Cloud):
        axes.scatter(
            *thing.flat().T,
            s=1.5,
            color=theme.series[0],
            linewidths=0,
        )
        axes.set_aspect("equal", adjustable="datalim")
    else:
        marker = None
        if len(thing.x) < POINTS:
            marker = "."
        for channel, values in enumerate(thing.values.T):
            colour = theme.series[channel % len(theme.series)]
            axes.plot(
                thing.x,
                values,
                color=colour,
                linewidth=0.8,
                marker=marker,
                markersize=2,
            )
    axes.spines[:].set_color(theme.faint)
    axes.spines[:].set_linewidth(0.4)
    few_ticks(axes)


def _name_sample(axes: Axes, theme: Theme, answer: Any) -> None:
    """Write the prediction above a sample; the truth below it, unless the class is right."""
    colour, above = theme.ink, clip(answer.answer)
    if answer.wrong is not None:
        colour = theme.good
        above = f"{above} {answer.note}".rstrip()
    if answer.wrong:
        colour = theme.bad
    axes.set_title(
        above,
        loc="center",
        fontsize=8,
        color=colour,
        pad=3,
    )
    if answer.wrong is not False:
        axes.set_xlabel(f"true: {clip(answer.truth)}", fontsize=8, labelpad=2)


def in_lanes(things: Sequence[Signal]) -> list[Signal]:
    """Return series of several channels with each channel in a lane of height 1, the first on top,
    which spans its smallest to its largest value in these series.
    """
    values = np.concatenate([thing.values for thing in things])
    if values.shape[1] < 2:
        return list(things)
    low = np.where(np.isnan(values), np.inf, values).min(0)
    high = np.where(np.isnan(values), -np.inf, values).max(0)
    # Lanes fill four fifths of their height, so that they do not touch.
    size = np.where(high > low, high - low, 1.0) / 0.8
    base = np.arange(values.shape[1])[::-1]
    return [replace(thing, values=(thing.values - low) / size + base) for thing in things]


def _name_channels(every: Sequence[Axes], names: Sequence[str], columns: int) -> None:
    """Name the lanes of the first panel of each row."""
    for place, axes in enumerate(every):
        most = 0
        if place % columns == 0:
            most = MAX_LANES
        # Lanes have no numbers of their own; those of a single channel stay.
        if most or len(names) > 1:
            name_lanes(axes, names, most)
