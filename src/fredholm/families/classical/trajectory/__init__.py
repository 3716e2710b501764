"""Nonlinear recurrences as linear ones along their own trajectory: coefficients, responses and
kernels.
"""

from .affine import Trajectory, pull, push
from .cells import CELLS, Weights
from .naive import kernel_naive, transitions
from .slopes import LINEARIZATIONS, slope, tanh_secant

__all__ = [
    "CELLS",
    "LINEARIZATIONS",
    "Trajectory",
    "Weights",
    "kernel_naive",
    "pull",
    "push",
    "slope",
    "tanh_secant",
    "transitions",
]
