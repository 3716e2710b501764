"""Monte Carlo: the integral from few keys, for any kernel that is a function of two ends."""

from .anchors import Anchors, at_anchors
from .clusters import AnchorKeys
from .drawn import LatticeKeys, SampledKeys, Samples
from .strategy import MonteCarlo

__all__ = [
    "AnchorKeys",
    "Anchors",
    "LatticeKeys",
    "MonteCarlo",
    "SampledKeys",
    "Samples",
    "at_anchors",
]
