"""The backbone: one stack of residual blocks for images, points, texts and sequences, around any
operator or classical layer.
"""

from .config import PRESETS, BackboneConfig
from .model import Backbone

__all__ = ["PRESETS", "Backbone", "BackboneConfig"]
