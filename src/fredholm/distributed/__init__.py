"""A domain in shards over processes: which points are whose, and what passes between them.

- :mod:`.shards`: :class:`Shards`, the parts of one domain over a torch process group.
- :mod:`.collectives`: every message between the parts, differentiable and counted.
- :mod:`.halo`: points of other ranks that a rank reads beside its own.
- :mod:`.transposed`: rows of which each rank has a stretch as rows of which each has some whole.
- :mod:`.gradients`: :func:`sum_gradients`, the whole's gradient from the parts'.

What is exchanged for an integral belongs to its form, :meth:`fredholm.integral.Form.exchange`.
"""

from .collectives import Ring, Traffic, concatenated, count_traffic, gathered, largest, summed
from .gradients import sum_gradients
from .halo import fetched, fetched_numbers, without_holes
from .shards import Shards, shares
from .transposed import to_stretches, to_whole, transposed_numbers

__all__ = [
    "Ring",
    "Shards",
    "Traffic",
    "concatenated",
    "count_traffic",
    "fetched",
    "fetched_numbers",
    "gathered",
    "largest",
    "shares",
    "sum_gradients",
    "summed",
    "to_stretches",
    "to_whole",
    "transposed_numbers",
    "without_holes",
]
