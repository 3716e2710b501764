"""Pictures of numbers. Every function takes a theme and data and returns a figure; none computes
anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...explain.kernels import Profile
from ...explain.variance import VarianceShare
from ..data.kinds.kind import Cloud, Signal
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
    from matplotlib.figure import Figure

NAME = 11  # signs of a class's name above a small panel
MAX_LANES = 12  # channels of a series whose names are written
MAX_NAMED = 40  # points of a line whose names are written


def curves(theme: Theme, history: dict[str, list[float]]) -> Figure:
    """Loss and accuracy against the epoch."""
    drawn = [
        what
        for what in ("loss", "accuracy")
        if f"train_{what}" in history or f"val_{what}" in history
    ] or ["loss"]
    rows, columns = theme.side_by_side(len(drawn))
    figure = new_figure(theme.width, 2.7 * rows)
    epoch = history["epoch"]
    marker = "o" if len(epoch) < 25 else None
    for axes, what in zip(figure.subplots(rows, columns, squeeze=False).ravel(), drawn):
        for part, colour in zip(("train", "val"), theme.series):
            if f"{part}_{what}" in history:
                label = {"train": "training", "val": "validation"}[part]
                axes.plot(
                    epoch,
                    history[f"{part}_{what}"],
                    color=colour,
                    label=label,
                    marker=marker,
                    markersize=3,
                )
        axes.set_xlabel("epoch")
        axes.grid(axis="y")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(epoch) == 1:
            axes.set_xlim(epoch[0] - 1, epoch[0] + 1)
        if axes.lines:
            axes.legend()
        axes.set_title(what)
        if what == "accuracy":
            _percent(axes.yaxis)
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.02), min(high, 1.02))
    return figure


def profiles(
    theme: Theme, names: Sequence[str], found: Sequence[Profile], what: str, label: str
) -> Figure:
    """One panel a layer: all heads' mean with its band, and each head's mean as a thin line.
    ``what``: norm or weight.
    """
    columns = 1 if theme.narrow else min(3, len(found))
    rows = -(-len(found) // columns)
    figure = new_figure(theme.width if columns > 1 else min(theme.width, 5.0), 2.5 * rows + 0.3)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for axes, name, profile in zip(panels, names, found):
        x = profile.distance.numpy()
        mean, sd = (v.numpy() for v in profile.pooled(what))
        heads = getattr(profile, what).numpy()
        axes.fill_between(
            x, np.maximum(mean - sd, 0), mean + sd, color=theme.series[0], alpha=0.18, linewidth=0
        )
        for head in heads if len(heads) > 1 else ():
            axes.plot(x, head, color=theme.faint, linewidth=0.8, alpha=0.8)
        axes.plot(x, mean, color=theme.series[0], marker="o", markersize=3)
        axes.set_title(name)
        axes.tick_params(labelbottom=True)
        axes.set_ylim(0, 1.08 * max(float((mean + sd).max()), float(heads.max())) or 1)
        axes.grid(axis="y")
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    figure.supxlabel("distance |x − y|", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return figure


def shares(theme: Theme, names: Sequence[str], found: Sequence[VarianceShare]) -> Figure:
    """Stacked bars, position then content, one row per layer; the bar of error at the border, heads as
    dots.
    """
    figure = new_figure(theme.width, 0.46 * len(found) + 1.1)
    axes = figure.subplots()
    for row, share in enumerate(found):
        if not np.isfinite(share.share):
            axes.text(
                0.01, row, "constant kernel: no variance to share", va="center", color=theme.faint
            )
            continue
        part = min(max(share.share, 0.0), 1.0)
        axes.barh(
            row, part, color=theme.position, height=0.62, label="position" if row == 0 else None
        )
        axes.barh(
            row,
            1 - part,
            left=part,
            color=theme.content,
            height=0.62,
            label="content" if row == 0 else None,
        )
        axes.errorbar(part, row, xerr=share.error, color=theme.ink, capsize=3, linewidth=1.2)
        heads = share.head_share.clamp(0, 1).numpy()
        if len(heads) > 1:
            axes.scatter(
                heads,
                np.full(len(heads), row),
                s=14,
                color=theme.paper,
                edgecolor=theme.ink,
                linewidth=0.8,
                zorder=3,
            )
        axes.text(
            1.012,
            row,
            f"{part:.0%} ± {share.error:.1%}",
            va="center",
            color=theme.ink,
            fontsize=8.5,
        )
    axes.set_yticks(
        range(len(found)), [f"{name}\nvaries by {s.relative:.2g}" for name, s in zip(names, found)]
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    _percent(axes.xaxis)
    axes.set_xlabel("share of the kernel's variance")
    if axes.containers:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


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
    side = 1.0 if theme.narrow else min(1.35, (theme.width - 1.6) / (heads + 1))
    shape = image.shape[0] / image.shape[1]
    width = min(theme.width, max(6.0, (side + 0.12) * (heads + 1) + 0.9))
    rows = len(found) * -(-(heads + 1) // panels_across(theme, heads + 1))
    figure = new_figure(width, (side * shape + 0.3) * rows + 0.35)
    panels = grid_of_panels(figure, theme, len(found), heads + 1)
    extent = (0.0, 1.0, 1.0, 0.0)
    for row, (name, layer) in enumerate(zip(names, found)):
        for column, axes in enumerate(panels[row]):
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_aspect(shape)
            if column == 0:
                if row == 0:
                    picture(axes, image, extent=extent)
                else:
                    axes.set_axis_off()
                    continue
                axes.set_title("sample and query" if image.any() else "query", fontsize=8)
            else:
                values = layer[column - 1]
                axes.imshow(
                    values,
                    cmap=colormap(theme),
                    vmin=0,
                    vmax=max(float(values.max()), 0.0) or 1,
                    extent=extent,
                    aspect=shape,
                )
                _outline(axes, image, theme)
                _label_panel(axes, values, theme, row, column, name)
            axes.plot(
                at[1],
                at[0],
                marker="o",
                markersize=6,
                color="none",
                markeredgecolor=theme.mark,
                markeredgewidth=1.8,
            )
    return figure


class Line(NamedTuple):
    """A line on which weights are drawn: its points, the query's place (None: not on it), what the
    axis is called, and the names of the points.
    """

    x: np.ndarray
    at: float | None
    label: str
    names: tuple[str, ...] = ()


def lines(theme: Theme, line: Line, names: Sequence[str], found: Sequence[np.ndarray]) -> Figure:
    """One query's weights along a line, a panel per layer, a line per head."""
    named = 0 < len(line.names) <= (16 if theme.narrow else MAX_NAMED)
    height = 1.9 + (0.5 if named else 0.0)
    figure = new_figure(theme.width, height * len(found) + 0.4)
    order = np.argsort(line.x)
    panels = figure.subplots(len(found), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name, layer in zip(panels, names, found):
        for head, values in enumerate(layer):
            axes.plot(
                line.x[order],
                values[order],
                color=theme.series[head % len(theme.series)],
                label=f"head {head + 1}",
                marker="o" if line.names else None,
                markersize=3,
            )
        if line.at is not None:
            axes.axvline(line.at, color=theme.mark, linewidth=1.2, linestyle="--")
        axes.set_title(name)
        axes.tick_params(labelbottom=True)
        axes.grid(axis="y")
        axes.set_ylim(bottom=min(0.0, float(layer.min())))
        if named:
            shown = [_clip(each, 14) for each in line.names]
            axes.set_xticks(line.x, shown, rotation=45, ha="right", rotation_mode="anchor")
        if 1 < len(layer) <= len(theme.series):
            axes.legend(ncols=2 if theme.narrow else 4)
    figure.supylabel("weight", fontsize=9)
    figure.supxlabel(literal(line.label), fontsize=9)
    return figure


def confusion(theme: Theme, counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Counts of true (rows) against called (columns), shaded by the share of the row."""
    size, classes = len(counts), [literal(str(name)) for name in classes]
    side = min(theme.width, 8.0, 0.38 * size + 0.9)
    small = 8 if side >= 0.3 * size else 5  # many classes on a phone
    figure = new_figure(side, side)
    axes = figure.subplots()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap=colormap(theme), vmin=0, vmax=1)
    for i in range(size):
        for j in range(size):
            if counts[i, j]:
                strong = share[i, j] > 0.45
                axes.text(
                    j,
                    i,
                    str(counts[i, j]),
                    ha="center",
                    va="center",
                    fontsize=small,
                    color=theme.paper if strong else theme.ink,
                )
    rotation = 0 if max(len(str(c)) for c in classes) <= 3 else 60
    axes.set_xticks(
        range(size),
        classes,
        rotation=rotation,
        ha="center" if rotation == 0 else "right",
        rotation_mode="anchor",
    )
    if rotation == 0:
        axes.xaxis.set_tick_params(rotation=0)
    axes.set_yticks(range(size), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.tick_params(length=0)
    return figure


def examples(theme: Theme, things: Sequence[Any], found: Sequence[Any]) -> Figure:
    """Samples under what was answered, with the truth below where a class is wrong or a number is
    asked for.

    Args:
        things: pictures, :class:`Signal` or :class:`Cloud`.
        found: :class:`fredholm.lab.report.examples.Said` of each.
    """
    pictured = isinstance(things[0], np.ndarray)
    if isinstance(things[0], Signal):
        things = in_lanes(things)
    columns = (3 if pictured else 2) if theme.narrow else (8 if pictured else 4)
    rows = -(-len(found) // columns)
    first = things[0]
    height = first.shape[0] / first.shape[1] if isinstance(first, np.ndarray) else 1.0
    across = theme.width / columns
    figure = new_figure(
        theme.width, (across * min(height, 1.6) * (0.85 if pictured else 0.6) + 0.42) * rows
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    colours = {True: theme.bad, False: theme.good, None: theme.ink}
    for axes, thing, said in zip(panels, things, found):
        sample(axes, thing, theme)
        text = f"{_clip(said.answer)} {said.note if said.wrong is not None else ''}".rstrip()
        axes.set_title(text, loc="center", fontsize=8, color=colours[said.wrong], pad=3)
        below = "" if said.wrong is False else f"true: {_clip(said.truth)}"
        axes.set_xlabel(below, fontsize=8, labelpad=2)
        _ticks(axes, few=not pictured)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    if isinstance(first, Signal):
        figure.supxlabel(literal(first.clock), fontsize=9)
        for place, axes in enumerate(panels[: len(found)]):
            _name_lanes(axes, first.names, named=place % columns == 0)
    return figure


def in_lanes(things: Sequence[Signal]) -> list[Signal]:
    """Series of several channels with each channel in a lane of height 1, the first on top, which
    reaches from its smallest to its largest value in these series.
    """
    values = np.concatenate([thing.values for thing in things])
    if values.shape[1] < 2:
        return list(things)
    low = np.where(np.isnan(values), np.inf, values).min(0)
    high = np.where(np.isnan(values), -np.inf, values).max(0)
    size = np.where(high > low, high - low, 1.0) / 0.8  # lanes do not touch
    base = np.arange(values.shape[1])[::-1]
    return [replace(thing, values=(thing.values - low) / size + base) for thing in things]


def _name_lanes(axes: Any, names: Sequence[str], named: bool) -> None:
    """Names of channels at their lanes; of a single channel beside its numbers."""
    if len(names) < 2:
        if named and names:
            axes.set_ylabel(_clip(names[0]), fontsize=7)
        return
    shown = [_clip(name) for name in names] if named and len(names) <= MAX_LANES else []
    places = [len(names) - 0.6 - i for i in range(len(shown))]
    axes.set_yticks(places, shown, fontsize=7)
    axes.tick_params(axis="y", length=0)


def sample(axes: Any, shown: np.ndarray | Signal | Cloud, theme: Theme) -> None:
    """One sample: an image, a sequence as a line a channel, or a cloud of points."""
    if isinstance(shown, np.ndarray):
        picture(axes, shown)
        return
    if isinstance(shown, Cloud):
        axes.scatter(*shown.flat().T, s=1.5, color=theme.series[0], linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
    else:
        marker = "." if len(shown.x) < 64 else None
        for channel, values in enumerate(shown.values.T):
            axes.plot(
                shown.x,
                values,
                color=theme.series[channel % len(theme.series)],
                linewidth=0.8,
                marker=marker,
                markersize=2,
            )
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
    axes.set_xlabel(literal(f"true {label}".rstrip()))
    axes.set_ylabel(literal(f"predicted {label}".rstrip()))
    axes.grid(axis="both")
    return figure


def importances(theme: Theme, found: Sequence[Any], measure: str, percent: bool) -> Figure:
    """A bar per column, the most important on top; its line is ± 1 standard deviation."""
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
    axes.set_yticks(places, [_clip(each.name, 22) for each in found])
    lost = "accuracy lost" if percent else f"{measure} added"
    axes.set_xlabel(f"{lost} when the column is shuffled")
    if percent:
        _percent(axes.xaxis)
    axes.grid(axis="x")
    return figure


def field_panels(theme: Theme, sample: Any) -> Figure:
    """Input, truth, prediction and error of one field; truth and prediction share a scale, and the
    error's has white at zero.
    """
    found = sample.panels()
    columns = 2 if theme.narrow else len(found)
    rows = -(-len(found) // columns)
    shape = sample.truth.shape
    height = shape[0] / shape[1] if sample.places is None else 0.8
    across = (theme.width - 0.3) / columns
    figure = new_figure(theme.width, (across * min(max(0.72 * height, 0.2), 1.5) + 0.45) * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    both = np.concatenate([sample.truth.ravel(), sample.answer.ravel()])
    largest = float(np.abs(found["error"]).max()) or 1.0
    for axes, (name, values) in zip(panels, found.items()):
        shared = name in ("truth", "prediction")
        low, high = (both.min(), both.max()) if shared else (values.min(), values.max())
        look = {"cmap": colormap(theme), "vmin": low, "vmax": high}
        if name == "error":
            look = {"cmap": diverging(theme), "vmin": -largest, "vmax": largest}
        if sample.places is None:
            drawn = axes.imshow(values, interpolation="nearest", **look)
        else:
            drawn = axes.scatter(*sample.places.T, c=values, s=5, linewidths=0, **look)
            axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(name, loc="center")
        axes.set_xticks([])
        axes.set_yticks([])
        bar = figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.03)
        bar.ax.tick_params(labelsize=7, colors=theme.faint)
        bar.outline.set_visible(False)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    return figure


def clouds(
    theme: Theme, cloud: Cloud, names: Sequence[str], found: Sequence[np.ndarray], at: int
) -> Figure:
    """One query's weights over scattered points: layers as rows, heads as columns, each panel on
    its own scale.
    """
    heads = len(found[0])
    points = cloud.flat()
    figure, panels = square_panels(theme, len(found), heads, largest=1.8, title=0.35)
    for row, (name, layer) in enumerate(zip(names, found)):
        for column, axes in enumerate(panels[row]):
            values = layer[column]
            order = np.argsort(values, kind="stable")  # the largest on top
            axes.scatter(
                *points[order].T,
                s=9,
                c=values[order],
                cmap=colormap(theme),
                vmin=0,
                vmax=max(float(values.max()), 0.0) or 1,
                linewidths=0,
            )
            axes.scatter(*points[at], s=42, facecolor="none", edgecolor=theme.mark, linewidth=1.8)
            axes.set_aspect("equal", adjustable="datalim")
            _ticks(axes, few=True)
            _label_panel(axes, values, theme, row, column + 1, name)
    return figure


def picture(axes: Any, image: np.ndarray, **options: Any) -> None:
    """An image (h, w, channels) in [0, 1]: colour if it has three channels, else the grey mean of
    them.
    """
    grey = image.shape[-1] != 3
    axes.imshow(
        image.mean(-1) if grey else image,
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        **options,
    )
    for spine in axes.spines.values():
        spine.set_visible(False)


def _label_panel(
    axes: Any, values: np.ndarray, theme: Theme, row: int, head: int, name: str
) -> None:
    """The range of a panel's weights below it; the head above the first row, the layer beside the
    first head.
    """
    axes.set_xlabel(
        f"{_short(values.min())} – {_short(values.max())}",
        fontsize=7,
        color=theme.faint,
        labelpad=2,
    )
    if row == 0:
        axes.set_title(f"head {head}", fontsize=8)
    if head == 1:
        axes.set_ylabel(name, fontsize=8.5)


def _outline(axes: Any, image: np.ndarray, theme: Theme) -> None:
    """The image as its outline, where its brightness crosses the middle of its range, so that the
    map below stays readable.
    """
    grey = image.mean(-1)
    if min(grey.shape) < 2 or grey.max() <= grey.min():
        return
    y, x = (np.clip((np.arange(-1, n + 1) + 0.5) / n, 0, 1) for n in grey.shape)
    level = (float(grey.min()) + float(grey.max())) / 2
    axes.contour(
        x, y, np.pad(grey, 1, mode="edge"), levels=[level], colors=[theme.content], linewidths=1.3
    )


def _ticks(axes: Any, few: bool) -> None:
    """A few small ones; none of a picture, whose pixels need no numbers."""
    if not few:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.locator_params(nbins=3)
    axes.tick_params(labelsize=6, length=2, pad=1)


def _percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def _clip(name: str, most: int = NAME) -> str:
    """A name, cut in the middle where it is wider than a small panel."""
    return literal(name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}")


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if abs(value) >= 1e-3 else f"{value:.0e}"
