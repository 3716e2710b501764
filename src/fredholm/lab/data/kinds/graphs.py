"""Graphs as torch data sets: many small ones, and the neighbourhoods of single nodes of a large
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ....domain import DENSE_NODES
from ....errors import DataError, OptionError
from ....models.encoders import Inputs, laplacian_positions, sparse_laplacian_positions
from .dataset import IGNORED, Indices, LabelledDataset, check_labels, index_tensor
from .kind import Kind, register_kind
from .sequences import padded


@dataclass(frozen=True)
class Graph:
    """One graph: ``features`` (n, F) floats or tokens (n, T) integers, where 0 means no token;
    ``edges`` (2, E) pairs of node numbers, in one direction or both.

    Raises:
        DataError: no node, features that are not finite, or edges of nodes that do not exist.
    """

    features: Tensor
    edges: Int[Tensor, "2 e"]

    def __post_init__(self) -> None:
        n = len(self.features)
        if n == 0 or self.features.dim() != 2:
            raise DataError(
                "features: expected (nodes, width) of one node or more, got "
                f"{tuple(self.features.shape)}; leave empty graphs out"
            )
        _check_finite(self.features)
        outside = (self.edges < 0) | (self.edges >= n)
        wrong = self.edges[outside]
        if len(wrong):
            raise DataError(
                f"edges: expected nodes 0 to {n - 1}, which the graph has, got {int(wrong[0])}; "
                "number the nodes of each graph from 0"
            )


def _check_finite(features: Tensor) -> None:
    wrong = ~features.isfinite().all(1)
    if wrong.any():
        node = int(wrong.nonzero()[0])
        raise DataError(
            f"features: expected finite numbers, got NaN or infinity at node {node}; correct them, "
            "or leave the node out"
        )


class Graphs(Kind):
    """Graphs, each with features or tokens of its nodes."""

    name = "graph"
    one = "graph"
    many = "graphs"
    encoder = "graph"
    single = False

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Inputs) and ("edges" in inputs or "links" in inputs)


GRAPHS = register_kind(Graphs())


class _OfNodes(LabelledDataset):
    """Samples whose points are nodes, with tokens of a vocabulary or with channels of features."""

    kind = GRAPHS
    tokens: bool
    vocabulary: int
    channels: int
    eigenvectors: int

    @property
    def field(self) -> str:
        """Name of the nodes' inputs in a batch."""
        if self.tokens:
            return "tokens"
        return "features"

    def encoder(self) -> dict[str, Any]:
        fields = {**super().encoder(), "eigenvectors": self.eigenvectors}
        if self.tokens:
            fields["vocabulary"] = self.vocabulary
        else:
            fields["channels"] = self.channels
        return fields


