"""Encoders: raw data to (features, Domain). Principle: positions are raw coordinates, the measure carries the prior."""

from .image import ImageEncoder

__all__ = ["ImageEncoder"]
