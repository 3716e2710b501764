"""Parts of figures that several pages share: one panel, its labels and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .style import Theme, colormap, literal

NAME = 11  # letters of a class's name above a small panel
UNIT = (0.0, 1.0, 1.0, 0.0)  # the extent of pictures in the unit square, first row on top


def picture(axes: Any, image: np.ndarray, **options: Any) -> None:
    """Draw an image (h, w, channels) in [0, 1] without a frame: three channels in colour, any other
    number as their mean in grey.
    """
    shown = image
    if image.shape[-1] != 3:
        shown = image.mean(-1)
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest", **options)
    show_frame(axes, False)


def weights_image(axes: Any, values: np.ndarray, theme: Theme, shape: float, **look: Any) -> None:
    """Weights over a grid in the unit square, from zero to the panel's largest unless ``look`` says
    otherwise.
    """
    usual = {"cmap": colormap(theme), "vmin": 0, "vmax": largest(values)}
    axes.imshow(values, extent=UNIT, aspect=shape, **(usual | look))


def largest(values: np.ndarray) -> float:
    """The largest of some weights, or 1 where none is positive."""
    return max(float(values.max()), 0.0) or 1.0


def ring(axes: Any, theme: Theme, at: Any, *, size: float, width: float) -> None:
    """A ring around the query, at (row, column) of the unit square."""
    axes.plot(
        at[1],
        at[0],
        marker="o",
        markersize=size,
        color="none",
        markeredgecolor=theme.mark,
        markeredgewidth=width,
    )


def outline(axes: Any, image: np.ndarray, theme: Theme) -> None:
    """The image as its outline, where its brightness crosses the middle of its range, so that the
    map below stays readable.
    """
    grey = image.mean(-1)
    if min(grey.shape) < 2 or grey.max() <= grey.min():
        return
    y, x = (np.clip((np.arange(-1, n + 1) + 0.5) / n, 0, 1) for n in grey.shape)
    level = (float(grey.min()) + float(grey.max())) / 2
    padded = np.pad(grey, 1, mode="edge")
    axes.contour(x, y, padded, levels=[level], colors=[theme.content], linewidths=1.3)


def label_range(axes: Any, values: np.ndarray, theme: Theme) -> None:
    """The smallest and largest weight of a panel below it."""
    text = f"{short(values.min())} – {short(values.max())}"
    axes.set_xlabel(text, fontsize=7, color=theme.faint, labelpad=2)


def label_panel(
    axes: Any, values: np.ndarray, theme: Theme, row: int, head: int, name: str
) -> None:
    """The range of weights below a panel; the head above the first row, the layer beside the first
    head.
    """
    label_range(axes, values, theme)
    if row == 0:
        axes.set_title(f"head {head}", fontsize=8)
    if head == 1:
        axes.set_ylabel(name, fontsize=8.5)


def name_lanes(axes: Any, names: Sequence[str], most: int) -> None:
    """Names of channels at their lanes; of a single channel beside its numbers.

    Args:
        most: lanes that are named, at most.
    """
    if not names:
        return
    if len(names) == 1:
        axes.set_ylabel(clip(names[0]), fontsize=7)
        return
    if len(names) > most:
        names = ()
    places = [len(names) - 0.6 - i for i in range(len(names))]
    axes.set_yticks(places, [clip(name) for name in names], fontsize=7)
    axes.tick_params(axis="y", length=0)


def show_frame(axes: Any, shown: bool) -> None:
    """Show or hide the frame of a panel."""
    for spine in axes.spines.values():
        spine.set_visible(shown)


def no_ticks(axes: Any) -> None:
    """No numbers: of pictures, whose pixels need none."""
    axes.set_xticks([])
    axes.set_yticks([])


def few_ticks(axes: Any) -> None:
    """A few small numbers."""
    axes.locator_params(nbins=3)
    axes.tick_params(labelsize=6, length=2, pad=1)


def hide_rest(panels: Any, count: int) -> None:
    """Leave the panels after the first ``count`` empty."""
    for axes in panels[count:]:
        axes.set_axis_off()


def percent(axis: Any) -> None:
    """Write the numbers of an axis as percentages."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def clip(name: str, most: int = NAME) -> str:
    """Return a name, cut in the middle if it is wider than a small panel.

    Example:
        >>> clip("a rather long name of a column", most=12)
        'a rat…column'
    """
    if len(name) > most:
        name = f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"
    return literal(name)


def short(value: float) -> str:
    """Return a number in a few letters.

    Example:
        >>> short(0.0), short(0.1234), short(0.00012)
        ('0', '0.12', '1e-04')
    """
    if value == 0:
        return "0"
    if abs(value) >= 1e-3:
        return f"{value:.2g}"
    return f"{value:.0e}"
