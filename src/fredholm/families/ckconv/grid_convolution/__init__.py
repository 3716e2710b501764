"""Convolution on a regular grid with a kernel that is linear in its hidden features.

- ``naive.py``: the double sum over the grid, the definition.
- ``fft.py``: the form that CKConv takes on a grid, and its op: two transforms and the product
  between them.
- ``spectrum.py``: that product, a block of frequencies at a time.
- ``registration.py``: the custom op of the part between the transforms, and its gradients.
- ``limits.py``: which cases the Triton kernels take.
"""

from .fft import grid_convolution
from .naive import grid_convolution_naive

__all__ = ["grid_convolution", "grid_convolution_naive"]
