"""Softmax attention and linear attention: the layers that the papers compare with.

Vaswani et al., Attention Is All You Need, NeurIPS 2017. Katharopoulos et al., Transformers are
RNNs: Fast Autoregressive Transformers with Linear Attention, ICML 2020.

- ``naive.py``: both as sums against a measure, in plain einsums: open it first.
- ``kernel.py``: softmax attention's kernel; ``linear.py``: linear attention's.
- ``feature_maps.py``: the named feature maps φ of linear attention.
- ``operator.py``: both operators, thin constructors.

The fast ops lie in ``fredholm.ops.attention`` and ``fredholm.ops.linear_attention``, because other
families use them too.
"""

from .feature_maps import (
    FourierRandomFeatures,
    HedgehogFeatures,
    PositiveRandomFeatures,
    T2RFeatures,
)
from .kernel import SoftmaxKernel
from .linear import LinearAttentionKernel
from .naive import linear_attention_naive, softmax_attention_naive
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
    "linear_attention_naive",
    "softmax_attention_naive",
]
