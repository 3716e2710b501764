"""Pretrained models with linear attention: softmax replaced by structure, the rest kept."""

from .divergence import divergence
from .heads import LinearHeads
from .replace import replace_attention
from .replaced import Layer, Replaced
from .report import ConversionReport, LayerReport
from .saving import load_linearized, save_linearized
from .size import CacheSize, cache_size, smaller_from

__all__ = [
    "CacheSize",
    "ConversionReport",
    "Layer",
    "LayerReport",
    "LinearHeads",
    "Replaced",
    "cache_size",
    "divergence",
    "load_linearized",
    "replace_attention",
    "save_linearized",
    "smaller_from",
]
