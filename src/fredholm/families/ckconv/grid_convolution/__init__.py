"""Convolution on a regular grid with a kernel that is linear in its hidden features."""

from .fft import grid_convolution
from .naive import grid_convolution_naive

__all__ = ["grid_convolution", "grid_convolution_naive"]
