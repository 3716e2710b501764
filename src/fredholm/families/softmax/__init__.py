"""Softmax attention and its linear relatives: the layers that the papers compare with."""

from . import huggingface, multihead, timm
from .feature_maps import (
    FourierRandomFeatures,
    HedgehogFeatures,
    PositiveRandomFeatures,
    T2RFeatures,
)
from .kernel import SoftmaxKernel
from .linear import LinearAttentionKernel
from .operator import LinearAttention, SoftmaxAttention

__all__ = [
    "FourierRandomFeatures",
    "HedgehogFeatures",
    "LinearAttention",
    "LinearAttentionKernel",
    "PositiveRandomFeatures",
    "SoftmaxAttention",
    "SoftmaxKernel",
    "T2RFeatures",
    "huggingface",
    "multihead",
    "timm",
]
