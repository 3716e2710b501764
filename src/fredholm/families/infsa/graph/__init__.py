"""The token graph as an operator that is never stored: one product over tiles, many hops by it.

- :mod:`.token_graph`: :class:`TokenGraph`, the norm and one hop.
- :mod:`.solve`: the truncated series and the resolvent, by hops.
- :mod:`.product`: the product with the edges, which every hop is.
- :mod:`.tiled`, :mod:`.registration`: its tiles on a CPU, forward and backward, as a custom op.
- :mod:`.activations`: φ.
"""

from .activations import ACTIVATIONS, activated
from .product import edge_product
from .solve import Convergence, resolvent, resolvent_naive, solve, sum_of_hops
from .token_graph import NORMS, TokenGraph

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "Convergence",
    "TokenGraph",
    "activated",
    "edge_product",
    "resolvent",
    "resolvent_naive",
    "solve",
    "sum_of_hops",
]
