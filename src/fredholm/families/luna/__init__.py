"""LUNA: Linear Universal Neural Attention with Generalization Guarantees.

Ashkan Shahbazi, Ping He, Ali Abbasi, Yikun Bai, Xinran Liu, Elaheh Akbari, Darian Salehi,
Navid NaderiAlizadeh and Soheil Kolouri, "LUNA: Linear Universal Neural Attention with
Generalization Guarantees".

Linear attention whose kernel is learned: features are scalar networks on learned projections. What
is where, in the order to read it:

- :mod:`.naive`: the paper's definitions in plain einsums.
- :mod:`.kernel`: ``LunaKernel``, attention by the inner products of ``LunaMap``, the map with all
  its options; :mod:`.initial`: how it begins.
- :mod:`.operator`: ``LunaAttention``.

Its sums, causal chunks and steps are those of every separable kernel, in
:mod:`fredholm.forms`; the fast forms of the scalar networks are in
:mod:`fredholm.ops.feature_map`.
"""

from .kernel import LunaKernel, LunaMap
from .operator import LunaAttention

__all__ = ["LunaAttention", "LunaKernel", "LunaMap"]
