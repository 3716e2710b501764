"""What one query takes from all points: over pictures, along lines, among points, on graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...domain import Domain
from ...explain.kernels import class_token, image_grid, kernel_map, masses, output_points
from ..data.kinds.kind import SAMPLES, Cloud, Kind
from ..numbers import readable
from . import graphs, kernel_plots
from .layers import (
    DRAWABLE,
    MAX_HEADS,
    PLAIN,
    Axis,
    Layer,
    first_sample,
    has_weights,
    plain,
    shown_layers,
)
from .page import Data, Picture, Section, words
from .style import render

SCALES = (
    "Rows: layers; columns: heads. Darker blue (brighter in dark mode) is more, from 0 to each "
    "panel's own largest value; the numbers "
    "below a panel are its smallest and largest weight."
)
GRID = f"{SCALES} Ring: the query."
PANELS = f"{SCALES} Orange: the {{}}'s outline. Ring: the query."
SCATTER = f"{SCALES} Ring: the query. Points are seen along the axis of least extent."
NETWORK = (
    f"{SCALES} Ring: the query. Nodes: how much the query takes from them; edges: how much their "
    "target takes from their source; triangles of a mesh: the mean of their corners."
)


def map_section(
    layers: Sequence[Layer],
    image: np.ndarray | None,
    queries: list[int] | None,
    kind: Kind = SAMPLES,
    axis: Axis = PLAIN,
) -> tuple[Section | None, dict[str, Any]]:
    """One query's weights over the picture, along the line or among the points, in the layers that
    live on the first one's; nothing for domains that cannot be drawn.
    """
    shown = shown_layers(layers)
    domain = shown[0].domain
    if graphs.draws_graph(domain, kind):
        return graph_section(shown, queries, kind)
    grid = image_grid(domain)
    target = output_points(shown[0].operator, domain)
    scattered = grid is None and domain.dim > 1
    if scattered and (domain.dim > DRAWABLE or target is not domain):
        return None, {}

    if queries is None:
        points = choose_map_queries(target, image, kind.point)
    else:
        points = [(f"{kind.point} {query + 1}", query) for query in queries]
    indices = [index for _, index in points]
    with torch.no_grad():
        result = [
            kernel_map(layer.operator, layer.u[:1], first_sample(layer.domain), queries=indices)[0]
            for layer in shown
        ]
    pictures = []
    for place, (label, index) in enumerate(points):
        weights = [layer[:MAX_HEADS, place].numpy() for layer in result]
        drawn = _Map(place, label, index, shown, weights, grid, image, kind, axis)
        pictures.append(_map_picture(drawn))

    laid, note = _layout(grid is not None, scattered, image is not None, kind)
    facts = {"place": laid, "note": note, "omitted": _omitted(layers, shown, result)}
    text = words("maps", **facts, scalar=has_weights(shown[0]), kind=kind)
    numbers = {
        layer.name: {"queries": indices, "weights": plain(weights)}
        for layer, weights in zip(shown, result)
    }
    return Section("maps", "One query at a time", text, pictures), numbers


def _layout(gridded: bool, scattered: bool, pictured: bool, kind: Kind) -> tuple[str, str]:
    """The word for the layout of a panel, and how to read it."""
    if gridded and pictured:
        return kind.one, PANELS.format(kind.one)
    if gridded:
        return "grid", GRID
    if scattered:
        return "points", SCATTER
    return "line", "One panel per layer, one line per head."


def graph_section(
    layers: Sequence[Layer], queries: list[int] | None, kind: Kind
) -> tuple[Section, dict[str, Any]]:
    """The kernel around some nodes of the first sample, in layers that live on one graph."""
    domain = graphs.first_sample(layers[0].domain)
    chosen = graphs.choose_nodes(domain)
    if queries is not None:
        chosen = [(f"node {query + 1}", query) for query in queries]
    limit = graphs.most_nodes(domain, max(layer.operator.heads for layer in layers))
    names, pictures = [layer.name for layer in layers], []
    rows: dict[str, list[Any]] = {name: [] for name in names}
    for place, (label, index) in enumerate(chosen):
        part = graphs.part_around(domain, index, limit)
        found = []
        for layer in layers:
            own = first_sample(layer.domain)
            kernel = graphs.kernel_on_part(layer.operator, layer.u, own, part)[:MAX_HEADS]
            found.append(kernel.numpy())
            rows[layer.name].append(kernel[:, 0])
        drawn = render(lambda theme, p=part, f=found: graphs.graphs(theme, p, names, f))
        caption = words(
            "graph_caption", label=label, index=index, shown=len(part.nodes), count=domain.size
        )
        alt = f"The kernel around {label}, {len(names)} layers"
        data = graphs.edge_table(part, names, found)
        pictures.append(Picture(f"map-{place + 1}", alt, caption, drawn, data))
    text = words("graphs", one=kind.one, scalar=has_weights(layers[0]), note=NETWORK)
    numbers = {
        layer.name: {"queries": [index for _, index in chosen], "weights": plain(rows[layer.name])}
        for layer in layers
    }
    return Section("maps", "One node at a time", text, pictures), numbers


def _omitted(layers: Sequence[Layer], shown: Sequence[Layer], weights: Sequence[Tensor]) -> str:
    """Say which layers and heads are not drawn."""
    left = []
    if len(shown) < len(layers):
        left.append(f"{len(shown)} of {len(layers)} layers")
    if len(weights[0]) > MAX_HEADS:
        left.append(f"{MAX_HEADS} of {len(weights[0])} heads")
    if not left:
        return ""
    return f" Shown: {' and '.join(left)}."


def choose_map_queries(
    domain: Domain, image: np.ndarray | None, point: str = "patch"
) -> list[tuple[str, int]]:
    """Up to three queries worth a picture of the first sample, (label, index): of a class token,
    the patch least like the background, a corner, the centre.

    Example:
        >>> choose_map_queries(Domain.grid(5, 5), None)
        [('a corner', 0), ('the centre', 12)]
        >>> before = Domain.points(torch.full((5, 2), 0.5))
        >>> choose_map_queries(Domain.join(before, Domain.grid(3, 3)), None)
        [('the class token', 0), ('a corner', 5), ('the centre', 9)]
    """
    there = masses(domain)[0] > 0
    if not bool(there.any()):
        there = torch.ones_like(there)
    x = domain.positions.reshape(-1, domain.size, domain.dim)[0].double().cpu()
    real, token = there.nonzero()[:, 0].cpu(), class_token(domain)
    result = []
    if token is not None:
        result.append(("the class token", token))
        real = real[real != token]
    grid = image_grid(domain)
    if grid is not None:
        # Registers may stand before the points of the grid.
        real = grid.flatten().cpu()
    if grid is not None and image is not None:
        result.append((f"the {point} that stands out most", _outstanding(image, grid)))

    low, high = x[real].amin(0), x[real].amax(0)
    edge = "the first point"
    if domain.dim > 1:
        edge = "a corner"
    for label, place in ((edge, low), ("the centre", (low + high) / 2)):
        result.append((label, int(real[(x[real] - place).norm(dim=-1).argmin()])))
    unique: dict[int, str] = {}
    for label, index in result:
        unique.setdefault(index, label)
    return [(label, index) for index, label in unique.items()][:3]


def _outstanding(image: np.ndarray, grid: Tensor) -> int:
    """Return the point of a grid at which an image differs most from its median."""
    grey = torch.from_numpy(image.mean(-1))[None, None]
    off = (grey - grey.median()) ** 2
    contrast = torch.nn.functional.adaptive_avg_pool2d(off, (grid.shape[0], grid.shape[1]))
    return int(grid.flatten()[contrast.flatten().argmax()])


@dataclass(frozen=True, eq=False)
class _Map:
    """One query's weights, (heads, points) of each layer, and where they are drawn."""

    place: int
    label: str
    index: int
    layers: Sequence[Layer]
    weights: list[np.ndarray]
    grid: Tensor | None
    image: np.ndarray | None
    kind: Kind
    axis: Axis

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    def data(self, places: np.ndarray, names: Sequence[str]) -> Data:
        """Return a row per layer, head and point."""
        coordinates = [f"position {i + 1}" for i in range(places.shape[1])]
        rows = [
            [
                layer,
                head + 1,
                point,
                *([names[point]] if any(names) else []),
                *places[point],
                weight,
            ]
            for layer, heads in zip(self.layer_names, self.weights)
            for head, line in enumerate(heads)
            for point, weight in enumerate(line.tolist())
        ]
        named = ["name"] if any(names) else []
        return Data(["layer", "head", "point", *named, *coordinates, "weight"], rows)


