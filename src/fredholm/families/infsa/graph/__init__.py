"""The token graph as an operator that is never stored: one product over tiles, many hops by it.

- :mod:`.token_graph`: :class:`TokenGraph`, its norm, some hops on it, and the product with the
  edges, which every hop is.
- :mod:`.solve`: the resolvent, by hops.
- :mod:`.tiled`, :mod:`.registration`: the product's tiles on a CPU, forward and backward, as a
  custom op; φ.
"""

from .solve import Convergence, resolvent, resolvent_naive, solve
from .tiled import ACTIVATIONS, activated
from .token_graph import NORMS, EdgeOptions, TokenGraph, edge_product, sum_of_hops

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "Convergence",
    "EdgeOptions",
    "TokenGraph",
    "activated",
    "edge_product",
    "resolvent",
    "resolvent_naive",
    "solve",
    "sum_of_hops",
]
