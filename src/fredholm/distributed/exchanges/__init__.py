"""Exchanges of the library's forms: importing this package registers them.

- :mod:`.keys`: keys of other ranks, in a ring or gathered.
- :mod:`.pairs`: forms that evaluate all pairs.
- :mod:`.moments`: linear attention.
- :mod:`.window`: a softmax window in front of linear attention.
- :mod:`.scan`: recurrences with a state of fixed size.
- :mod:`.stencil`: convolutions of direct neighbours.
- :mod:`.monte_carlo`: drawn keys and anchors.
- :mod:`.sum`: sums of operators.
- :mod:`.itnet`, :mod:`.infsa`, :mod:`.grid_convolution`: forms of one family.
"""

from ..form import Distributed, OwnTargets
from . import (
    grid_convolution,
    infsa,
    itnet,
    moments,
    monte_carlo,
    pairs,
    scan,
    stencil,
    sum,
    window,
)

__all__ = [
    "Distributed",
    "OwnTargets",
    "grid_convolution",
    "infsa",
    "itnet",
    "moments",
    "monte_carlo",
    "pairs",
    "scan",
    "stencil",
    "sum",
    "window",
]
