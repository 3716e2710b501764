"""Graph attention, which accepts every kind of domain."""

from __future__ import annotations

import torch
from torch import nn

from fredholm.layers.graph_attention import (
    AdditiveAttentionKernel,
    DynamicAttentionKernel,
)
from fredholm.operators import IntegralOperator

from ..cases import DIM, HEADS, OperatorCase


class GraphCase(OperatorCase):
    plain = "graph"

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        value, query, key = torch.randn(6, DIM), torch.randn(HEADS, 3), torch.randn(HEADS, 3)
        kernel = AdditiveAttentionKernel(
            value, query, key, heads=HEADS, bias=nn.Parameter(torch.randn(6))
        )
        return IntegralOperator(
            DIM, HEADS, kernel=kernel, out_dim=6, residual=False, projection=False
        ).double()


class DynamicCase(OperatorCase):
    plain = "graph"

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        value, query, score = torch.randn(6, DIM), torch.randn(6, DIM), torch.randn(HEADS, 3)
        kernel = DynamicAttentionKernel(
            value, query, score, heads=HEADS, value_bias=nn.Parameter(torch.randn(6))
        )
        return IntegralOperator(
            DIM, HEADS, kernel=kernel, out_dim=6, residual=False, projection=False
        ).double()


CASES = [GraphCase("graph"), DynamicCase("dynamic graph")]
