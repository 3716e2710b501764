"""Infinite Self-Attention (InfSA).

Giorgio Roffo, "Infinite Self-Attention", preprint, February 2026. The author's code:
https://github.com/giorgioroffo/infinite-self-attention

Tokens are the nodes of a graph, activated inner products of queries and keys its edges, divided by
one norm of the whole. Attention is a hop on this graph; the linear form replaces the graph by a
central query. What is where, in the order to read it:

- :mod:`.naive`: the paper's definitions in plain einsums.
- :mod:`.kernel`: queries, keys, values and γ (``TokenGraphKernel``); one hop (``HopKernel``).
- :mod:`.operator`: ``InfSA`` and ``LinearInfSA``.
- :mod:`.hops`: the forms of one hop, and ``Neumann``, several of them.
- :mod:`.resolvent`: ``Resolvent``, all of them, by iteration or by substitution.
- :mod:`.graph`: the token graph and its products, tile by tile.
- :mod:`.centre_kernel`: the linear form's kernels; :mod:`.centres`: their sums.
- :mod:`.triton`: the same products on a GPU.
"""

from .centre_kernel import CentreKernel, StreamingCentreKernel
from .hops import Neumann
from .kernel import HopKernel, TokenGraphKernel
from .operator import InfSA, LinearInfSA
from .resolvent import Resolvent

__all__ = [
    "CentreKernel",
    "HopKernel",
    "InfSA",
    "LinearInfSA",
    "Neumann",
    "Resolvent",
    "StreamingCentreKernel",
    "TokenGraphKernel",
]