def _map_picture(found: _Map) -> Picture:
    keys = found.layers[0].domain
    target = output_points(found.layers[0].operator, keys)
    y, x = _places(keys), _places(target)
    names, label, where = found.axis.of(keys), found.label, ""
    if found.grid is not None:
        drawn = _over_grid(found, y, x)
        if not _mass_at(target, found.index):
            where = " (ring at its place; it is not part of the picture)"
    elif keys.dim > 1:
        drawn = _among_points(found, y, _real(keys))
    elif any(names):
        drawn = _along_names(found, names)
        if names[found.index]:
            label = f"“{names[found.index]}”"
    else:
        at = float(x[found.index, 0]) * found.axis.unit
        drawn = _along_line(found, y, _real(keys), at)
        where = f" at {readable(at, 3)} (dashed line)"

    facts = {"label": label, "where": where, "index": found.index, "count": len(x)}
    caption = words("map_caption", **facts, point=found.kind.point)
    alt = f"Weights of {label} over the domain, {len(found.layers)} layers"
    return Picture(f"map-{found.place + 1}", alt, caption, drawn, found.data(y, names))


def _places(domain: Domain) -> np.ndarray:
    """Positions of the points of the first sample, (N, p)."""
    return domain.positions.reshape(-1, domain.size, domain.dim)[0].double().cpu().numpy()


