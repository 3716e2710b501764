"""Pictures of one row of a kernel: over grids, along lines, among points.
Every function takes a theme and numbers and returns a figure; none computes anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..panels import (
    DOT,
    UNIT,
    clip,
    few_ticks,
    head_panels,
    label_range,
    outline,
    picture,
    ring,
    weighted_points,
    weights_image,
)
from ..style import (
    PHONE,
    Theme,
    colour_scale,
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
MAX_NAMED = 40
NARROW_NAMED = 16

# Place of a query, (row, column) of the unit square.
Place = tuple[float, float]


def draw_maps(
    theme: Theme,
    image: np.ndarray,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: Sequence[Place],
) -> Figure:
    """Draw one query's weights over an image: layers as rows, heads as columns, each panel on its
    own scale.

    Args:
        found: (heads, rows, columns) of each layer.
        at: the query in each layer.
    """
    columns = 1 + len(found[0])
    wide = min(1.35, (theme.width - 1.6) / columns)
    side = theme.pick(wide, 1.0)
    needed = (side + 0.12) * columns + 0.9
    width = min(theme.width, max(PHONE, needed))

    # On a phone a layer's panels continue in rows below.
    across = panels_across(theme, columns)
    rows = len(found) * -(-columns // across)
    shape = image.shape[0] / image.shape[1]
    height = (side * shape + 0.3) * rows + 0.35
    figure = new_figure(width, height)
    every = grid_of_panels(figure, theme, len(found), columns)

    # The sample stands in front of the first row; the place below it stays empty.
    sample, *below = (row[0] for row in every)
    for axes in below:
        axes.set_axis_off()
    picture(sample, image, extent=UNIT)
    sample.set_aspect(shape)
    title = "query"
    if image.any():
        title = "sample and query"
    sample.set_title(title, fontsize=8)
    ring(sample, theme, at[0])

    heads = [row[1:] for row in every]
    places = []
    for place, layer in zip(at, found):
        places += [place] * len(layer)
    grey = image.mean(-1)
    for place, (axes, values) in zip(places, head_panels(heads, names, found)):
        look = colour_scale(theme, values)
        weights_image(axes, values, shape, **look)
        outline(axes, grey, theme.content)
        label_range(axes, values, theme)
        ring(axes, theme, place)
    return figure


class Line(NamedTuple):
    """A line on which weights are drawn.

    Attributes:
        x: its points.
        at: the place of the query in each layer; None where it is not on the line.
        label: of the axis.
        names: of the points.
    """

    x: np.ndarray
    at: Sequence[float | None]
    label: str
    names: tuple[str, ...] = ()


def draw_lines(
    theme: Theme,
    line: Line,
    names: Sequence[str],
    found: Sequence[np.ndarray],
) -> Figure:
    """Draw one query's weights along a line: one panel per layer, one line per head.

    Args:
        found: (heads, points) of each layer.
    """
    height = 1.9
    ticks = []
    most = theme.pick(MAX_NAMED, NARROW_NAMED)
    if len(line.names) <= most:
        ticks = [clip(name, 14) for name in line.names]
    if ticks:
        height = 2.4
    figure, every = panels(
        theme,
        len(found),
        height,
        columns=1,
        width=theme.width,
        margin=0.4,
        sharex=True,
    )
    for axes, name, layer, at in zip(every, names, found, line.at):
        _along(axes, theme, line, layer)
        if at is not None:
            mark_query(axes, theme, at)
        axes.set_title(name)
        if ticks:
            axes.set_xticks(
                line.x,
                ticks,
                rotation=45,
                ha="right",
                rotation_mode="anchor",
            )
        if 1 < len(layer) <= len(theme.series):
            # Above the panel, where neither a line nor the query's mark crosses it.
            axes.legend(
                loc="lower right",
                bbox_to_anchor=(1, 1),
                ncols=theme.pick(4, 2),
            )
    figure.supylabel("weight", fontsize=9)
    figure.supxlabel(literal(line.label), fontsize=9)
    return figure


def _along(
    axes: Axes,
    theme: Theme,
    line: Line,
    layer: np.ndarray,
) -> None:
    """Draw the weights of a layer's heads along a line."""
    order = np.argsort(line.x)
    look = {}
    if line.names:
        look = DOT
    for head, values in enumerate(layer):
        axes.plot(
            line.x[order],
            values[order],
            color=theme.series[head % len(theme.series)],
            label=f"head {head + 1}",
            **look,
        )
    axes.tick_params(labelbottom=True)
    axes.grid(axis="y")
    least = float(layer.min())
    axes.set_ylim(bottom=min(0.0, least))


def mark_query(axes: Any, theme: Theme, at: float) -> None:
    """Draw a dashed line at the query's place."""
    axes.axvline(
        at,
        color=theme.mark,
        linewidth=1.2,
        linestyle="--",
    )


def draw_clouds(
    theme: Theme,
    points: np.ndarray,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: int,
) -> Figure:
    """Draw one query's weights over scattered points: layers as rows, heads as columns, each panel
    on its own scale.

    Args:
        points: (n, 2).
        found: (heads, n) of each layer.
        at: index of the query among the points.
    """
    figure, every = layer_panels(theme, found, largest=1.8, title=0.35)
    for axes, values in head_panels(every, names, found):
        look = colour_scale(theme, values)
        weighted_points(
            axes,
            theme,
            points,
            values,
            at,
            s=9,
            linewidths=0,
            **look,
        )
        few_ticks(axes)
        label_range(axes, values, theme)
    return figure
