"""The learned kernels, as sections of a page: profile, shares, maps, and the steps of a
continuous model. Captions say what is plotted and from how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...domain import Domain
from ...errors import DomainError, ShapeError
from ...explain.kernels import (
    class_token,
    image_grid,
    kernel_map,
    kernel_profile,
    masses,
    output_points,
    take_samples,
)
from ...explain.variance import variance_share
from ...models.bodies.continuous import ContinuousBody
from ...models.encoders import Inputs
from ...models.trajectory import trajectory
from ...progress import steps
from ..data.kinds.kind import SAMPLES, Cloud, Kind
from . import graphs, plots
from .page import Data, Picture, Section, words
from .style import Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LAYERS, MAX_HEADS = 8, 6  # of a map: more would be too small to read
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
DRAWABLE = 3  # coordinates of points that can be drawn, one of them left out


@dataclass(frozen=True, eq=False)
class Layer:
    """An operator and what it saw: features u (B, N, D) of B samples on a domain. The maps show
    sample 0.
    """

    name: str
    operator: Any
    u: Tensor
    domain: Domain


@dataclass(frozen=True)
class Axis:
    """Return the names of the points of the first sample.

    Attributes:
        names: of the points of a line, in their order: words, or columns; empty where they have
            none.
        label: of the line; "" for that of the kind of data.
        unit: units of the label for one of the domain.
    """

    names: tuple[str, ...] = ()
    label: str = ""
    unit: float = 1.0

    def of(self, domain: Domain) -> list[str]:
        """Return a name for each point of a domain; "" of a class token and of padding."""
        token, names = class_token(domain), iter(self.names)
        return ["" if i == token else next(names, "") for i in range(domain.size)]


PLAIN = Axis()


QUANTITIES = {
    "energy": "energy ½‖u‖²",
    "distance": "distance to mean 0, sd 1",
    "growth": "growth of a difference",
}


def profile_section(
    layers: Sequence[Layer], *, seed: int, queries: int, kind: Kind = SAMPLES
) -> tuple[Section | None, dict[str, Any]]:
    """Mean kernel norm against distance, one panel per layer; the weights too where they are not the
    norm times a constant. None where all points lie in one place.
    """
    result = [
        kernel_profile(layer.operator, layer.u, layer.domain, queries=queries, seed=seed)
        for layer in steps("explain: kernels and distance", layers, unit="layers")
    ]
    names = [layer.name for layer in layers]
    count = f"{result[0].samples} samples × {result[0].queries} queries × all keys a layer, seed {seed}."
    numbers = {layer.name: _plain(vars(profile)) for layer, profile in zip(layers, result)}
    if max(float(profile.distance.max()) for profile in result) == 0:
        return None, numbers
    many = result[0].norm.shape[0] > 1
    caption = words("profile_caption", many=many, count=count, kind=kind)
    pictures = [_profile_picture("profile", names, result, "norm", "‖K‖_F", caption)]
    if not all(_proportional(profile) for profile in result):
        caption = words("weights_caption", scalar=_scalar(layers[0]), count=count)
        pictures.append(
            _profile_picture(
                "profile-weights", names, result, "weight", "weight of a pair", caption
            )
        )
    text = words("profile", point=kind.point)
    return Section("profile", "Kernel and distance", text, pictures), numbers


def share_section(
    layers: Sequence[Layer], *, seed: int, kind: Kind = SAMPLES
) -> tuple[Section | None, dict[str, Any]]:
    """Content against position in the kernel's variance, one bar per layer; None where that is
    undefined, and the numbers then say why.
    """
    try:
        result = [
            variance_share(layer.operator, layer.u, layer.domain, seed=seed)
            for layer in steps("explain: content and position", layers, unit="layers")
        ]
    except (DomainError, ShapeError) as error:
        return None, {"skipped": str(error)}
    names = [layer.name for layer in layers]
    one = result[0]
    caption = words("shares_caption", samples=one.samples, pairs=one.pairs, seed=seed, kind=kind)
    alt = "; ".join(
        f"{name}: {_percent(share.share)} position" for name, share in zip(names, result)
    )
    drawn = render(lambda theme: plots.shares(theme, names, result))
    numbers = {name: _plain(vars(share)) for name, share in zip(names, result)}
    text = words("shares", point=kind.point)
    rows = [[name, share.share, share.error, share.relative] for name, share in zip(names, result)]
    data = Data(["layer", "share of position", "standard error", "varies by"], rows)
    picture = Picture("shares", alt, caption, drawn, data)
    return Section("shares", "Content and position", text, [picture]), numbers


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
    scattered = grid is None and domain.dim > 1
    target = output_points(shown[0].operator, domain)
    if scattered and (domain.dim > DRAWABLE or target is not domain):
        return None, {}
    points = (
        [(f"{kind.point} {q + 1}", q) for q in queries]
        if queries is not None
        else choose_map_queries(target, image, kind.point)
    )
    indices = [index for _, index in points]
    with torch.no_grad():
        result = [
            kernel_map(layer.operator, layer.u[:1], _first(layer.domain), queries=indices)[0]
            for layer in shown
        ]
    pictures = []
    for place, (label, index) in enumerate(points):
        weights = [layer[:MAX_HEADS, place].numpy() for layer in result]
        drawn = _Map(place, label, index, shown, weights, grid, image, kind, axis)
        pictures.append(_map_picture(drawn))
    gridded = "grid" if image is None else kind.one
    laid = gridded if grid is not None else "points" if scattered else "line"
    note = (
        (GRID if image is None else PANELS.format(kind.one))
        if grid is not None
        else SCATTER
        if scattered
        else "One panel per layer, one line per head."
    )
    omitted = _omitted(layers, shown, result)
    text = words(
        "maps", place=laid, scalar=_scalar(shown[0]), omitted=omitted, note=note, kind=kind
    )
    numbers = {
        layer.name: {"queries": indices, "weights": _plain(w)} for layer, w in zip(shown, result)
    }
    return Section("maps", "One query at a time", text, pictures), numbers


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
            own = _first(layer.domain)
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
    text = words("graphs", one=kind.one, scalar=_scalar(layers[0]), note=NETWORK)
    numbers = {
        layer.name: {"queries": [index for _, index in chosen], "weights": _plain(rows[layer.name])}
        for layer in layers
    }
    return Section("maps", "One node at a time", text, pictures), numbers


def shown_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return up to :data:`MAX_LAYERS` of the layers that live on the first one's points."""
    alike = [layer for layer in layers if layer.domain.size == layers[0].domain.size]
    places = np.linspace(0, len(alike) - 1, min(MAX_LAYERS, len(alike)))
    return [alike[i] for i in sorted({round(i) for i in places})]


