"""ITNet: A Learnable Integral Transform That Subsumes Convolution, Attention, and Recurrence.

The text that this was built from names no authors, no year and no address; its equations, tables
and appendices are cited by their numbers.

- ``naive.py``: the operator and its low-rank form in plain einsums, Eqs. 1-4: open it first.
- ``kernel.py``: the kernel, a network of seven groups of positions and features, and its ablations.
- ``low_rank.py``: the kernel as a product of two networks, one of each end.
- ``operator.py``: both operators, thin constructors.
- ``pooled.py``: the low-rank form where all queries see all keys.
- ``hidden_first/``: the exact form, hidden units first: ``tiled.py`` has the forms, on a grid and
  on any points, and their op; then definition, forward, first layer, gradients, registration.
- ``triton/``: the same op on a GPU.
- ``compress.py``: a low-rank operator fitted to a trained exact one.
"""

from .compress import CompressionReport, compress
from .kernel import GROUPS, MLPKernel, ablations
from .low_rank import LowRankKernel
from .naive import itnet_naive, low_rank_naive
from .operator import ITNetOperator, LowRankITNetOperator

__all__ = [
    "GROUPS",
    "CompressionReport",
    "ITNetOperator",
    "LowRankITNetOperator",
    "LowRankKernel",
    "MLPKernel",
    "ablations",
    "compress",
    "itnet_naive",
    "low_rank_naive",
]
