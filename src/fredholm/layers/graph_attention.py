"""Graph attention: weights of additive scores, normalised over the neighbours.

Two kernels, of static and of dynamic attention, then the converters of PyTorch Geometric's
``GATConv`` and ``GATv2Conv``. The graph is the domain: ``Domain.graph``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import OptionError
from ..integral import IntegralOperator, Problem, check_dropout
from ..integral.conversion import refuse, refuse_dropout, register_converter
from ..integral.problem import split_heads
from ..integral.sharing import own_parameter
from ..ops.attention import attention_density
from .graph import call_on_graph, check_layer, small_graph, weight_of
from .neighbour_scores import AdditiveScoresKernel, ScoreEnds
from .parts import bias_offset, bind, own_bias


class AdditiveAttentionKernel(AdditiveScoresKernel):
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

    Cost: O(N²), a block of queries at a time; on edges O(E).

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
        width = value.shape[0]
        for name, x in (("query", query), ("key", key)):
            if x.numel() != width or width % heads:
                raise OptionError(
                    f"{name}: expected {width} numbers for {heads} heads, as many as rows of "
                    f"value and a multiple of the heads, got {x.numel()}"
                )
        super().__init__(value, heads, slope, dropout)
        self.query = own_parameter(query)
        self.key = own_parameter(key)
        self.bias = own_bias(bias)

    def score_ends(self, problem: Problem) -> ScoreEnds:
        check_dropout(self.training, self.dropout)
        # Scores are numbers per point, made of the projections that are also the values.
        value = F.linear(problem.uy[:, 0], self.value)
        value = split_heads(value, self.heads)
        of_query = value
        if problem.ux is not problem.uy:
            of_query = F.linear(problem.ux[:, 0], self.value)
            of_query = split_heads(of_query, self.heads)

        query_direction = self.query.view(self.heads, 1, -1)
        query = (of_query * query_direction).sum(-1, keepdim=True)
        key_direction = self.key.view(self.heads, 1, -1)
        key = (value * key_direction).sum(-1, keepdim=True)
        return ScoreEnds(query, key, value, None)

    def weights(self, problem: Problem) -> Tensor:
        check_dropout(self.training, self.dropout)
        values = self.value_map()
        of_query = self._score(values, self.query, problem.ux)
        of_key = self._score(values, self.key, problem.uy)
        scores = of_query[..., None] + of_key[:, :, None]
        scores = F.leaky_relu(scores, self.slope)
        q = problem.quadrature
        return attention_density(scores, q.weights(), q.visible())

    def _score(self, values: Tensor, direction: Tensor, u: Tensor) -> Tensor:
        """Return a_h · V_h u at every point, (B, H, N), for the maps V of all heads."""
        by_head = direction.view(self.heads, -1)
        directions = torch.einsum("hoi,ho->ih", values, by_head)
        return (u[:, 0] @ directions).mT


class DynamicAttentionKernel(AdditiveScoresKernel):
    r"""Attention with a network of both ends:
    :math:`K_h(x, y; u) = Z_h(x)^{-1} \exp(a_h \cdot \sigma(Q_h u(x) + V_h u(y) + c_h))\,V_h`.

    σ is the leaky ReLU, so that which neighbour counts most depends on the query, unlike in
    :class:`AdditiveAttentionKernel`.

    Args:
        value: V, the weight (H · d_out, dim); every head reads all of u.
        query: Q, of the same shape; V itself where they are shared.
        score: a, (H, d_out), or any shape of as many elements.
        heads: H.
        value_bias, query_bias: (H · d_out,) or None, of the maps V and Q; c is their sum. The
            values have the first too, where a point sees any.
        bias: (H · d_out,) or None, of the output.
        slope: of σ where its argument is negative.
        dropout: of a converted layer; in training mode it is random, not an integral operator.

    Shape: u (B, N, dim) to (B, Nq, H · d_out).

    Cost: O(N²·H·d_out), a block of queries at a time; on edges O(E·H·d_out).

    Raises:
        OptionError: sizes that do not fit.
        ConversionError: training mode with ``dropout``.

    Reference: Brody, Alon, Yahav 2022, Eq. 7.

    Example:
        >>> from fredholm.domain import Domain
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = DynamicAttentionKernel(
        ...     torch.randn(4, 3), torch.randn(4, 3), torch.randn(2, 2), heads=2
        ... )
        >>> op = IntegralOperator(3, 2, kernel=kernel, out_dim=4, residual=False, projection=False)
        >>> graph = Domain.graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> op.weights(torch.randn(1, 3, 3), graph)[0, 0, 0].tolist()
        [1.0, 0.0, 0.0]
    """

    def __init__(
        self,
        value: Tensor,
        query: Tensor,
        score: Tensor,
        *,
        heads: int,
        value_bias: Tensor | None = None,
        query_bias: Tensor | None = None,
        bias: Tensor | None = None,
        slope: float = 0.2,
        dropout: float = 0.0,
    ):
        width = value.shape[0]
        if query.shape != value.shape or score.numel() != width or width % heads:
            sizes = f"{tuple(value.shape)}, {tuple(query.shape)} and {tuple(score.shape)}"
            raise OptionError(
                "expected value and query (H · d_out, dim) and score (H, d_out), got "
                f"{sizes} for {heads} heads"
            )
        super().__init__(value, heads, slope, dropout)
        self.query = own_parameter(query)
        self.score = own_parameter(score)
        self.value_bias = own_bias(value_bias)
        self.query_bias = own_bias(query_bias)
        self.bias = own_bias(bias)

    def offset(self, problem: Problem) -> Tensor | None:
        out = super().offset(problem)
        value = bias_offset(self.value_bias, self)
        if value is None:
            return out

        # Weights sum to one, so that the values' bias arrives whole where a point sees any.
        sees = problem.quadrature.sees()
        if sees is not None:
            value = value * sees[..., None]
        if out is None:
            return value
        return out + value

    def score_ends(self, problem: Problem) -> ScoreEnds:
        check_dropout(self.training, self.dropout)
        # The biases of both ends are added to the queries, so that the keys are the values.
        query = F.linear(problem.ux[:, 0], self.query, self.query_bias)
        if self.value_bias is not None:
            query = query + self.value_bias
        query = split_heads(query, self.heads)
        value = F.linear(problem.uy[:, 0], self.value)
        value = split_heads(value, self.heads)
        direction = self.score.view(self.heads, -1)
        return ScoreEnds(query, value, None, direction)

    def weights(self, problem: Problem) -> Tensor:
        check_dropout(self.training, self.dropout)
        of_query = F.linear(problem.ux[:, 0], self.query, self.query_bias)
        of_key = F.linear(problem.uy[:, 0], self.value, self.value_bias)
        of_query = split_heads(of_query, self.heads)
        of_key = split_heads(of_key, self.heads)
        # The activation comes before the direction, so that every pair has d_out numbers.
        both = of_query[:, :, :, None] + of_key[:, :, None]
        both = F.leaky_relu(both, self.slope)
        direction = self.score.view(self.heads, -1)
        scores = torch.einsum("bhqko,ho->bhqk", both, direction)
        q = problem.quadrature
        return attention_density(scores, q.weights(), q.visible())


@register_converter(
    "torch_geometric.nn.conv.gat_conv.GATConv",
    call=call_on_graph,
    domain=small_graph,
)
def graph_attention(module: nn.Module) -> IntegralOperator:
    """Convert graph attention; ``edge_index`` goes into ``Domain.graph(edge_index, n,
    self_loops=add_self_loops)``.
    """
    layer: Any = module
    _check(layer)
    kernel = AdditiveAttentionKernel(
        weight_of(layer, "lin"),
        layer.att_dst,
        layer.att_src,
        heads=layer.heads,
        bias=layer.bias,
        slope=layer.negative_slope,
        dropout=layer.dropout,
    )
    return bind(kernel)


@register_converter(
    "torch_geometric.nn.conv.gatv2_conv.GATv2Conv",
    call=call_on_graph,
    domain=small_graph,
)
def dynamic_graph_attention(module: nn.Module) -> IntegralOperator:
    """Convert dynamic graph attention; ``edge_index`` goes into ``Domain.graph(edge_index, n,
    self_loops=add_self_loops)``.
    """
    layer: Any = module
    _check(layer)
    kernel = DynamicAttentionKernel(
        weight_of(layer, "lin_l"),
        weight_of(layer, "lin_r"),
        layer.att,
        heads=layer.heads,
        value_bias=layer.lin_l.bias,
        query_bias=layer.lin_r.bias,
        bias=layer.bias,
        slope=layer.negative_slope,
        dropout=layer.dropout,
    )
    return bind(kernel)


def _check(layer: Any) -> None:
    if layer.heads > 1 and not layer.concat:
        raise refuse(layer, "concat=False", "concat=True")
    supported = {
        "edge_dim": None,
        "residual": False,
        "flow": "source_to_target",
    }
    check_layer(layer, supported)
    refuse_dropout(layer, layer.dropout)
