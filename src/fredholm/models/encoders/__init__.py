"""Encoders: raw data to (features, Domain). Principle: positions are raw coordinates, the measure
carries the prior. Beside each lies its configuration.
"""

from .embedded_sequence import EmbeddedSequence, SequenceConfig
from .encoder import ENCODERS, Encoder, EncoderConfig, register_encoder
from .field import FieldConfig, FieldEncoder
from .graph import GraphConfig, GraphEncoder
from .image import ImageConfig, ImageEncoder
from .inputs import Inputs
from .laplacian import laplacian_positions, sparse_laplacian_positions
from .multi_scale import MultiScaleImageConfig, MultiScaleImageEncoder
from .multimodal import MultimodalConfig, MultimodalEncoder
from .pixels import PixelConfig, PixelEncoder
from .points import PointConfig, PointEncoder
from .sequence import SampleConfig, SequenceEncoder
from .text import TextConfig, TextEncoder
from .tokens import TokenConfig, TokenEncoder

__all__ = [
    "ENCODERS",
    "EmbeddedSequence",
    "Encoder",
    "EncoderConfig",
    "FieldConfig",
    "FieldEncoder",
    "GraphConfig",
    "GraphEncoder",
    "ImageConfig",
    "ImageEncoder",
    "Inputs",
    "MultiScaleImageConfig",
    "MultiScaleImageEncoder",
    "MultimodalConfig",
    "MultimodalEncoder",
    "PixelConfig",
    "PixelEncoder",
    "PointConfig",
    "PointEncoder",
    "SampleConfig",
    "SequenceConfig",
    "SequenceEncoder",
    "TextConfig",
    "TextEncoder",
    "TokenConfig",
    "TokenEncoder",
    "laplacian_positions",
    "register_encoder",
    "sparse_laplacian_positions",
]
