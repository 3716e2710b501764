"""The section of training curves."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import DataError
from ...numbers import duration
from ..page import Data, Picture, Section, words
from ..panels import dots, percent, whole_numbers, within_percent
from ..style import Theme, panels, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PARTS = {"train": "training", "val": "validation"}


def read_history(
    metrics: str | Path | Iterable[Mapping[str, Any]],
) -> dict[str, list[float]]:
    """Return the columns of a ``metrics.csv`` or of rows (one mapping per epoch), without columns
    that are not numbers throughout.

    Raises:
        DataError: no file there, or no column ``epoch``.

    Example:
        >>> read_history([{"epoch": 1, "val_loss": 0.5}, {"epoch": 2, "val_loss": 0.25}])
        {'epoch': [1.0, 2.0], 'val_loss': [0.5, 0.25]}
    """
    name = "metrics"
    rows = metrics
    if isinstance(metrics, str | Path):
        name = str(metrics)
        try:
            with open(metrics, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise DataError(
                f"cannot read {name}: {error.strerror}; give the metrics.csv of a run"
            ) from error

    table: list[Mapping[str, Any]] = list(rows)  # pyright: ignore[reportArgumentType]
    columns: dict[str, list[float]] = {}
    for key in table[0] if table else ():
        try:
            columns[key] = [float(row[key]) for row in table]
        except (KeyError, TypeError, ValueError):
            continue
    if "epoch" not in columns:
        raise DataError(
            f"{name} has no column 'epoch' of numbers; it needs one row per epoch, as fredholm train "
            "writes them"
        )
    return columns


def curve_section(history: dict[str, list[float]]) -> Section:
    """Return the section with loss and accuracy against the epoch."""
    unit = ""
    also = ""
    time = ""
    alt = "Loss against the epoch"
    if "val_accuracy" in history:
        unit = " (nats)"
        also = ", and validation accuracy,"
        final = history["val_accuracy"][-1]
        alt = f"Loss and accuracy against the epoch; validation accuracy ends at {final:.1%}"
    if history.get("seconds"):
        time = f", {duration(history['seconds'][-1])} in all"
    epochs = len(history["epoch"])
    caption = words(
        "curves_caption",
        unit=unit,
        also=also,
        epochs=epochs,
        time=time,
    )
    picture = Picture(
        "curves",
        alt,
        caption,
        render(draw_curves, history),
        Data.of(history),
    )
    return Section("training", "Training", "", [picture])


def draw_curves(theme: Theme, history: Mapping[str, list[float]]) -> Figure:
    """Plot loss and, where it is known, accuracy against the epoch: one panel per quantity, one
    line each for training and validation.

    Args:
        history: columns of ``metrics.csv``, one number per epoch: ``epoch``, and any of
            ``train_loss``, ``val_loss``, ``train_accuracy`` and ``val_accuracy``, as shares of 1.
    """
    drawn = []
    for what in ("loss", "accuracy"):
        if any(f"{part}_{what}" in history for part in PARTS):
            drawn.append(what)
    # Without any of these columns the page shows an empty panel.
    drawn = drawn or ["loss"]
    figure, every = panels(theme, len(drawn), 2.7)
    for axes, what in zip(every, drawn):
        _curve(axes, theme, history, what)
        axes.set_title(what)
        if what == "accuracy":
            percent(axes.yaxis)
            axes.set_ylim(within_percent(axes.get_ylim()))
    return figure


def _curve(
    axes: Axes,
    theme: Theme,
    history: Mapping[str, list[float]],
    what: str,
) -> None:
    """Plot one quantity, ``"loss"`` or ``"accuracy"``, of training and validation."""
    epoch = history["epoch"]
    for (part, label), colour in zip(PARTS.items(), theme.series):
        values = history.get(f"{part}_{what}")
        if values is not None:
            axes.plot(
                epoch,
                values,
                color=colour,
                label=label,
                **dots(len(epoch)),
            )
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    whole_numbers(axes.xaxis)
    # The limits of a single epoch would be equal or very near.
    if len(epoch) == 1:
        axes.set_xlim(epoch[0] - 1, epoch[0] + 1)
    if axes.lines:
        axes.legend()
