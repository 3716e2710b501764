"""Attention whose weight is an inner product of features, against a measure."""

from .banked import banked_attention
from .chunked import linear_attention, linear_attention_step
from .naive import guarded, linear_attention_naive, linear_density

__all__ = [
    "banked_attention",
    "guarded",
    "linear_attention",
    "linear_attention_naive",
    "linear_attention_step",
    "linear_density",
]
