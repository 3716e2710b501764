"""ITNet: encoder, residual blocks of any operator, pooled read-out."""

from .config import PRESETS, ITNetConfig
from .model import ITNet

__all__ = ["PRESETS", "ITNet", "ITNetConfig"]
