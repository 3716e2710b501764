"""Parts of figures that several pages share: one panel, its labels and its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .style import Theme, colormap, literal

# Letters of a name above a small panel.
NAME = 11

# The extent of pictures in the unit square, first row on top.
UNIT = (0.0, 1.0, 1.0, 0.0)


def picture(axes: Any, image: np.ndarray, **options: Any) -> None:
    """Draw an image (h, w, channels) in [0, 1] without frame and ticks: three channels in colour,
    any other number as their mean in grey.
    """
    shown = image
    if image.shape[-1] != 3:
        shown = image.mean(-1)
    axes.imshow(
        shown,
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        **options,
    )
    axes.spines[:].set_visible(False)
    no_ticks(axes)


def weights_image(
    axes: Any,
    values: np.ndarray,
    theme: Theme,
    shape: float,
    **look: Any,
) -> None:
    """Draw weights over a grid in the unit square, from zero to the panel's largest unless ``look``
    says otherwise.

    Args:
        shape: height over width of the panel.
    """
    usual = {"cmap": colormap(theme), "vmin": 0, "vmax": largest(values)}
    axes.imshow(
        values,
        extent=UNIT,
        aspect=shape,
        **(usual | look),
    )
    no_ticks(axes)


def largest(values: np.ndarray) -> float:
    """Return the largest of some weights, or 1 where none is positive."""
    return max(float(values.max()), 0.0) or 1.0


def ring(
    axes: Any,
    theme: Theme,
    at: Any,
    *,
    size: float,
    width: float,
) -> None:
    """Draw a ring around the query, at (row, column) of the unit square."""
    row, column = at
    look = {"marker": "o", "markersize": size, "color": "none"}
    axes.plot(
        column,
        row,
        markeredgecolor=theme.mark,
        markeredgewidth=width,
        **look,
    )


def outline(axes: Any, image: np.ndarray, theme: Theme) -> None:
    """Draw an image as the line where its brightness crosses the middle of its range, so that the
    map below stays readable.
    """
    grey = image.mean(-1)
    if min(grey.shape) < 2 or grey.max() <= grey.min():
        return

    # One more pixel on every side, so that lines end at the border of the panel.
    padded = np.pad(grey, 1, mode="edge")
    y, x = (np.clip((np.arange(-1, n + 1) + 0.5) / n, 0, 1) for n in grey.shape)
    level = (float(grey.min()) + float(grey.max())) / 2
    axes.contour(
        x,
        y,
        padded,
        levels=[level],
        colors=[theme.content],
        linewidths=1.3,
    )


def label_range(axes: Any, values: np.ndarray, theme: Theme) -> None:
    """Write the smallest and the largest weight of a panel below it, since each panel has its own
    colour scale.
    """
    text = f"{short(values.min())} – {short(values.max())}"
    axes.set_xlabel(
        text,
        fontsize=7,
        color=theme.faint,
        labelpad=2,
    )


def head_panels(
    every: Sequence[Sequence[Any]],
    names: Sequence[str],
    found: Sequence[np.ndarray],
) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the axes and the values of each head of each layer; heads are named above the first
    row, layers beside the first head.

    Args:
        every: axes by layer and head.
        names: of the layers.
        found: values of each layer, one array per head.
    """
    for row, (name, layer) in enumerate(zip(names, found)):
        for head, (axes, values) in enumerate(zip(every[row], layer), 1):
            if row == 0:
                axes.set_title(f"head {head}", fontsize=8)
            if head == 1:
                axes.set_ylabel(name, fontsize=8.5)
            yield axes, values


def name_lanes(axes: Any, names: Sequence[str], most: int) -> None:
    """Write names of channels beside their lanes; of a single channel beside its numbers.

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


def no_ticks(axes: Any) -> None:
    """Remove the numbers of both axes; pixels need none."""
    axes.set_xticks([])
    axes.set_yticks([])


def few_ticks(axes: Any) -> None:
    """Leave a few small numbers on both axes."""
    axes.locator_params(nbins=3)
    axes.tick_params(labelsize=6, length=2, pad=1)


def percent(axis: Any) -> None:
    """Write the numbers of an axis as percentages, with as many digits as they need."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def whole_numbers(axis: Any) -> None:
    """Write whole numbers alone on an axis, such as epochs."""
    axis.get_major_locator().set_params(integer=True)


def plain_decades(axis: Any) -> None:
    """Write the numbers of a logarithmic axis without powers of ten, after its data are drawn."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = axis.get_view_interval()
    # Within a decade powers of ten leave an axis almost empty.
    locator = LogLocator()
    if high < 10 * low:
        locator = MaxNLocator(4)
    axis.set_major_locator(locator)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


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
    """Return a number with at most two significant digits, for labels of small panels. Magnitudes
    below 0.001 have one digit and a power of ten, which takes less room than their zeros.

    Example:
        >>> short(0.0), short(0.1234), short(0.00012)
        ('0', '0.12', '1e-04')
    """
    if value == 0:
        return "0"
    if abs(value) >= 1e-3:
        return f"{value:.2g}"
    return f"{value:.0e}"
