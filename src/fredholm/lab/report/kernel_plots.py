"""Pictures of kernels against distance, as shares of variance, and of the steps of an evolution.
Every function takes a theme and numbers and returns a figure; none computes anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...explain.kernels import Profile
from ...explain.variance import VarianceShare
from .panels import percent
from .style import Theme, new_figure, panels, panels_abreast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Quantities of a trajectory, and the titles of their panels.
QUANTITIES = {
    "energy": "energy ½‖u‖²",
    "distance": "distance to mean 0, sd 1",
    "growth": "growth of a difference",
}

# Steps below which each is a dot on its line.
DOTTED = 25


def profiles(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[Profile],
    what: str,
    label: str,
) -> Figure:
    """Plot a mean against distance, one panel per layer: all heads with their band, and each head
    as a thin line.

    Args:
        what: ``"norm"`` or ``"weight"``.
        label: of the vertical axis.
    """
    columns, width = min(3, len(found)), theme.width
    if theme.narrow:
        columns = 1
    if columns == 1:
        width = min(width, 5.0)
    figure, every = panels(
        len(found),
        columns,
        (width, 2.5),
        margin=0.3,
        sharex=True,
    )
    for axes, name, profile in zip(every, names, found):
        _profile(axes, theme, profile, what)
        axes.set_title(name)
    figure.supxlabel("distance |x − y|", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return figure


def _profile(
    axes: Axes,
    theme: Theme,
    profile: Profile,
    what: str,
) -> None:
    distance = profile.distance.numpy()
    mean, sd = (values.numpy() for values in profile.pooled(what))
    heads = getattr(profile, what).numpy()

    # Norms and weights are never negative.
    low = np.maximum(mean - sd, 0)
    axes.fill_between(
        distance,
        low,
        mean + sd,
        color=theme.series[0],
        alpha=0.18,
        linewidth=0,
    )
    if len(heads) > 1:
        axes.plot(
            distance,
            heads.T,
            color=theme.faint,
            linewidth=0.8,
            alpha=0.8,
        )
    axes.plot(
        distance,
        mean,
        color=theme.series[0],
        marker="o",
        markersize=3,
    )
    axes.tick_params(labelbottom=True)
    top = max(float((mean + sd).max()), float(heads.max()))
    axes.set_ylim(0, 1.08 * top or 1)
    axes.grid(axis="y")


def shares(theme: Theme, names: Sequence[str], found: Sequence[VarianceShare]) -> Figure:
    """Plot stacked bars, position then content, one row per layer; the error at their border, heads
    as dots.
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
        axes.legend(
            axes.patches[:2],
            ["position", "content"],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            borderaxespad=0.2,
        )
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _share(
    axes: Axes,
    theme: Theme,
    row: int,
    share: VarianceShare,
) -> None:
    if not np.isfinite(share.share):
        text = "constant kernel: no variance to share"
        axes.text(
            0.01,
            row,
            text,
            va="center",
            color=theme.faint,
        )
        return

    # An estimate from few samples can leave [0, 1].
    part = min(max(share.share, 0.0), 1.0)
    axes.barh(row, part, color=theme.position, height=0.62)
    axes.barh(
        row,
        1 - part,
        left=part,
        color=theme.content,
        height=0.62,
    )
    axes.errorbar(
        part,
        row,
        xerr=share.error,
        color=theme.ink,
        capsize=3,
        linewidth=1.2,
    )
    heads = share.head_share.clamp(0, 1).numpy()
    if len(heads) > 1:
        axes.scatter(
            heads,
            np.full(len(heads), row),
            s=14,
            zorder=3,
            color=theme.paper,
            edgecolor=theme.ink,
            linewidth=0.8,
        )
    text = f"{part:.0%} ± {share.error:.1%}"
    axes.text(
        1.012,
        row,
        text,
        va="center",
        color=theme.ink,
        fontsize=8.5,
    )


def steps(theme: Theme, paths: Mapping[int, Mapping[str, list[float]]]) -> Figure:
    """Plot each quantity against time: one panel per quantity, one line per number of steps."""
    figure, every = panels_abreast(theme, len(QUANTITIES), 2.7)
    for axes, (key, label) in zip(every, QUANTITIES.items()):
        for colour, (count, path) in zip(theme.series, paths.items()):
            size = 3 if count < DOTTED else 0
            axes.plot(
                path["time"],
                path[key],
                color=colour,
                marker="o",
                markersize=size,
                label=f"{count} steps",
            )
        axes.set_title(label)
        axes.set_xlabel("time t")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    every[0].legend()
    return figure
