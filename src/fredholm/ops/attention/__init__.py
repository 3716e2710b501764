"""Softmax attention against a measure."""

from .naive import attention_density, attention_naive
from .parts import attention_part, finished, joined
from .sdpa import attention, fused_attention

__all__ = [
    "attention",
    "attention_density",
    "attention_naive",
    "attention_part",
    "finished",
    "fused_attention",
    "joined",
]
