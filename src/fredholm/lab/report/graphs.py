"""The section on kernels over graphs and meshes: the part of a graph around a node, with its nodes
and edges coloured by the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...domain import Domain
from ...edges import Edges
from ...explain.kernels import kernel_map
from ..data.kinds.kind import SAMPLES, Kind
from .layers import DRAWABLE, MAX_HEADS, View, first_sample, places_of, plain, real_points
from .page import Data, Picture, Section, words
from .panels import head_panels, no_ticks
from .style import Theme, colormap, layer_panels, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The kind of data whose samples are graphs.
GRAPHS = "graph"

# Nodes that are drawn around a query; more would hide one another.
NODES = 150

# Numbers of the kernel's rows that are read for one picture.
NUMBERS = 1 << 24

# A triangulation of a surface has two triangles per node; with more, triangles are not cells.
CELLS_PER_NODE = 3


class Part(NamedTuple):
    """The part of a graph that is drawn.

    Attributes:
        nodes: which nodes, (n,); the first is the query.
        places: where they are drawn, (n, 2).
        edges: source and target of each edge, (2, m), numbered within ``nodes``.
        cells: triangles of a mesh, (t, 3), numbered alike; none where the graph is not one.
    """

    nodes: np.ndarray
    places: np.ndarray
    edges: np.ndarray
    cells: np.ndarray


def draws_graph(domain: Domain, kind: Kind = SAMPLES) -> bool:
    """Whether a domain is drawn as a graph: its pairs are edges; or a mask, where the samples are
    graphs or points have no coordinates that can be drawn.
    """
    pairs = domain.pairs
    if pairs is None or isinstance(pairs, Edges):
        return pairs is not None

    mask = pairs.dtype == torch.bool
    if kind.encoder == GRAPHS:
        visible = pairs
        if not mask:
            # A log-density: minus infinity hides a pair.
            visible = pairs > -torch.inf
        return not bool(visible.all())
    return mask and (domain.dim > DRAWABLE or not _apart(domain.positions))


def graph_section(
    view: View, queries: Sequence[int] | None
) -> tuple[Section, dict[str, dict[str, Any]]]:
    """Return the kernel around some nodes of the first sample, in layers that live on one graph,
    and its numbers.
    """
    domain = first_sample(view.layers[0].domain).to("cpu")
    chosen = choose_nodes(domain)
    if queries is not None:
        chosen = [(f"node {query + 1}", query) for query in queries]

    # All rows of a layer's kernel, (H, nodes, N), are in memory at once.
    heads = max(layer.operator.heads for layer in view.layers)
    limit = max(2, min(NODES, NUMBERS // max(1, heads * domain.size)))
    pictures = []
    weights: dict[str, list[Tensor]] = {name: [] for name in view.names}
    for place, (label, index) in enumerate(chosen, 1):
        part = part_around(domain, index, limit)
        kernels = []
        for layer in view.layers:
            own = first_sample(layer.domain)
            kernel = kernel_on_part(layer.operator, layer.u, own, part)[:MAX_HEADS]
            kernels.append(kernel.numpy())
            weights[layer.name].append(kernel[:, 0])
        pictures.append(
            Picture(
                f"map-{place}",
                f"The kernel around {label}, {len(kernels)} layers",
                words(
                    "graph_caption",
                    label=label,
                    index=index,
                    shown=len(part.nodes),
                    count=domain.size,
                ),
                render(lambda theme, p=part, k=kernels: graphs(theme, p, view.names, k)),
                edge_table(part, view.names, kernels),
            )
        )
    text = words("graphs", one=view.kind.one, scalar=view.layers[0].has_weights)
    indices = [index for _, index in chosen]
    numbers = {name: {"queries": indices, "weights": plain(rows)} for name, rows in weights.items()}
    return Section("maps", "One node at a time", text, pictures), numbers


def edge_table(
    part: Part,
    names: Sequence[str],
    kernels: Sequence[np.ndarray],
) -> Data:
    """Return the kernel along every edge that is drawn, one row per edge; nodes count from 1."""
    source, target = part.edges
    columns = {
        "source": (part.nodes[source] + 1).tolist(),
        "target": (part.nodes[target] + 1).tolist(),
    }
    for name, layer in zip(names, kernels):
        for head, kernel in enumerate(layer, 1):
            columns[f"{name}, head {head}"] = kernel[target, source].tolist()
    return Data.of(columns)


def node_places(domain: Domain, kind: Kind) -> Tensor | None:
    """Return places (N, 2) of all nodes of a graph of one sample whose points have none; None for
    any other domain.
    """
    if not draws_graph(domain, kind) or _apart(domain.positions):
        return None
    edges = _edges(domain)
    return _layout(torch.arange(domain.size), torch.stack([edges.source, edges.targets()]))


# --- the part that is drawn -----------------------------------------------------------------------


def part_around(domain: Domain, query: int, limit: int = NODES) -> Part:
    """Return the nodes that reach a node along the fewest edges, at most ``limit``, and the edges
    between them; ``domain`` is of one sample.

    Example:
        >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        >>> part = part_around(Domain.graph(ring, 4, sparse=True), 2, limit=3)
        >>> part.nodes.tolist(), part.edges.T.tolist()
        ([2, 1, 0], [[1, 0], [2, 1]])
    """
    edges = _edges(domain)
    nodes = _nearest_nodes(edges, query, limit)
    among = edges.select(nodes, nodes)
    links = torch.stack([among.source, among.targets()])
    # A node's edge to itself has no length to draw.
    links = links[:, links[0] != links[1]]

    if _apart(domain.positions):
        places, cells = _seen(places_of(domain)[nodes]), _triangles(links, len(nodes))
    else:
        places, cells = _layout(nodes, links), links.new_zeros(0, 3)
    if len(cells) > CELLS_PER_NODE * len(nodes):
        cells = cells[:0]
    return Part(
        nodes.numpy(),
        places.numpy(),
        links.numpy(),
        cells.numpy(),
    )


def kernel_on_part(
    operator: Any,
    u: Tensor,
    domain: Domain,
    part: Part,
) -> Tensor:
    """Return the kernel between the nodes of a part, (H, n, n); rows are queries."""
    nodes = part.nodes.tolist()
    return kernel_map(operator, u[:1], domain, queries=nodes)[0][:, :, nodes]


def choose_nodes(domain: Domain) -> list[tuple[str, int]]:
    """Return up to three nodes, (label, index), that are worth a picture: the one that sees most,
    one of middle degree, and one that sees least beside itself.

    Example:
        >>> star = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])
        >>> choose_nodes(Domain.graph(star, 4, sparse=True))[0]
        ('the node of most neighbours', 0)
    """
    degree = _edges(domain).degrees()
    real = torch.tensor(real_points(domain))
    order = real[torch.sort(degree[real], stable=True, descending=True).indices]
    linked = order[degree[order] > 1]
    if not len(linked):
        linked = order
    chosen = {
        int(linked[0]): "the node of most neighbours",
        int(linked[len(linked) // 2]): "a node of middle degree",
        int(linked[-1]): "a node of few neighbours",
    }
    return [(label, index) for index, label in chosen.items()]


def _apart(positions: Tensor) -> bool:
    """Whether points have places in the plane or in space."""
    x = positions.reshape(-1, positions.shape[-1])
    return 2 <= x.shape[1] <= DRAWABLE and bool((x != x[:1]).any())


def _edges(domain: Domain) -> Edges:
    """Return the edges of a domain of one sample, on the CPU; a mask of pairs is converted."""
    pairs = domain.pairs

    # ``draws_graph`` is false for a domain without pairs, and no such domain comes here.
    assert pairs is not None
    if not isinstance(pairs, Edges):
        # A mask may have a dimension of samples, or be shared by all of them.
        pairs = Edges.of_mask(pairs[:1] if pairs.dim() > 2 else pairs)
    return pairs.to("cpu")


def _nearest_nodes(edges: Edges, query: int, limit: int) -> Tensor:
    """Return nodes in the order in which a walk against the edges meets them, the query first."""
    # A dictionary keeps its keys in the order in which they came, each once.
    found = {query: None}
    last = [query]
    while last and len(found) < limit:
        reached = [key for node in last for key in edges.row(node).tolist()]
        last = [key for key in dict.fromkeys(reached) if key not in found]
        found |= dict.fromkeys(last)
    return torch.tensor(list(found)[:limit])


def _seen(places: Tensor) -> Tensor:
    """Return places (n, 2) in the plane, of points in space seen along the axis of least extent."""
    extent = places.amax(0) - places.amin(0)
    kept = extent.argsort(descending=True, stable=True)[:2].sort().values
    return places[:, kept]


def _layout(nodes: Tensor, links: Tensor) -> Tensor:
    """Return places (n, 2) for nodes without any: the two slowest modes of the graph's Laplacian,
    in which linked nodes are near each other.
    """
    count = len(nodes)
    if count < 3:
        line = torch.arange(count, dtype=torch.float64)
        return torch.stack([line, torch.zeros_like(line)], 1)
    adjacency = torch.zeros(count, count, dtype=torch.float64)
    adjacency[links[0], links[1]] = 1.0
    adjacency = torch.maximum(adjacency, adjacency.mT).fill_diagonal_(0.0)

    scale = adjacency.sum(1).clamp_min(1.0).rsqrt()
    laplacian = torch.eye(count, dtype=torch.float64) - scale[:, None] * adjacency * scale
    modes = torch.linalg.eigh(laplacian).eigenvectors * scale[:, None]
    # The slowest mode of all is constant.
    slow = modes[:, 1:3]
    return slow / slow.abs().amax(0).clamp_min(1e-12)


def _triangles(links: Tensor, count: int) -> Tensor:
    """Return all triples of nodes that are linked with one another, (t, 3)."""
    linked = torch.zeros(count, count, dtype=torch.bool)
    linked[links[0], links[1]] = True
    linked = linked | linked.mT
    first, second = linked.triu(1).nonzero(as_tuple=True)
    third = linked[first] & linked[second] & (torch.arange(count) > second[:, None])
    pair, last = third.nonzero(as_tuple=True)
    return torch.stack([first[pair], second[pair], last], 1)


# --- pictures -------------------------------------------------------------------------------------


def graphs(
    theme: Theme,
    part: Part,
    names: Sequence[str],
    kernels: Sequence[np.ndarray],
) -> Figure:
    """Draw one node's row of the kernel over a part of a graph: layers as rows, heads as columns,
    each panel on its own scale. Nodes have the colour of the query's weight on them, edges that of
    the kernel between their ends, triangles the mean of their corners.

    Args:
        kernels: (H, n, n) of each layer.
    """
    figure, every = layer_panels(
        theme,
        len(kernels),
        len(kernels[0]),
        largest=2.6,
        title=0.4,
    )
    for axes, kernel in head_panels(every, names, kernels):
        _panel(axes, theme, part, kernel)
    return figure


def _panel(
    axes: Axes,
    theme: Theme,
    part: Part,
    kernel: np.ndarray,
) -> None:
    """Draw one head's kernel over a part of a graph, from back to front: triangles, edges, nodes,
    and a ring around the query.

    Triangles, edges and nodes share one colour scale from 0 to the largest weight, which is written
    below the panel. Negative weights have the colour of 0.

    Args:
        kernel: (n, n) between the part's nodes, whose rows are queries; row 0 is that of the query.
    """
    from matplotlib.collections import LineCollection

    # An edge's target is the query of its pair, its source the key.
    source, target = part.edges
    along, weights = kernel[target, source], kernel[0]

    # A kernel that is 0 everywhere still needs a scale of some width.
    top = max(float(along.max(initial=0.0)), float(weights.max(initial=0.0))) or 1.0
    colours = {"cmap": colormap(theme), "clim": (0.0, top)}
    x, y = part.places.T
    if len(part.cells):
        corners = weights[part.cells].mean(1)
        axes.tripcolor(
            x,
            y,
            part.cells,
            facecolors=corners,
            alpha=0.6,
            **colours,
        )

    # The strongest edges are drawn last, on top of the others.
    order = np.argsort(along, kind="stable")
    ends = list(part.places[part.edges.T[order]])
    axes.add_collection(
        LineCollection(
            ends,
            array=along[order],
            linewidths=1.1,
            **colours,
        )
    )
    axes.scatter(
        x,
        y,
        s=14,
        c=weights,
        edgecolors=theme.faint,
        linewidths=0.4,
        zorder=3,
        **colours,
    )
    # The ring marks the query, the first node of the part.
    axes.scatter(
        *part.places[0],
        s=52,
        facecolor="none",
        edgecolor=theme.mark,
        linewidth=1.8,
        zorder=4,
    )
    axes.set_aspect("equal", adjustable="datalim")
    no_ticks(axes)
    axes.set_xlabel(
        f"0 – {top:.2g}",
        fontsize=7,
        color=theme.faint,
        labelpad=2,
    )
