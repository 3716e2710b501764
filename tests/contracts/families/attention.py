"""Attention with other layers: packed, rotary and normalised softmax, and a learned linear map."""

from __future__ import annotations

import torch
from torch import nn

from fredholm.kernels import LinearAttentionKernel, Rotary, SoftmaxKernel
from fredholm.operators import IntegralOperator

from ..cases import DIM, HEADS, OperatorCase


class Moved(OperatorCase):
    """An operator of a kernel, with its parameters moved off their initial values."""

    def kernel(self):
        raise NotImplementedError

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        operator = IntegralOperator(DIM, HEADS, kernel=self.kernel(), residual=False).double()
        with torch.no_grad():
            for parameter in operator.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return operator


class PackedCase(Moved):
    def kernel(self):
        norm = nn.LayerNorm(DIM // HEADS)
        packed = nn.Linear(DIM, 3 * DIM)
        return SoftmaxKernel(DIM, HEADS, projections=packed, query_norm=norm, rotary=Rotary(2))


class LearnedMap(nn.Module):
    """Two positive features per input feature: exp(±Ax)."""

    def __init__(self, width: int):
        super().__init__()
        self.mix = nn.Parameter(0.3 * torch.randn(width, width))

    def forward(self, x):
        x = x @ self.mix
        return torch.cat([x.exp(), (-x).exp()], -1)


class LinearCase(Moved):
    def kernel(self):
        layers = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM // HEADS), nn.Linear(DIM, DIM // HEADS)
        return LinearAttentionKernel(
            DIM, HEADS, feature_map=LearnedMap(DIM // HEADS), projections=layers
        )


CASES = [PackedCase("attention"), LinearCase("linear attention")]