def _omitted(layers: Sequence[Layer], shown: Sequence[Layer], weights: Sequence[Tensor]) -> str:
    """Say which layers and heads are not drawn."""
    left = [f"{len(shown)} of {len(layers)} layers"] if len(shown) < len(layers) else []
    left += [f"{MAX_HEADS} of {len(weights[0])} heads"] if len(weights[0]) > MAX_HEADS else []
    return f" Shown: {' and '.join(left)}." if left else ""


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
    there = there if bool(there.any()) else torch.ones_like(there)
    x = domain.positions.reshape(-1, domain.size, domain.dim)[0].double().cpu()
    real, token = there.nonzero()[:, 0].cpu(), class_token(domain)
    result = [] if token is None else [("the class token", token)]
    real = real[real != token] if token is not None else real
    grid = image_grid(domain)
    if grid is not None:  # without the registers that may stand before it
        real = grid.flatten().cpu()
    low, high = x[real].amin(0), x[real].amax(0)
    if image is not None and grid is not None:
        grey = torch.from_numpy(image.mean(-1))[None, None]
        contrast = torch.nn.functional.adaptive_avg_pool2d(
            (grey - grey.median()) ** 2, (grid.shape[0], grid.shape[1])
        )
        result.append(
            (f"the {point} that stands out most", int(grid.flatten()[contrast.flatten().argmax()]))
        )
    for label, place in (
        ("a corner" if domain.dim > 1 else "the first point", low),
        ("the centre", (low + high) / 2),
    ):
        result.append((label, int(real[(x[real] - place).norm(dim=-1).argmin()])))
    unique: dict[int, str] = {}
    for label, index in result:
        unique.setdefault(index, label)
    return [(label, index) for index, label in unique.items()][:3]