class GraphDataset(_OfNodes):
    """Labelled graphs: a batch is :class:`fredholm.encoders.Inputs` of features or tokens, edges,
    positions and valid, padded to the largest graph.

    ``task`` is ``classification`` (one class per graph) or ``steps`` (one class per node).

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        graphs: see :class:`Graph`; all of one width.
        labels: class numbers (N,), or for ``steps`` one tensor (n,) per graph, -100 at nodes
            without a label.
        classes: their names.
        eigenvectors: how many of the Laplacian are the nodes' positions, which are computed once.
        vocabulary: the number of tokens, the same for all splits; by default as many as these
            graphs have.

    Raises:
        DataError: graphs of different widths, labels outside the classes or not one per node, or
            tokens outside the vocabulary.

    Example:
        >>> path = Graph(torch.rand(3, 2), torch.tensor([[0, 1], [1, 2]]))
        >>> labels, classes = torch.tensor([0]), ("a", "b")
        >>> data = GraphDataset("tiny", "train", [path], labels, classes, eigenvectors=2)
        >>> data.batch([0])[0]
        Inputs(edges=(1, 3, 3), positions=(1, 3, 2), valid=(1, 3), features=(1, 3, 2))
    """

    def __init__(
        self,
        name: str,
        split: str,
        graphs: Sequence[Graph],
        labels: Tensor | Sequence[Tensor],
        classes: Sequence[str],
        *,
        eigenvectors: int = 8,
        vocabulary: int | None = None,
    ):
        if isinstance(labels, Tensor):
            numbers = labels
        else:
            self.task = "steps"
            numbers = padded(list(labels), IGNORED)
        super().__init__(name, split, numbers.long(), classes)
        check_labels(self.labels, classes)

        # Features and tokens of the same width are different inputs as well.
        widths = set()
        for graph in graphs:
            width = graph.features.shape[1]
            widths.add((width, graph.features.is_floating_point()))
        if len(widths) > 1 or len(graphs) != len(labels):
            raise DataError(
                f"{name}: expected graphs of one width and one label each, got {len(graphs)} "
                f"graphs of widths {sorted(widths)} and {len(labels)} labels; give all graphs the "
                "same features"
            )
        if self.task == "steps":
            self._check_nodes(graphs, labels)

        self.graphs = list(graphs)
        self.eigenvectors = eigenvectors
        first = torch.zeros(0, 0)
        if graphs:
            first = graphs[0].features
        self.tokens = not first.is_floating_point()
        self.channels = first.shape[1]
        self.vocabulary = 0
        if self.tokens:
            self.vocabulary = self._vocabulary_size(vocabulary)
        self.positions = [_positions(graph, eigenvectors) for graph in graphs]

    def _check_nodes(
        self,
        graphs: Sequence[Graph],
        labels: Sequence[Tensor] | Tensor,
    ) -> None:
        for i, (graph, of_nodes) in enumerate(zip(graphs, labels)):
            nodes = len(graph.features)
            if len(of_nodes) != nodes:
                raise DataError(
                    f"{self.name}: expected one label per node, got {len(of_nodes)} for "
                    f"{nodes} nodes of graph {i}; give {IGNORED} to nodes without one"
                )

    def _vocabulary_size(self, given: int | None) -> int:
        largest = max(int(graph.features.max()) for graph in self.graphs)
        needed = 1 + largest
        if given is None:
            return needed
        if given < needed:
            raise DataError(
                f"{self.name}: expected a vocabulary of {needed} or more for tokens up to "
                f"{largest}, got {given}; enlarge it"
            )
        return given

    def raw(self, indices: Indices) -> tuple[Inputs, Tensor]:
        indices = index_tensor(indices)
        chosen = indices.tolist()
        features = [self.graphs[i].features for i in chosen]
        positions = [self.positions[i] for i in chosen]
        sizes = torch.tensor([len(nodes) for nodes in features])
        n = int(sizes.max())

        fields = self._links(chosen, n)
        fields["positions"] = padded(positions, 0)
        fields["valid"] = torch.arange(n) < sizes[:, None]
        fields[self.field] = padded(features, 0)

        labels = self.labels[indices]
        # Labels of nodes were padded to the largest graph of all, not of this batch.
        if self.task == "steps":
            labels = labels[:, :n]
        return Inputs(**fields), labels

    def _links(self, chosen: list[int], n: int) -> dict[str, Tensor]:
        """Return the edges of some graphs in both directions, as a field of the batch.

        Args:
            chosen: indices of the B graphs.
            n: nodes of the largest of them, to which the others are padded.

        Returns:
            ``edges``, a mask of all pairs (B, n, n). If n is above :data:`DENSE_NODES`, where
            a mask would take too much memory, ``links``: lists of pairs (B, E, 2), padded with -1.
            A pair may be listed twice; the encoder counts it once.
        """
        if n > DENSE_NODES:
            links = []
            for i in chosen:
                edges = self.graphs[i].edges
                both = torch.cat([edges, edges.flip(0)], 1)
                links.append(both.mT)
            return {"links": padded(links, -1)}

        mask = torch.zeros(len(chosen), n, n, dtype=torch.bool)
        for row, i in enumerate(chosen):
            graph = self.graphs[i]
            size = len(graph.features)
            mask[row, :size, :size] = adjacency(graph.edges, size)
        return {"edges": mask}

    def head(self) -> dict[str, Any]:
        if self.task == "steps":
            return {"pool": "every"}
        return {"pool": "mean"}

    def __repr__(self) -> str:
        what = f"{self.name!r}, {self.split!r}, {len(self)} graphs"
        return f"GraphDataset({what}, {len(self.classes)} classes, {self.task})"


def _positions(graph: Graph, eigenvectors: int) -> Tensor:
    """Return the positions (n, eigenvectors) of a graph's nodes."""
    n = len(graph.features)
    if n > DENSE_NODES:
        return sparse_laplacian_positions(graph.edges, n, eigenvectors)
    mask = adjacency(graph.edges, n)
    return laplacian_positions(mask, eigenvectors)


def adjacency(edges: Int[Tensor, "2 e"], n: int) -> Bool[Tensor, "n n"]:
    """Return a symmetric mask of n nodes' edges."""
    sources, targets = edges
    mask = torch.zeros(n, n, dtype=torch.bool)
    mask[sources, targets] = True
    return mask | mask.mT


