"""Pictures of attention quality: overlays, removal of patches, rankings, alignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .panels import UNIT, no_ticks, percent, picture, weights_image
from .style import Theme, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def overlays(
    theme: Theme,
    images: Sequence[np.ndarray],
    maps: Mapping[str, np.ndarray],
    inside: np.ndarray | None,
    names: Sequence[str],
) -> Figure:
    """Images as columns; below each image its maps laid over it, and the object's patches as an
    outline where they are known.
    """
    count, rows = len(images), 1 + len(maps)
    shape = images[0].shape[0] / images[0].shape[1]
    across, small = count, 8
    if theme.narrow:
        across, small = min(count, 4), 7
    side, blocks = min(1.35, (theme.width - 0.9) / across), -(-count // across)
    figure = new_figure(theme.width, ((side * shape + 0.12) * rows + 0.4) * blocks)
    axes_of = figure.subplots(rows * blocks, across, squeeze=False)
    panels = np.concatenate(np.split(axes_of, blocks), axis=1)  # images side by side again
    for axes in panels[:, count:].ravel():
        axes.set_axis_off()
    drawn = list(maps.values())
    for column, image in enumerate(images):
        for row, axes in enumerate(panels[:, column]):
            no_ticks(axes)
            picture(axes, image, extent=UNIT)
            axes.set_aspect(shape)
            if row:
                weights_image(axes, drawn[row - 1][column], theme, shape, alpha=0.72)
            if inside is not None:
                _edge(axes, inside[column], theme.mark)
        panels[0, column].set_title(literal(names[column]), fontsize=8, loc="center")
    for row, name in enumerate(("image", *maps)):
        for axes in panels[row, :count:across]:
            # A panel is hardly as tall as a name is long.
            axes.set_ylabel(name.replace(" ", "\n").replace("-", "-\n"), fontsize=small)
    return figure


def removals(
    theme: Theme, fractions: np.ndarray, curves: Mapping[str, Mapping[str, np.ndarray]]
) -> Figure:
    """A panel a method: mean relative confidence with its standard error, in the three orders."""
    rows, columns = theme.side_by_side(len(curves))
    figure = new_figure(theme.width if columns > 1 else min(theme.width, 4.5), 2.8 * rows)
    labels = {
        "morf": "most relevant first",
        "lerf": "least relevant first",
        "random": "random order",
    }
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, (method, orders) in zip(panels, curves.items()):
        for colour, (order, values) in zip(
            (theme.series[1], theme.series[0], theme.faint), orders.items()
        ):
            mean = values.mean(0)
            error = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0 * mean
            axes.plot(
                fractions, mean, color=colour, label=labels[order], marker="o", markersize=2.5
            )
            axes.fill_between(
                fractions, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0
            )
        axes.set_title(method)
        axes.tick_params(labelleft=True)
        axes.set_xlabel("patches removed")
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
        percent(axes.xaxis)
    panels[0].set_ylabel("confidence, whole image = 1")
    panels[-1].legend()
    return figure


def rankings(theme: Theme, maps: Mapping[str, np.ndarray], inside: np.ndarray) -> Figure:
    """ROC and precision against recall of all patches of all images together, one line per method;
    dashed: a map that knows nothing.
    """
    rows, columns = theme.side_by_side(2)
    figure = new_figure(theme.width if theme.narrow else 0.8 * theme.width, 3.2 * rows)
    left, right = figure.subplots(rows, columns)
    own = inside.reshape(-1)
    for colour, (method, values) in zip(theme.series, maps.items()):
        flat = (values / np.maximum(values.max((1, 2), keepdims=True), 1e-300)).reshape(-1)
        order = np.argsort(-flat, kind="stable")
        last = np.append(np.diff(flat[order]) != 0, True)
        hits, count = np.cumsum(own[order])[last], (np.arange(len(flat)) + 1)[last]
        recall, false = hits / max(own.sum(), 1), (count - hits) / max((~own).sum(), 1)
        left.plot(np.append(0, false), np.append(0, recall), color=colour, label=method)
        right.plot(recall, hits / count, color=colour, label=method)
    left.plot([0, 1], [0, 1], color=theme.faint, linestyle="--", linewidth=1)
    right.axhline(own.mean(), color=theme.faint, linestyle="--", linewidth=1)
    left.set_title("patches of the object found")
    left.set_xlabel("patches elsewhere taken")
    right.set_title("precision")
    right.set_xlabel("recall")
    right.set_ylim(0, 1.02)
    for axes in (left, right):
        axes.grid(axis="y")
        percent(axes.xaxis)
        percent(axes.yaxis)
    left.legend()
    return figure


def alignments(theme: Theme, names: Sequence[str], found: Sequence[Any]) -> Figure:
    """Cosine and rank correlation with the limit, one row per layer: every head of every image is a dot,
    the mean a bar.
    """
    rows, columns = theme.side_by_side(2)
    figure = new_figure(theme.width, (0.42 * len(found) + 1.0) * rows)
    for axes, key in zip(figure.subplots(rows, columns, sharey=True), ("cosine", "spearman")):
        for row, one in enumerate(found):
            values = getattr(one, key).flatten().cpu().numpy()
            values = values[np.isfinite(values)]
            spread = np.random.default_rng(0).uniform(-0.22, 0.22, len(values))
            axes.scatter(values, row + spread, s=5, color=theme.series[0], alpha=0.35, linewidth=0)
            if len(values):
                axes.plot(
                    [values.mean()] * 2, [row - 0.33, row + 0.33], color=theme.mark, linewidth=2
                )
        axes.set_title({"cosine": "cosine", "spearman": "Spearman correlation"}[key])
        axes.set_yticks(range(len(found)), names)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.grid(axis="x")
    return figure


def _edge(axes: Any, inside: np.ndarray, colour: str) -> None:
    """The outline of some patches."""
    if not inside.any():
        return
    height, width = inside.shape
    fine = np.pad(np.kron(inside.astype(float), np.ones((8, 8))), 1)
    y, x = ((np.arange(-1, 8 * n + 1) + 0.5) / (8 * n) for n in (height, width))
    axes.contour(
        np.clip(x, 0, 1), np.clip(y, 0, 1), fine, levels=[0.5], colors=[colour], linewidths=1.2
    )