def evolution_section(
    model: Any, inputs: Tensor | Inputs, *, seed: int
) -> tuple[Section | None, dict[str, Any]]:
    """Energy, distance to the constraint and growth of a perturbation after each step, at N, 2N and
    4N steps; for other models nothing.
    """
    body = getattr(model, "body", None)
    if not isinstance(body, ContinuousBody) or not isinstance(inputs, Tensor):
        return None, {}
    device = next(model.parameters()).device
    base = body.evolution.steps
    counts = [base, 2 * base, 4 * base] if model.config.body.scheme != "relaxed" else [base]
    result = {n: trajectory(model, inputs.to(device), n, seed) for n in counts}
    text = words("evolution", steps=base, horizon=f"{body.evolution.horizon:g}")
    caption = words("evolution_caption", samples=len(inputs), seed=seed)
    ends = {n: {key: values[-1] for key, values in one.items()} for n, one in result.items()}
    alt = "; ".join(
        f"{n} steps end at energy {e['energy']:.3g}, distance {e['distance']:.3g}, growth "
        f"{e['growth']:.3g}"
        for n, e in ends.items()
    )
    rows = [
        [n, *line]
        for n, one in result.items()
        for line in zip(one["time"], *(one[k] for k in QUANTITIES))
    ]
    data = Data(["steps", "time", *QUANTITIES], rows)
    picture = Picture("steps", alt, caption, render(lambda theme: _steps(theme, result)), data)
    return Section("steps", "Step by step", text, [picture]), {
        str(n): one for n, one in result.items()
    }


# --- parts ----------------------------------------------------------------------------------------


def _profile_picture(key, names, found, what, label, caption) -> Picture:
    label = "‖K‖ (Frobenius)" if label == "‖K‖_F" else label
    near = ", ".join(
        f"{n}: {p.pooled(what)[0][0]:.3g} at distance 0, {p.pooled(what)[0][-1]:.3g} farthest"
        for n, p in zip(names, found)
    )
    rows = []
    for name, profile in zip(names, found):
        mean, sd = profile.pooled(what)
        heads = getattr(profile, what).T
        columns = zip(profile.distance.tolist(), mean.tolist(), sd.tolist(), heads.tolist())
        rows += [[name, distance, m, s, *each] for distance, m, s, each in columns]
    count = max(len(getattr(profile, what)) for profile in found)
    head = ["layer", "distance", "mean", "sd", *(f"head {i + 1}" for i in range(count))]
    drawn = render(lambda theme: plots.profiles(theme, names, found, what, label))
    return Picture(key, f"{label} against distance. {near}", caption, drawn, Data(head, rows))


