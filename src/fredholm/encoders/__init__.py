"""Encoders: raw data to (features, Domain). Principle: positions are raw coordinates, the measure
carries the prior.
"""

from .field import FieldEncoder
from .graph import GraphEncoder, laplacian_positions
from .image import ImageEncoder
from .inputs import Inputs
from .multi_scale import MultiScaleImageEncoder
from .multimodal import MultimodalEncoder
from .pixels import PixelEncoder
from .points import PointEncoder
from .sequence import SequenceEncoder
from .text import TextEncoder

__all__ = [
    "FieldEncoder",
    "GraphEncoder",
    "ImageEncoder",
    "Inputs",
    "MultiScaleImageEncoder",
    "MultimodalEncoder",
    "PixelEncoder",
    "PointEncoder",
    "SequenceEncoder",
    "TextEncoder",
    "laplacian_positions",
]
