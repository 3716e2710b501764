"""The integral of an MLP kernel, hidden units first: definition (``naive``) and tiled custom op."""

from .activations import ACTIVATIONS, Activation
from .naive import mlp_kernel_naive
from .tiled import DEFAULT_BYTES, mlp_kernel

__all__ = [
    "ACTIVATIONS",
    "DEFAULT_BYTES",
    "Activation",
    "mlp_kernel",
    "mlp_kernel_naive",
]
