"""Pictures of kernels: against distance, as shares of variance, over grids, lines and clouds. Every
function takes a theme and numbers and returns a figure; none computes anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...explain.kernels import Profile
from ...explain.variance import VarianceShare
from ..data.kinds.kind import Cloud
from .panels import (
    UNIT,
    clip,
    few_ticks,
    hide_rest,
    label_panel,
    label_range,
    largest,
    no_ticks,
    outline,
    percent,
    picture,
    ring,
    show_frame,
    weights_image,
)
from .style import (
    Theme,
    colormap,
    diverging,
    grid_of_panels,
    literal,
    new_figure,
    panels_across,
    square_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAMED = 40  # points of a line whose names are written
NARROW_NAMED = 16  # the same on a phone
MARKED = 40  # points of a line up to which each is a dot


def profiles(
    theme: Theme, names: Sequence[str], found: Sequence[Profile], what: str, label: str
) -> Figure:
    """One panel per layer: the mean of all heads with its band, and each head as a thin line.

    Args:
        what: norm or weight.
    """
    columns, width = min(3, len(found)), theme.width
    if theme.narrow:
        columns = 1
    if columns == 1:
        width = min(theme.width, 5.0)
    rows = -(-len(found) // columns)
    figure = new_figure(width, 2.5 * rows + 0.3)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for axes, name, profile in zip(panels, names, found):
        _profile(axes, theme, profile, what)
        axes.set_title(name)
    hide_rest(panels, len(found))
    figure.supxlabel("distance |x − y|", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return figure


def _profile(axes: Axes, theme: Theme, profile: Profile, what: str) -> None:
    x = profile.distance.numpy()
    mean, sd = (values.numpy() for values in profile.pooled(what))
    heads = getattr(profile, what).numpy()

    low = np.maximum(mean - sd, 0)
    axes.fill_between(x, low, mean + sd, color=theme.series[0], alpha=0.18, linewidth=0)
    if len(heads) > 1:
        axes.plot(x, heads.T, color=theme.faint, linewidth=0.8, alpha=0.8)
    axes.plot(x, mean, color=theme.series[0], marker="o", markersize=3)
    axes.tick_params(labelbottom=True)
    axes.set_ylim(0, 1.08 * max(float((mean + sd).max()), float(heads.max())) or 1)
    axes.grid(axis="y")


def shares(theme: Theme, names: Sequence[str], found: Sequence[VarianceShare]) -> Figure:
    """Stacked bars, position then content, one row per layer; the error at their border, heads as
    dots.
    """
    figure = new_figure(theme.width, 0.46 * len(found) + 1.1)
    axes = figure.subplots()
    for row, share in enumerate(found):
        _share(axes, theme, row, share)
    labels = [f"{name}\nvaries by {share.relative:.2g}" for name, share in zip(names, found)]
    axes.set_yticks(range(len(found)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    percent(axes.xaxis)
    axes.set_xlabel("share of the kernel's variance")
    if axes.containers:
        handles = axes.patches[:2]
        axes.legend(
            handles,
            ["position", "content"],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            borderaxespad=0.2,
        )
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _share(axes: Axes, theme: Theme, row: int, share: VarianceShare) -> None:
    if not np.isfinite(share.share):
        text = "constant kernel: no variance to share"
        axes.text(0.01, row, text, va="center", color=theme.faint)
        return
    part = min(max(share.share, 0.0), 1.0)
    axes.barh(row, part, color=theme.position, height=0.62)
    axes.barh(row, 1 - part, left=part, color=theme.content, height=0.62)
    axes.errorbar(part, row, xerr=share.error, color=theme.ink, capsize=3, linewidth=1.2)

    heads = share.head_share.clamp(0, 1).numpy()
    if len(heads) > 1:
        look = {"color": theme.paper, "edgecolor": theme.ink, "linewidth": 0.8}
        axes.scatter(heads, np.full(len(heads), row), s=14, zorder=3, **look)
    text = f"{part:.0%} ± {share.error:.1%}"
    axes.text(1.012, row, text, va="center", color=theme.ink, fontsize=8.5)


def maps(
    theme: Theme,
    image: np.ndarray,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: tuple[float, float],
) -> Figure:
    """One query's weights over an image: layers as rows, heads as columns, each (H, rows, columns)
    panel on its own scale.
    """
    heads = len(found[0])
    side = min(1.35, (theme.width - 1.6) / (heads + 1))
    if theme.narrow:
        side = 1.0
    shape = image.shape[0] / image.shape[1]
    width = min(theme.width, max(6.0, (side + 0.12) * (heads + 1) + 0.9))
    rows = len(found) * -(-(heads + 1) // panels_across(theme, heads + 1))
    figure = new_figure(width, (side * shape + 0.3) * rows + 0.35)
    panels = grid_of_panels(figure, theme, len(found), heads + 1)
    for row, (name, layer) in enumerate(zip(names, found)):
        sample, *others = panels[row]
        if row == 0:
            _query_panel(sample, theme, image, at, shape)
        else:
            sample.set_axis_off()
        for head, (axes, values) in enumerate(zip(others, layer), 1):
            no_ticks(axes)
            weights_image(axes, values, theme, shape)
            outline(axes, image, theme)
            label_panel(axes, values, theme, row, head, name)
            ring(axes, theme, at, size=6, width=1.8)
    return figure


def _query_panel(
    axes: Axes, theme: Theme, image: np.ndarray, at: tuple[float, float], shape: float
) -> None:
    """The sample itself, with the query."""
    no_ticks(axes)
    picture(axes, image, extent=UNIT)
    axes.set_aspect(shape)
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


def lines(theme: Theme, line: Line, names: Sequence[str], found: Sequence[np.ndarray]) -> Figure:
    """One query's weights along a line, a panel per layer, a line per head."""
    most, columns = MAX_NAMED, 4
    if theme.narrow:
        most, columns = NARROW_NAMED, 2
    named = 0 < len(line.names) <= most
    height = 1.9 + 0.5 * named
    figure = new_figure(theme.width, height * len(found) + 0.4)
    panels = figure.subplots(len(found), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name, layer in zip(panels, names, found):
        _along(axes, theme, line, layer)
        axes.set_title(name)
        if named:
            shown = [clip(each, 14) for each in line.names]
            axes.set_xticks(line.x, shown, rotation=45, ha="right", rotation_mode="anchor")
        if 1 < len(layer) <= len(theme.series):
            axes.legend(ncols=columns)
    figure.supylabel("weight", fontsize=9)
    figure.supxlabel(literal(line.label), fontsize=9)
    return figure


def _along(axes: Axes, theme: Theme, line: Line, layer: np.ndarray) -> None:
    order, marker = np.argsort(line.x), None
    if line.names:
        marker = "o"
    for head, values in enumerate(layer):
        colour = theme.series[head % len(theme.series)]
        look = {"color": colour, "label": f"head {head + 1}", "marker": marker}
        axes.plot(line.x[order], values[order], markersize=3, **look)
    if line.at is not None:
        axes.axvline(line.at, color=theme.mark, linewidth=1.2, linestyle="--")
    axes.tick_params(labelbottom=True)
    axes.grid(axis="y")
    axes.set_ylim(bottom=min(0.0, float(layer.min())))


def clouds(
    theme: Theme, cloud: Cloud, names: Sequence[str], found: Sequence[np.ndarray], at: int
) -> Figure:
    """One query's weights over scattered points: layers as rows, heads as columns, each panel on
    its own scale.
    """
    points = cloud.flat()
    figure, panels = square_panels(theme, len(found), len(found[0]), largest=1.8, title=0.35)
    for row, (name, layer) in enumerate(zip(names, found)):
        for head, (axes, values) in enumerate(zip(panels[row], layer), 1):
            order = np.argsort(values, kind="stable")  # the largest on top
            look: Mapping[str, Any] = {"vmin": 0, "vmax": largest(values), "linewidths": 0}
            axes.scatter(*points[order].T, s=9, c=values[order], cmap=colormap(theme), **look)
            axes.scatter(*points[at], s=42, facecolor="none", edgecolor=theme.mark, linewidth=1.8)
            axes.set_aspect("equal", adjustable="datalim")
            few_ticks(axes)
            label_panel(axes, values, theme, row, head, name)
    return figure


def entry_maps(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    at: np.ndarray,
) -> Figure:
    """Signed entries of a kernel's row over a grid, each (rows, columns), all on one scale."""
    across = 3 if theme.narrow else 6
    columns = min(across, len(names))
    rows = -(-len(names) // columns)
    shape = found[0].shape[0] / found[0].shape[1]
    side = (theme.width - 0.4) / across
    figure = new_figure(max(side * columns, 3.0), (side * shape + 0.35) * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    limit = max(float(np.abs(values).max()) for values in found) or 1.0
    look = {"cmap": diverging(theme), "vmin": -limit, "vmax": limit}
    for axes, name, values in zip(panels, names, found):
        weights_image(axes, values, theme, shape, **look)
        ring(axes, theme, at, size=7, width=1.2)
        axes.set_title(name, fontsize=8)
        label_range(axes, values, theme)
        no_ticks(axes)
        show_frame(axes, True)
    hide_rest(panels, len(names))
    return figure


def entry_lines(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[np.ndarray],
    x: np.ndarray,
    at: float,
) -> Figure:
    """Signed entries of a kernel's row along a line, all on one scale."""
    most, width, marker = 4, theme.width, None
    if theme.narrow:
        most = 2
    columns = min(most, len(names))
    if columns == 1:
        width = min(theme.width, 4.5)
    if len(x) <= MARKED:
        marker = "o"
    rows = -(-len(names) // columns)
    figure = new_figure(width, 1.4 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, name, values in zip(panels, names, found):
        axes.axhline(0, color=theme.rule, linewidth=0.8)
        axes.plot(x, values, color=theme.series[0], marker=marker, markersize=2.5)
        axes.axvline(at, color=theme.mark, linewidth=1, linestyle="--")
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set_title(name, fontsize=8)
    hide_rest(panels, len(names))
    figure.supxlabel("position", fontsize=9)
    return figure
