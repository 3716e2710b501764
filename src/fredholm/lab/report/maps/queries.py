"""The section on what one query takes from all points: over pictures, along lines, among points."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....domain import Domain
from ....explain.kernels import class_token, image_grid, masses, output_points
from ....progress import working
from ...data.kinds.kind import Cloud
from ...numbers import plural, readable
from ..layers import (
    MAX_HEADS,
    Layer,
    View,
    first_map,
    last_point,
    layout_of,
    output_places,
    places_of,
    plain,
    real_points,
    shown_layers,
)
from ..page import Data, Numbered, Picture, Section, words
from ..style import has_negative, render
from . import draw
from .graphs import draws_graph, graph_section

# Pictures by theme.
Drawn = dict[str, bytes]

# Points whose maps are drawn, at most.
QUERIES = 3


class _Query(NamedTuple):
    """One query and its row of the kernel in each layer that is drawn.

    Attributes:
        label: in words.
        indices: among the output points of each layer.
        places: of these points, (layers, p).
        weights: (heads, points) of each layer.
    """

    label: str
    indices: list[int]
    places: np.ndarray
    weights: list[np.ndarray]


def map_section(view: View) -> Numbered:
    """Return the maps of some queries of the first sample, in the layers that live on the first
    one's points, and their numbers: the queries of each layer, and their weights (H, queries, N).
    No section if the points cannot be drawn.

    Pictures show up to :data:`MAX_HEADS` heads; the numbers have them all. Of a graph they cover
    the nodes that are drawn, see :func:`.graphs.graph_section`.
    """
    with working("explain: one query at a time"):
        shown = replace(view, layers=shown_layers(view.layers))
        first = shown.layers[0]
        if draws_graph(first.domain, view.kind):
            return graph_section(shown)

        # Queries that live elsewhere than the keys are drawn over pictures and lines alone.
        layout = layout_of(first.domain, view.axis)
        target = output_points(first.operator, first.domain)
        elsewhere = target is not first.domain
        if not layout or (layout == "points" and elsewhere):
            return None, {}

        # Queries are output points. A strided convolution has fewer of them than its input has.
        chosen = choose_map_queries(target, view.image, view.kind.point)
        indices = [index for _, index in chosen]
        own = []
        weights = []
        numbers = {}
        for layer in shown.layers:
            queries = _queries_of(layer, target, indices)
            rows = first_map(layer, queries)
            own.append(queries)
            weights.append(rows)
            numbers[layer.name] = {"queries": queries, "weights": plain(rows)}

        pictures = []
        for number, (label, _) in enumerate(chosen):
            at = [each[number] for each in own]
            places = []
            for layer, index in zip(shown.layers, at):
                place = output_places(layer)[index]
                places.append(place.numpy())
            heads = [rows[:MAX_HEADS, number].numpy() for rows in weights]
            query = _Query(label, at, np.stack(places), heads)
            picture = _picture(f"map-{number + 1}", shown, query, layout)
            pictures.append(picture)

    signed = any(has_negative(rows.numpy()) for rows in weights)
    omitted = _omitted(len(view.layers), len(weights), len(weights[0]))
    text = words(
        "maps",
        layout=layout,
        pictured=view.image is not None,
        scalar=first.has_weights,
        signed=signed,
        omitted=omitted,
        kind=view.kind,
    )
    section = Section("maps", "One query at a time", text, pictures)
    return section, numbers


def _queries_of(
    layer: Layer,
    target: Domain,
    indices: list[int],
) -> list[int]:
    """Return a layer's output points for some points of ``target``: the same ones, or the nearest
    where the layer has other output points.
    """
    own = output_places(layer)
    if len(own) == target.size:
        return indices
    wanted = places_of(target)[indices]
    nearest = torch.cdist(wanted, own).argmin(1)
    return nearest.tolist()


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
    domain: Domain,
    image: np.ndarray | None,
    point: str = "patch",
) -> list[tuple[str, int]]:
    """Return up to three queries of the first sample, (label, index), that are worth a picture: of
    a class token, the patch least like the background, a corner, the centre; on a line the first
    point, the middle and the last.

    Example:
        >>> choose_map_queries(Domain.grid(5, 5), None)
        [('a corner', 0), ('the centre', 12)]
        >>> before = Domain.points(torch.full((5, 2), 0.5))
        >>> choose_map_queries(Domain.join(before, Domain.grid(3, 3)), None)
        [('the class token', 0), ('a corner', 5), ('the centre', 9)]
    """
    x = places_of(domain)
    grid = image_grid(domain)
    token = class_token(domain)
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
            outstanding = _outstanding(image, grid)
            result.append((f"the {point} that stands out most", outstanding))

    x = x[real]
    if domain.dim == 1:
        places = {
            "the first point": 0,
            "the middle": len(real) // 2,
            "the last point": -1,
        }
    else:
        low = x.amin(0)
        high = x.amax(0)
        centre = (low + high) / 2
        places = {
            "a corner": _nearest(x, low),
            "the centre": _nearest(x, centre),
        }
    for label, place in places.items():
        index = int(real[place])
        result.append((label, index))

    # A point may be chosen twice; its first label stays.
    labels = {}
    for label, index in result:
        labels.setdefault(index, label)
    queries = [(label, index) for index, label in labels.items()]
    return queries[:QUERIES]


def _nearest(x: Tensor, place: Tensor) -> int:
    """Return which of the positions (N, p) lies nearest to a place."""
    distance = (x - place).norm(dim=-1)
    return int(distance.argmin())


def _outstanding(image: np.ndarray, grid: Tensor) -> int:
    """Return the point of a grid at which an image differs most from its median."""
    grey = torch.from_numpy(image.mean(-1))[None, None]
    off = (grey - grey.median()) ** 2
    rows, columns = grid.shape
    contrast = torch.nn.functional.adaptive_avg_pool2d(off, (rows, columns))
    strongest = contrast.flatten().argmax()
    return int(grid.flatten()[strongest])


# --- one picture ----------------------------------------------------------------------------------


def _picture(
    name: str,
    view: View,
    query: _Query,
    layout: str,
) -> Picture:
    """Return the picture of a query's weights in all layers, laid out as the points are."""
    first = view.layers[0]
    target = output_points(first.operator, first.domain)
    index = query.indices[0]
    keys = places_of(first.domain).numpy()
    names = view.axis.of(first.domain)
    label = query.label
    where = ""
    if layout == "grid":
        drawn = _over_grid(view, query, keys)
        if not float(masses(target)[0, index]):
            where = ", not a part of the picture (ring at its place)"
    elif layout == "points":
        drawn = _among_points(view, query, keys)
    elif layout == "words":
        drawn = _along_line(view, query, keys, names)
        if names[index]:
            label = f"“{names[index]}”"
    else:
        drawn = _along_line(view, query, keys, names)
        where = f", at {readable(query.places[0, 0] * view.axis.unit, 3)} (dashed line)"

    caption = words(
        "map_caption",
        label=label,
        where=where,
        index=index,
        # A point to ask may be padding where a sample has nothing else.
        count=max(last_point(target), index + 1),
        point=view.kind.point,
    )
    alt = f"Weights of {label} over the domain, {plural(len(view.layers), 'layer')}"
    data = _data(view, query, keys, names)
    return Picture(name, alt, caption, drawn, data)


