"""The integral of an MLP kernel, hidden units first: definition (``naive``), and the forms with
their custom op (``tiled``), which a forward enters by ``tiled.py``, ``forward.py`` and
``first_layer.py``.
"""

from ....ops.tiles import ACTIVATIONS, Activation
from .naive import hidden_pairs, mlp_kernel_naive
from .tiled import DEFAULT_BYTES, mlp_kernel

__all__ = [
    "ACTIVATIONS",
    "DEFAULT_BYTES",
    "Activation",
    "hidden_pairs",
    "mlp_kernel",
    "mlp_kernel_naive",
]
