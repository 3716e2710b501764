"""Graph attention against its operator on the graph's domain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fredholm.domain import Domain

from .measure import Configuration

EDGES, NODES, DIM = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5], [1, 2, 3, 4, 0, 3, 0, 5]]), 6, 3


def attention(label: str, loops: bool = True, **options) -> Configuration:
    def build() -> nn.Module:
        from torch_geometric.nn import GATConv

        return GATConv(DIM, add_self_loops=loops, **options)

    def apply(call, u: Tensor) -> Tensor:
        return call(u, Domain.graph(EDGES, NODES, positions=torch.zeros(NODES, 1, dtype=u.dtype), self_loops=loops))

    return Configuration(
        "graph",
        label,
        build,
        lambda: (torch.randn(1, NODES, DIM),),
        lambda module, u: module(u[0], EDGES)[None],
        apply,
        requires="torch_geometric",
    )


CONFIGURATIONS = [
    attention("GATConv 3→4", out_channels=4),
    attention("GATConv 3→2×2, no bias, slope 0.1", out_channels=2, heads=2, bias=False, negative_slope=0.1),
    attention("GATConv without self loops", loops=False, out_channels=2, heads=3, dropout=0.5),
]
