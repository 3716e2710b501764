"""Depth: how operators stack."""

from .residual import FeedForward, ResidualBlock, StochasticDepth
from .splitting import (
    Evolution,
    FeedForwardTerm,
    Hybrid,
    Lie,
    LinearTerm,
    MomentConstraint,
    OperatorTerm,
    Parallel,
    PositivityConstraint,
    Relaxed,
    Strang,
    SubstepError,
    encoder_terms,
)

__all__ = [
    "Evolution",
    "FeedForward",
    "FeedForwardTerm",
    "Hybrid",
    "Lie",
    "LinearTerm",
    "MomentConstraint",
    "OperatorTerm",
    "Parallel",
    "PositivityConstraint",
    "Relaxed",
    "ResidualBlock",
    "StochasticDepth",
    "Strang",
    "SubstepError",
    "encoder_terms",
]
