"""Domains where a query sees few keys: by edges, or within a reach along a line.

- :mod:`.tiles`: small problems, queries with the keys that each of them sees.
- :mod:`.gather`: the rows of points and edges that a tile needs.
- :mod:`.recompute`: a function of tiles whose backward computes each of them again.
- :mod:`.general`: any kernel, by the form it has for one query and its keys; how a form is chosen.
- :mod:`.attention`, :mod:`.inner_products`: softmax and separable kernels, whose points are
  projected before pairs; :mod:`.join` makes one result of a long row's pieces.
"""

from .general import AllPairs, Neighbourhoods, choose_sparse

__all__ = ["AllPairs", "Neighbourhoods", "choose_sparse"]