def _data(
    view: View,
    query: _Query,
    keys: np.ndarray,
    names: list[str],
) -> Data:
    """Return the weights as a table: one row per layer, head and point."""
    _, dim = keys.shape
    coordinates = [f"position {axis + 1}" for axis in range(dim)]
    head = ["layer", "head", "point", *coordinates, "weight"]
    points = []
    for number, place in enumerate(keys.tolist()):
        points.append([number, *place])
    if any(names):
        head.insert(3, "name")
        for point, name in zip(points, names):
            point.insert(1, name)

    rows = []
    for layer, heads in zip(view.names, query.weights):
        for number, weights in enumerate(heads.tolist(), 1):
            for point, weight in zip(points, weights):
                rows.append([layer, number, *point, weight])
    return Data(head, rows)


def _over_grid(view: View, query: _Query, keys: np.ndarray) -> Drawn:
    """Draw weights over the sample's picture, or over a blank one where there is none.

    Points outside the picture, such as a class token, are left out.
    """
    # The layout is "grid" only where the points form one.
    grid = image_grid(view.layers[0].domain)
    assert grid is not None
    cells = grid.numpy()
    image = view.image
    if image is None:
        image = np.zeros((*cells.shape, 1))
    # (heads, N) becomes (heads, rows, columns).
    weights = [layer[:, cells] for layer in query.weights]
    at = [_in_picture(keys, cells, place) for place in query.places]
    return render(draw.draw_maps, image, view.names, weights, at)


def _among_points(view: View, query: _Query, keys: np.ndarray) -> Drawn:
    real = real_points(view.layers[0].domain)
    places = keys[real]
    if view.image is not None:
        # Rows of a picture run down.
        down = places[:, 0]
        across = places[:, 1]
        places = np.stack([across, -down], 1)
    cloud = Cloud(places).flat()
    weights = [layer[:, real] for layer in query.weights]
    at = int(np.searchsorted(real, query.indices[0]))
    return render(draw.draw_clouds, cloud, view.names, weights, at)


def _along_line(
    view: View,
    query: _Query,
    keys: np.ndarray,
    names: list[str],
) -> Drawn:
    """Draw weights along an axis, or along the names of the points where they have some."""
    points = real_points(view.layers[0].domain)
    unit = view.axis.unit
    shown = ()
    x = keys[points, 0] * unit
    at = list(query.places[:, 0] * unit)
    if any(names):
        points = [point for point, name in enumerate(names) if name]
        shown = tuple(names[point] for point in points)
        x = np.arange(len(points))
        # A class token has no place among the words.
        word = None
        index = query.indices[0]
        if index in points:
            word = points.index(index)
        at = [word] * len(query.weights)

    label = view.axis.label or view.kind.axis
    line = draw.Line(x, at, label, shown)
    weights = [layer[:, points] for layer in query.weights]
    return render(draw.draw_lines, line, view.names, weights)


def _in_picture(
    keys: np.ndarray,
    grid: np.ndarray,
    place: np.ndarray,
) -> tuple[float, float]:
    """Return a place as (row, column), in units of the picture whose points (N, 2) form a grid."""
    found = []
    for axis, line in enumerate((grid[:, 0], grid[0])):
        first = keys[line[0], axis]
        last = keys[line[-1], axis]
        count = len(line)
        cell = 1.0
        if count > 1:
            cell = (last - first) / (count - 1)
        cells = (place[axis] - first) / cell + 0.5
        found.append(float(cells) / count)
    row, column = found
    return row, column
