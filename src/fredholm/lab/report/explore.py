"""The interactive figure: every row of the kernel of one sample, for a query that the reader picks."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...explain.kernels import image_grid, kernel_map, output_points
from ...files import write_text
from ...integral import IntegralOperator
from ..data.kinds.kind import SAMPLES, Cloud, Kind
from ..numbers import readable
from .layers import DRAWABLE, MAX_HEADS, PLAIN, Axis, Layer, first_sample, shown_layers
from .page import Section, render_figure, words

MOST = 1_500_000  # weights of a page, a byte each
POINTS = 600  # of a sample, an element of the page each
STEPS = 127  # of a weight, from zero to the largest of its row
HEIGHTS = {"words": 260, "line": 370, "grid": 520, "points": 520}  # of a figure, in pixels


class Explorer:
    """The interactive figure of some kernels: pick a query point, see its row of the kernel.

    A notebook shows it as the result of a cell. It is one HTML page that loads nothing and runs one
    script, so that it works from a file, without a server and without the internet.

    Attributes:
        page: the HTML.
        height: in pixels, where it stands inside another page.
    """

    def __init__(self, title: str, found: dict[str, Any]):
        self.title = title
        self.page = render_figure(title, found)
        self.height = HEIGHTS[found["layout"]]

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        return write_text(Path(path), self.page)

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe title="{escape(self.title)}" style="{style}" srcdoc="{escape(self.page)}"></iframe>'


def explore(
    operators: IntegralOperator | Mapping[str, IntegralOperator],
    u: Tensor,
    domain: Domain | None = None,
    *,
    names: Sequence[str] = (),
) -> Explorer:
    """Return an interactive figure of the kernels of one or several operators on one signal.

    Sliders choose the operator and the head; mouse, Tab and arrow keys choose the query point.
    Weights are those of :func:`fredholm.explain.kernel_map`.

    Args:
        operators: one, or several by the names that the figure shows.
        u: features (B, N, dim); of a batch the first signal is shown.
        domain: of the points (default: each operator's own, mostly a line).
        names: of the points, such as the words of a text.

    Raises:
        OptionError: no operator, or points that cannot be drawn: more than 600, in more than three
            dimensions, or with queries elsewhere than keys.
        ShapeError: another number of names than points.

    Example:
        >>> from fredholm import create_operator
        >>> figure = explore(create_operator("softmax", 8, heads=2), torch.randn(1, 5, 8))
        >>> figure._repr_html_()[:7]
        '<iframe'
    """
    if isinstance(operators, IntegralOperator):
        operators = {type(operators).__name__: operators}
    if not operators:
        raise OptionError("expected one operator or more, got none")
    if names and len(names) != u.shape[1]:
        raise ShapeError(f"expected {u.shape[1]} names, one per point, got {len(names)}")

    layers = [
        Layer(name, operator, u, domain or operator.default_domain(u))
        for name, operator in operators.items()
    ]
    section = explore_section(layers, None, SAMPLES, Axis(tuple(names)))
    if section is None or section.explorer is None:
        raise OptionError(
            f"expected 2 to {POINTS} points that can be drawn, at which the operator also answers; "
            f"got {layers[0].domain}"
        )
    return Explorer(f"Kernels of {', '.join(operators)}", section.explorer)


@dataclass(frozen=True, eq=False)
class _Points:
    """The points of a sample that can be picked.

    Attributes:
        indices: of the domain.
        layout: ``words``, ``line``, ``grid`` or ``points``.
        places: (n, 2) in the unit square, the second downwards; None of words and of a line.
        columns: of a grid; 0 elsewhere.
        names: of each.
    """

    indices: list[int]
    layout: str
    places: np.ndarray | None
    columns: int
    names: list[str]


def explore_section(
    layers: Sequence[Layer],
    image: np.ndarray | None,
    kind: Kind,
    axis: Axis = PLAIN,
) -> Section | None:
    """A figure in which the reader picks layer, head and query; None where the points cannot be
    drawn, are too many, or queries live elsewhere than keys.
    """
    shown = shown_layers(layers)
    domain = shown[0].domain
    if output_points(shown[0].operator, domain) is not domain:
        return None
    points = _points(domain, image, kind, axis)
    if points is None or not 1 < len(points.indices) <= POINTS:
        return None
    pairs = len(points.indices) ** 2
    shown = shown[: max(1, MOST // (MAX_HEADS * pairs))]
    weights = _weights(shown, points.indices)
    encoded, scales = quantised(weights)
    kernel = {
        "layers": [layer.name for layer in shown],
        "heads": weights.shape[1],
        "names": points.names,
        "layout": points.layout,
        "columns": points.columns,
        "places": None if points.places is None else points.places.round(4).tolist(),
        "query": _middle(len(points.indices), points.columns),
        "scales": [float(f"{scale:.6g}") for scale in scales.flatten().tolist()],
        "weights": base64.b64encode(encoded.tobytes()).decode("ascii"),
    }
    grid = image is not None and points.layout == "grid"
    figure = {
        "kernel": json.dumps(kernel, ensure_ascii=False),
        "layers": len(shown),
        "heads": weights.shape[1],
        "layout": points.layout,
        "picture": _png(image) if grid and image is not None else None,
        "shape": image.shape[1] / image.shape[0] if grid and image is not None else 1.0,
        "cells": (points.columns, -(-len(points.indices) // max(1, points.columns))),
        "axis": axis.label or kind.axis,
    }
    text = words("explore", kind=kind)
    return Section("explore", "Explore the kernel", text, explorer=figure)


def _middle(count: int, columns: int) -> int:
    """Return the point in the middle, of a grid too.

    Example:
        >>> _middle(9, 0), _middle(16, 4)
        (4, 10)
    """
    return count // 2 if not columns else count // columns // 2 * columns + columns // 2


def _points(domain: Domain, image: np.ndarray | None, kind: Kind, axis: Axis) -> _Points | None:
    """Return the points of the first sample that can be picked, and where they are drawn."""
    grid, names = image_grid(domain), axis.of(domain)
    x = domain.positions.reshape(-1, domain.size, domain.dim)[0].double().cpu().numpy()
    if grid is not None:
        rows, columns = grid.shape
        places = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)
        centres = (places + 0.5) / (columns, rows)
        named = [f"{kind.point} in row {r + 1}, column {c + 1}" for c, r in places.tolist()]
        return _Points(grid.flatten().tolist(), "grid", centres, columns, named)
    if any(names):
        kept = [i for i, name in enumerate(names) if name]
        return _Points(kept, "words", None, 0, [names[i] for i in kept])
    real = (domain.quadrature().mass[0] > 0).nonzero()[:, 0].tolist()
    if domain.dim == 1:
        real = sorted(real, key=lambda i: x[i, 0])
        unit = axis.unit
        named = [f"{kind.point} {i + 1}, at {readable(x[i, 0] * unit, 3)}" for i in real]
        return _Points(real, "line", None, 0, named)
    if domain.dim > DRAWABLE:
        return None
    flat = Cloud(x[real]).flat()
    extent = max(float(np.ptp(flat, axis=0).max()), 1e-12)
    centres = 0.5 + 0.94 * (flat - (flat.min(0) + flat.max(0)) / 2) / extent
    centres[:, 1] = 1 - centres[:, 1]
    return _Points(real, "points", centres, 0, [f"{kind.point} {i + 1}" for i in real])


@torch.no_grad()
def _weights(layers: Sequence[Layer], indices: list[int]) -> Tensor:
    """Weights (layers, heads, queries, keys) of the first sample; of layers with fewer heads the
    last one again.
    """
    found = [
        kernel_map(layer.operator, layer.u[:1], first_sample(layer.domain), queries=indices)[0]
        for layer in layers
    ]
    heads = min(MAX_HEADS, max(len(each) for each in found))
    chosen = [each[[min(h, len(each) - 1) for h in range(heads)]] for each in found]
    return torch.stack(chosen)[..., indices].double().cpu()


def quantised(weights: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return weights (..., keys) as signed bytes, and the largest size of each row, of which a byte
    is a 127th.

    Example:
        >>> encoded, scales = quantised(torch.tensor([[0.5, -0.25, 0.0]]))
        >>> encoded.tolist(), scales.tolist()
        ([[127, -64, 0]], [0.5])
    """
    scales = weights.abs().amax(-1)
    safe = torch.where(scales > 0, scales, 1.0)[..., None]
    return (weights / safe * STEPS).round().to(torch.int8).numpy(), scales


def _png(image: np.ndarray) -> bytes:
    """An image (h, w, channels) in [0, 1] as PNG."""
    from PIL import Image

    pixels = image if image.shape[-1] == 3 else image.mean(-1, keepdims=True).repeat(3, -1)
    buffer = io.BytesIO()
    Image.fromarray((255 * pixels.clip(0, 1)).round().astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
