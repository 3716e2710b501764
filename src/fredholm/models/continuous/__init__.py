"""The continuous transformer: depth as time, a step as one pass of a splitting scheme."""

from .config import PRESETS, ContinuousConfig
from .model import ContinuousTransformer
from .monitors import trajectory

__all__ = ["PRESETS", "ContinuousConfig", "ContinuousTransformer", "trajectory"]
