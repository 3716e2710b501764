"""The section on kernels over graphs and meshes: the part of a graph around a node, with its nodes
and edges coloured by the kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....domain import Domain
from ....edges import Edges
from ...data.kinds.kind import Kind
from ...numbers import plural
from ..layers import (
    DRAWABLE,
    MAX_HEADS,
    Layer,
    View,
    count_points,
    first_map,
    first_sample,
    places_of,
    plain,
    real_points,
)
from ..page import Data, Numbered, Picture, Section, words
from ..panels import head_panels, label_range, no_ticks, weighted_points
from ..style import Theme, colour_scale, has_negative, layer_panels, render

if TYPE_CHECKING:
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


def draws_graph(domain: Domain, kind: Kind) -> bool:
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
    if not mask:
        return False
    return domain.dim > DRAWABLE or not _apart(domain.positions)


def graph_section(view: View) -> Numbered:
    """Return the kernel around some nodes of the first sample, in layers that live on one graph,
    and its numbers: the queries of each layer, the nodes that are drawn around each query, and the
    query's weights on them, (H, queries, nodes). Nodes count from 0.
    """
    first = view.layers[0]
    domain = first_sample(first.domain).to("cpu")
    chosen = choose_nodes(domain)
    # All rows of a layer's kernel, (H, nodes, N), are in memory at once.
    heads = max(layer.operator.heads for layer in view.layers)
    row = max(1, heads * domain.size)
    limit = max(2, min(NODES, NUMBERS // row))

    pictures = []
    signed = False
    nodes = []
    rows = defaultdict(list)
    for place, (label, index) in enumerate(chosen, 1):
        part = part_around(domain, index, limit)
        nodes.append(part.nodes.tolist())
        kernels = []
        for layer in view.layers:
            kernel = kernel_on_part(layer, part)
            rows[layer.name].append(kernel[:, 0].tolist())
            kernels.append(kernel[:MAX_HEADS].numpy())
        if any(map(has_negative, kernels)):
            signed = True
        caption = words(
            "graph_caption",
            label=label,
            index=index,
            shown=len(part.nodes),
            count=count_points(domain),
        )
        picture = Picture(
            f"map-{place}",
            f"The kernel around {label}, {plural(len(kernels), 'layer')}",
            caption,
            render(draw_graphs, part, view.names, kernels),
            edge_table(part, view.names, kernels),
        )
        pictures.append(picture)
    text = words(
        "graphs",
        one=view.kind.one,
        scalar=first.has_weights,
        signed=signed,
    )
    section = Section("maps", "One node at a time", text, pictures)

    indices = [index for _, index in chosen]
    numbers = {}
    for name, of_queries in rows.items():
        # Queries may have different numbers of nodes, so that no tensor holds them all.
        weights = [list(head) for head in zip(*of_queries)]
        numbers[name] = {
            "queries": indices,
            "nodes": nodes,
            "weights": plain(weights),
        }
    return section, numbers


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
    nodes = torch.arange(domain.size)
    links = torch.stack([edges.source, edges.targets()])
    return _layout(nodes, links)


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
    source, target = links
    links = links[:, source != target]

    if _apart(domain.positions):
        places = _seen(places_of(domain)[nodes])
        cells = _triangles(links, len(nodes))
    else:
        places = _layout(nodes, links)
        cells = links.new_zeros(0, 3)
    # With more triangles than a surface has, the graph is not a mesh, and none is drawn.
    if len(cells) > CELLS_PER_NODE * len(nodes):
        cells = cells[:0]
    return Part(nodes.numpy(), places.numpy(), links.numpy(), cells.numpy())


def kernel_on_part(layer: Layer, part: Part) -> Tensor:
    """Return the kernel between the nodes of a part, (H, n, n); rows are queries."""
    nodes = part.nodes.tolist()
    return first_map(layer, nodes)[:, :, nodes]


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
    by_degree = torch.sort(degree[real], stable=True, descending=True)
    order = real[by_degree.indices]
    linked = order[degree[order] > 1]
    if not len(linked):
        linked = order

    linked = linked.tolist()
    middle = linked[len(linked) // 2]
    chosen = {
        linked[0]: "the node of most neighbours",
        middle: "a node of middle degree",
        linked[-1]: "a node of few neighbours",
    }
    most = degree[order[0]]
    least = degree[order[-1]]
    if most == least:
        chosen = dict.fromkeys(chosen, "a node like the others")
    return [(label, index) for index, label in chosen.items()]


def _apart(positions: Tensor) -> bool:
    """Whether points have places in the plane or in space."""
    dim = positions.shape[-1]
    if not 2 <= dim <= DRAWABLE:
        return False
    x = positions.reshape(-1, dim)
    return bool((x != x[:1]).any())


def _edges(domain: Domain) -> Edges:
    """Return the edges of a domain of one sample, on the CPU; a mask of pairs is converted."""
    pairs = domain.pairs

    # ``draws_graph`` is false for a domain without pairs, and no such domain comes here.
    assert pairs is not None
    if not isinstance(pairs, Edges):
        # A mask may have a dimension of samples, or be shared by all of them.
        if pairs.dim() > 2:
            pairs = pairs[:1]
        pairs = Edges.of_mask(pairs)
    return pairs.to("cpu")


def _nearest_nodes(edges: Edges, query: int, limit: int) -> Tensor:
    """Return nodes in the order in which a walk against the edges meets them, the query first."""
    # A dictionary keeps its keys in the order in which they came, each once.
    found = {query: None}
    last = [query]
    while last and len(found) < limit:
        reached = []
        for node in last:
            for key in edges.row(node).tolist():
                if key not in found:
                    found[key] = None
                    reached.append(key)
        last = reached
    nearest = list(found)[:limit]
    return torch.tensor(nearest)


def _seen(places: Tensor) -> Tensor:
    """Return places (n, 2) in the plane, of points in space seen along the axis of least extent."""
    extent = places.amax(0) - places.amin(0)
    longest = extent.argsort(descending=True, stable=True)[:2]
    return places[:, longest.sort().values]


def _layout(nodes: Tensor, links: Tensor) -> Tensor:
    """Return places (n, 2) for nodes without any: the two slowest modes of the graph's Laplacian,
    in which linked nodes are near each other.
    """
    count = len(nodes)
    if count < 3:
        line = torch.arange(count, dtype=torch.float64)
        height = torch.zeros_like(line)
        return torch.stack([line, height], 1)

    source, target = links
    adjacency = torch.zeros(count, count, dtype=torch.float64)
    adjacency[source, target] = 1.0
    adjacency = torch.maximum(adjacency, adjacency.mT)
    adjacency.fill_diagonal_(0.0)

    degree = adjacency.sum(1)
    scale = degree.clamp_min(1.0).rsqrt()
    scaled = scale[:, None] * adjacency * scale
    laplacian = torch.eye(count, dtype=torch.float64) - scaled
    vectors = torch.linalg.eigh(laplacian).eigenvectors
    modes = vectors * scale[:, None]

    # The slowest mode of all is constant.
    slow = modes[:, 1:3]
    largest = slow.abs().amax(0)
    return slow / largest.clamp_min(1e-12)


def _triangles(links: Tensor, count: int) -> Tensor:
    """Return all triples of nodes that are linked with one another, (t, 3)."""
    source, target = links
    linked = torch.zeros(count, count, dtype=torch.bool)
    linked[source, target] = True
    linked = linked | linked.mT

    # Every triangle is found once, its corners in increasing order.
    first, second = linked.triu(1).nonzero(as_tuple=True)
    beyond = torch.arange(count) > second[:, None]
    third = linked[first] & linked[second] & beyond
    pair, last = third.nonzero(as_tuple=True)
    corners = [first[pair], second[pair], last]
    return torch.stack(corners, 1)


# --- pictures -------------------------------------------------------------------------------------


def draw_graphs(
    theme: Theme,
    part: Part,
    names: Sequence[str],
    kernels: Sequence[np.ndarray],
) -> Figure:
    """Draw one node's row of the kernel over a part of a graph: layers as rows, heads as columns,
    each panel on its own scale. Nodes have the colour of the query's weight on them, edges that of
    the kernel between their ends, triangles the mean of their corners.

    Args:
        kernels: (H, n, n) of each layer, between the part's nodes; rows are queries, of which row 0
            is the one that is ringed.
    """
    from matplotlib.collections import LineCollection

    figure, every = layer_panels(theme, kernels, largest=2.6, title=0.4)
    # An edge's target is the query of its pair, its source the key.
    source, target = part.edges
    for axes, kernel in head_panels(every, names, kernels):
        along = kernel[target, source]
        weights = kernel[0]
        both = np.concatenate([along, weights])
        look = colour_scale(theme, both)

        # From back to front: triangles, edges, nodes.
        if len(part.cells):
            corners = weights[part.cells].mean(1)
            axes.tripcolor(
                *part.places.T,
                part.cells,
                facecolors=corners,
                alpha=0.6,
                **look,
            )
        # The strongest edges are drawn last, on top of the others.
        order = np.argsort(np.abs(along), kind="stable")
        edges = part.edges.T[order]
        lines = LineCollection(
            list(part.places[edges]),
            array=along[order],
            linewidths=1.1,
            **look,
        )
        axes.add_collection(lines)
        weighted_points(
            axes,
            theme,
            part.places,
            weights,
            0,
            s=14,
            edgecolors=theme.faint,
            linewidths=0.4,
            **look,
        )
        no_ticks(axes)
        label_range(axes, both, theme)
    return figure