def _in_picture(y: np.ndarray, grid: np.ndarray, place: np.ndarray) -> tuple[float, float]:
    """A place as (row, column), in units of the picture whose points (N, 2) form a grid."""
    found = []
    for axis, line in enumerate((grid[:, 0], grid[0])):
        first, last, n = y[line[0], axis], y[line[-1], axis], len(line)
        cell = (last - first) / (n - 1) if n > 1 else 1.0
        found.append(float((place[axis] - first) / cell + 0.5) / n)
    return found[0], found[1]


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
    y, x = (
        d.positions.reshape(-1, d.size, d.dim)[0].double().cpu().numpy() for d in (keys, target)
    )
    names, label, grid, where = found.axis.of(keys), found.label, found.grid, ""
    real = (keys.quadrature().mass[0] > 0).cpu().numpy()
    if grid is None and keys.dim > 1:
        places = y if found.image is None else np.stack([y[:, 1], -y[:, 0]], 1)  # rows run down
        among, cloud = int(real[: found.index].sum()), Cloud(places[real])  # padding is not drawn
        weights = [layer[:, real] for layer in found.weights]
        drawn = render(lambda theme: plots.clouds(theme, cloud, found.layer_names, weights, among))
    elif grid is None and any(names):
        kept = [i for i, name in enumerate(names) if name]
        place = kept.index(found.index) if found.index in kept else None
        label = f"“{names[found.index]}”" if place is not None else label
        line = plots.Line(
            np.arange(len(kept)), place, found.axis.label, tuple(names[i] for i in kept)
        )
        weights = [layer[:, kept] for layer in found.weights]
        drawn = render(lambda theme: plots.lines(theme, line, found.layer_names, weights))
    elif grid is None:
        at = float(x[found.index, 0]) * found.axis.unit
        line = plots.Line(y[real, 0] * found.axis.unit, at, found.axis.label or found.kind.axis)
        weights = [layer[:, real] for layer in found.weights]
        drawn = render(lambda theme: plots.lines(theme, line, found.layer_names, weights))
        where = f" at {at:.3g} (dashed line)"
    else:
        panels = [layer[:, grid.numpy()] for layer in found.weights]
        picture = np.zeros((*grid.shape, 1)) if found.image is None else found.image
        at = _in_picture(y, grid.numpy(), x[found.index])
        drawn = render(lambda theme: plots.maps(theme, picture, found.layer_names, panels, at))
        if not _mass_at(target, found.index):
            where = " (ring at its place; it is not part of the picture)"
    facts = {"label": label, "where": where, "index": found.index, "count": len(x)}
    caption = words("map_caption", **facts, point=found.kind.point)
    alt = f"Weights of {label} over the domain, {len(found.layers)} layers"
    return Picture(f"map-{found.place + 1}", alt, caption, drawn, found.data(y, names))


def _mass_at(domain: Domain, index: int) -> float:
    """Measure of a point, of the first sample."""
    return float(domain.measure.reshape(-1, domain.size)[0, index])


def _scalar(layer: Layer) -> bool:
    """Whether a pair has a scalar weight; else it is the norm of its kernel matrix."""
    return bool(layer.operator.has_weights)


def _proportional(profile) -> bool:
    """Whether weights are norms times one constant a head, so that a second picture would show the
    same.
    """
    there = profile.norm > 0
    ratio = profile.weight / profile.norm.where(there, torch.ones(()))
    mean = (ratio * there).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
    return bool((((ratio - mean).abs() <= 1e-3 * mean) | (~there & (profile.weight == 0))).all())


def _first(domain: Domain) -> Domain:
    return take_samples(domain, slice(0, 1))


def _percent(value: float) -> str:
    return "undefined" if value != value else f"{value:.0%}"


def _plain(value: Any) -> Any:
    """Tensors and dictionaries of them as JSON has it; NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def _steps(theme: Theme, found: dict[int, dict[str, list[float]]]) -> Figure:
    """Plot each quantity against time: one panel per quantity, one line per number of steps."""
    rows, columns = theme.side_by_side(len(QUANTITIES))
    figure = new_figure(theme.width, 2.7 * rows)
    for axes, (key, label) in zip(figure.subplots(rows, columns), QUANTITIES.items()):
        for colour, (count, one) in zip(theme.series, found.items()):
            size = 3 if count < 25 else 0
            axes.plot(
                one["time"],
                one[key],
                color=colour,
                marker="o",
                markersize=size,
                label=f"{count} steps",
            )
        axes.set_title(label)
        axes.set_xlabel("time t")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    figure.axes[0].legend()
    return figure
