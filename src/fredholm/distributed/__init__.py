"""A domain in shards over processes: which points are whose, and what passes between them.

- :mod:`.shards`: :class:`Shards`, the parts of one domain over a torch process group.
- :mod:`.collectives`: every message between the parts, differentiable and counted.
- :mod:`.halo`: points of other ranks that a rank reads beside its own.
- :mod:`.transposed`: rows of which each rank has a stretch as rows of which each has some whole.
- :mod:`.gradients`: :func:`sum_gradients`, the whole's gradient from the parts'.
- :mod:`.part`: one rank's part of a domain as a problem of its own.
- :mod:`.exchange`: the table of exchanges; :mod:`.exchanges` has those of the library's forms.
- :mod:`.form`: :class:`.form.Distributed`, a form over a sharded domain.
"""

from .collectives import Ring, Traffic, concatenated, count_traffic, gathered, largest, summed
from .exchange import Exchange, register_exchange
from .gradients import sum_gradients
from .halo import fetched, without_holes
from .shards import Shards, shares
from .transposed import to_stretches, to_whole

__all__ = [
    "Exchange",
    "Ring",
    "Shards",
    "Traffic",
    "concatenated",
    "count_traffic",
    "fetched",
    "gathered",
    "largest",
    "register_exchange",
    "shares",
    "sum_gradients",
    "summed",
    "to_stretches",
    "to_whole",
    "without_holes",
]
