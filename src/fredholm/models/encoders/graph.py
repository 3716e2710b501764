"""Graphs as signals on their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...configuration import check_counts, check_known, check_name, options_of
from ...domain import Domain
from ...edges import Edges
from ...errors import OptionError, ShapeError
from ...ops.backend import at_least_single
from .encoder import (
    Axis,
    Encoder,
    EncoderConfig,
    Part,
    check_numbers,
    draw_words,
    register_encoder,
)
from .inputs import Inputs

OFF_EDGES = ("learned", "none", "all")
GRAPH_MEASURES = ("weights", "nodes")
NODES, WORDS = 32, 8
"""Nodes of a graph and tokens of a node that programs name as the sizes of training; any others
work."""


@register_encoder("graph")
@dataclass(frozen=True)
class GraphConfig(EncoderConfig):
    """Nodes and edges; see :class:`GraphEncoder`.

    Attributes:
        channels: width of node features; or
        vocabulary: how many tokens there are, where nodes are bags of tokens.
        eigenvectors: number of eigenvectors in a position.
        off_edges: the weight of a pair without an edge: ``learned``, ``none`` or ``all``.
        measure: ``weights``, a mean by the weights of pairs, or ``nodes``, 1 / N per node.
    """

    of_data = ("channels", "vocabulary", "eigenvectors")
    pools = ("mean", "points", "first", "every")
    one_tensor = False

    channels: int | None = None
    vocabulary: int | None = None
    eigenvectors: int = 8
    off_edges: str = "learned"
    measure: str = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self, off_edges=OFF_EDGES, measure=GRAPH_MEASURES)
        check_counts(self, "channels", "vocabulary", "eigenvectors")
        if (self.channels is None) == (self.vocabulary is None):
            got = f"channels={self.channels}, vocabulary={self.vocabulary}"
            raise OptionError(
                f"graph: expected either channels or a vocabulary of nodes, got {got}; give one"
            )

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> GraphEncoder:
        assert dim is not None
        return GraphEncoder(dim=dim, dropout=dropout, **options_of(self))

    @property
    def parts(self) -> tuple[Part, ...]:
        rows = Axis(1, "nodes")
        features = Part("features", (NODES, self.channels or 0), (rows,))
        if self.vocabulary is not None:
            words = Axis(2, "words")
            features = Part("tokens", (NODES, WORDS), (rows, words))
        columns = Axis(2, "nodes")
        return (
            Part("edges", (NODES, NODES), (rows, columns)),
            Part("positions", (NODES, self.eigenvectors), (rows,)),
            Part("valid", (NODES,), (rows,)),
            features,
        )

    def batch(
        self,
        shapes: Mapping[str, Sequence[int]],
        generator: torch.Generator,
    ) -> Inputs:
        # Each pair of nodes has an edge with probability 0.3, in both directions.
        chances = torch.rand(*shapes["edges"], generator=generator)
        edges = chances < 0.3
        valid = torch.ones(*shapes["valid"], dtype=torch.bool)
        valid[-1, -1] = False  # padding
        tensors = {
            "edges": edges | edges.mT,
            "positions": torch.randn(*shapes["positions"], generator=generator),
            "valid": valid,
        }
        if self.vocabulary is None:
            tensors["features"] = torch.randn(*shapes["features"], generator=generator)
        else:
            # Token 0 is padding of a bag.
            tensors["tokens"] = torch.randint(
                self.vocabulary,
                tuple(shapes["tokens"]),
                generator=generator,
            )
        return Inputs(**tensors)


class GraphEncoder(Encoder):
    r"""Nodes as points at their Laplacian eigenvectors, and edges as a density of pairs.

    Features are :math:`E f_i` (node features), or :math:`\sum_w E[w]` over a node's tokens. A pair
    on an edge (and a node with itself) has weight 1, any other λ; what a node sees is averaged with
    these weights:

    .. math:: (Tu)_i = W u_i +
        \frac{\sum_j w_{ij}\, K(x_i, x_j, u_i, u_j)\, u_j}{\sum_j w_{ij}},\qquad
              w_{ij} = 1 \text{ on edges},\ \lambda \text{ elsewhere}

    λ = 0 is graph convolution, λ = 1 the global operator. ``learned``: one λ = sigmoid(θ) for the
    model, θ starting at ``start``; ``none``: 0; ``all``: 1. An isolated node sees itself. An
    eigenvector's sign is arbitrary: in training each is flipped at random for each graph, so that
    the model learns not to depend on it; in evaluation it is what the data set fixed.

    Args:
        dim: width D of the features.
        eigenvectors: number of eigenvectors in a position, the p of the domain.
        channels: width of node features; or
        vocabulary: how many tokens there are, 0 being padding.
        off_edges: see above.
        start: of θ.
        measure: ``weights``: the mean above; ``nodes``: the paper's formula to the letter,
            :math:`\frac{1}{N}\sum_j w_{ij} K u_j`, whose size grows with a node's degree.
        dropout: after the embedding.

    Shape: :class:`Inputs` with ``edges`` (B, N, N) boolean, row target and column source, or
    ``links`` (B, E, 2), pairs (source, target) filled up with -1; ``positions`` (B, N, p) (see
    :func:`.laplacian.laplacian_positions`), ``valid`` (B, N), and ``features`` (B, N, channels) or
    ``tokens`` (B, N, T); to features (B, N, D) and their domain. Memory O(B·N²) for the pairs; with
    links and ``off_edges="none"`` O(B·E), any other weight off the edges being one of all pairs.

    Raises:
        OptionError: an unknown option, or neither or both of channels and vocabulary.
        ShapeError: inputs that do not fit.
        DomainError: links of a graph too large for a weight off the edges.

    Reference: ITNet App. J.1, Eqs. 261-263; dividing by the weights is ours, it makes λ = 0 the
    mean over neighbours.

    Example:
        >>> from fredholm.encoders import laplacian_positions
        >>> edges = torch.tensor([[[0, 1, 0], [1, 0, 0], [0, 0, 0]]], dtype=torch.bool)
        >>> graph = Inputs(
        ...     edges=edges,
        ...     positions=laplacian_positions(edges, 2),
        ...     valid=torch.ones(1, 3, dtype=torch.bool),
        ...     features=torch.rand(1, 3, 5),
        ... )
        >>> features, domain = GraphEncoder(dim=8, channels=5, eigenvectors=2)(graph)
        >>> features.shape, domain.quadrature().weights().shape
        (torch.Size([1, 3, 8]), torch.Size([1, 1, 3, 3]))
    """

    def __init__(
        self,
        *,
        dim: int,
        eigenvectors: int,
        channels: int = 0,
        vocabulary: int = 0,
        off_edges: str = "learned",
        start: float = -2.0,
        measure: str = "weights",
        dropout: float = 0.0,
    ):
        super().__init__()
        check_name("off_edges", off_edges, OFF_EDGES)
        check_name("measure", measure, GRAPH_MEASURES)
        if bool(channels) == bool(vocabulary) or eigenvectors < 1:
            got = f"channels={channels}, vocabulary={vocabulary}, eigenvectors={eigenvectors}"
            raise OptionError(
                "graph: expected either channels or a vocabulary of nodes, and 1 or more "
                f"eigenvectors, got {got}; correct them"
            )
        self.position_dim = eigenvectors
        self.channels = channels
        self.dim = dim
        self.off_edges = off_edges
        self.measure = measure

        # All modules exist before the weights are drawn again: seeds promise the same ones.
        self.embed = None
        if channels:
            self.embed = nn.Linear(channels, dim)
        self.words = None
        if vocabulary:
            self.words = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.theta = None
        if off_edges == "learned":
            theta = torch.tensor(float(start))
            self.theta = nn.Parameter(theta)
        self.dropout = nn.Dropout(dropout)
        if self.embed is not None:
            nn.init.xavier_uniform_(self.embed.weight)
            nn.init.zeros_(self.embed.bias)
        if self.words is not None:
            draw_words(self.words)

    def forward(self, graph: Inputs) -> tuple[Float[Tensor, "b n d"], Domain]:
        self._check(graph)
        positions = graph["positions"]
        valid = graph["valid"]
        positions = torch.where(valid[..., None], positions, 0.0)
        if self.training:
            # One sign per graph and eigenvector.
            size = (len(positions), 1, positions.shape[-1])
            coin = torch.randint(2, size, device=positions.device)
            sign = coin * 2 - 1
            positions = positions * sign.to(positions.dtype)
        features = self._features(graph)
        # Under autocast or in half precision, counts would be rounded.
        wide = at_least_single(features.dtype)
        places = positions.to(at_least_single(positions.dtype))
        if "edges" in graph:
            pairs = self.pairs(graph["edges"], valid, wide)
        else:
            pairs = self.pairs_of_links(graph["links"], valid, wide)
        domain = Domain.points(places, valid=valid)
        domain = domain.replace(pairs=pairs)
        features = torch.where(valid[..., None], features, 0.0)
        return self.dropout(features), domain

    def _features(self, graph: Inputs) -> Tensor:
        if self.embed is not None:
            features = graph["features"]
            return self.embed(features.to(self.embed.weight.dtype))
        assert self.words is not None
        check_numbers(graph["tokens"], self.words)
        words = self.words(graph["tokens"])
        return words.sum(-2)

    def _check(self, graph: Inputs) -> None:
        # Features have a width; tokens, of which any number per node is allowed, have none (-1).
        need = "tokens"
        width = -1
        if self.embed is not None:
            need = "features"
            width = self.channels
        b, n = graph["valid"].shape[:2]
        if "edges" in graph or "links" not in graph:
            edges = graph["edges"]
            b, n = edges.shape[:2]
            if edges.dim() != 3 or edges.shape[2] != n or edges.dtype != torch.bool:
                raise ShapeError(
                    "edges: expected a boolean mask (B, N, N), got "
                    f"{tuple(edges.shape)} of {edges.dtype}; convert it"
                )
        else:
            links = graph["links"]
            if links.dim() != 3 or links.shape[2] != 2 or links.is_floating_point():
                raise ShapeError(
                    f"expected integer links (B, E, 2), got {tuple(links.shape)} of {links.dtype}"
                )
        shapes = {"positions": (b, n, self.position_dim), "valid": (b, n)}
        shapes[need] = (b, n, width)
        for name, shape in shapes.items():
            if name not in graph:
                raise ShapeError(
                    f"graph: expected {name} among its tensors, got {', '.join(graph.tensors)}; "
                    "add it"
                )
            result = tuple(graph[name].shape)
            agrees = len(result) == len(shape)
            if not agrees or any(f != s for f, s in zip(result, shape) if s >= 0):
                raise ShapeError(
                    f"{name}: expected shape {shape} for this graph, got {result}; reshape it"
                )

    def pairs(
        self,
        edges: Bool[Tensor, "b n n"],
        valid: Bool[Tensor, "b n"],
        dtype: torch.dtype,
    ) -> Tensor:
        """Return log(w / mean of w over the real points), or log w under the measure of nodes, -inf
        where nothing is seen, (B, N, N): the domain's density of pairs.
        """
        n = edges.shape[1]
        loops = torch.eye(n, dtype=torch.bool, device=edges.device)
        linked = edges | loops
        real = valid[:, None, :]
        if self.off_edges == "none":
            weight = linked.to(dtype)
        elif self.off_edges == "all":
            weight = torch.ones_like(linked, dtype=dtype)
        else:
            assert self.theta is not None
            apart = self.theta.sigmoid().to(dtype)
            weight = torch.where(linked, 1.0, apart)
        weight = torch.where(real, weight, 0.0)
        seen = weight > 0
        total = weight.sum(-1, keepdim=True)
        if self.measure == "nodes":
            total = real.sum(-1, keepdim=True)
            total = total.to(dtype)
        # The domain divides by the number of points a node sees; the density undoes that, so that a
        # node takes the weighted mean.
        count = seen.sum(-1, keepdim=True).clamp(min=1)
        # Where nothing is seen, numbers that have a logarithm and a finite gradient.
        weight = torch.where(seen, weight, 1.0)
        total = torch.where(total > 0, total, 1.0)
        density = weight * count / total
        return torch.where(seen, density.log(), -torch.inf)

    def pairs_of_links(
        self,
        links: Int[Tensor, "b e 2"],
        valid: Bool[Tensor, "b n"],
        dtype: torch.dtype,
    ) -> Tensor | Edges:
        """Return :meth:`pairs` of links: edges where pairs without a link are not seen, else all
        pairs.
        """
        n = valid.shape[1]
        loops = torch.arange(n, device=links.device)
        loops = loops.expand(2, n)
        graphs = []
        for each in links:
            # Padding has the source -1.
            real = each[:, 0] >= 0
            index = torch.cat([each[real].mT, loops], 1)
            linked = Edges.of_index(index, n)
            # A pair counts once, however often it is linked.
            graphs.append(linked.with_density(None))
        edges = graphs[0]
        if len(graphs) > 1:
            edges = Edges.collate(graphs)
        if self.off_edges != "none":
            edges.check_dense(edges.rows)
            dense = edges.dense().view(-1, n, n)
            return self.pairs(dense, valid, dtype)
        if self.measure == "weights":
            return edges
        # The share of the real nodes that a node sees: 1 / N instead of 1 / count per node.
        source = edges.flat_source()
        target = edges.targets()
        seen = valid.flatten()[source].to(dtype)
        count = seen.new_zeros(edges.rows)
        count = count.index_add(0, target, seen).view(-1, n)
        real = valid.sum(-1, keepdim=True)
        real = real.clamp(min=1).to(dtype)
        share = count.clamp(min=1) / real
        log_share = share.log().flatten()
        return edges.with_density(log_share[target])