def _real(domain: Domain) -> np.ndarray:
    """Which points of the first sample have a mass; padding is not drawn."""
    return (domain.quadrature().mass[0] > 0).cpu().numpy()


def _over_grid(found: _Map, y: np.ndarray, x: np.ndarray) -> dict[str, bytes]:
    assert found.grid is not None
    grid, image = found.grid.numpy(), found.image
    if image is None:
        image = np.zeros((*grid.shape, 1))
    panels = [layer[:, grid] for layer in found.weights]
    at = _in_picture(y, grid, x[found.index])
    return render(lambda theme: kernel_plots.maps(theme, image, found.layer_names, panels, at))


def _among_points(found: _Map, y: np.ndarray, real: np.ndarray) -> dict[str, bytes]:
    places = y
    if found.image is not None:
        # Rows of a picture run down.
        places = np.stack([y[:, 1], -y[:, 0]], 1)
    at, cloud = int(real[: found.index].sum()), Cloud(places[real])
    weights = [layer[:, real] for layer in found.weights]
    return render(lambda theme: kernel_plots.clouds(theme, cloud, found.layer_names, weights, at))


def _along_names(found: _Map, names: Sequence[str]) -> dict[str, bytes]:
    kept = [i for i, name in enumerate(names) if name]
    place = None
    if found.index in kept:
        place = kept.index(found.index)
    shown = tuple(names[i] for i in kept)
    line = kernel_plots.Line(np.arange(len(kept)), place, found.axis.label, shown)
    weights = [layer[:, kept] for layer in found.weights]
    return render(lambda theme: kernel_plots.lines(theme, line, found.layer_names, weights))


def _along_line(found: _Map, y: np.ndarray, real: np.ndarray, at: float) -> dict[str, bytes]:
    label = found.axis.label or found.kind.axis
    line = kernel_plots.Line(y[real, 0] * found.axis.unit, at, label)
    weights = [layer[:, real] for layer in found.weights]
    return render(lambda theme: kernel_plots.lines(theme, line, found.layer_names, weights))


def _in_picture(y: np.ndarray, grid: np.ndarray, place: np.ndarray) -> tuple[float, float]:
    """A place as (row, column), in units of the picture whose points (N, 2) form a grid."""
    found = []
    for axis, line in enumerate((grid[:, 0], grid[0])):
        first, last, n = y[line[0], axis], y[line[-1], axis], len(line)
        cell = (last - first) / (n - 1) if n > 1 else 1.0
        found.append(float((place[axis] - first) / cell + 0.5) / n)
    return found[0], found[1]


def _mass_at(domain: Domain, index: int) -> float:
    """Measure of a point, of the first sample."""
    return float(domain.measure.reshape(-1, domain.size)[0, index])
