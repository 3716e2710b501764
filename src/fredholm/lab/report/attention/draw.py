"""Pictures of attention maps: overlays, removal curves, rankings and alignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..panels import DOT, UNIT, outline, percent, picture, weights_image
from ..style import Theme, colour_scale, literal, new_figure, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

# Of the axis of alignments: correlations that differ by less look alike.
LEAST_SPAN = 0.02

# Orders in which patches are removed, and their names in the legend.
ORDERS = {
    "morf": "most relevant first",
    "lerf": "least relevant first",
    "random": "random order",
}


def draw_overlays(
    theme: Theme,
    images: Sequence[np.ndarray],
    maps: Mapping[str, np.ndarray],
    inside: np.ndarray | None,
    names: Sequence[str],
) -> Figure:
    """Draw images as columns; below each image its maps laid over it, and the object's patches as an
    outline where they are known.

    Args:
        images: (h, w, channels) in [0, 1], all of one shape.
        maps: by method, (images, rows, columns) with one value per patch.
        inside: True at the patches of the object, (images, rows, columns); None if unknown.
        names: of the images, above them.
    """
    count = len(images)
    rows = 1 + len(maps)
    height, width = images[0].shape[:2]
    shape = height / width

    # On a phone, images that do not fit side by side continue in a block of rows below. `every`
    # puts the blocks side by side again, as axes (rows, images).
    across = theme.pick(count, min(count, 4))
    side = min(1.35, (theme.width - 0.9) / across)
    blocks = -(-count // across)
    block_height = (side * shape + 0.12) * rows + 0.4
    figure = new_figure(theme.width, block_height * blocks)
    axes_of = figure.subplots(
        rows * blocks,
        across,
        squeeze=False,
    )
    every = np.concatenate(np.split(axes_of, blocks), axis=1)
    for empty in every[:, count:].ravel():
        empty.set_axis_off()

    for column, image in enumerate(images):
        laid = [None]
        for values in maps.values():
            laid.append(values[column])
        for axes, values in zip(every[:, column], laid):
            _overlay(axes, theme, image, values)
            if inside is not None:
                # Eight cells per patch, so that corners of the outline are nearly square.
                patches = inside[column].astype(float)
                cells = np.kron(patches, np.ones((8, 8)))
                outline(axes, cells, theme.mark, outside="constant")

        title = literal(names[column])
        every[0, column].set_title(title, fontsize=8, loc="center")
    for row, name in zip(every, ("image", *maps)):
        # A panel is hardly as tall as a name is long.
        broken = name.replace(" ", "\n").replace("-", "-\n")
        for axes in row[:count:across]:
            axes.set_ylabel(broken, fontsize=theme.pick(8, 7))
    return figure


def _overlay(
    axes: Axes,
    theme: Theme,
    image: np.ndarray,
    values: np.ndarray | None,
) -> None:
    """Draw an image, and a map laid over it unless ``values`` is None."""
    picture(axes, image, extent=UNIT)
    height, width = image.shape[:2]
    axes.set_aspect(height / width)
    if values is not None:
        weights_image(
            axes,
            values,
            height / width,
            alpha=0.72,
            **colour_scale(theme, values),
        )


def draw_removals(
    theme: Theme,
    fractions: np.ndarray,
    curves: Mapping[str, Mapping[str, np.ndarray]],
) -> Figure:
    """Plot mean relative confidence with its standard error: one panel per method, one line per
    order of removal.

    Args:
        fractions: of the patches removed.
        curves: confidence (images, fractions) by method and order.
    """
    figure, every = panels(theme, len(curves), 2.8, sharey=True)
    first, second = theme.series[:2]
    colours = (second, first, theme.faint)
    for axes, (method, orders) in zip(every, curves.items()):
        for colour, (order, values) in zip(colours, orders.items()):
            mean = values.mean(0)
            error = np.zeros(len(fractions))
            if len(values) > 1:
                deviation = values.std(0, ddof=1)
                error = deviation / np.sqrt(len(values))
            axes.plot(
                fractions,
                mean,
                color=colour,
                label=ORDERS[order],
                **DOT,
            )
            low = mean - error
            high = mean + error
            axes.fill_between(
                fractions,
                low,
                high,
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
        axes.set_title(method)
        axes.tick_params(labelleft=True)
        axes.set_xlabel("patches removed")
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
        percent(axes.xaxis)
    every[0].set_ylabel("confidence, whole image = 1")
    every[-1].legend()
    return figure


def draw_rankings(theme: Theme, maps: Mapping[str, np.ndarray], inside: np.ndarray) -> Figure:
    """Plot ROC and precision against recall of all patches of all images together, one line per
    method; dashed: a map that knows nothing.

    Args:
        maps: (images, rows, columns) of each method.
        inside: whether a patch belongs to the object, of the same shape.
    """
    from sklearn.metrics import precision_recall_curve, roc_curve

    figure, (left, right) = panels(theme, 2, 3.2)
    truth = inside.ravel()
    for colour, (method, values) in zip(theme.series, maps.items()):
        # Maps of different images are comparable relative to their largest value.
        largest = values.max((1, 2), keepdims=True)
        relative = values / np.maximum(largest, 1e-300)
        scores = relative.ravel()

        false_rate, true_rate, _ = roc_curve(truth, scores, drop_intermediate=False)
        left.plot(false_rate, true_rate, color=colour, label=method)

        # The last point, of no patch at all, has no precision.
        precision, recall, _ = precision_recall_curve(truth, scores)
        right.plot(recall[:-1], precision[:-1], color=colour)

    chance = {
        "color": theme.faint,
        "linestyle": "--",
        "linewidth": 1,
    }
    left.plot([0, 1], [0, 1], **chance)
    right.axhline(inside.mean(), **chance)
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


def draw_alignments(theme: Theme, found: Mapping[str, Any]) -> Figure:
    """Plot cosine and rank correlation with the limit, one row per layer: every head of every image
    is a dot, the mean a bar.

    Args:
        found: the :class:`fredholm.explain.Alignment` of each layer.
    """
    titles = {"cosine": "cosine", "spearman": "Spearman correlation"}
    figure, every = panels(
        theme,
        len(titles),
        0.42 * len(found) + 1.0,
        sharey=True,
    )
    for axes, (key, title) in zip(every, titles.items()):
        for row, alignment in enumerate(found.values()):
            correlations = getattr(alignment, key)
            _alignment_row(axes, theme, row, correlations)
        # Values that differ by rounding alone would fill the axis with long numbers.
        low, high = axes.get_xlim()
        spare = max(0.0, LEAST_SPAN - (high - low)) / 2
        axes.set_xlim(low - spare, high + spare)
        axes.locator_params(axis="x", nbins=5)
        axes.set_title(title)
        axes.set_yticks(range(len(found)), list(found))
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.grid(axis="x")
    return figure


def _alignment_row(
    axes: Axes,
    theme: Theme,
    row: int,
    correlations: Tensor,
) -> None:
    """Draw the correlations of one layer as dots, spread over the row's height, and their mean."""
    values = correlations.flatten().cpu().numpy()
    values = values[np.isfinite(values)]
    spread = np.random.default_rng(0).uniform(-0.22, 0.22, len(values))
    axes.scatter(
        values,
        row + spread,
        s=5,
        color=theme.series[0],
        alpha=0.35,
        linewidth=0,
    )
    if len(values):
        mean = values.mean()
        ends = [row - 0.33, row + 0.33]
        axes.plot([mean, mean], ends, color=theme.mark, linewidth=2)
