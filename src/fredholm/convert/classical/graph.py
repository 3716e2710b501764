"""Graph attention and graph convolution as integral operators on the edges of a graph."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import ConversionError
from ...kernels.additive import AdditiveAttentionKernel
from ...kernels.adjacency import AdjacencyKernel
from ...operators import IntegralOperator
from .registry import refuse, refuse_dropout, register_converter


@register_converter("torch_geometric.nn.conv.gat_conv.GATConv")
def graph_attention(module: nn.Module) -> IntegralOperator:
    """Graph attention; ``edge_index`` goes into ``Domain.graph(edge_index, n,
    self_loops=add_self_loops)``, each edge once.
    """
    layer: Any = module
    if not isinstance(layer.in_channels, int):
        raise refuse(
            module, f"in_channels={layer.in_channels}", "one width for sources and targets"
        )
    if layer.heads > 1 and not layer.concat:
        raise refuse(module, "concat=False", "concat=True")
    _check(layer, {"edge_dim": None, "residual": False, "flow": "source_to_target"})
    refuse_dropout(layer, layer.dropout)
    kernel = AdditiveAttentionKernel(
        layer.lin.weight,
        layer.att_dst,
        layer.att_src,
        heads=layer.heads,
        bias=layer.bias,
        slope=layer.negative_slope,
        dropout=layer.dropout,
    )
    width = layer.heads * layer.out_channels
    return IntegralOperator(
        layer.in_channels,
        layer.heads,
        kernel=kernel,
        out_dim=width,
        residual=False,
        projection=False,
    )


@register_converter("torch_geometric.nn.conv.gcn_conv.GCNConv")
def graph_convolution(module: nn.Module) -> IntegralOperator:
    """Graph convolution on ``Domain.graph(edge_index, n, self_loops=add_self_loops,
    measure="counting")``.

    Edge weights are the domain's ``pairs``, their logarithms. Each edge once.
    """
    layer: Any = module
    _check(layer, {"improved": False, "cached": False, "flow": "source_to_target"})
    kernel = AdjacencyKernel(layer.lin.weight, layer.bias, symmetric=layer.normalize)
    return IntegralOperator(
        layer.in_channels,
        kernel=kernel,
        out_dim=layer.out_channels,
        residual=False,
        projection=False,
    )


def _check(layer: Any, expected: dict[str, Any]) -> None:
    for option, value in expected.items():
        if getattr(layer, option) != value:
            raise refuse(layer, f"{option}={getattr(layer, option)!r}", f"{option}={value!r}")
    if type(layer.aggr_module).__name__ != "SumAggregation":
        raise refuse(layer, f"aggr={layer.aggr!r}", "aggr='add'")
    if any(hooks for name, hooks in vars(layer).items() if name.endswith("_hooks")):
        raise ConversionError(
            f"{type(layer).__name__} has hooks, which an operator would not run; remove them first"
        )
