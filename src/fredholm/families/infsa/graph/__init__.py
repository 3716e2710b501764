"""The token graph: activated inner products as edges, their norm, one hop and many, centres."""

from .centres import (
    Tokens,
    advance_stream,
    centre_weights,
    rows_of_centres,
    shared_centres,
    stream_weights,
    streamed_centres,
)
from .naive import ACTIVATIONS, activated, edge_product_naive
from .product import edge_product
from .solve import Convergence, resolvent, solve, sum_of_hops
from .token_graph import NORMS, TokenGraph

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "Convergence",
    "TokenGraph",
    "Tokens",
    "activated",
    "advance_stream",
    "centre_weights",
    "edge_product",
    "edge_product_naive",
    "resolvent",
    "rows_of_centres",
    "shared_centres",
    "solve",
    "stream_weights",
    "streamed_centres",
    "sum_of_hops",
]
