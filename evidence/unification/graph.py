"""Configurations of graph attention and graph convolution."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fredholm.domain import Domain

from .measure import Configuration

EDGES, NODES, DIM = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5], [1, 2, 3, 4, 0, 3, 0, 5]]), 6, 3


def on_graph(
    name: str, label: str, edges: Tensor = EDGES, loops: bool = True, **options
) -> Configuration:
    """Return a layer of ``torch_geometric`` with edges; its operator is on the graph's domain."""

    def build() -> nn.Module:
        import torch_geometric.nn

        return getattr(torch_geometric.nn, name)(DIM, **options)

    def apply(call, u: Tensor) -> Tensor:
        options = {"self_loops": loops, "measure": "counting"}
        positions = torch.zeros(NODES, 1, dtype=u.dtype)
        return call(u, Domain.graph(edges, NODES, positions=positions, **options))

    return Configuration(
        "graph",
        f"{name} {label}",
        build,
        lambda: (torch.randn(1, NODES, DIM),),
        lambda module, u: module(u[0], edges)[None],
        apply,
        requires="torch_geometric",
    )


def weighted(label: str, **options) -> Configuration:
    """Return a graph convolution with edge weights.

    Their logarithms are the domain's pair mask.
    """
    weights = torch.rand(EDGES.shape[1], dtype=torch.float64) + 0.1
    dense = torch.eye(NODES, dtype=torch.float64)
    dense[EDGES[1], EDGES[0]] = weights

    def apply(call, u: Tensor) -> Tensor:
        positions = torch.zeros(NODES, 1, dtype=u.dtype)
        return call(u, Domain.points(positions, pairs=dense.log().to(u.dtype), measure="counting"))

    plain = on_graph("GCNConv", label, **options)
    return replace(
        plain,
        apply=apply,
        reference=lambda module, u: module(u[0], EDGES, weights.to(u.dtype))[None],
    )


CONFIGURATIONS = [
    on_graph("GATConv", "3→4", out_channels=4),
    on_graph(
        "GATConv",
        "3→2×2, no bias, slope 0.1",
        out_channels=2,
        heads=2,
        bias=False,
        negative_slope=0.1,
    ),
    on_graph(
        "GATConv",
        "no self loops",
        EDGES[:, :-1],
        False,
        out_channels=2,
        heads=3,
        dropout=0.5,
        add_self_loops=False,
    ),
    on_graph("GCNConv", "3→4", out_channels=4),
    on_graph(
        "GCNConv",
        "no bias, no self loops",
        EDGES[:, :-2],
        False,
        out_channels=2,
        bias=False,
        add_self_loops=False,
    ),
    on_graph("GCNConv", "not normalised", loops=False, out_channels=2, normalize=False),
    weighted("with edge weights", out_channels=4),
    on_graph("GATv2Conv", "3→4", out_channels=4),
    on_graph(
        "GATv2Conv",
        "3→2×2, no bias, no self loops",
        EDGES[:, :-2],
        False,
        out_channels=2,
        heads=2,
        bias=False,
        add_self_loops=False,
    ),
    on_graph("GATv2Conv", "3→2×2, shared weights", out_channels=2, heads=2, share_weights=True),
    on_graph("SAGEConv", "3→4, mean", loops=False, out_channels=4),
    on_graph(
        "SAGEConv",
        "3→2, sum, no root weight, nodes without edges",
        EDGES[:, :-3],
        False,
        out_channels=2,
        aggr="sum",
        root_weight=False,
        bias=False,
    ),
]
