"""Graphs as torch data sets: many small ones, and the surroundings of single nodes of
a large one.
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
from .dataset import IGNORED, LabelledDataset, check_labels
from .kind import Kind, register_kind


@dataclass(frozen=True)
class Graph:
    """One graph: ``features`` (n, F) floats or tokens (n, T) integers, 0 being no token; ``edges``
    (2, E) node numbers, either way.

    Raises:
        DataError: no node, features that are no finite numbers, or edges of nodes that do not
            exist.
    """

    features: Tensor
    edges: Int[Tensor, "2 e"]

    def __post_init__(self) -> None:
        n = len(self.features)
        if not n or self.features.dim() != 2:
            raise DataError(
                f"features: received {tuple(self.features.shape)}; a graph needs (nodes, width), 1 "
                "node or more"
            )
        if self.features.is_floating_point() and not bool(self.features.isfinite().all()):
            row = int((~self.features.isfinite()).any(1).nonzero()[0])
            raise DataError(
                f"features: node {row} has a value that is no finite number; mend it, or leave the "
                "node out"
            )
        if self.edges.numel() and not 0 <= int(self.edges.min()) <= int(self.edges.max()) < n:
            raise DataError(
                f"edges: nodes {int(self.edges.min())} to {int(self.edges.max())}; the graph has 0 "
                f"to {n - 1}"
            )


class Graphs(Kind):
    """Graphs, each with features or tokens of its nodes."""

    name, one, many, encoder = "graph", "graph", "graphs", "graph"
    single = False

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Inputs) and ("edges" in inputs or "links" in inputs)


GRAPHS = register_kind(Graphs())


class GraphDataset(LabelledDataset):
    """Labelled graphs: a batch is :class:`fredholm.encoders.Inputs` of features or tokens, edges,
    positions and valid, padded to the largest graph.

    ``task`` is ``classification`` (a class a graph) or ``steps`` (a class a node; labels are lists
    of (n,), -100 where nothing is asked).

    Args:
        name, split: what this is.
        graphs: see :class:`Graph`; all of one width.
        labels: class numbers (N,), or of nodes one tensor a graph.
        classes: their names.
        eigenvectors: k of the Laplacian positions, computed once.
        vocabulary: of tokens, one for all splits; by default as large as these graphs need.

    Raises:
        DataError: graphs of different widths, labels outside the classes or not one a node, or
            tokens outside the vocabulary.

    Example:
        >>> path = Graph(torch.rand(3, 2), torch.tensor([[0, 1], [1, 2]]))
        >>> labels, classes = torch.tensor([0]), ("a", "b")
        >>> data = GraphDataset("tiny", "train", [path], labels, classes, eigenvectors=2)
        >>> data.batch([0])[0]
        Inputs(edges=(1, 3, 3), positions=(1, 3, 2), valid=(1, 3), features=(1, 3, 2))
    """

    kind = GRAPHS

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
        nodes = not isinstance(labels, Tensor)
        given = (
            torch.nn.utils.rnn.pad_sequence(list(labels), batch_first=True, padding_value=IGNORED)
            if nodes
            else labels
        )
        super().__init__(name, split, given.long(), classes)
        check_labels(self.labels, classes)
        widths = {(graph.features.shape[1], graph.features.is_floating_point()) for graph in graphs}
        if len(widths) > 1 or len(graphs) != len(labels):
            raise DataError(
                f"{name}: {len(graphs)} graphs of widths {sorted(widths)}, {len(labels)} labels; "
                "needs one width"
            )
        for i, (graph, own) in enumerate(zip(graphs, labels) if nodes else ()):
            if len(own) != len(graph.features):
                raise DataError(
                    f"{name}: graph {i} has {len(graph.features)} nodes and {len(own)} labels; "
                    f"needs one a node, {IGNORED} where nothing is asked"
                )
        self.task = "steps" if nodes else "classification"
        self.graphs, self.eigenvectors = list(graphs), eigenvectors
        self.tokens = bool(graphs) and not graphs[0].features.is_floating_point()
        self.channels = graphs[0].features.shape[1] if graphs else 0
        self.vocabulary = self._vocabulary(vocabulary) if self.tokens else 0
        self.positions = [_positions(graph, eigenvectors) for graph in graphs]

    def _vocabulary(self, given: int | None) -> int:
        needed = 1 + max(int(graph.features.max()) for graph in self.graphs)
        if given is not None and given < needed:
            raise DataError(
                f"{self.name}: tokens up to {needed - 1}, and a vocabulary of {given}; needs "
                f"{needed} or more"
            )
        return needed if given is None else given

    def raw(self, indices: Tensor | Sequence[int]) -> tuple[Inputs, Tensor]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        chosen = indices.tolist()
        sizes = torch.tensor([len(self.graphs[i].features) for i in chosen])
        n = int(sizes.max())
        pad = torch.nn.utils.rnn.pad_sequence
        fields = {
            **self._links(chosen, n),
            "positions": pad([self.positions[i] for i in chosen], batch_first=True),
            "valid": torch.arange(n) < sizes[:, None],
            "tokens" if self.tokens else "features": pad(
                [self.graphs[i].features for i in chosen], batch_first=True
            ),
        }
        labels = self.labels[indices]
        return Inputs(**fields), labels[:, :n] if self.task == "steps" else labels

    def _links(self, chosen: list[int], n: int) -> dict[str, Tensor]:
        """The edges of some graphs of up to n nodes, in both directions: a mask of all pairs, and
        of large graphs lists.
        """
        if n > DENSE_NODES:
            links = [self.graphs[i].edges for i in chosen]
            both = [torch.cat([each, each.flip(0)], 1).mT for each in links]
            pad = torch.nn.utils.rnn.pad_sequence
            return {"links": pad(both, batch_first=True, padding_value=-1)}
        edges = torch.zeros(len(chosen), n, n, dtype=torch.bool)
        for row, i in enumerate(chosen):
            source, target = self.graphs[i].edges
            edges[row, target, source] = True
            edges[row, source, target] = True
        return {"edges": edges}

    def encoder(self) -> dict[str, Any]:
        return {**super().encoder(), **nodes_of(self)}

    def head(self) -> dict[str, Any]:
        return {"pool": "every" if self.task == "steps" else "mean"}

    def __repr__(self) -> str:
        what = f"{self.name!r}, {self.split!r}, {len(self)} graphs"
        return f"GraphDataset({what}, {len(self.classes)} classes, {self.task})"


def _positions(graph: Graph, eigenvectors: int) -> Tensor:
    """Where the nodes of a graph stand."""
    n = len(graph.features)
    if n > DENSE_NODES:
        return sparse_laplacian_positions(graph.edges, n, eigenvectors)
    return laplacian_positions(adjacency(graph.edges, n), eigenvectors)


def nodes_of(dataset: GraphDataset | NodeDataset) -> dict[str, Any]:
    """What an encoder must know of nodes: their features or tokens, and their positions."""
    result = {"eigenvectors": dataset.eigenvectors}
    if dataset.tokens:
        return result | {"vocabulary": dataset.vocabulary}
    return result | {"channels": dataset.channels}


def adjacency(edges: Int[Tensor, "2 e"], n: int) -> Bool[Tensor, "n n"]:
    """A symmetric mask of n nodes' edges."""
    mask = torch.zeros(n, n, dtype=torch.bool)
    mask[edges[0], edges[1]] = True
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
        both = both[:, both[0] != both[1]].unique(dim=1)  # sorted by source
        self.n, self.sources, self.targets = n, both[0], both[1]
        self.degree = torch.bincount(both[0], minlength=n)
        self.start = [0, *self.degree.cumsum(0).tolist()]
        self.keys = both[0] * n + both[1]
        # The rarest neighbour first: a hub says less about its neighbours than a node with few
        # edges does.
        order = (self.sources * (int(self.degree.max()) + 1) + self.degree[self.targets]).argsort(
            stable=True
        )
        self.ordered = self.targets[order].tolist()

    def around(self, node: int, size: int) -> list[int]:
        """The node and the nearest others, ``size`` in all or fewer: by steps, and of one step
        those with the fewest edges first.

        Of a hub only the ``size`` rarest neighbours are looked at.
        """
        result, seen, place = [node], {node}, 0
        while place < len(result) and len(result) < size:
            first = self.start[result[place]]
            for other in self.ordered[first : min(first + size, self.start[result[place] + 1])]:
                if other not in seen and len(result) < size:
                    seen.add(other)
                    result.append(other)
            place += 1
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
        place = torch.searchsorted(self.keys, pairs).clamp(max=len(self.keys) - 1)
        return (self.keys[place] == pairs) & real[:, :, None] & real[:, None, :]


