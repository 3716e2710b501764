"""Convolution, pooling, recurrence, state spaces, graph layers: each kind of layer in one file, its
kernel and the conversion of the libraries' own layers. A new kind is one new file here.
"""

from importlib import import_module
from pkgutil import iter_modules

from .baselines import Convolution, Recurrence
from .continuous_time import AffineSystemKernel, ContinuousStateSpaceKernel, affine_system
from .convolution import StencilKernel
from .graph import AdditiveAttentionKernel, AdjacencyKernel
from .linear import PointwiseKernel
from .mamba import MambaKernel
from .pooling import AdaptivePoolKernel, AveragePoolKernel, MaxPoolKernel
from .recurrence import RecurrentKernel, memory_profile
from .selective import SelectiveKernel
from .spectral import PeriodicKernel
from .state_space import (
    DiagonalStateSpaceKernel,
    StateSpaceKernel,
    diagonal_system,
    linear_system,
)

for _kind in iter_modules(__path__):  # a new file registers its converter by being imported
    import_module(f"{__name__}.{_kind.name}")

__all__ = [
    "AdaptivePoolKernel",
    "AdditiveAttentionKernel",
    "AdjacencyKernel",
    "AffineSystemKernel",
    "AveragePoolKernel",
    "ContinuousStateSpaceKernel",
    "Convolution",
    "DiagonalStateSpaceKernel",
    "MambaKernel",
    "MaxPoolKernel",
    "PeriodicKernel",
    "PointwiseKernel",
    "Recurrence",
    "RecurrentKernel",
    "SelectiveKernel",
    "StateSpaceKernel",
    "StencilKernel",
    "affine_system",
    "diagonal_system",
    "linear_system",
    "memory_profile",
]
