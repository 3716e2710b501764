"""Depth: how operators stack."""

from .residual import FeedForward, ResidualBlock, StochasticDepth

__all__ = ["FeedForward", "ResidualBlock", "StochasticDepth"]
