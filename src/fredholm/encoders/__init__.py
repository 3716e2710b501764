"""Encoders: raw data to (features, Domain). Principle: positions are raw coordinates, the measure carries the prior."""

from .image import ImageEncoder
from .points import PointEncoder
from .sequence import SequenceEncoder
from .text import TextEncoder

__all__ = ["ImageEncoder", "PointEncoder", "SequenceEncoder", "TextEncoder"]
