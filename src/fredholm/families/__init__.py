"""The papers, one a folder, and the layers everybody knows: importing this registers them all.

In every folder ``naive.py`` is the page to open first (the definition in plain einsums), then
``kernel.py`` (the formula), ``operator.py`` (its constructor), fast forms by algorithm, ``triton/``
and ``presets.py``. Families do not import one another.
"""

from . import ckconv, classical, continuous, infsa, itnet, luna, softmax

__all__ = ["ckconv", "classical", "continuous", "infsa", "itnet", "luna", "softmax"]
