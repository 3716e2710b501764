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

    Pictures show up to :data:`MAX_HEADS` heads; the numbers have them all.
    """
    with working("explain: one query at a time"):
        shown = replace(view, layers=shown_layers(view.layers))
        first = shown.layers[0]
        if draws_graph(first.domain, view.kind):
            return graph_section(shown)

        # Queries that live elsewhere than the keys are drawn over pictures and lines alone.
        layout = layout_of(first.domain, view.axis)
        target = output_points(first.operator, first.domain)
        if not layout or (layout == "points" and target is not first.domain):
            return None, {}

        # Queries are output points. A strided convolution has fewer of them than its input has.
        chosen = choose_map_queries(target, view.image, view.kind.point)
        indices = [index for _, index in chosen]
        own = []
        weights = []
        for layer in shown.layers:
            own.append(_queries_of(layer, target, indices))
            weights.append(first_map(layer, own[-1]))

        pictures = []
        for number, (label, _) in enumerate(chosen):
            at = [each[number] for each in own]
            every = zip(shown.layers, at)
            places = np.stack([output_places(layer)[index].numpy() for layer, index in every])
            rows = [layer[:MAX_HEADS, number].numpy() for layer in weights]
            query = _Query(label, at, places, rows)
            pictures.append(_picture(f"map-{number + 1}", shown, query, layout))

    text = words(
        "maps",
        layout=layout,
        pictured=view.image is not None,
        scalar=first.has_weights,
        signed=any(has_negative(layer.numpy()) for layer in weights),
        omitted=_omitted(len(view.layers), len(weights), len(weights[0])),
        kind=view.kind,
    )
    numbers = {
        name: {"queries": each, "weights": plain(layer)}
        for name, each, layer in zip(shown.names, own, weights)
    }
    return Section("maps", "One query at a time", text, pictures), numbers


def _queries_of(layer: Layer, target: Domain, indices: list[int]) -> list[int]:
    """Return a layer's output points for some points of ``target``: the same ones, or the nearest
    where the layer has other output points.
    """
    own = output_places(layer)
    if len(own) == target.size:
        return indices
    return torch.cdist(places_of(target)[indices], own).argmin(1).tolist()


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
            result.append((f"the {point} that stands out most", _outstanding(image, grid)))

    if domain.dim == 1:
        middle = len(real) // 2
        places = {"the first point": 0, "the middle": middle, "the last point": -1}
    else:
        low = x[real].amin(0)
        high = x[real].amax(0)
        wanted = {"a corner": low, "the centre": (low + high) / 2}
        places = {label: (x[real] - place).norm(dim=-1).argmin() for label, place in wanted.items()}
    result += [(label, int(real[place])) for label, place in places.items()]

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


def _picture(name: str, view: View, query: _Query, layout: str) -> Picture:
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
    return Picture(
        name,
        alt,
        caption,
        drawn,
        _data(view, query, keys, names),
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
        places = np.stack([places[:, 1], -places[:, 0]], 1)
    weights = [layer[:, real] for layer in query.weights]
    at = int(np.searchsorted(real, query.indices[0]))
    return render(draw.draw_clouds, Cloud(places).flat(), view.names, weights, at)


def _along_line(
    view: View,
    query: _Query,
    keys: np.ndarray,
    names: list[str],
) -> Drawn:
    """Draw weights along an axis, or along the names of the points where they have some."""
    points = real_points(view.layers[0].domain)
    shown = ()
    x = keys[points, 0] * view.axis.unit
    at = query.places[:, 0] * view.axis.unit
    if any(names):
        points = [point for point, name in enumerate(names) if name]
        shown = tuple(names[point] for point in points)
        x = np.arange(len(points))
        # A class token has no place among the words.
        at = [None] * len(query.weights)
        if query.indices[0] in points:
            at = [points.index(query.indices[0])] * len(query.weights)
    line = draw.Line(x, list(at), view.axis.label or view.kind.axis, shown)
    weights = [layer[:, points] for layer in query.weights]
    return render(draw.draw_lines, line, view.names, weights)


def _in_picture(keys: np.ndarray, grid: np.ndarray, place: np.ndarray) -> tuple[float, float]:
    """Return a place as (row, column), in units of the picture whose points (N, 2) form a grid."""
    found = []
    for axis, line in enumerate((grid[:, 0], grid[0])):
        first = keys[line[0], axis]
        last = keys[line[-1], axis]
        count = len(line)
        cell = 1.0
        if count > 1:
            cell = (last - first) / (count - 1)
        found.append(float((place[axis] - first) / cell + 0.5) / count)
    return found[0], found[1]
