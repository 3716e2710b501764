"""Parts of figures that several pages share: one panel, its labels and its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..numbers import readable
from .style import Theme, literal

# Letters of a name above a small panel.
NAME = 11

# Points of a line up to which each is a dot, and its look.
DOTTED = 40
DOT = {"marker": "o", "markersize": 3}

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
    shape: float,
    **look: Any,
) -> None:
    """Draw weights over a grid in the unit square.

    Args:
        shape: height over width of the panel.
        look: colours, see :func:`.style.colour_scale`.
    """
    axes.imshow(values, extent=UNIT, aspect=shape, **look)
    no_ticks(axes)


def weighted_points(
    axes: Any,
    theme: Theme,
    places: np.ndarray,
    weights: np.ndarray,
    at: int,
    **look: Any,
) -> None:
    """Draw points in the colours of their weights, the largest on top, and a ring around one.

    Args:
        places: (n, 2).
        weights: (n,), of either sign.
        at: index of the point with the ring, the query.
        look: colours and size of the points.
    """
    order = np.argsort(np.abs(weights), kind="stable")
    axes.scatter(*places[order].T, c=weights[order], zorder=3, **look)
    axes.scatter(
        *places[at],
        s=48,
        facecolor="none",
        edgecolor=theme.mark,
        linewidth=1.8,
        zorder=4,
    )
    axes.set_aspect("equal", adjustable="datalim")


def ring(axes: Any, theme: Theme, at: Sequence[float] | np.ndarray) -> None:
    """Draw a ring around the query, at (row, column) of the unit square."""
    row, column = at
    axes.plot(
        column,
        row,
        marker="o",
        color="none",
        markersize=6,
        markeredgecolor=theme.mark,
        markeredgewidth=1.8,
    )


def outline(
    axes: Any,
    values: np.ndarray,
    colour: str,
    *,
    outside: str = "edge",
) -> None:
    """Draw the line where values over the unit square cross the middle of their range, so that the
    map below stays readable.

    Args:
        outside: how values go on beyond the square, a mode of :func:`numpy.pad`: with
            ``"constant"`` they are 0, and lines close along the border.
    """
    # One more cell on every side, so that lines end at the border of the panel.
    padded = np.pad(values, 1, mode=outside)  # pyright: ignore[reportArgumentType, reportCallIssue]
    low = float(padded.min())
    high = float(padded.max())
    if min(values.shape) < 2 or high <= low:
        return
    rows, columns = values.shape
    y = _middles(rows)
    x = _middles(columns)
    axes.contour(
        x,
        y,
        padded,
        levels=[(low + high) / 2],
        colors=[colour],
        linewidths=1.3,
    )


def _middles(count: int) -> np.ndarray:
    """Return the middles of cells across the unit square, and of one more cell at either end, moved
    to the border.
    """
    middles = (np.arange(-1, count + 1) + 0.5) / count
    return np.clip(middles, 0, 1)


def label_range(axes: Any, values: np.ndarray, theme: Theme) -> None:
    """Write the smallest and the largest weight of a panel below it, since each panel has its own
    colour scale.
    """
    text = f"{short(values.min())} – {short(values.max())}"
    axes.set_xlabel(text, fontsize=7, color=theme.faint, labelpad=2)


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


def name_lanes(
    axes: Any,
    names: Sequence[str],
    most: int,
) -> None:
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
    clipped = [clip(name) for name in names]
    axes.set_yticks(places, clipped, fontsize=7)
    axes.tick_params(axis="y", length=0)


def dots(count: int) -> dict[str, Any]:
    """Return the markers of a line of so many points: dots, or none where they would merge."""
    if count <= DOTTED:
        return DOT
    return {}


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


def within_percent(limits: tuple[float, float]) -> tuple[float, float]:
    """Return limits of an axis that reach little beyond 0% and 100%, as margins would."""
    low, high = limits
    return max(low, -0.02), min(high, 1.02)


def plain_numbers(axis: Any) -> None:
    """Write a few numbers on an axis, large ones such as prices in full, with commas."""
    axis.get_major_locator().set_params(nbins=5)
    axis.set_major_formatter(lambda value, _: written(value))


def written(value: float) -> str:
    """Return a number for an axis, on which all numbers of five digits have their comma.

    Example:
        >>> written(0.25), written(50_000), written(1_250_000)
        ('0.25', '50,000', '1,250,000')
    """
    if abs(value) < 1e5:
        return f"{value:,.5g}"
    return readable(value, 5)


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
