"""Banks of scalar networks, the channels of a learned feature map: definition, piecewise linear
form, chunks.
"""

from .bank import few_scalars, scalar_bank
from .naive import Bank, scalar_bank_naive
from .piecewise import Segments, piecewise_linear, segments

__all__ = [
    "Bank",
    "Segments",
    "few_scalars",
    "piecewise_linear",
    "scalar_bank",
    "scalar_bank_naive",
    "segments",
]
