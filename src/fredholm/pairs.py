"""Pairs of a domain's points: a dense mask, a log-density, or edges, and changes between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .edges import Edges
from .errors import DomainError, ShapeError
from .neighbours import nearest_edges, radius_edges

Pairs = Tensor | Edges | None


class GraphParts(NamedTuple):
    """A graph's edges (2, E), their weights (E,) and their features (E, f)."""

    edge_index: Tensor
    weight: Tensor | None
    features: Tensor | None


def add_loops(graph: GraphParts, n: int, loop_features: Tensor | None) -> GraphParts:
    """Return a graph of ``n`` nodes with one loop per node.

    Loops of the graph stay where edges carry weights or features, once per node. Otherwise a node
    sees itself once, however many loops it had.

    Args:
        graph: edges in any order.
        n: number of nodes.
        loop_features: features of the added loops, (f,) or (n, f); None for zeros.
    """
    edge_index, weight, features = graph
    is_loop = edge_index[0] == edge_index[1]
    missing = torch.ones(n, dtype=torch.bool, device=edge_index.device)
    if weight is None and features is None:
        edge_index = edge_index[:, ~is_loop]
    else:
        missing[edge_index[0, is_loop]] = False
    nodes = missing.nonzero()[:, 0]
    loops = nodes.to(edge_index.dtype)
    loops = loops.expand(2, -1)
    edge_index = torch.cat([edge_index, loops], -1)

    if weight is not None:
        ones = weight.new_ones(len(nodes))
        weight = torch.cat([weight, ones])
    if features is not None:
        width = features.shape[1]
        if loop_features is None:
            added = features.new_zeros(n, width)
        else:
            added = loop_features.to(features.dtype)
            added = added.expand(n, width)
        features = torch.cat([features, added[nodes]])
    return GraphParts(edge_index, weight, features)


def search_edges(
    positions: Tensor,
    *,
    radius: float | None,
    neighbours: int | None,
    **options,
) -> Edges:
    """Return the edges within a radius, or to the nearest neighbours: exactly one of both is given.

    ``options`` are those of :func:`fredholm.neighbours.radius_edges`.
    """
    if radius is not None and neighbours is None:
        return radius_edges(positions, radius, **options)
    if neighbours is not None and radius is None:
        return nearest_edges(positions, neighbours, **options)
    raise DomainError(
        "expected a radius or a number of neighbours, got "
        f"radius={radius}, neighbours={neighbours}; give exactly one of both"
    )


def check_edges(edges: Edges, positions: Tensor) -> None:
    """Check that edges fit a domain's points: one key per point, on their device, and one graph
    per sample or one graph for all.

    Raises:
        ShapeError: edges that do not.
    """
    n = positions.shape[-2]
    if edges.keys != n:
        raise ShapeError(
            f"expected edges with {n} keys, one per point, got {edges!r}; build them with "
            f"Edges.of_index(edge_index, {n})"
        )
    if edges.source.device != positions.device:
        raise ShapeError(
            f"expected edges on {positions.device}, got {edges.source.device}; move them with "
            "edges.to(device)"
        )

    # Positions (N, p) are shared by all samples: any number of graphs may lie on them.
    if positions.dim() == 3 and edges.batch not in (1, positions.shape[0]):
        raise ShapeError(
            f"expected edges of {positions.shape[0]} graphs or of one, got {edges.batch}; join "
            "graphs with Edges.collate"
        )


def hide_later(edges: Edges, query_time: Tensor, key_time: Tensor) -> Edges:
    """Return the edges with those from later points hidden, by a log-density of -inf.

    Times are (1 | B, N). Where samples that share one graph differ in times, each sample gets its
    own graph.
    """
    samples = max(query_time.shape[0], key_time.shape[0])
    if edges.batch == 1 and samples > 1:
        edges = Edges.collate([edges] * samples)
    target = edges.targets()
    graph = torch.div(target, edges.queries, rounding_mode="floor")
    row = target - graph * edges.queries

    # Times of one graph serve all of a batch.
    query_graph = graph.clamp(max=query_time.shape[0] - 1)
    key_graph = graph.clamp(max=key_time.shape[0] - 1)
    query = query_time[query_graph, row]
    key = key_time[key_graph, edges.source]
    before = key <= query

    density = edges.log_density
    if density is None:
        density = torch.zeros(edges.count, device=target.device)
    if density.dim() == 2:
        before = before[:, None]
    ordered = torch.where(before, density, -torch.inf)
    return edges.with_density(ordered)


def slice_pairs(pairs: Pairs, index: slice, n: int) -> Pairs:
    """Return the pairs between the points of a slice of ``n`` points."""
    if pairs is None:
        return None
    if isinstance(pairs, Edges):
        every = torch.arange(n, device=pairs.source.device)
        points = every[index]
        return pairs.select(points, points)
    return pairs[..., index, index]


# --- batches --------------------------------------------------------------------------------------


def collate_pairs(
    all_pairs: Sequence[Pairs],
    sizes: Sequence[int],
    device: torch.device,
) -> Tensor | Edges | None:
    """Return the pairs of unbatched domains as those of one batch, (B, H | 1, n, n), padded to the
    largest size n.

    Where one domain has edges, all become edges. Where one has a log-density, masks become 0 and
    -inf. Without pairs every point of a domain sees every other.
    """
    if all(pairs is None for pairs in all_pairs):
        return None

    # From here on no pairs are None.
    written: list[Tensor | Edges] = []
    for pairs, size in zip(all_pairs, sizes):
        if pairs is None:
            pairs = torch.ones(
                size,
                size,
                dtype=torch.bool,
                device=device,
            )
        written.append(pairs)
    if any(isinstance(pairs, Edges) for pairs in written):
        return Edges.collate([_as_edges(pairs) for pairs in written])

    masks = [_by_head(pairs) for pairs in written if isinstance(pairs, Tensor)]
    floating = [mask.dtype for mask in masks if mask.is_floating_point()]
    if floating:
        masks = [_as_log_density(mask, floating[0]) for mask in masks]
    heads = max(mask.shape[1] for mask in masks)
    n = max(sizes)
    padded = []
    for mask in masks:
        missing = n - mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, missing, 0, missing))
        padded.append(mask.expand(1, heads, -1, -1))
    return torch.cat(padded)


def _as_edges(pairs: Tensor | Edges) -> Edges:
    if isinstance(pairs, Edges):
        return pairs
    return Edges.of_mask(pairs)


def _by_head(pairs: Tensor) -> Tensor:
    """Return a dense mask or log-density as (1, H | 1, N, N)."""
    if pairs.dim() > 2 and pairs.shape[0] > 1:
        raise DomainError(
            "expected unbatched pairs, (N, N) or (1, H, N, N), of each domain to collate, got "
            f"{tuple(pairs.shape)}; collate the samples one by one"
        )
    return pairs.reshape(1, -1, *pairs.shape[-2:])


def _as_log_density(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.is_floating_point():
        return mask
    zeros = torch.zeros_like(mask, dtype=dtype)
    return zeros.masked_fill(~mask, -torch.inf)
