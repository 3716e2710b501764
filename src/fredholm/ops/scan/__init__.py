"""Linear recurrences h_t = a_t h_{t-1} + b_t and causal convolutions."""

from .fft import causal_convolution
from .naive import causal_convolution_naive, scan_naive
from .padding import Packing, pack, ranks, reorder
from .recurrence import scan
from .transition import krylov, transition_scan

__all__ = [
    "Packing",
    "causal_convolution",
    "causal_convolution_naive",
    "krylov",
    "pack",
    "ranks",
    "reorder",
    "scan",
    "scan_naive",
    "transition_scan",
]
