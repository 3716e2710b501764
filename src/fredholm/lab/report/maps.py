"""The section on what one query takes from all points: over pictures, along lines, among points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...domain import Domain
from ...explain.kernels import class_token, image_grid, kernel_map, masses, output_points
from ...progress import working
from ..data.kinds.kind import Cloud
from ..numbers import readable
from . import map_plots
from .graphs import draws_graph, graph_section
from .layers import (
    MAX_HEADS,
    View,
    first_sample,
    layout_of,
    places_of,
    plain,
    real_points,
    shown_layers,
)
from .page import Data, Picture, Section, words
from .style import Theme, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Theme], "Figure"]

# Points whose maps are drawn, at most, unless a caller names them.
QUERIES = 3


def map_section(
    view: View, queries: Sequence[int] | None
) -> tuple[Section | None, dict[str, dict[str, Any]]]:
    """Return the maps of some queries of the first sample, in the layers that live on the first
    one's points, and their numbers; no section if the points cannot be drawn.

    Args:
        queries: indices of points; None chooses up to three, see :func:`choose_map_queries`.
    """
    with working("explain: one query at a time"):
        shown = replace(view, layers=shown_layers(view.layers))
        first = shown.layers[0]
        if draws_graph(first.domain, view.kind):
            return graph_section(shown, queries)

        # Queries that live elsewhere than the keys are drawn over pictures and lines alone.
        layout = layout_of(first.domain, view.axis)
        target = output_points(first.operator, first.domain)
        if not layout or (layout == "points" and target is not first.domain):
            return None, {}
        return _maps(shown, queries, layout, len(view.layers))


def _maps(
    view: View,
    queries: Sequence[int] | None,
    layout: str,
    count: int,
) -> tuple[Section, dict[str, dict[str, Any]]]:
    """Return the section, one picture per query, and its numbers by layer: the queries, and their
    weights (H, queries, N). Pictures show up to :data:`MAX_HEADS` heads; the numbers have them all.

    Args:
        view: the layers that are drawn, all on domains of equally many points.
        queries: indices among the output points of the first layer; None chooses some.
        layout: how points are drawn, see :func:`.layers.layout_of`.
        count: how many layers the model has, for the note on those that are not drawn.
    """
    first, point = view.layers[0], view.kind.point
    # Queries are output points. A strided convolution has fewer of them than its input has points.
    if queries is None:
        target = output_points(first.operator, first.domain)
        chosen = choose_map_queries(target, view.image, point)
    else:
        chosen = [(f"{point} {query + 1}", query) for query in queries]
    indices = [index for _, index in chosen]

    # Weights of the first sample in each layer, (H, queries, N).
    weights = [
        kernel_map(
            layer.operator,
            layer.u[:1],
            first_sample(layer.domain),
            queries=indices,
        )[0]
        for layer in view.layers
    ]

    pictures = []
    for place, (label, index) in enumerate(chosen):
        rows = [layer[:MAX_HEADS, place].numpy() for layer in weights]
        query = _Query(place, label, index, rows, layout)
        pictures.append(_picture(view, query))
    text = words(
        "maps",
        layout=layout,
        pictured=view.image is not None,
        scalar=first.has_weights,
        omitted=_omitted(count, len(view.layers), len(weights[0])),
        kind=view.kind,
    )
    numbers = {
        name: {"queries": indices, "weights": plain(layer)}
        for name, layer in zip(view.names, weights)
    }
    return Section("maps", "One query at a time", text, pictures), numbers


def _omitted(layers: int, shown: int, heads: int) -> str:
    """Say which layers and heads are not drawn."""
    drawn = []
    if shown < layers:
        drawn.append(f"{shown} of {layers} layers")
    if heads > MAX_HEADS:
        drawn.append(f"{MAX_HEADS} of {heads} heads")
    if not drawn:
        return ""
    return f" Shown: {' and '.join(drawn)}."


# --- which queries --------------------------------------------------------------------------------


def choose_map_queries(
    domain: Domain, image: np.ndarray | None, point: str = "patch"
) -> list[tuple[str, int]]:
    """Return up to three queries of the first sample, (label, index), that are worth a picture: of
    a class token, the patch least like the background, a corner, the centre.

    Example:
        >>> choose_map_queries(Domain.grid(5, 5), None)
        [('a corner', 0), ('the centre', 12)]
        >>> before = Domain.points(torch.full((5, 2), 0.5))
        >>> choose_map_queries(Domain.join(before, Domain.grid(3, 3)), None)
        [('the class token', 0), ('a corner', 5), ('the centre', 9)]
    """
    x, grid, token = places_of(domain), image_grid(domain), class_token(domain)
    # A sample of padding alone still has points to ask.
    real = torch.tensor(real_points(domain) or range(domain.size))
    result = []
    if token is not None:
        result.append(("the class token", token))
        real = real[real != token]
    if grid is not None:
        # Registers may stand before the points of the grid.
        real = grid.flatten().cpu()
        if image is not None:
            result.append((f"the {point} that stands out most", _outstanding(image, grid)))

    edge = "the first point"
    if domain.dim > 1:
        edge = "a corner"
    low, high = x[real].amin(0), x[real].amax(0)
    for label, place in ((edge, low), ("the centre", (low + high) / 2)):
        nearest = (x[real] - place).norm(dim=-1).argmin()
        result.append((label, int(real[nearest])))

    # A point may be chosen twice; its first label stays.
    labels = {index: label for label, index in reversed(result)}
    unique = dict.fromkeys(index for _, index in result)
    return [(labels[index], index) for index in unique][:QUERIES]


def _outstanding(image: np.ndarray, grid: Tensor) -> int:
    """Return the point of a grid at which an image differs most from its median."""
    grey = torch.from_numpy(image.mean(-1))[None, None]
    off = (grey - grey.median()) ** 2
    contrast = torch.nn.functional.adaptive_avg_pool2d(off, (grid.shape[0], grid.shape[1]))
    return int(grid.flatten()[contrast.flatten().argmax()])


# --- one picture ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Query:
    """One query, its weights of each layer, (heads, points), and how they are drawn."""

    place: int
    label: str
    index: int
    weights: list[np.ndarray]
    layout: str


def _picture(view: View, query: _Query) -> Picture:
    first = view.layers[0]
    target = output_points(first.operator, first.domain)
    keys, places = places_of(first.domain).numpy(), places_of(target).numpy()
    names = view.axis.of(first.domain)
    label, where = query.label, ""
    if query.layout == "grid":
        draw = _over_grid(view, query, keys, places[query.index])
        if not float(masses(target)[0, query.index]):
            where = " (ring at its place; it is not part of the picture)"
    elif query.layout == "points":
        draw = _among_points(view, query, keys)
    elif query.layout == "words":
        draw = _along_words(view, query, names)
        if names[query.index]:
            label = f"“{names[query.index]}”"
    else:
        at = float(places[query.index, 0]) * view.axis.unit
        draw = _along_line(view, query, keys, at)
        where = f" at {readable(at, 3)} (dashed line)"

    caption = words(
        "map_caption",
        label=label,
        where=where,
        index=query.index,
        count=len(places),
        point=view.kind.point,
    )
    alt = f"Weights of {label} over the domain, {len(view.layers)} layers"
    data = _data(view, query, keys, names)
    return Picture(
        f"map-{query.place + 1}",
        alt,
        caption,
        render(draw),
        data,
    )


def _data(
    view: View,
    query: _Query,
    keys: np.ndarray,
    names: list[str],
) -> Data:
    """Return the weights as a table: one row per layer, head and point."""
    coordinates = [f"position {axis + 1}" for axis in range(keys.shape[1])]
    points = [[number, *place] for number, place in enumerate(keys.tolist())]
    head = ["layer", "head", "point", *coordinates, "weight"]
    if any(names):
        head.insert(3, "name")
        points = [[number, name, *place] for (number, *place), name in zip(points, names)]

    rows = []
    for layer, heads in zip(view.names, query.weights):
        for number, weights in enumerate(heads.tolist(), 1):
            rows += [[layer, number, *point, w] for point, w in zip(points, weights)]
    return Data(head, rows)


def _over_grid(
    view: View,
    query: _Query,
    keys: np.ndarray,
    place: np.ndarray,
) -> Draw:
    """Return the drawing of a query's weights over the sample's picture, or over a blank one where
    there is none.

    Args:
        keys: positions (N, 2) of the points.
        place: position (2,) of the query, in the same coordinates.
    """
    # Points outside the picture, such as a class token, have no index here: their weights are left
    # out. The layout is "grid" only where the points form one.
    grid = image_grid(view.layers[0].domain)
    assert grid is not None
    index, image = grid.numpy(), view.image
    if image is None:
        image = np.zeros((*index.shape, 1))

    # (heads, N) becomes (heads, rows, columns).
    weights = [layer[:, index] for layer in query.weights]
    at = _in_picture(keys, index, place)
    return lambda theme: map_plots.maps(theme, image, view.names, weights, at)


def _among_points(view: View, query: _Query, keys: np.ndarray) -> Draw:
    real = real_points(view.layers[0].domain)
    places = keys[real]
    if view.image is not None:
        # Rows of a picture run down.
        places = np.stack([places[:, 1], -places[:, 0]], 1)
    cloud, at = Cloud(places), int(np.searchsorted(real, query.index))
    weights = [layer[:, real] for layer in query.weights]
    return lambda theme: map_plots.clouds(theme, cloud, view.names, weights, at)


def _along_words(view: View, query: _Query, names: list[str]) -> Draw:
    points = [point for point, name in enumerate(names) if name]
    # A class token has no place among the words.
    at = None
    if query.index in points:
        at = points.index(query.index)
    shown = tuple(names[point] for point in points)
    line = map_plots.Line(
        np.arange(len(points)),
        at,
        view.axis.label,
        shown,
    )
    weights = [layer[:, points] for layer in query.weights]
    return lambda theme: map_plots.lines(theme, line, view.names, weights)


def _along_line(
    view: View,
    query: _Query,
    keys: np.ndarray,
    at: float,
) -> Draw:
    real = real_points(view.layers[0].domain)
    label = view.axis.label or view.kind.axis
    line = map_plots.Line(keys[real, 0] * view.axis.unit, at, label)
    weights = [layer[:, real] for layer in query.weights]
    return lambda theme: map_plots.lines(theme, line, view.names, weights)


def _in_picture(
    keys: np.ndarray,
    grid: np.ndarray,
    place: np.ndarray,
) -> tuple[float, float]:
    """Return a place as (row, column), in units of the picture whose points (N, 2) form a grid."""
    found = []
    for axis, line in enumerate((grid[:, 0], grid[0])):
        first, last, count = keys[line[0], axis], keys[line[-1], axis], len(line)
        cell = 1.0
        if count > 1:
            cell = (last - first) / (count - 1)
        found.append(float((place[axis] - first) / cell + 0.5) / count)
    return found[0], found[1]
