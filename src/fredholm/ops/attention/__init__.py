"""Softmax attention against a measure."""

from .naive import attention_density, attention_naive
from .sdpa import attention

__all__ = ["attention", "attention_density", "attention_naive"]
