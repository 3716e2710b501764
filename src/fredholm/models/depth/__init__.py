"""Depth: how operators stack. Operator splitting lies with its paper, in
:mod:`fredholm.families.continuous`.
"""

from .accumulation import Accumulation
from .residual import CrossBlock, FeedForward, ResidualBlock, output_layers

__all__ = [
    "Accumulation",
    "CrossBlock",
    "FeedForward",
    "ResidualBlock",
    "output_layers",
]
