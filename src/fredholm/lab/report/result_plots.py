"""Pictures of results: curves, confusion, samples with predictions, importance, fields. Every
function takes a theme and numbers and returns a figure; none computes anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.kinds.kind import Cloud, Signal
from .panels import clip, few_ticks, hide_rest, name_lanes, no_ticks, percent, picture
from .style import Theme, colormap, diverging, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LANES = 12  # channels of a series whose names are written
MARKED = 25  # epochs from which on a curve has no dots
PARTS = {"train": "training", "val": "validation"}


def curves(theme: Theme, history: dict[str, list[float]]) -> Figure:
    """Loss and accuracy against the epoch."""
    drawn = [
        what
        for what in ("loss", "accuracy")
        if f"train_{what}" in history or f"val_{what}" in history
    ] or ["loss"]
    rows, columns = theme.side_by_side(len(drawn))
    figure = new_figure(theme.width, 2.7 * rows)
    for axes, what in zip(figure.subplots(rows, columns, squeeze=False).ravel(), drawn):
        _curve(axes, theme, history, what)
        axes.set_title(what)
        if what == "accuracy":
            percent(axes.yaxis)
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.02), min(high, 1.02))
    return figure


def _curve(axes: Axes, theme: Theme, history: Mapping[str, list[float]], what: str) -> None:
    epoch, marker = history["epoch"], None
    if len(epoch) < MARKED:
        marker = "o"
    for (part, label), colour in zip(PARTS.items(), theme.series):
        values = history.get(f"{part}_{what}")
        if values is not None:
            axes.plot(epoch, values, color=colour, label=label, marker=marker, markersize=3)
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(integer=True)
    if len(epoch) == 1:
        axes.set_xlim(epoch[0] - 1, epoch[0] + 1)
    if axes.lines:
        axes.legend()


def confusion(theme: Theme, counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Counts of true (rows) against predicted classes (columns), shaded by the share of the row."""
    size, names = len(counts), [literal(str(name)) for name in classes]
    side = min(theme.width, 8.0, 0.38 * size + 0.9)
    # Many classes on a phone need smaller numbers.
    small = 8 if side >= 0.3 * size else 5
    figure = new_figure(side, side)
    axes = figure.subplots()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap=colormap(theme), vmin=0, vmax=1)
    for i, j in zip(*np.nonzero(counts)):
        colour = theme.paper if share[i, j] > 0.45 else theme.ink
        look = {"ha": "center", "va": "center", "fontsize": small, "color": colour}
        axes.text(j, i, str(counts[i, j]), **look)

    # Long names would run into one another.
    turned: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    if max(map(len, names)) <= 3:
        turned = {}
    axes.set_xticks(range(size), names, **turned)
    axes.set_yticks(range(size), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.tick_params(length=0)
    return figure


def examples(theme: Theme, things: Sequence[Any], found: Sequence[Any]) -> Figure:
    """Samples below their predictions, with the truth below a wrong class or a number.

    Args:
        things: pictures, :class:`Signal` or :class:`Cloud`.
        found: :class:`fredholm.lab.report.examples.Said` of each.
    """
    first = things[0]
    pictured = isinstance(first, np.ndarray)
    if isinstance(first, Signal):
        things = in_lanes(things)
    columns, height = _layout(theme, first)
    rows = -(-len(found) // columns)
    figure = new_figure(theme.width, (theme.width / columns * height + 0.42) * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, thing, said in zip(panels, things, found):
        sample(axes, thing, theme)
        _name_sample(axes, theme, said)
        if pictured:
            no_ticks(axes)
        else:
            few_ticks(axes)
    hide_rest(panels, len(found))
    if isinstance(first, Signal):
        figure.supxlabel(literal(first.clock), fontsize=9)
        for place, axes in enumerate(panels[: len(found)]):
            # Lanes have no numbers of their own, so that all but the first column has no labels.
            most = MAX_LANES if place % columns == 0 else 0
            if most or len(first.names) > 1:
                name_lanes(axes, first.names, most)
    return figure


def _layout(theme: Theme, first: Any) -> tuple[int, float]:
    """How many samples stand side by side, and the height of each over its width."""
    if not isinstance(first, np.ndarray):
        return (2 if theme.narrow else 4), 0.6
    height = min(first.shape[0] / first.shape[1], 1.6)
    return (3 if theme.narrow else 8), 0.85 * height


def _name_sample(axes: Axes, theme: Theme, said: Any) -> None:
    """The prediction above a sample; the truth below it, unless the class is right."""
    colour, above = theme.ink, clip(said.answer)
    if said.wrong is not None:
        colour = theme.bad if said.wrong else theme.good
        above = f"{above} {said.note}".rstrip()
    axes.set_title(above, loc="center", fontsize=8, color=colour, pad=3)
    if said.wrong is not False:
        axes.set_xlabel(f"true: {clip(said.truth)}", fontsize=8, labelpad=2)


def in_lanes(things: Sequence[Signal]) -> list[Signal]:
    """Return series of several channels with each channel in a lane of height 1, the first on top,
    which spans its smallest to its largest value in these series.
    """
    values = np.concatenate([thing.values for thing in things])
    if values.shape[1] < 2:
        return list(things)
    low = np.where(np.isnan(values), np.inf, values).min(0)
    high = np.where(np.isnan(values), -np.inf, values).max(0)
    size = np.where(high > low, high - low, 1.0) / 0.8  # lanes do not touch
    base = np.arange(values.shape[1])[::-1]
    return [replace(thing, values=(thing.values - low) / size + base) for thing in things]


def sample(axes: Any, shown: np.ndarray | Signal | Cloud, theme: Theme) -> None:
    """One sample: an image, a series with a line per channel, or a cloud of points."""
    if isinstance(shown, np.ndarray):
        picture(axes, shown)
        return
    if isinstance(shown, Cloud):
        axes.scatter(*shown.flat().T, s=1.5, color=theme.series[0], linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
    else:
        look: dict[str, Any] = {"linewidth": 0.8, "markersize": 2}
        if len(shown.x) < 64:
            look["marker"] = "."
        for channel, values in enumerate(shown.values.T):
            colour = theme.series[channel % len(theme.series)]
            axes.plot(shown.x, values, color=colour, **look)
    for spine in axes.spines.values():
        spine.set_color(theme.faint)
        spine.set_linewidth(0.4)


def agreement(theme: Theme, truth: np.ndarray, predicted: np.ndarray, label: str) -> Figure:
    """Predicted against true numbers; on the line they agree."""
    side = min(theme.width, 4.6)
    figure = new_figure(side, side)
    axes = figure.subplots()
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    axes.plot(ends, ends, color=theme.faint, linewidth=1, linestyle="--")
    axes.scatter(truth, predicted, s=14, color=theme.series[0], alpha=0.55, linewidth=0)
    axes.set_aspect("equal")
    # Numbers such as prices are wide: a few of them fit below the picture.
    axes.locator_params(nbins=5)
    axes.set_xlabel(literal(f"true {label}".rstrip()))
    axes.set_ylabel(literal(f"predicted {label}".rstrip()))
    axes.grid(axis="both")
    return figure


def importances(theme: Theme, found: Sequence[Any], measure: str, percentage: bool) -> Figure:
    """One bar per column, the most important on top; its line is ± 1 standard deviation."""
    figure = new_figure(min(theme.width, 6.5), 0.3 * len(found) + 0.8)
    axes = figure.subplots()
    places = range(len(found))[::-1]
    means, deviations = [each.mean for each in found], [each.sd for each in found]
    look = {"color": theme.series[0], "ecolor": theme.ink, "height": 0.62}
    axes.barh(places, means, xerr=deviations, **look)
    axes.axvline(0, color=theme.ink, linewidth=0.8)
    axes.set_yticks(places, [clip(each.name, 22) for each in found])
    lost = f"{measure} added"
    if percentage:
        lost = "accuracy lost"
        percent(axes.xaxis)
    axes.set_xlabel(f"{lost} when the column is shuffled")
    axes.grid(axis="x")
    return figure


def field_panels(theme: Theme, shown: Any) -> Figure:
    """Input, truth, prediction and error of one field; truth and prediction share a scale, and zero
    error is white.
    """
    found = shown.panels()
    columns, height = len(found), 0.8
    if theme.narrow:
        columns = 2
    if shown.places is None:
        height = shown.truth.shape[0] / shown.truth.shape[1]
    rows = -(-len(found) // columns)
    across = (theme.width - 0.3) / columns
    figure = new_figure(theme.width, (across * min(max(0.72 * height, 0.2), 1.5) + 0.45) * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    both = np.concatenate([shown.truth.ravel(), shown.answer.ravel()])
    for axes, (name, values) in zip(panels, found.items()):
        drawn = _field(axes, shown, values, _colours(theme, name, values, both))
        axes.set_title(name, loc="center")
        no_ticks(axes)
        bar = figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.03)
        bar.ax.tick_params(labelsize=7, colors=theme.faint)
        bar.outline.set_visible(False)
    hide_rest(panels, len(found))
    return figure


def _colours(theme: Theme, name: str, values: np.ndarray, both: np.ndarray) -> dict[str, Any]:
    """Return the colour map and its range for one panel of a field, as options of Matplotlib.

    Args:
        theme: of the page.
        name: the title of the panel, a key of :meth:`.examples.FieldSample.panels`.
        values: of the panel.
        both: values of truth and prediction, which share their range.
    """
    # Zero is the middle of the colours; where there is no error, the range must not be empty.
    if name == "error":
        largest = float(np.abs(values).max()) or 1.0
        return {"cmap": diverging(theme), "vmin": -largest, "vmax": largest}
    if name in ("truth", "prediction"):
        values = both
    return {"cmap": colormap(theme), "vmin": values.min(), "vmax": values.max()}


def _field(axes: Axes, shown: Any, values: np.ndarray, look: dict[str, Any]) -> Any:
    if shown.places is None:
        return axes.imshow(values, interpolation="nearest", **look)
    axes.set_aspect("equal", adjustable="datalim")
    return axes.scatter(*shown.places.T, c=values, s=5, linewidths=0, **look)
