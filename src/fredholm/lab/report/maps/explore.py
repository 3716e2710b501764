"""The interactive figure: every row of the kernel of one sample, for a query that the reader picks."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....domain import Domain
from ....errors import OptionError, ShapeError
from ....explain.kernels import default_domain, image_grid, output_points
from ....files import write_text
from ....progress import working
from ...data.kinds.kind import Cloud
from ...numbers import readable
from ..layers import (
    MAX_HEADS,
    Axis,
    Layer,
    View,
    first_map,
    first_sample,
    layout_of,
    places_of,
    real_points,
    shown_layers,
)
from ..page import Section, render_figure, words
from .graphs import node_places

# Weights of a page, a byte each.
MOST = 1_500_000

# Points of a sample, an element of the page each.
POINTS = 600

# Levels of a weight, from zero to the largest of its row.
STEPS = 127

# Height of a figure in pixels, by the layout of its points.
HEIGHTS = {
    "words": 260,
    "line": 370,
    "grid": 520,
    "points": 520,
}


class Explorer:
    """The interactive figure of some kernels: pick a query point, see its row of the kernel.

    A notebook shows it as the result of a cell. It is one HTML page that loads nothing and runs one
    script, so that it works from a file, without a server and without the internet.

    Attributes:
        page: the HTML.
        height: in pixels, where it stands inside another page.
    """

    def __init__(
        self,
        title: str,
        found: dict[str, Any],
    ):
        self.title = title
        self.page = render_figure(title, found)
        self.height = HEIGHTS[found["layout"]]

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        return write_text(Path(path), self.page)

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:0"
        title = escape(self.title)
        page = escape(self.page)
        return f'<iframe title="{title}" style="{style}" srcdoc="{page}"></iframe>'


def explore(
    operators: object,
    u: Tensor,
    domain: Domain | None = None,
    *,
    names: Sequence[str] = (),
) -> Explorer:
    """Return an interactive figure of the kernels of one or several operators on one signal.

    Sliders choose the operator and the head; mouse, Tab and arrow keys choose the query point.
    Weights are those of :func:`fredholm.explain.kernel_map`.

    Args:
        operators: an operator (anything that obeys the contract: ``kernel_matrix``, ``weights``),
            or a dictionary of several by the names that the figure shows.
        u: features (B, N, dim); of a batch the first signal is shown.
        domain: of the points (default: each operator's own, mostly a line).
        names: of the points, such as the words of a text.

    Raises:
        OptionError: no operator, or something that is not one; or points that cannot be drawn: more
            than 600, in more than three dimensions, or with queries elsewhere than keys.
        ShapeError: another number of names than points.

    Example:
        >>> from fredholm import create_operator
        >>> figure = explore(create_operator("softmax", 8, heads=2), torch.randn(1, 5, 8))
        >>> figure._repr_html_()[:7]
        '<iframe'
    """
    if _is_operator(operators):
        operators = {type(operators).__name__: operators}
    if not isinstance(operators, Mapping):
        raise OptionError(
            f"operators: expected an operator or a dictionary of operators by name, got "
            f"{type(operators).__name__}; name each, such as {{'first': operator}}"
        )
    if not operators:
        raise OptionError("expected one operator or more, got none")
    for name, operator in operators.items():
        if not _is_operator(operator):
            raise OptionError(
                f"operators: expected an operator for {name!r}, got {type(operator).__name__}; "
                "fredholm.as_operator converts other layers"
            )
    if names and len(names) != u.shape[1]:
        raise ShapeError(f"expected {u.shape[1]} names, one per point, got {len(names)}")

    layers = []
    for name, each in operators.items():
        place = domain
        if place is None:
            place = default_domain(each, u)
        layers.append(Layer(name, each, u, place))

    section = explore_section(View(layers, axis=Axis(tuple(names))))
    if section is None or section.explorer is None:
        raise OptionError(
            f"expected 2 to {POINTS} points that can be drawn, at which the operator also answers; "
            f"got {layers[0].domain}"
        )
    return Explorer(f"Kernels of {', '.join(operators)}", section.explorer)


def _is_operator(value: Any) -> bool:
    """Whether a value obeys the operator contract."""
    return hasattr(value, "kernel_matrix") and hasattr(value, "weights")


def explore_section(view: View) -> Section | None:
    """Return the figure in which the reader picks layer, head and query; None where the points
    cannot be drawn, are too many, or queries live elsewhere than keys.
    """
    # A strided convolution answers at other points than those that can be picked.
    shown = [
        layer
        for layer in shown_layers(view.layers)
        if output_points(layer.operator, layer.domain) is layer.domain
    ]
    if not shown:
        return None
    points = _points(replace(view, layers=shown))
    if points is None or not 1 < len(points.indices) <= POINTS:
        return None

    # Every row of every head is part of the page: few layers fit where points are many.
    count = len(points.indices)
    shown = shown[: max(1, MOST // (MAX_HEADS * count**2))]
    with working("explain: all queries"):
        weights = _weights(shown, points.indices)
    encoded, scales = quantised(weights)

    # The figure opens at the middle, or at the point nearest to it that the sample has: the columns
    # of an empty cell have no weights to show.
    middle = _middle(count, points.columns)
    present = set(real_points(shown[0].domain))
    real = [place for place, index in enumerate(points.indices) if index in present]
    query = min(real, key=lambda place: abs(place - middle), default=middle)

    places = None
    if points.places is not None:
        places = points.places.round(4).tolist()
    kernel = {
        "layers": [layer.name for layer in shown],
        "heads": weights.shape[1],
        "names": points.names,
        "layout": points.layout,
        "columns": points.columns,
        "places": places,
        "query": query,
        "scales": [float(f"{scale:.6g}") for scale in scales.flatten().tolist()],
        "weights": base64.b64encode(encoded.tobytes()).decode("ascii"),
    }

    picture = None
    shape = 1.0
    if view.image is not None and points.layout == "grid":
        height, width, _ = view.image.shape
        picture = _png(view.image)
        shape = width / height
    figure = {
        "kernel": json.dumps(kernel, ensure_ascii=False),
        "layers": len(shown),
        "heads": weights.shape[1],
        "layout": points.layout,
        "picture": picture,
        "shape": shape,
        "cells": (points.columns, -(-count // max(1, points.columns))),
        "axis": view.axis.label or view.kind.axis,
    }
    text = words("explore", kind=view.kind)
    return Section("explore", "Explore the kernel", text, explorer=figure)


@dataclass(frozen=True, eq=False)
class _Points:
    """The points of a sample that can be picked.

    Attributes:
        indices: of the domain.
        layout: ``words``, ``line``, ``grid`` or ``points``.
        names: of each.
        places: (n, 2) in the unit square, the second downwards; None of words and of a line.
        columns: of a grid; 0 elsewhere.
    """

    indices: list[int]
    layout: str
    names: list[str]
    places: np.ndarray | None = None
    columns: int = 0


def _points(view: View) -> _Points | None:
    """Return the points of the first sample that can be picked, and where they are drawn."""
    domain = view.layers[0].domain
    point = view.kind.point
    layout = layout_of(domain, view.axis)
    if layout == "grid":
        return _grid_points(domain, point)
    if layout == "words":
        names = view.axis.of(domain)
        kept = [index for index, name in enumerate(names) if name]
        return _Points(kept, layout, [names[index] for index in kept])

    real = real_points(domain)
    x = places_of(domain).numpy()
    nodes = node_places(first_sample(domain), view.kind)
    if nodes is not None:
        layout = "points"
        x = nodes.numpy()
    if layout == "line":
        real = sorted(real, key=lambda index: x[index, 0])
        at = [readable(x[index, 0] * view.axis.unit, 3) for index in real]
        names = [f"{point} {index + 1}, at {place}" for index, place in zip(real, at)]
        return _Points(real, layout, names)
    if layout == "points":
        names = [f"{point} {index + 1}" for index in real]
        return _Points(real, layout, names, _in_square(Cloud(x[real]).flat()))
    return None


def _grid_points(domain: Domain, point: str) -> _Points:
    grid = image_grid(domain)
    assert grid is not None
    rows, columns = grid.shape
    row, column = np.indices((rows, columns)).reshape(2, -1)
    centres = np.stack([(column + 0.5) / columns, (row + 0.5) / rows], 1)
    names = [
        f"{point} in row {r + 1}, column {c + 1}" for r, c in zip(row.tolist(), column.tolist())
    ]
    return _Points(grid.flatten().tolist(), "grid", names, centres, columns)


def _in_square(places: np.ndarray) -> np.ndarray:
    """Return places (n, 2) scaled into the unit square, with a margin and the second downwards."""
    extent = max(float(np.ptp(places, axis=0).max()), 1e-12)
    middle = (places.min(0) + places.max(0)) / 2
    centres = 0.5 + 0.94 * (places - middle) / extent
    centres[:, 1] = 1 - centres[:, 1]
    return centres


def _middle(count: int, columns: int) -> int:
    """Return the point in the middle, of a grid too.

    Example:
        >>> _middle(9, 0), _middle(16, 4)
        (4, 10)
    """
    if not columns:
        return count // 2
    row = count // columns // 2
    return row * columns + columns // 2


@torch.no_grad()
def _weights(layers: Sequence[Layer], indices: list[int]) -> Tensor:
    """Return weights (layers, heads, queries, keys) of the first sample; a layer with fewer heads
    repeats its last one.
    """
    found = [first_map(layer, indices) for layer in layers]
    # One slider of heads serves all layers.
    heads = torch.arange(min(MAX_HEADS, max(len(each) for each in found)))
    filled = [each[heads.clamp(max=len(each) - 1)] for each in found]
    return torch.stack(filled)[..., indices].double().cpu()


def quantised(weights: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return weights (..., keys) as signed bytes, and the largest size of each row, of which a byte
    is a 127th.

    Example:
        >>> encoded, scales = quantised(torch.tensor([[0.5, -0.25, 0.0]]))
        >>> encoded.tolist(), scales.tolist()
        ([[127, -64, 0]], [0.5])
    """
    scales = weights.abs().amax(-1)
    # A row of zeros stays zero.
    safe = torch.where(scales > 0, scales, 1.0)[..., None]
    return (weights / safe * STEPS).round().to(torch.int8).numpy(), scales


def _png(image: np.ndarray) -> bytes:
    """Return an image (h, w, channels) in [0, 1] as PNG."""
    from PIL import Image

    pixels = image
    if image.shape[-1] != 3:
        pixels = image.mean(-1, keepdims=True).repeat(3, -1)
    levels = (255 * pixels.clip(0, 1)).round().astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return buffer.getvalue()
