"""Kernels over graphs and meshes: the part of a graph around a node, its nodes and edges coloured
by the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...domain import Domain
from ...edges import Edges
from ...explain.kernels import kernel_map, masses, take_samples
from ..data.kinds.kind import SAMPLES, Kind
from .page import Data
from .style import Theme, colormap, square_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = "graph"  # the kind of data whose samples are graphs
NODES = 150  # drawn around a node: more would hide one another
NUMBERS = 1 << 24  # of the kernel's rows that are read for one picture
DRAWABLE = 3  # coordinates of points that can be drawn
CELLS_PER_NODE = 3  # a triangulation of a surface has two; with more, triangles are not cells


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


def edge_table(part: Part, names: Sequence[str], found: Sequence[np.ndarray]) -> Data:
    """The kernel along every edge that is drawn, one row per edge; nodes are counted from 1."""
    head = ["source", "target"]
    columns = []
    source, target = part.edges
    for name, layer in zip(names, found):
        for number, kernel in enumerate(layer):
            head.append(f"{name}, head {number + 1}")
            columns.append(kernel[target, source].tolist())
    ends = (part.nodes[source] + 1).tolist(), (part.nodes[target] + 1).tolist()
    return Data(head, list(zip(*ends, *columns)))


def draws_graph(domain: Domain, kind: Kind = SAMPLES) -> bool:
    """Whether a domain is drawn as a graph: its pairs are edges; or a mask, where the samples are
    graphs or points have no coordinates that can be drawn.
    """
    pairs = domain.pairs
    if pairs is None or isinstance(pairs, Edges):
        return pairs is not None
    if kind.encoder == GRAPHS:
        visible = pairs if pairs.dtype == torch.bool else pairs > -torch.inf
        return not bool(visible.all())
    return pairs.dtype == torch.bool and (domain.dim > DRAWABLE or not _apart(domain.positions))


def part_around(domain: Domain, query: int, limit: int = NODES) -> Part:
    """The nodes that reach a node along the fewest edges, at most ``limit``, and the edges between
    them; ``domain`` is of one sample.

    Example:
        >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        >>> part = part_around(Domain.graph(ring, 4, sparse=True), 2, limit=3)
        >>> part.nodes.tolist(), part.edges.T.tolist()
        ([2, 1, 0], [[1, 0], [2, 1]])
    """
    edges = _edges(domain)
    nodes = _nearest_nodes(edges, query, limit)
    among = edges.select(nodes, nodes)
    source, target = among.source, among.targets()
    apart = source != target
    links = torch.stack([source[apart], target[apart]])
    places = _places(domain, nodes, links)
    cells = _triangles(links, len(nodes)) if _apart(domain.positions) else links.new_zeros(0, 3)
    if len(cells) > CELLS_PER_NODE * len(nodes):
        cells = cells[:0]
    return Part(nodes.numpy(), places.numpy(), links.numpy(), cells.numpy())


def kernel_on_part(operator: Any, u: Tensor, domain: Domain, part: Part) -> Tensor:
    """The kernel between the nodes of a part, (H, n, n): rows are queries."""
    nodes = part.nodes.tolist()
    found = kernel_map(operator, u[:1], domain, queries=nodes)[0]
    return found[:, :, nodes]


def choose_nodes(domain: Domain) -> list[tuple[str, int]]:
    """Up to three nodes worth a picture, (label, index): the one that sees most, one of middle
    degree, and one that sees least beside itself.

    Example:
        >>> star = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])
        >>> choose_nodes(Domain.graph(star, 4, sparse=True))[0]
        ('the node of most neighbours', 0)
    """
    degree = _edges(domain).degrees()
    real = (masses(domain)[0] > 0).nonzero()[:, 0].cpu()
    order = real[torch.sort(degree[real], stable=True, descending=True).indices]
    linked = order[degree[order] > 1] if bool((degree[order] > 1).any()) else order
    chosen = {
        int(linked[0]): "the node of most neighbours",
        int(linked[len(linked) // 2]): "a node of middle degree",
        int(linked[-1]): "a node of few neighbours",
    }
    return [(label, index) for index, label in chosen.items()]


def most_nodes(domain: Domain, heads: int) -> int:
    """How many nodes are drawn, so that the rows of the kernel fit into memory."""
    return max(2, min(NODES, NUMBERS // max(1, heads * domain.size)))


def first_sample(domain: Domain) -> Domain:
    """The domain of the first sample."""
    return take_samples(domain, slice(0, 1)).to("cpu")


def graphs(theme: Theme, part: Part, names: Sequence[str], found: Sequence[np.ndarray]) -> Figure:
    """One node's row of the kernel over a part of a graph, (H, n, n) per layer: layers as rows,
    heads as columns, each panel on its own scale. Nodes have the colour of the query's weight on
    them, edges that of the kernel between their ends, triangles the mean of their corners.
    """
    heads = len(found[0])
    figure, panels = square_panels(theme, len(found), heads, largest=2.6, title=0.4)
    for row, (name, layer) in enumerate(zip(names, found)):
        for head, axes in enumerate(panels[row]):
            _panel(axes, theme, part, layer[head])
            axes.set_title(f"head {head + 1}" if row == 0 else "", fontsize=8)
            if head == 0:
                axes.set_ylabel(name, fontsize=8.5)
    return figure


# --- parts ----------------------------------------------------------------------------------------


def _panel(axes: Any, theme: Theme, part: Part, kernel: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    source, target = part.edges
    of_edges, of_nodes = kernel[target, source], kernel[0]
    top = max(float(of_edges.max(initial=0.0)), float(of_nodes.max(initial=0.0))) or 1.0
    colours = {"cmap": colormap(theme), "clim": (0.0, top)}
    x, y = part.places.T
    if len(part.cells):
        values = of_nodes[part.cells].mean(1)
        axes.tripcolor(x, y, part.cells, facecolors=values, alpha=0.6, **colours)

    # The strongest edges are drawn last, on top of the others.
    order = np.argsort(of_edges, kind="stable")
    ends = part.places[part.edges.T[order]]
    lines = LineCollection(list(ends), array=of_edges[order], linewidths=1.1, **colours)
    axes.add_collection(lines)
    axes.scatter(
        x,
        y,
        s=14,
        c=of_nodes,
        cmap=colormap(theme),
        vmin=0.0,
        vmax=top,
        edgecolors=theme.faint,
        linewidths=0.4,
        zorder=3,
    )
    axes.scatter(
        *part.places[0], s=52, facecolor="none", edgecolor=theme.mark, linewidth=1.8, zorder=4
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"0 – {top:.2g}", fontsize=7, color=theme.faint, labelpad=2)


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
    """Nodes in the order in which a walk against the edges meets them, the query first."""
    found, last = [query], [query]
    seen = {query}
    while last and len(found) < limit:
        following: list[int] = []
        for node in last:
            for key in edges.row(node).tolist():
                if key not in seen:
                    seen.add(key)
                    following.append(key)
        found += following
        last = following
    return torch.tensor(found[:limit])


def _places(domain: Domain, nodes: Tensor, links: Tensor) -> Tensor:
    """Where nodes are drawn: their positions, seen along the axis of least extent, or by the two
    slowest modes of the graph's Laplacian where they have none.
    """
    x = domain.positions.detach().cpu().double()
    if _apart(x):
        x = x.reshape(-1, domain.size, domain.dim)[0][nodes]
        extent = x.amax(0) - x.amin(0)
        keep = extent.argsort(descending=True, stable=True)[:2].sort().values
        return x[:, keep]
    n = len(nodes)
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    adjacency[links[0], links[1]] = 1.0
    adjacency = torch.maximum(adjacency, adjacency.mT)
    degree = adjacency.sum(1).clamp_min(1.0)
    scale = degree.rsqrt()
    laplacian = torch.eye(n, dtype=torch.float64) - scale[:, None] * adjacency * scale
    modes = torch.linalg.eigh(laplacian).eigenvectors * scale[:, None]
    if n < 3:
        return torch.nn.functional.pad(torch.arange(n, dtype=torch.float64)[:, None], (0, 1))
    return modes[:, 1:3] / modes[:, 1:3].abs().amax(0).clamp_min(1e-12)


def _triangles(links: Tensor, n: int) -> Tensor:
    """Three nodes that are all linked with one another, (t, 3)."""
    linked = torch.zeros(n, n, dtype=torch.bool)
    linked[links[0], links[1]] = True
    linked = linked | linked.mT
    first, second = linked.triu(1).nonzero(as_tuple=True)
    third = linked[first] & linked[second] & (torch.arange(n) > second[:, None])
    pair, last = third.nonzero(as_tuple=True)
    return torch.stack([first[pair], second[pair], last], 1)