class NodeDataset(LabelledDataset):
    """Nodes of one large graph, each with its surroundings: a batch is
    :class:`fredholm.encoders.Inputs` of ``size`` nodes, the one that is asked about first.

    Args:
        name, split: what this is.
        network: the graph.
        features: of all its nodes, (n, F) floats or (n, T) tokens with 0 for none.
        nodes: those asked about, (N,); labels (N,) and classes as ever.
        size: nodes of a surrounding; see :meth:`Network.around`.
        eigenvectors: k of the Laplacian positions of the surrounding.
        vocabulary: of tokens.

    Raises:
        OptionError: a size below 1.
        DataError: features of NaN, of another number of nodes, or labels outside the classes.

    Example:
        >>> network = Network(torch.tensor([[0, 1], [1, 2]]), 4)
        >>> data = NodeDataset(
        ...     "tiny", "train", network, torch.rand(4, 2),
        ...     torch.tensor([0, 3]), torch.tensor([0, 1]), ("a", "b"), size=3
        ... )
        >>> data.batch([0, 1])[0]["valid"].tolist()
        [[True, True, True], [True, False, False]]
    """

    kind = GRAPHS
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
            raise OptionError(f"size: received {size}; a surrounding has 1 node or more")
        if len(features) != network.n or (
            features.is_floating_point() and not bool(features.isfinite().all())
        ):
            raise DataError(
                f"features: {tuple(features.shape)}, finite numbers for each of {network.n} nodes "
                "are needed"
            )
        check_labels(labels, classes)
        self.network, self.features, self.nodes = network, features, nodes
        self.tokens = not features.is_floating_point()
        self.channels, self.vocabulary, self.eigenvectors = (
            features.shape[1],
            vocabulary,
            eigenvectors,
        )
        result = [network.around(int(node), size) for node in nodes]
        self.around = torch.tensor([row + [-1] * (size - len(row)) for row in result]).view(
            len(nodes), size
        )

    def raw(self, indices: Tensor | Sequence[int]) -> tuple[Inputs, Tensor]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        around = self.around[indices]
        edges, valid = self.network.linked(around), around >= 0
        features = torch.where(valid[..., None], self.features[around.clamp(min=0)], 0)
        fields = {
            "edges": edges,
            "positions": laplacian_positions(edges, self.eigenvectors),
            "valid": valid,
        }
        return Inputs(**fields, **{"tokens" if self.tokens else "features": features}), self.labels[
            indices
        ]

    def encoder(self) -> dict[str, Any]:
        return {**super().encoder(), **nodes_of(self)}

    def head(self) -> dict[str, Any]:
        return {"pool": "first"}

    def __repr__(self) -> str:
        size = f"{self.around.shape[1]} nodes around each"
        what = f"{self.name!r}, {self.split!r}, {len(self)} of {self.network.n} nodes, {size}"
        return f"NodeDataset({what}, {len(self.classes)} classes)"
