"""Pretrained models with linear attention: softmax replaced by structure, the rest kept."""

from .divergence import divergence
from .heads import LinearHeads
from .replace import replace_attention
from .replaced import Layer, Replaced
from .report import ConversionReport, LayerReport
from .saving import load_linearized, save_linearized

__all__ = [
    "ConversionReport",
    "Layer",
    "LayerReport",
    "LinearHeads",
    "Replaced",
    "divergence",
    "load_linearized",
    "replace_attention",
    "save_linearized",
]
