"""Pictures of one row of a kernel: over grids, along lines, among points; with or without signs.
Every function takes a theme and numbers and returns a figure; none computes anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..data.kinds.kind import Cloud
from .panels import (
    UNIT,
    clip,
    few_ticks,
    head_panels,
    label_range,
    largest,
    outline,
    picture,
    ring,
    weights_image,
)
from .style import (
    PHONE,
    Theme,
    colormap,
    diverging,
    grid_of_panels,
    layer_panels,
    literal,
    new_figure,
    panels,
    panels_across,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points of a line whose names are written, and the same on a phone.
MAX_NAMED, NARROW_NAMED = 40, 16

# Points of a line up to which each is a dot.
DOTTED = 40


def maps(
    theme: Theme,
    image: np.ndarray,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: tuple[float, float],
) -> Figure:
    """Draw one query's weights over an image: layers as rows, heads as columns, each panel on its
    own scale.

    Args:
        found: (heads, rows, columns) of each layer.
        at: the place of the query, (row, column) of the unit square.
    """
    columns = 1 + len(found[0])
    side = min(1.35, (theme.width - 1.6) / columns)
    if theme.narrow:
        side = 1.0
    shape = image.shape[0] / image.shape[1]
    width = min(theme.width, max(PHONE, (side + 0.12) * columns + 0.9))
    rows = len(found) * -(-columns // panels_across(theme, columns))
    figure = new_figure(width, (side * shape + 0.3) * rows + 0.35)
    every = grid_of_panels(figure, theme, len(found), columns)

    # The sample stands in front of the first row; the place below it stays empty.
    for below in every[1:]:
        below[0].set_axis_off()
    _query_panel(every[0][0], theme, image, at)
    heads = [row[1:] for row in every]
    for axes, values in head_panels(heads, names, found):
        weights_image(axes, values, theme, shape)
        outline(axes, image, theme)
        label_range(axes, values, theme)
        ring(axes, theme, at, size=6, width=1.8)
    return figure


def _query_panel(
    axes: Axes,
    theme: Theme,
    image: np.ndarray,
    at: tuple[float, float],
) -> None:
    """Draw the sample itself, with the query."""
    picture(axes, image, extent=UNIT)
    axes.set_aspect(image.shape[0] / image.shape[1])
    title = "query"
    if image.any():
        title = "sample and query"
    axes.set_title(title, fontsize=8)
    ring(axes, theme, at, size=6, width=1.8)


class Line(NamedTuple):
    """A line on which weights are drawn.

    Attributes:
        x: its points.
        at: the place of the query; None where it is not on the line.
        label: of the axis.
        names: of the points.
    """

    x: np.ndarray
    at: float | None
    label: str
    names: tuple[str, ...] = ()


def lines(
    theme: Theme,
    line: Line,
    names: Sequence[str],
    found: Sequence[np.ndarray],
) -> Figure:
    """Draw one query's weights along a line: one panel per layer, one line per head."""
    most, columns = MAX_NAMED, 4
    if theme.narrow:
        most, columns = NARROW_NAMED, 2
    height = 1.9
    named = 0 < len(line.names) <= most
    if named:
        height = 2.4
    figure, every = panels(
        len(found),
        1,
        (theme.width, height),
        margin=0.4,
        sharex=True,
    )
    for axes, name, layer in zip(every, names, found):
        _along(axes, theme, line, layer)
        axes.set_title(name)
        if named:
            shown = [clip(each, 14) for each in line.names]
            axes.set_xticks(
                line.x,
                shown,
                rotation=45,
                ha="right",
                rotation_mode="anchor",
            )
        if 1 < len(layer) <= len(theme.series):
            axes.legend(ncols=columns)
    figure.supylabel("weight", fontsize=9)
    figure.supxlabel(literal(line.label), fontsize=9)
    return figure


def _along(
    axes: Axes,
    theme: Theme,
    line: Line,
    layer: np.ndarray,
) -> None:
    order, marker = np.argsort(line.x), None
    if line.names:
        marker = "o"
    for head, values in enumerate(layer):
        axes.plot(
            line.x[order],
            values[order],
            color=theme.series[head % len(theme.series)],
            label=f"head {head + 1}",
            marker=marker,
            markersize=3,
        )
    if line.at is not None:
        axes.axvline(
            line.at,
            color=theme.mark,
            linewidth=1.2,
            linestyle="--",
        )
    axes.tick_params(labelbottom=True)
    axes.grid(axis="y")
    axes.set_ylim(bottom=min(0.0, float(layer.min())))


def clouds(
    theme: Theme,
    cloud: Cloud,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: int,
) -> Figure:
    """Draw one query's weights over scattered points: layers as rows, heads as columns, each panel
    on its own scale.

    Args:
        at: index of the query among the points.
    """
    points = cloud.flat()
    figure, every = layer_panels(
        theme,
        len(found),
        len(found[0]),
        largest=1.8,
        title=0.35,
    )
    for axes, values in head_panels(every, names, found):
        # The largest weights are drawn last, on top of the others.
        order = np.argsort(values, kind="stable")
        axes.scatter(
            *points[order].T,
            s=9,
            c=values[order],
            cmap=colormap(theme),
            vmin=0,
            vmax=largest(values),
            linewidths=0,
        )
        axes.scatter(
            *points[at],
            s=42,
            facecolor="none",
            edgecolor=theme.mark,
            linewidth=1.8,
        )
        axes.set_aspect("equal", adjustable="datalim")
        few_ticks(axes)
        label_range(axes, values, theme)
    return figure


def entry_maps(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: np.ndarray,
) -> Figure:
    """Draw signed entries of a kernel's row over a grid, each (rows, columns), all on one scale."""
    across = 6
    if theme.narrow:
        across = 3
    columns = min(across, len(names))
    shape = found[0].shape[0] / found[0].shape[1]
    side = (theme.width - 0.4) / across
    size = max(side * columns, 3.0), side * shape + 0.35
    figure, every = panels(len(names), columns, size)
    # Zero is the middle of the colours.
    limit = max(float(np.abs(values).max()) for values in found) or 1.0
    look = {"cmap": diverging(theme), "vmin": -limit, "vmax": limit}
    for axes, name, values in zip(every, names, found):
        weights_image(axes, values, theme, shape, **look)
        ring(axes, theme, at, size=7, width=1.2)
        axes.set_title(name, fontsize=8)
        label_range(axes, values, theme)
        # Zero is the colour of the paper, so that only a frame shows where a panel ends.
        axes.spines[:].set_visible(True)
    return figure


def entry_lines(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    x: np.ndarray,
    at: float,
) -> Figure:
    """Draw signed entries of a kernel's row along a line, all on one scale."""
    most, width, marker = 4, theme.width, None
    if theme.narrow:
        most = 2
    columns = min(most, len(names))
    if columns == 1:
        width = min(width, 4.5)
    if len(x) <= DOTTED:
        marker = "o"
    size = width, 1.4
    figure, every = panels(
        len(names),
        columns,
        size,
        margin=0.5,
        sharex=True,
        sharey=True,
    )
    for axes, name, values in zip(every, names, found):
        axes.axhline(0, color=theme.rule, linewidth=0.8)
        axes.plot(
            x,
            values,
            color=theme.series[0],
            marker=marker,
            markersize=2.5,
        )
        axes.axvline(
            at,
            color=theme.mark,
            linewidth=1,
            linestyle="--",
        )
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set_title(name, fontsize=8)
    figure.supxlabel("position", fontsize=9)
    return figure
