"""Attention as diffusion on a graph of tokens: affinities of inner products, their norm, walks of
many hops, centres.
"""

from .affinity import affinity_product
from .centres import (
    Tokens,
    advance_stream,
    centre_weights,
    rows_of_centres,
    shared_centres,
    stream_weights,
    streamed_centres,
)
from .naive import ACTIVATIONS, affinity, affinity_naive
from .solve import Convergence, diffuse, resolvent, solve
from .token_graph import NORMS, TokenGraph

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "Convergence",
    "TokenGraph",
    "Tokens",
    "advance_stream",
    "affinity",
    "affinity_naive",
    "affinity_product",
    "centre_weights",
    "diffuse",
    "resolvent",
    "rows_of_centres",
    "shared_centres",
    "solve",
    "stream_weights",
    "streamed_centres",
]
