"""Depth: how operators stack. Operator splitting lies with its paper, in
:mod:`fredholm.families.continuous`.
"""

from .accumulation import Accumulation
from .residual import FeedForward, ResidualBlock, output_layers

__all__ = [
    "Accumulation",
    "FeedForward",
    "ResidualBlock",
    "output_layers",
]
