"""One look for all pictures, in a light and a dark version; matplotlib without its global state."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import require
from .page import DPI

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Inches of a picture as wide as the page.
WIDTH = 9.0

# Inches of a picture that a phone shows without shrinking its letters.
PHONE = 3.6

# Inches of a panel that stands alone: across the page it would be a strip.
ALONE = 5.0


Value = TypeVar("Value")


def literal(text: str) -> str:
    """Return text that matplotlib draws as it is written: dollars would enclose a formula."""
    return text.replace("$", r"\$")


@dataclass(frozen=True)
class Theme:
    """Colours and width of one version of all pictures.

    Attributes:
        ink, faint, rule, paper: of letters, notes, lines of the frame, and the background.
        series: colours that people who confuse red and green can tell apart (after Okabe and Ito).
        position, content: the two parts of a kernel's variance; also positive and negative.
        mark: of the query point.
        good, bad: of right and wrong answers.
        sequential: from zero to the largest value.
        width: of the page, in inches.
    """

    name: str
    ink: str
    faint: str
    rule: str
    paper: str
    series: tuple[str, ...]
    position: str
    content: str
    mark: str
    good: str
    bad: str
    sequential: tuple[str, ...]
    width: float = WIDTH

    @property
    def narrow(self) -> bool:
        """Whether panels stand below one another rather than side by side."""
        return self.width < WIDTH

    def pick(self, page: Value, phone: Value) -> Value:
        """Return the first value for a wide figure and the second for a phone."""
        if self.narrow:
            return phone
        return page


LIGHT = Theme(
    name="light",
    ink="#1d2430",
    faint="#667080",
    rule="#d5dae1",
    paper="#ffffff",
    series=("#0072b2", "#d55e00", "#009e73", "#b0589a", "#8a6d00", "#3aa3d8", "#444c56", "#c98b00"),
    position="#0072b2",
    content="#e69f00",
    mark="#d6006e",
    good="#00795a",
    bad="#c04a00",
    sequential=("#f4f7fb", "#c6dbef", "#6baed6", "#2171b5", "#08306b"),
)
DARK = Theme(
    name="dark",
    ink="#e4e8ee",
    faint="#98a2b0",
    rule="#39414d",
    paper="#14181f",
    series=("#56b4e9", "#f08a45", "#2fc79a", "#dd8cc4", "#e6cf4a", "#8fd0f5", "#c4ccd6", "#f5b942"),
    position="#56b4e9",
    content="#d89a1d",
    mark="#ff5fae",
    good="#2fc79a",
    bad="#f08a45",
    sequential=("#1a212b", "#173f66", "#2878b5", "#7cc0ee", "#eaf6ff"),
)


NARROW = (
    replace(LIGHT, name="light-narrow", width=PHONE),
    replace(DARK, name="dark-narrow", width=PHONE),
)
THEMES = (LIGHT, DARK, *NARROW)


def settings(theme: Theme) -> dict[str, Any]:
    """Return the parameters of matplotlib for a theme."""
    return {
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "axes.edgecolor": theme.rule,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "grid.color": theme.rule,
        "grid.linewidth": 0.6,
        "axes.grid": False,
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.6,
        "axes.titlelocation": "left",
        "mathtext.fontset": "dejavusans",
    }


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of a size in inches, outside pyplot.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", "train", "drawing a report's pictures")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(
    theme: Theme,
    count: int,
    height: float,
    *,
    columns: int | None = None,
    width: float | None = None,
    margin: float = 0.0,
    **options: Any,
) -> tuple[Figure, list[Any]]:
    """Return a figure of ``count`` panels, row by row, and their axes; the rest of the last row
    stays empty.

    Args:
        height: of one row, in inches.
        columns: panels of a row; by default all, on a phone one.
        width: of the figure, in inches; by default that of the page, or less where a panel without
            others beside it would be wider than it needs to be (:data:`ALONE`).
        margin: height beside the rows, for what all panels share.
        options: of :meth:`matplotlib.figure.Figure.subplots`.
    """
    columns = columns or theme.pick(count, 1)
    rows = -(-count // columns)
    if width is None:
        width = min(theme.width, ALONE * columns)
    figure = new_figure(width, height * rows + margin)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes = list(grid.ravel())
    for empty in axes[count:]:
        empty.set_axis_off()
    return figure, axes[:count]


def layer_panels(
    theme: Theme,
    found: Sequence[Any],
    *,
    largest: float,
    title: float,
) -> tuple[Figure, list[list[Any]]]:
    """Return a figure of square panels, one row per layer and one column per head, and its axes.

    Args:
        found: what is drawn: of each layer, one value per head.
        largest: side of a panel in inches, where the page is wide enough.
        title: inches above a panel.
    """
    layers = len(found)
    heads = len(found[0])
    across = panels_across(theme, heads)
    side = min(largest, theme.width / across)
    rows = layers * -(-heads // across)
    width = max(3.0, min(theme.width, side * across + 0.6))
    height = (side + title) * rows + 0.3
    figure = new_figure(width, height)
    return figure, grid_of_panels(figure, theme, layers, heads)


def grid_of_panels(
    figure: Figure,
    theme: Theme,
    rows: int,
    columns: int,
) -> list[list[Any]]:
    """Return the axes of a grid of panels, a list of ``rows`` lists of ``columns`` axes.

    On a narrow figure a row continues below itself, see :func:`panels_across`. Panels that this
    leaves over at the end of a row are hidden.
    """
    across = panels_across(theme, columns)
    # Lines of panels that one row takes in the figure.
    lines = -(-columns // across)
    grid = figure.subplots(rows * lines, across, squeeze=False)
    axes = grid.reshape(rows, lines * across)
    for empty in axes[:, columns:].ravel():
        empty.set_axis_off()
    return axes[:, :columns].tolist()


def panels_across(theme: Theme, columns: int) -> int:
    """Return how many panels of :func:`grid_of_panels` stand side by side: on a narrow figure
    three, or two where that leaves fewer places empty.

    Example:
        >>> [panels_across(NARROW[0], count) for count in (1, 4, 5, 6)], panels_across(LIGHT, 5)
        ([1, 2, 3, 3], 5)
    """
    if not theme.narrow or columns < 3:
        return columns
    return min((3, 2), key=lambda across: -columns % across)


def colormap(theme: Theme) -> Colormap:
    """Return sequential colours, from the paper to the strongest ink."""
    return _blend(theme.sequential)


def _blend(colours: Sequence[str]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("fredholm", list(colours))


def colour_scale(
    theme: Theme,
    values: np.ndarray,
    *,
    signed: bool | None = None,
) -> dict[str, Any]:
    """Return colours for weights and their range, as options of matplotlib's artists: from zero to
    the largest weight; of signed weights, zero is the middle and the range is symmetric.

    Args:
        values: the weights; NaN where there is none.
        signed: by default, whether a weight is negative beyond rounding.
    """
    from matplotlib.colors import Normalize

    known = values[~np.isnan(values)]
    # Weights that are all 0 still need a range of some width.
    largest = np.abs(known).max(initial=0.0)
    size = float(largest) or 1.0
    if signed is None:
        signed = has_negative(known)

    low = 0.0
    colours = colormap(theme)
    if signed:
        # The paper is zero.
        low = -size
        colours = _blend((theme.content, theme.paper, theme.position))
    return {"cmap": colours, "norm": Normalize(low, size)}


def has_negative(values: np.ndarray) -> bool:
    """Whether some weights are negative beyond rounding."""
    largest = np.abs(values).max(initial=0.0)
    rounding = 1e-6 * largest
    return bool((values < -rounding).any())


def render(draw: Callable[..., Figure], *values: Any) -> dict[str, bytes]:
    """Return the PNG of ``draw(theme, *values)`` by the theme's name. The same input gives the same
    bytes.

    A narrow version for phones is left out where a drawing ignores the theme's width.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", "train", "drawing a report's pictures")
    pictures = {}
    for theme in THEMES:
        # Settings are local, so that a user's own figures stay as they are.
        with matplotlib.rc_context(settings(theme)):
            figure = draw(theme, *values)
            if figure.get_figwidth() > theme.width + 0.1:
                continue
            buffer = io.BytesIO()
            # The version of matplotlib in the file would change the bytes.
            figure.savefig(
                buffer,
                format="png",
                dpi=DPI,
                metadata={"Software": None},
            )
        pictures[theme.name] = buffer.getvalue()
    return pictures
