"""InfViT: a vision transformer whose attention is diffusion on a graph of patches."""

from .config import PRESETS, InfViTConfig
from .model import InfViT

__all__ = ["PRESETS", "InfViT", "InfViTConfig"]
