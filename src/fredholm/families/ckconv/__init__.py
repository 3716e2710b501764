"""CKConv: Continuous Kernel Convolution For Sequential Data.

David W. Romero, Anna Kuzina, Erik J. Bekkers, Jakub M. Tomczak, Mark Hoogendoorn. ICLR 2022. The
authors' code: https://github.com/dwromero/ckconv

- ``naive.py``: the convolution as the double sum of Eqs. 1-4: open it first.
- ``kernel.py``: the kernel, a network of the displacement; ``finite_horizon.py``: one that ends.
- ``position_network.py``: that network: sine layers, and what the paper compares them with.
- ``operator.py``: the operator, a thin constructor.
- ``grid_convolution/``: the fast form on a regular grid, hidden units first, with its op:
  definition, FFT, products of spectra, registration.
- ``triton/``: the products of spectra on a GPU.
"""

from .finite_horizon import FiniteHorizonKernel
from .kernel import ContinuousConvolutionKernel
from .naive import ckconv_naive
from .operator import CKConv
from .position_network import PositionNetwork

__all__ = [
    "CKConv",
    "ContinuousConvolutionKernel",
    "FiniteHorizonKernel",
    "PositionNetwork",
    "ckconv_naive",
]
