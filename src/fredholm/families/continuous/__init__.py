"""A Mathematical Explanation of Transformers."""

from .config import PRESETS, ContinuousConfig
from .model import ContinuousTransformer
from .monitors import trajectory

__all__ = ["PRESETS", "ContinuousConfig", "ContinuousTransformer", "trajectory"]
