"""Graph layers: weights by degrees, K(x, y) = V / sqrt(d(x) d(y)), and additive attention.

Two kernels, adjacency and additive attention, then the converters of PyTorch Geometric's
``GATConv`` and ``GCNConv``. The graph is the domain: ``Domain.graph``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...domain import Domain
from ...errors import ConversionError, DomainError, OptionError
from ...integral import (
    IntegralOperator,
    Layout,
    Problem,
    WeightedKernel,
    check_dropout,
    own_parameter,
)
from ...integral.conversion import refuse, refuse_dropout, register_converter
from ...ops.attention import attention_density


class AdjacencyKernel(WeightedKernel):
    r"""One map, weighted by degrees: :math:`K(x, y) = V / \sqrt{d(x)\,d(y)}`, d(x) the mass that x
    sees.

    On ``Domain.graph(edge_index, n, measure="counting")`` d is the number of edges into a node, its
    loop included; a domain's float ``pairs`` are logarithms of edge weights. Without ``symmetric``
    K = V, a sum over neighbours.

    Args:
        value: V, the weight (d_out, dim).
        bias: (d_out,) or None.
        symmetric: divide by the degrees.

    Shape: u (B, N, dim) to (B, N, d_out).

    Cost: O(N²), a block of queries at a time.

    Raises:
        DomainError: queries on another domain, or an order.

    Reference: Kipf and Welling 2017, Eq. 2.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = AdjacencyKernel(torch.ones(1, 1))
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> graph = Domain.graph(torch.tensor([[0], [1]]), 2, measure="counting")
        >>> weights = op.weights(torch.ones(1, 2, 1), graph)[0, 0]
        >>> [[round(w, 3) for w in row] for row in weights.tolist()]
        [[1.0, 0.0], [0.707, 0.5]]
    """

    whole = True
    reads_query = False
    sums = True

    def __init__(self, value: Tensor, bias: Tensor | None = None, *, symmetric: bool = True):
        super().__init__(1, value.shape[1], value.shape[0])
        self.value, self.symmetric = own_parameter(value), symmetric
        self.bias = None if bias is None else own_parameter(bias)

    def check(self, layout: Layout) -> None:
        if layout.given or layout.causal:
            what = "queries on another domain" if layout.given else "an order"
            raise DomainError(
                f"AdjacencyKernel weighs by degrees within one graph, got {what}; pass one domain "
                "without it"
            )

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        return Domain.line(n, measure="counting", device=device, dtype=dtype)

    def value_map(self) -> Tensor:
        return self.value[None]

    def offset(self, problem: Problem) -> Tensor | None:
        return None if self.bias is None else self.bias.view(1, 1, 1, -1)

    def weights(self, problem: Problem) -> Tensor:
        # A block of queries does not know the keys' degrees: they come from the whole domain.
        everything = (problem.whole or problem).quadrature.weights()
        degree = everything.expand(-1, -1, problem.uy.shape[2], -1).sum(-1).to(problem.uy.dtype)
        seen = degree > 0  # a node that sees nothing weighs nothing
        root = torch.where(seen, torch.where(seen, degree, 1.0).rsqrt(), 0.0)
        if not self.symmetric:
            root = torch.ones_like(degree)
        of_query = root if problem.index is None else root.index_select(2, problem.index)
        return of_query[..., None] * root[:, :, None]


class AdditiveAttentionKernel(WeightedKernel):
    r"""Attention with additive scores:
    :math:`K_h(x, y; u) = Z_h(x)^{-1} \exp(\sigma(a_h \cdot V_h u(x) + b_h \cdot V_h u(y)))\,V_h`.

    σ is the leaky ReLU. The normaliser integrates over the points that x sees: on ``Domain.graph``
    over its neighbours.

    Args:
        value: V, the weight (H · d_out, dim) that maps u to all heads; every head reads all of u.
        query, key: a and b, (H, d_out), or any shape of as many elements.
        heads: H.
        bias: (H · d_out,) or None.
        slope: of σ where its argument is negative.
        dropout: of a converted layer; in training mode it is random, not an integral operator.

    Shape: u (B, N, dim) to (B, Nq, H · d_out).

    Cost: O(N²), a block of queries at a time.

    Raises:
        OptionError: sizes that do not fit.
        ConversionError: training mode with ``dropout``.

    Reference: Velickovic et al. 2018, Eqs. 1-6.

    Example:
        >>> from fredholm.domain import Domain
        >>> from fredholm.operators import IntegralOperator
        >>> value, query, key = torch.randn(4, 3), torch.randn(2, 2), torch.randn(2, 2)
        >>> kernel = AdditiveAttentionKernel(value, query, key, heads=2)
        >>> op = IntegralOperator(3, 2, kernel=kernel, out_dim=4, residual=False, projection=False)
        >>> graph = Domain.graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> op.weights(torch.randn(1, 3, 3), graph)[0, 0, 0].tolist()
        [1.0, 0.0, 0.0]
    """

    whole = True

    def __init__(
        self,
        value: Tensor,
        query: Tensor,
        key: Tensor,
        *,
        heads: int,
        bias: Tensor | None = None,
        slope: float = 0.2,
        dropout: float = 0.0,
    ):
        width, dim = value.shape
        for name, size in (("query", query.numel()), ("key", key.numel())):
            if size != width or width % heads:
                raise OptionError(
                    f"{heads} heads that read {width} features do not fit {size} of {name}"
                )
        super().__init__(heads, dim, width // heads)
        self.slope, self.dropout = slope, dropout
        self.value, self.query, self.key = (own_parameter(x) for x in (value, query, key))
        self.bias = None if bias is None else own_parameter(bias)

    def value_map(self) -> Tensor:
        return self.value.unflatten(0, (self.heads, self.d_out))

    def offset(self, problem: Problem) -> Tensor | None:
        return None if self.bias is None else self.bias.view(1, self.heads, 1, self.d_out)

    def weights(self, problem: Problem) -> Tensor:
        check_dropout(self.training, self.dropout)
        values = self.value_map()
        of_query, of_key = (
            u[:, 0] @ torch.einsum("hoi,ho->ih", values, a.view(self.heads, -1))
            for a, u in ((self.query, problem.ux), (self.key, problem.uy))
        )
        scores = F.leaky_relu(of_query.mT[..., None] + of_key.mT[:, :, None], self.slope)
        q = problem.quadrature
        return attention_density(scores, q.weights(), q.visible())


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
