"""Few points for many: clusters of positions, proposals and draws from them, and an MLP kernel's
integral over drawn keys.
"""

from .clusters import Anchors, distances, nearest_anchor, spread_anchors
from .mixture import Mixture, Table, draw, lattice
from .sampled import sampled_mlp_kernel, take_keys

__all__ = [
    "Anchors",
    "Mixture",
    "Table",
    "distances",
    "draw",
    "lattice",
    "nearest_anchor",
    "sampled_mlp_kernel",
    "spread_anchors",
    "take_keys",
]