class Network:
    """A large undirected graph of n nodes as sorted lists of neighbours, without loops.

    Attributes:
        sources, targets: the ends of every edge, in both directions, sorted by source.
        degree: edges per node.
        keys: source · n + target of every edge, ascending; a binary search finds an edge.

    Example:
        >>> network = Network(torch.tensor([[0, 1, 3], [1, 2, 1]]), 5)
        >>> network.around(0, 4)
        [0, 1, 2, 3]
    """

    def __init__(self, edges: Int[Tensor, "2 e"], n: int):
        both = torch.cat([edges, edges.flip(0)], 1)
        loops = both[0] == both[1]
        # unique sorts by source, then by target.
        sources, targets = both[:, ~loops].unique(dim=1)
        self.n = n
        self.sources = sources
        self.targets = targets
        self.degree = torch.bincount(sources, minlength=n)
        ends = self.degree.cumsum(0)
        self.start = [0, *ends.tolist()]
        self.keys = sources * n + targets

        # Neighbours with few edges first: a hub says less about its neighbours than they do.
        most = int(self.degree.max())
        ranks = sources * (most + 1) + self.degree[targets]
        order = ranks.argsort(stable=True)
        self.ordered = targets[order].tolist()

    def around(self, node: int, size: int) -> list[int]:
        """Return the node and the nearest others, ``size`` in all or fewer: by the number of steps,
        and after as many steps those with the fewest edges first.

        Of a hub only the ``size`` neighbours with the fewest edges are looked at.
        """
        result = [node]
        seen = {node}
        # The list grows while it is traversed: a breadth-first search.
        for current in result:
            first = self.start[current]
            last = self.start[current + 1]
            last = min(first + size, last)
            for other in self.ordered[first:last]:
                if len(result) >= size:
                    return result
                if other not in seen:
                    seen.add(other)
                    result.append(other)
        return result

    def linked(self, nodes: Int[Tensor, "b m"]) -> Bool[Tensor, "b m m"]:
        """Return which of the m nodes of each row are neighbours; a padded node, -1, has none.

        O(b·m²·log edges).
        """
        real = nodes >= 0
        indices = nodes.clamp(min=0)
        pairs = indices[:, :, None] * self.n + indices[:, None, :]
        if not len(self.keys):
            return torch.zeros_like(pairs, dtype=torch.bool)

        # The search returns where a pair would be inserted, which may be behind the last edge.
        place = torch.searchsorted(self.keys, pairs)
        place = place.clamp(max=len(self.keys) - 1)
        found = self.keys[place] == pairs
        return found & real[:, :, None] & real[:, None, :]


class NodeDataset(_OfNodes):
    """Nodes of one large graph, each with its neighbourhood: a batch is
    :class:`fredholm.encoders.Inputs` of ``size`` nodes, of which the first is classified.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        network: the graph.
        features: of all its nodes, (n, F) floats or (n, T) tokens with 0 for none.
        nodes, labels: the nodes that are classified and their class numbers, (N,) each.
        classes: their names.
        size: nodes of a neighbourhood; see :meth:`Network.around`.
        eigenvectors: how many of the neighbourhood's Laplacian are positions.
        vocabulary: the number of tokens.

    Raises:
        OptionError: a size below 1.
        DataError: features that are not finite or of another number of nodes, or labels outside
            the classes.

    Example:
        >>> network = Network(torch.tensor([[0, 1], [1, 2]]), 4)
        >>> data = NodeDataset(
        ...     "tiny", "train", network, torch.rand(4, 2),
        ...     torch.tensor([0, 3]), torch.tensor([0, 1]), ("a", "b"), size=3
        ... )
        >>> data.batch([0, 1])[0]["valid"].tolist()
        [[True, True, True], [True, False, False]]
    """

    counted = "nodes"

    def __init__(
        self,
        name: str,
        split: str,
        network: Network,
        features: Tensor,
        nodes: Int[Tensor, " m"],
        labels: Int[Tensor, " m"],
        classes: Sequence[str],
        *,
        size: int = 16,
        eigenvectors: int = 4,
        vocabulary: int = 0,
    ):
        super().__init__(name, split, labels.long(), classes)
        if size < 1:
            raise OptionError(f"size: expected 1 node or more, got {size}; such as 16")
        if len(features) != network.n:
            raise DataError(
                f"features: expected one row for each of {network.n} nodes, got {len(features)}; "
                "give as many"
            )
        _check_finite(features)
        check_labels(labels, classes)
        self.network = network
        self.features = features
        self.nodes = nodes
        self.tokens = not features.is_floating_point()
        self.channels = features.shape[1]
        self.vocabulary = vocabulary
        self.eigenvectors = eigenvectors

        # (N, size) numbers of nodes, -1 where a neighbourhood is smaller.
        self.around = torch.full((len(nodes), size), -1)
        for row, node in enumerate(nodes.tolist()):
            found = torch.tensor(network.around(node, size))
            self.around[row, : len(found)] = found

    def raw(self, indices: Indices) -> tuple[Inputs, Tensor]:
        indices = index_tensor(indices)
        around = self.around[indices]
        edges = self.network.linked(around)
        valid = around >= 0
        # -1 would index the last node, so padding reads node 0 and becomes 0.
        features = self.features[around.clamp(min=0)]
        features = torch.where(valid[..., None], features, 0)
        fields = {
            "edges": edges,
            "positions": laplacian_positions(edges, self.eigenvectors),
            "valid": valid,
            self.field: features,
        }
        return Inputs(**fields), self.labels[indices]

    def head(self) -> dict[str, Any]:
        return {"pool": "first"}

    def __repr__(self) -> str:
        size = f"{self.around.shape[1]} nodes around each"
        what = f"{self.name!r}, {self.split!r}, {len(self)} of {self.network.n} nodes, {size}"
        return f"NodeDataset({what}, {len(self.classes)} classes)"
