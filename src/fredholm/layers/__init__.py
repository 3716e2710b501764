"""The layers everybody knows, as integral operators: one file per kind of layer.

Each file has the kernel first and then the converter of the libraries' classes to it. Theorems 1-3
of ITNet say that convolution, attention and recurrence are integral transforms; these are they.

- ``linear.py``: one linear map at every point.
- ``convolution.py``, ``pooling.py``, ``spectral.py``: stencils, windows, Fourier multipliers.
- ``graph.py``, ``graph_attention.py``: sums, means and attention over neighbours.
- ``recurrence.py``: RNN, LSTM, GRU, exact along the trajectory; its algebra is in ``trajectory/``;
  ``recurrent_cell.py``: their cells; ``memory.py``: how far back they look.
- ``state_space.py``, ``diagonal_state_space.py``: linear systems in discrete time;
  ``time_invariant.py`` is what they share.
- ``continuous_time.py``: linear systems in real time.
- ``selective.py``, ``mamba.py``: the selective scan, and the whole Mamba mixer around it.
- ``baselines.py``: some of these in an operator's place, to compare with.

A new file registers its converter by being there: every module of this folder is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from .baselines import Convolution, Recurrence
from .continuous_time import ContinuousStateSpaceKernel
from .convolution import StencilKernel
from .diagonal_state_space import DiagonalStateSpaceKernel, diagonal_system
from .graph import AdjacencyKernel
from .graph_attention import AdditiveAttentionKernel, DynamicAttentionKernel
from .linear import PointwiseKernel
from .mamba import MambaKernel
from .memory import memory_profile
from .pooling import AdaptivePoolKernel, AveragePoolKernel, MaxPoolKernel
from .recurrence import RecurrentKernel
from .selective import SelectiveKernel
from .spectral import PeriodicKernel
from .state_space import StateSpaceKernel, linear_system


def _import_every_kind() -> None:
    """Import each file of this folder, so that its converters register themselves."""
    for kind in iter_modules(__path__):
        import_module(f"{__name__}.{kind.name}")


_import_every_kind()

__all__ = [
    "AdaptivePoolKernel",
    "AdditiveAttentionKernel",
    "AdjacencyKernel",
    "AveragePoolKernel",
    "ContinuousStateSpaceKernel",
    "Convolution",
    "DiagonalStateSpaceKernel",
    "DynamicAttentionKernel",
    "MambaKernel",
    "MaxPoolKernel",
    "PeriodicKernel",
    "PointwiseKernel",
    "Recurrence",
    "RecurrentKernel",
    "SelectiveKernel",
    "StateSpaceKernel",
    "StencilKernel",
    "diagonal_system",
    "linear_system",
    "memory_profile",
]
