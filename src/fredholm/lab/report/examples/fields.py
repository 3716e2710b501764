"""The section on fields: input, truth, prediction and error of some samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...data.kinds.kind import Cloud
from ..page import Data, Picture, Section, words
from ..panels import no_ticks
from ..style import Theme, colormap, colour_scale, panels, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class FieldSample(NamedTuple):
    """Input, truth and prediction of one field, in the units of the files.

    Attributes:
        given, truth, answer: (h, w) on a grid, (points,) on points; ``given`` is None where a
            model reads nothing but the coordinates of the points.
        places: (points, 2), the coordinates of points; None on a grid.
        error: relative L2 error of the sample.
        name: what the sample is called; "" where that is not known.
    """

    given: np.ndarray | None
    truth: np.ndarray
    answer: np.ndarray
    places: np.ndarray | None
    error: float
    name: str = ""

    def panels(self) -> dict[str, np.ndarray]:
        """Return the fields to draw, each of the shape of ``truth``, by the title of their panel:
        ``input`` if there is one, ``truth``, ``prediction``, and ``error``, the signed difference
        (prediction − truth) at each point.
        """
        found = {}
        if self.given is not None:
            found["input"] = self.given
        found["truth"] = self.truth
        found["prediction"] = self.answer
        found["error"] = self.answer - self.truth
        return found

    def data(self) -> Data:
        """Return the panels as one table, a row per point."""
        if self.places is None:
            rows, columns = np.indices(self.truth.shape)
            at = {"row": rows, "column": columns}
        else:
            x, y = self.places.T
            at = {"x": x, "y": y}

        columns = {}
        for name, values in (at | self.panels()).items():
            columns[name] = values.ravel().tolist()
        return Data.of(columns)


def field_section(samples: Sequence[FieldSample], name: str) -> Section:
    """Return the section with the worst, a middling and the best sample, by relative error."""
    order = sorted(samples, key=lambda sample: -sample.error)
    # Of one or two samples the first label that fits.
    middle = len(order) // 2
    last = len(order) - 1
    labels = {0: "worst", middle: "median", last: "best"}
    pictures = []
    for place, label in sorted(labels.items()):
        sample = order[place]
        caption = words(
            "field_caption",
            label=label,
            error=f"{sample.error:.2%}",
            count=len(samples),
            name=name,
            sample=sample.name,
        )
        alt = f"Input, truth, prediction and error of the {label} of {len(samples)} fields"
        picture = Picture(
            f"field-{label}",
            alt,
            caption,
            render(draw_field, sample),
            sample.data(),
        )
        pictures.append(picture)
    return Section("fields", "Truth and prediction", words("fields"), pictures)


def field_samples(
    inputs: Tensor,
    outputs: Tensor,
    targets: Tensor,
    facts: Mapping[str, Any],
    coordinates: int,
) -> list[FieldSample]:
    """Return samples in the units of the files, the first channel of each.

    Args:
        inputs: (N, C, h, w), or (N, P, d + C) with coordinates first.
        outputs: (N, points, K), divided by the scale that ``facts`` name.
        targets: (N, K, h, w) or (N, K, P), NaN where a sample has fewer points.
        facts: what was saved with the model.
        coordinates: d, of points.
    """
    scale = torch.tensor(facts.get("scale") or [1.0])
    answers = (outputs * scale)[..., 0].double()
    result = []
    for sample, answer, target in zip(inputs.double(), answers, targets.double()):
        truth = target[0]
        if inputs.dim() == 4:
            given = _on_grid(sample[0], facts)
            places = None
            answer = answer.reshape(truth.shape)
        else:
            real = ~truth.isnan()
            truth = truth[real]
            answer = answer[real]
            points = sample[real].numpy()
            given, places = _on_points(points, facts, coordinates)

        # A grid may have holes as well; they are drawn empty and do not count.
        known = ~truth.isnan()
        off = (answer - truth)[known]
        size = float(truth[known].norm()) or 1.0
        error = float(off.norm()) / size
        result.append(FieldSample(given, truth.numpy(), answer.numpy(), places, error))
    return result


def _on_grid(values: Tensor, facts: Mapping[str, Any]) -> np.ndarray:
    """Return the first input channel on a grid, (h, w), in the units of the files: times its scale,
    plus its shift, which normalised it for the model.
    """
    shifts = facts.get("shift") or [0.0]
    units = facts.get("input_scale") or [1.0]
    values = values * units[0] + shifts[0]
    return values.numpy()


def _on_points(
    points: np.ndarray,
    facts: Mapping[str, Any],
    coordinates: int,
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the first input, if there is one, and the places of points in the units of the files."""
    source = facts.get("source") or {}
    scaling = source.get("scaling") or {}
    places = points[:, :coordinates]
    if "low" in scaling:
        low = np.array(scaling["low"])
        places = places * scaling["extent"] + low
    if coordinates > 1:
        flat = Cloud(places).flat()
    else:
        # Points of a line lie at height 0.
        flat = np.pad(places, ((0, 0), (0, 1)))

    if points.shape[1] == coordinates:
        return None, flat
    given = points[:, coordinates]
    if "mean" in scaling:
        mean = scaling["mean"][0]
        std = scaling["std"][0]
        given = given * std + mean
    return given, flat


# --- pictures -------------------------------------------------------------------------------------


def draw_field(theme: Theme, sample: FieldSample) -> Figure:
    """Draw input, truth, prediction and error of one field; truth and prediction share a scale, and
    zero error has the colour of the paper.
    """
    found = sample.panels()
    shape = 0.8
    columns = theme.pick(len(found), 2)
    if sample.places is None:
        rows, cells = sample.truth.shape
        shape = rows / cells
    across = (theme.width - 0.3) / columns
    # The bar of colours takes a part of a panel's width.
    relative = min(max(0.72 * shape, 0.2), 1.5)
    height = across * relative + 0.45
    figure, every = panels(theme, len(found), height, columns=columns)

    # Truth and prediction share one scale.
    both = np.concatenate([sample.truth.ravel(), sample.answer.ravel()])
    shared = {"truth": both, "prediction": both}
    for axes, (name, values) in zip(every, found.items()):
        if name == "error":
            look = colour_scale(theme, values, signed=True)
        else:
            spanned = shared.get(name, values)
            # A grid may have holes, which are NaN.
            look = {
                "cmap": colormap(theme),
                "vmin": np.nanmin(spanned),
                "vmax": np.nanmax(spanned),
            }
        drawn = _values(axes, values, sample.places, look)
        axes.set_title(name, loc="center")
        no_ticks(axes)
        bar = figure.colorbar(
            drawn,
            ax=axes,
            shrink=0.8,
            pad=0.03,
        )
        bar.ax.tick_params(labelsize=7, colors=theme.faint)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def _values(
    axes: Axes,
    values: np.ndarray,
    places: np.ndarray | None,
    look: dict[str, Any],
) -> Any:
    """Draw values on their grid, or as dots at their places, and return matplotlib's artist."""
    if places is None:
        return axes.imshow(values, interpolation="nearest", **look)
    axes.set_aspect("equal", adjustable="datalim")
    return axes.scatter(
        *places.T,
        c=values,
        s=5,
        linewidths=0,
        **look,
    )
